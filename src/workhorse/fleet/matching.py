"""Which replica goes on as which, which node is meant, where requests come in. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.deployed import DeploymentState
from workhorse.fleet.node_facts import HTTP_PORT_LABEL, Node
from workhorse.fleet.spec import ReplicaSpec
from workhorse.fleet.status import reason_of
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Entry:
    """One node's HTTP port."""

    node: str
    url: str  # such as http://10.0.0.1:8000


def alike(one: ReplicaSpec, other: ReplicaSpec) -> bool:
    """Whether one may go on in the place of the other: only where its weights come from counts not.

    A node that has started again is another node, with another id.
    """
    return _without_urls(one) == _without_urls(other)


def _without_urls(spec: ReplicaSpec) -> ReplicaSpec:
    weights = None if spec.weights is None else replace(spec.weights, urls=())
    beside = tuple(replace(one, urls=()) for one in spec.beside)
    return replace(spec, weights=weights, beside=beside)


def entries_of(
    nodes: Sequence[Node], states: Mapping[str, DeploymentState], http_port: int
) -> tuple[Entry, ...]:
    """The HTTP ports where HAProxy listens: the head's first, those that are being drained last.

    Serve runs it on the head, and on other nodes while they have a running replica.
    """
    busy = {one.node_id for one in states.values() if one.status == "running"}
    living = [one for one in nodes if one.alive and (one.head or one.id in busy)]
    living.sort(key=lambda one: (not one.head, one.draining, one.name))
    return tuple(Entry(one.name, url_of(one, http_port)) for one in living)


def url_of(node: Node, http_port: int) -> str:
    """Where a node's HAProxy listens."""
    port = node.labels.get(HTTP_PORT_LABEL, str(http_port))
    return (
        f"http://[{node.address}]:{port}"
        if ":" in node.address
        else (f"http://{node.address}:{port}")
    )


def why_failed(name: str, state: DeploymentState) -> AppError:
    """Why a replica could not start, as its node said it."""
    if state.cannot_start is not None:
        said = state.cannot_start
        return AppError(said.what, said.next_step, speaker=said.speaker)
    why = reason_of(state) or Text("no reason is known", "原因不明")
    return AppError(
        Text(f"Replica {name} could not start: {why.en}", f"副本 {name} 无法启动：{why.zh}"),
        Text("`workhorse fleet status` shows the nodes.", "用 `workhorse fleet status` 查看节点。"),
    )


def find_node(nodes: Sequence[Node], name: str) -> Node:
    """The living node of a name or address; AppError when there is none."""
    for one in nodes:
        if one.alive and name in (one.name, one.address):
            return one
    known = ", ".join(dict.fromkeys(one.name for one in nodes if one.alive)) or "—"
    raise AppError(
        Text(
            f"No node of this fleet is called {name[:80]!r}.",
            f"集群中没有名为 {name[:80]} 的节点。",
        ),
        Text(f"There are: {known}.", f"现有节点：{known}。"),
        exit_code=EXIT_NO,
    )
