"""What `fleet init` and `fleet join` share: their options, and a node in the background or not."""

import argparse
import asyncio
import getpass
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workhorse.cli.arguments import port
from workhorse.cli.progress import LateBar
from workhorse.cli.show import print_table
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, AppError
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.fleet.member import Member
    from workhorse.fleet.prepare import Wish

START_WITHIN_S = 900.0  # a machine with slow disks reads Ray's 500 MB for minutes
END_WITHIN_S = 120.0  # Ray ends its processes in order, within a minute and a half
LOOK_EVERY_S = 0.2
STARTING = Text("starting the node", "启动节点")


def add_node_options(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of a node, be it the head or not."""
    words = {
        "address": Text(
            "IP of this machine by which the other nodes reach it (default: of the way there)",
            "其他节点访问本机所用的 IP（默认自动选择）",
        ),
        "name": Text("name of the node (default: the host's)", "节点名（默认为主机名）"),
        "port": Text(
            "first of the nine ports in a row that Ray takes here (default 6379)",
            "Ray 在本机使用的九个连续端口的第一个（默认 6379）",
        ),
        "metrics": Text(
            "port of HAProxy's metrics on this node (default 9101)",
            "本节点 HAProxy 指标端口（默认 9101）",
        ),
        "stats": Text(
            "port of HAProxy's statistics on this node (default 8404)",
            "本节点 HAProxy 统计端口（默认 8404）",
        ),
        "foreground": Text(
            "stay in the foreground and keep the node until this is ended (for systemd)",
            "留在前台运行，直到被结束（供 systemd 使用）",
        ),
        "unit": Text(
            "print a systemd unit for it and start nothing", "只打印 systemd 单元，不启动"
        ),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("--address", metavar="IP", help=said["address"])
    parser.add_argument("--name", metavar="NAME", help=said["name"])
    parser.add_argument("--port", type=port, default=None, metavar="N", help=said["port"])
    parser.add_argument("--metrics-port", type=port, metavar="N", help=said["metrics"])
    parser.add_argument("--stats-port", type=port, metavar="N", help=said["stats"])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--foreground", action="store_true", help=said["foreground"])
    how.add_argument("--unit", action="store_true", help=said["unit"])


def run_node(args: argparse.Namespace, wish: "Wish") -> int:
    """Print the unit, keep the node here, or leave one running in the background."""
    if args.unit:
        return print_unit(args, wish)
    if args.foreground:
        return asyncio.run(keep(args, wish))
    member = in_background(args)
    tell(member, args)
    return EXIT_GOOD


async def keep(args: argparse.Namespace, wish: "Wish") -> int:
    """Keep the node until Ctrl-C or SIGTERM."""
    from workhorse.cli.until_stopped import until_stopped
    from workhorse.fleet.keeper import Keeper, clear_dead_node, place_held
    from workhorse.fleet.prepare import prepared
    from workhorse.run.notify import Notify

    where, notify = places(), Notify()

    def told(words: Text) -> None:
        notify.status(words.en)
        print(words.in_language(args.lang), file=sys.stderr, flush=True)

    def ready(member: "Member") -> None:
        notify.ready(f"node {member.name} of the fleet at {member.address}")
        tell(member, args)
        sys.stdout.flush()

    with place_held(where):
        clear_dead_node(where)
        start = prepared(wish, where)
        await until_stopped(Keeper(start, where, told=told).run(ready))
        notify.stopping()
    return EXIT_GOOD


def in_background(args: argparse.Namespace) -> "Member":
    """Start this same command in the foreground of a session of its own; its node once it runs.

    What it says before that is an error's words: they are passed on, and its exit code.
    """
    from workhorse.fleet.keeper import log_path
    from workhorse.fleet.member import read_member

    where = places()
    log = log_path(where)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "workhorse", *node_words(args), "--foreground"]
    with tempfile.TemporaryFile() as said, log.open("ab") as out:
        child = subprocess.Popen(
            [*command, "--lang", args.lang],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
            start_new_session=True,
        )
        late = False
        try:
            with LateBar(STARTING, args.lang) as bar:
                began_s = time.monotonic()
                while child.poll() is None:
                    member = read_member(where)
                    if member is not None and member.keeper.pid == child.pid and member.lives():
                        return member
                    waited_s = time.monotonic() - began_s
                    if waited_s > START_WITHIN_S:
                        late = True
                        break
                    bar.step(round(waited_s), None)
                    time.sleep(LOOK_EVERY_S)
        except BaseException:  # Ctrl-C: the child is in a session of its own and does not get it
            end(child)
            raise
        if late:
            end(child)
            raise not_in_time(log)
        said.seek(0)
        sys.stderr.write(said.read().decode(errors="replace"))
    raise SystemExit(child.returncode or EXIT_FAILED)


def end(child: "subprocess.Popen[bytes]") -> None:
    """End a node that is being started; what does not end in order is killed."""
    child.terminate()
    try:
        child.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def not_in_time(log: Path) -> AppError:
    """The error for a node that neither runs nor says why."""
    return AppError(
        Text(
            f"The node did not start within {START_WITHIN_S:.0f} s and was ended.",
            f"节点在 {START_WITHIN_S:.0f} 秒内没有启动，已将其结束。",
        ),
        Text(f"{log} has Ray's own words.", f"详情见 {log}。"),
    )


def node_words(args: argparse.Namespace) -> list[str]:
    """The words of the command line that make the same node; files by their whole path."""
    words = ["fleet", args.fleet]
    if args.fleet == "join":
        words.append(args.head)
    options: dict[str, Any] = {
        "--address": args.address,
        "--name": args.name,
        "--port": args.port,
        "--metrics-port": args.metrics_port,
        "--stats-port": args.stats_port,
        "--http-port": getattr(args, "http_port", None),
        "--token-file": args.token_file and args.token_file.absolute(),
    }
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    return words


def print_unit(args: argparse.Namespace, wish: "Wish") -> int:
    """The unit, with where it goes and how it is started."""
    from workhorse.fleet.prepare import token_of
    from workhorse.fleet.unit import UNIT_NAME, NodeUnit, node_unit

    token_of(wish, places())
    facts = NodeUnit(
        command=(sys.executable, "-m", "workhorse", *node_words(args), "--foreground"),
        data_folder=str(places().data.absolute()),
        user=getpass.getuser(),
        cards=Path("/proc/driver/nvidia").exists(),
    )
    path = f"/etc/systemd/system/{UNIT_NAME}.service"
    commands = ("systemctl daemon-reload", f"systemctl enable --now {UNIT_NAME}")
    if args.json:
        print(to_json({"path": path, "unit": node_unit(facts), "commands": commands}))
    else:
        print(f"# {path}\n{node_unit(facts)}")
        print("\n".join(f"# {command}" for command in commands))
    return EXIT_GOOD


def tell(member: "Member", args: argparse.Namespace) -> None:
    """The node that runs, what to do next, and which ports have to be open."""
    from workhorse.fleet.addresses import network_of
    from workhorse.fleet.ray_start import firewall_commands

    network = network_of(member.node_address) or "NETWORK"
    firewall = firewall_commands(member.ports, network, head=member.head)
    if args.json:
        print(to_json({"node": member, "firewall": firewall}))
        return
    if member.head:
        shown = member.address.removesuffix(":6379")
        said = Text(
            f"{member.name} is the head of a fleet: {member.address}\n"
            f"The token, for whoever joins: {member.token_file}\n"
            "Copy it to the other machines (scp), and type there:\n"
            f"  workhorse fleet join {shown} --token-file FILE",
            f"{member.name} 已成为集群的主节点：{member.address}\n"
            f"加入集群所需的令牌：{member.token_file}\n"
            "把它复制到其他机器（scp），然后在那里执行：\n"
            f"  workhorse fleet join {shown} --token-file 文件",
        )
    else:
        said = Text(
            f"{member.name} ({member.node_address}) is a node of the fleet at {member.address}.",
            f"{member.name}（{member.node_address}）已加入集群 {member.address}。",
        )
    print(said.in_language(args.lang))
    print_ports(member, firewall, args.lang)


def print_ports(member: "Member", firewall: Sequence[str], language: Language) -> None:
    """The ports as a table, and what lets the nodes' network in and nobody else."""
    from workhorse.fleet.ray_start import open_ports

    rows = [
        (
            str(one.first) if one.first == one.last else f"{one.first}-{one.last}",
            one.what,
        )
        for one in open_ports(member.ports)
        if member.head or not one.head_only
    ]
    title = Text(
        "Ports that the nodes have to reach on this machine (TCP)",
        "其他节点需要访问的本机端口（TCP）",
    )
    print_table(title, (Text("port", "端口"), Text("for", "用途")), rows, language)
    hint = Text(
        "Nobody else should reach them. With nftables, for example:",
        "除集群节点外，其他机器不应能访问这些端口。以 nftables 为例：",
    )
    print(hint.in_language(language))
    print("\n".join(f"  {command}" for command in firewall))
