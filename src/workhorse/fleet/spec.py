"""What one replica of the fleet is told, and what it says of itself. Pure.

Both travel between machines as JSON (`codec`): the spec as the configuration of a deployment, the
facts as the answer to `GET /r/<name>/workhorse/replica`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from workhorse import __version__
from workhorse.records import Plan

FACTS_PATH = "/workhorse/replica"
# On every answer of a replica, with its `boot`: one without it is HAProxy's or Ray's own, such as
# a 404 for a replica that is gone, or a 500 for one that ended before it answered.
REPLICA_HEADER = "X-Workhorse-Replica"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

# A disk or a network may be slow: 70 GB at 100 MB/s are twelve minutes.
READY_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """A weights file that a node may lack, and who in the fleet has it."""

    file_name: str
    sha256: str  # in hexadecimal
    n_bytes: int
    urls: tuple[str, ...]  # tried in this order


@dataclass(frozen=True, slots=True)
class Helping:
    """A node that lends devices to a replica on another one."""

    node_id: str
    name: str
    cards: tuple[int, ...]  # its indexes of them; (): its main memory
    threads: int
    needs: Mapping[str, float]  # what the helper claims there


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica: one engine by one plan, on the devices of one node that it claims.

    `name` is a part of its route and is made of a-z, 0-9 and `-`.
    """

    name: str
    model_name: str  # under which clients ask for it
    plan: Plan
    weights: WeightsSource | None  # None: the path in the plan is there on the node
    needs: Mapping[str, float]  # the node's resources that it claims: {"gpu_0": 1}
    kind: str  # of the node, as its label `workhorse.kind` says
    node_id: str | None = None  # None: any node of this kind
    ready_timeout_s: float = READY_TIMEOUT_S  # of the engine, once its weights are there
    skip_golden: bool = False
    version: str = __version__  # of workhorse, equal on both sides
    # What lies beside `weights`: other parts of a split model, a checkpoint, a projector.
    beside: tuple[WeightsSource, ...] = ()
    helpers: tuple[Helping, ...] = ()  # (): the replica is on one machine

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name!r} cannot be a part of a route")

    @property
    def route(self) -> str:
        """Where each node's HTTP port serves it."""
        return route_of(self.name)


def route_of(name: str) -> str:
    """The path before all paths of this replica."""
    return f"/r/{name}"


ReplicaState = Literal["starting", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What a replica says of itself; speeds in tokens a second, None where not known."""

    name: str
    model_name: str
    state: ReplicaState
    node: str  # its name
    engine_pid: int | None  # None: it is ending
    slots: int
    context_tokens: int  # of one slot
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None  # of one stream alone
    total_tokens_per_s: float | None  # of all slots together
    measured: bool  # False: the speeds are the plan's forecast
    images: bool | None  # it takes images; None: not known before it is asked
    since_unix_s: float  # when its engine became ready
    boot: str  # another word after each start
    version: str = __version__
