"""How a fleet is, in one document: its nodes, its replicas, who waits. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.fleet.deployed import DeploymentState
from workhorse.fleet.node_facts import Node
from workhorse.fleet.spec import ReplicaSpec
from workhorse.serve.backend import READY, capacity_of
from workhorse.text import Text
from workhorse.units import UNKNOWN


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine of the fleet."""

    name: str
    address: str
    kind: str
    head: bool
    alive: bool
    draining: bool
    entry: bool = False  # requests come in by its HTTP port now


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica; speeds in tokens a second, None: not known."""

    name: str
    node: str | None  # None: nowhere yet
    model_name: str
    state: str
    reason: Text | None  # why it is not ready
    restarts: int | None
    generating: int | None  # requests in its slots; None: no gateway looks
    slots: int
    context_tokens: int
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    total_tokens_per_s: float | None
    measured: bool  # False: the speeds are a forecast
    kind: str  # of the node
    file: str  # its weights
    device: str | None = None


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """The fleet at one moment. `url` None: no `fleet up` runs on this machine."""

    url: str | None
    nodes: tuple[NodeStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    waiting: int | None = None
    in_flight: int | None = None
    least: int | None = None  # replicas; of autoscaling
    most: int | None = None

    @property
    def exit_code(self) -> int:
        """0: every node and every replica is as it should be; 3: one is not."""
        well = all(one.alive or one.draining for one in self.nodes) and all(
            one.state in (READY, "draining") for one in self.replicas
        )
        return EXIT_GOOD if well else EXIT_NO


def node_statuses(nodes: Sequence[Node], entry: str | None = None) -> tuple[NodeStatus, ...]:
    """Each machine once: one that came back has several starts in Ray's book."""
    latest: dict[str, Node] = {}
    for node in nodes:
        if node.alive or node.name not in latest:
            latest[node.name] = node
    return tuple(
        NodeStatus(
            one.name,
            one.address,
            one.kind,
            one.head,
            one.alive,
            one.draining,
            one.name == entry,
        )
        for one in latest.values()
    )


def replica_statuses(
    specs: Mapping[str, ReplicaSpec],
    states: Mapping[str, DeploymentState],
    nodes: Sequence[Node],
) -> tuple[ReplicaStatus, ...]:
    """The replicas as Serve knows them, when no gateway asks them."""
    names = {one.id: one.name for one in nodes}
    found: list[ReplicaStatus] = []
    for name, spec in sorted(specs.items()):
        state, capacity = states.get(name), capacity_of(spec.plan)
        where = None if state is None else state.node_id or spec.node_id
        status = "placing" if state is None else state.status
        found.append(
            ReplicaStatus(
                name,
                None if where is None else names.get(where, UNKNOWN),
                spec.model_name,
                READY if status == "running" else status,
                None if state is None else reason_of(state),
                None,
                None,
                capacity.slots,
                capacity.context_tokens,
                capacity.prefill_tokens_per_s,
                capacity.decode_tokens_per_s,
                capacity.total_tokens_per_s,
                measured=False,
                kind=spec.kind,
                file=file_of(spec),
                device=spec.plan.device,
            )
        )
    return tuple(found)


def file_of(spec: ReplicaSpec) -> str:
    """The name of its weights file, or of a checkpoint's folder."""
    return spec.plan.model_path.rstrip("/").rpartition("/")[2]


def reason_of(state: DeploymentState) -> Text | None:
    """Why Serve has it not running, in our words where the replica said them."""
    if state.cannot_start is not None:
        return state.cannot_start.what
    if state.status == "placing":
        return (
            Text("no node has free yet what it needs", "所需资源尚未在任何节点上空出")
            if state.message
            else None
        )
    lines = [line.strip() for line in state.message.splitlines() if line.strip()]
    if state.status not in ("failed", "away") or not lines:
        return None
    return Text(lines[-1][:300], lines[-1][:300])
