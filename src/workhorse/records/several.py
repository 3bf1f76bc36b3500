"""Several: one model on several cards or memory nodes, as one engine or as many."""

from dataclasses import dataclass
from typing import Literal

from workhorse.records.plan import Estimate, Plan, Reason, Rejected, SpeedTerm, StreamSpeed
from workhorse.text import Text

# How cards share a model: each of them has all of it (`one`, `replicas`), or whole layers, or a
# part of every matrix, put together on one card (`row`) or on all of them (`tensor`).
Split = Literal["one", "replicas", "layer", "row", "tensor"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to use the cards or nodes that was looked at, and what it promises."""

    split: Split
    within: Literal["one", "layer", "row", "tensor"]  # how one engine shares its own cards
    gpus: tuple[tuple[int, ...], ...]  # the cards of each engine; () in one: main memory
    nodes: tuple[tuple[int, ...] | None, ...]  # the memory nodes of each; None: not bound
    context_tokens: int  # of one slot
    slots: int  # of all engines together
    device_bytes: dict[str, int]  # what each device will hold: GPU 0, RAM …
    users: tuple[StreamSpeed, ...]  # at 1, 4 and 16 of them; () where no speed is known
    prefill_tokens_per_s: Estimate | None  # of one prompt alone
    transfers: tuple[SpeedTerm, ...] = ()  # of one token: what is handed from card to card
    because: Text | None = None  # why it is not taken; None: it is

    @property
    def engines(self) -> int:
        """How many engines it starts."""
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Several:
    """The plans to start together under one name, the ways that were looked at, and why."""

    plans: tuple[Plan, ...]  # one for each engine, the one that is expected to be fastest first
    split: Split
    gpus: tuple[tuple[int, ...], ...]  # the cards of each engine
    ways: tuple[Way, ...]  # the one that is taken first
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]  # ways of which no plan could be made

    @property
    def plan(self) -> Plan:
        """The plan of the first engine: where one is to stand for all."""
        return self.plans[0]
