"""`workhorse fleet status`: nodes, replicas, their speeds and the line; also as an exit code."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workhorse.cli.show import print_table
from workhorse.codec import to_json
from workhorse.config import Places, places
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_rate

if TYPE_CHECKING:
    from workhorse.fleet.status import FleetStatus, NodeStatus, ReplicaStatus

STATES = {
    "ready": Text("ready", "就绪"),
    "placing": Text("waits for a place", "等待分配位置"),
    "starting": Text("starting", "启动中"),
    "draining": Text("draining", "排空中"),
    "silent": Text("does not answer", "无应答"),
    "away": Text("is being started again", "正在重新启动"),
    "failed": Text("could not start", "无法启动"),
    "ending": Text("ending", "正在结束"),
}
NODES = (
    Text("node", "节点"),
    Text("address", "地址"),
    Text("kind", "类型"),
    Text("state", "状态"),
    Text("replicas", "副本"),
)
REPLICAS = (
    Text("replica", "副本"),
    Text("node", "节点"),
    Text("state", "状态"),
    Text("restarts", "重启次数"),
    Text("running", "进行中"),
    Text("decode", "解码"),
    Text("prefill", "预填充"),
    Text("in all", "总吞吐"),
)


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """None of its own."""


def run(args: argparse.Namespace) -> int:
    """Show them; 0: all is well, 3: something is not as it should be."""
    status = look(places())
    if args.json:
        print(to_json(status))
    else:
        show(status, args.lang)
    return status.exit_code


def look(where: Places) -> "FleetStatus":
    """What the running `fleet up` says; without one, what the fleet itself knows. Blocks."""
    from workhorse.fleet.outside import fleet_of, running_fleet

    file = running_fleet(where)
    if file is not None and (found := fleet_of(file)) is not None:
        return found
    from workhorse.fleet.connect import connect
    from workhorse.fleet.member import this_member
    from workhorse.fleet.status import FleetStatus, node_statuses, replica_statuses

    cluster = connect(this_member(where))
    from workhorse.fleet.on_ray.deploy import Deployments

    try:
        deployed, nodes = Deployments(cluster), cluster.nodes()
        replicas = replica_statuses(deployed.specs(), deployed.states(), nodes)
    finally:
        cluster.close()
    return FleetStatus(None, node_statuses(nodes), replicas)


def show(status: "FleetStatus", language: Language) -> None:
    """The nodes, the replicas, the line."""
    print_table(
        Text("Nodes", "节点"),
        NODES,
        [node_row(one, status, language) for one in status.nodes],
        language,
    )
    if status.replicas:
        title = Text("Replicas", "副本") if status.url is None else same_url(status.url)
        rows = [replica_row(one, language) for one in status.replicas]
        print_table(title, REPLICAS, rows, language)
    for one in status.replicas:
        if one.reason is not None:
            print(f"{one.name}: {one.reason.in_language(language)}")
    print(line_of(status).in_language(language))


def same_url(url: str) -> Text:
    """The title of the replicas that a running service has."""
    return Text(f"Replicas of {url}/v1", f"{url}/v1 的副本")


def line_of(status: "FleetStatus") -> Text:
    """Who waits, and how many replicas there may be."""
    if status.url is None:
        return Text(
            "No `workhorse fleet up` runs on this machine: nobody asks the replicas.",
            "本机没有运行 `workhorse fleet up`：副本当前无人调用。",
        )
    scale_en = scale_zh = ""
    if status.least != status.most:
        scale_en = f"; {status.least} to {status.most} replicas, by the line"
        scale_zh = f"；副本数按排队自动在 {status.least} 到 {status.most} 之间增减"
    running = sum(one.generating or 0 for one in status.replicas)
    return Text(
        f"{running} requests running, {status.waiting} waiting{scale_en}",
        f"{running} 个请求进行中，{status.waiting} 个排队{scale_zh}",
    )


def node_row(node: "NodeStatus", status: "FleetStatus", language: Language) -> Sequence[str]:
    """One machine."""
    if not node.alive:
        state = Text("gone", "已离线")
    elif node.draining:
        state = Text("drained: takes no replica", "排空：不接收副本")
    else:
        state = Text("up", "在线")
    words = [state.in_language(language)]
    if node.head:
        words.append(Text("head", "主节点").in_language(language))
    if node.entry and not node.head:
        words.append(Text("requests come in here", "请求由此进入").in_language(language))
    mine = [one.name for one in status.replicas if one.node == node.name]
    return (node.name, node.address, node.kind, ", ".join(words), ", ".join(mine) or UNKNOWN)


def replica_row(replica: "ReplicaStatus", language: Language) -> Sequence[str]:
    """One replica; a forecast that was not measured yet is marked."""
    state = STATES.get(replica.state)
    about = "" if replica.measured else "~"

    def rate(value: float | None) -> str:
        return show_rate(value) if value is None else about + show_rate(value)

    running = UNKNOWN if replica.generating is None else str(replica.generating)
    return (
        replica.name,
        replica.node or UNKNOWN,
        replica.state if state is None else state.in_language(language),
        UNKNOWN if replica.restarts is None else str(replica.restarts),
        f"{running} / {replica.slots}",
        rate(replica.decode_tokens_per_s),
        rate(replica.prefill_tokens_per_s),
        rate(replica.total_tokens_per_s),
    )
