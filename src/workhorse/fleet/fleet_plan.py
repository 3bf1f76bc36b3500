"""What each node of a fleet could do, and what the fleet will do: the records of its plan. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workhorse.fleet.replica_speeds import planned_speeds
from workhorse.fleet.spec import ReplicaSpec
from workhorse.plan.compare import Fit
from workhorse.records import Plan, Reason, Rejected
from workhorse.text import Text

# People read 238 words a minute (Brysbaert, J. Mem. Lang. 109, 2019); with 1.33 tokens a word
# (OpenAI's rule of thumb, 2026-11) that is 5.3 tokens a second.
READING_TOKENS_PER_S = 5.3


@dataclass(frozen=True, slots=True)
class Place:
    """Where one engine runs: a set of cards, or memory nodes."""

    gpus: tuple[int, ...]  # indexes of its cards; (): main memory
    memory_nodes: tuple[int, ...] | None  # None: not bound

    @property
    def name(self) -> str:
        """A short name, fit for a route: gpu0, gpu0-1, numa1, cpu."""
        if self.gpus:
            return "gpu" + "-".join(map(str, self.gpus))
        nodes = self.memory_nodes or ()
        return "numa" + "-".join(map(str, nodes)) if nodes else "cpu"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine that a node could start, and what it would claim there."""

    place: Place
    plan: Plan
    needs: Mapping[str, float]  # resources of the node: {"gpu_0": 1}

    @property
    def stream_tokens_per_s(self) -> float | None:
        """Decode speed of one stream while all its slots are at work."""
        return stream_speed(self.plan)

    @property
    def total_tokens_per_s(self) -> float | None:
        """Decode of all its slots together."""
        return total_of(self.plan)


@dataclass(frozen=True, slots=True)
class Option:
    """All engines of one node for one weights file: they start together."""

    file: int  # its place among the files that were asked about
    name: str
    quantisation: str  # Q4_K_M
    bits_a_weight: float
    weight_bytes: int
    fit: Fit  # of the engine that fits worst
    engines: tuple[Candidate, ...]

    @property
    def slots(self) -> int:
        """Requests at a time, of all engines together."""
        return sum(one.plan.slots for one in self.engines)

    @property
    def stream_tokens_per_s(self) -> float | None:
        """Decode speed of one stream of the slowest engine while all its slots are at work."""
        known = [speed for one in self.engines if (speed := one.stream_tokens_per_s) is not None]
        return min(known) if known and len(known) == len(self.engines) else None

    @property
    def total_tokens_per_s(self) -> float | None:
        """Decode of all slots of all engines together."""
        return sum_known(one.total_tokens_per_s for one in self.engines)


@dataclass(frozen=True, slots=True)
class NodePlans:
    """What a node can do: an option for each file of which plans could be made."""

    options: tuple[Option, ...]
    refused: tuple[Text, ...] = ()  # why no plan could be made of a file


@dataclass(frozen=True, slots=True)
class KindPlan:
    """What all boxes of one kind do."""

    kind: str
    nodes: tuple[str, ...]  # their names
    option: Option  # of the first of them
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]  # the other files, and why


@dataclass(frozen=True, slots=True)
class NotUsed:
    """A node that gets no replica, and what would change that."""

    node: str
    kind: str
    why: Text
    remedy: Text


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """One model on all nodes of a fleet."""

    model_name: str
    kinds: tuple[KindPlan, ...]  # the one with the most tokens a second first
    replicas: tuple[ReplicaSpec, ...]  # in the order in which they should start
    not_used: tuple[NotUsed, ...]
    spare: tuple[ReplicaSpec, ...] = ()  # beyond the number that was asked for

    @property
    def slots(self) -> int:
        """Requests at a time."""
        return sum(one.plan.slots for one in self.replicas)

    @property
    def total_tokens_per_s(self) -> float | None:
        """Decode of all slots together; None where a plan does not know its speed."""
        return sum_known(total_of(one.plan) for one in self.replicas)


def stream_speed(plan: Plan) -> float | None:
    """Decode speed of one stream while all slots of an engine are at work, as forecast."""
    speeds = planned_speeds(plan)
    return None if speeds is None else 1 / speeds.step_s[-1]


def total_of(plan: Plan) -> float | None:
    """Decode of all slots of an engine together, as its plan forecasts it."""
    speeds = planned_speeds(plan)
    return None if speeds is None else speeds.slots / speeds.step_s[-1]


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum; None when one of them is not known, or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None
