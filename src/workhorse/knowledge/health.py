"""From which figures on a machine is not well."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class Threshold:
    """One limit, and why it is there; the unit is in its name."""

    name: str
    value: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What one PCIe lane of a generation carries in one direction."""

    generation: int
    bytes_per_s: float
    source: str
    date: str


ThrottleMeaning = Literal["harmless", "doubtful", "fault"]


@dataclass(frozen=True, slots=True)
class Throttle:
    """What a throttle reason means on a busy card and on an idle one; `code` names the finding."""

    reason: str
    busy: ThrottleMeaning
    idle: ThrottleMeaning
    source: str
    date: str
    code: str | None = None
    share_lost: float | None = None


@cache
def _thresholds() -> dict[str, float]:
    return {row.name: row.value for row in rows("health", "threshold", Threshold)}


def threshold(name: str) -> float:
    """The limit of that name. KeyError: there is none, a fault of ours."""
    return _thresholds()[name]


@cache
def throttles() -> dict[str, Throttle]:
    """Every throttle reason that is known, by nvidia-smi's words."""
    return {row.reason: row for row in rows("health", "throttle", Throttle)}


@cache
def _lanes() -> dict[int, float]:
    return {row.generation: row.bytes_per_s for row in rows("health", "lane", Lane)}


def link_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """What a PCIe link can carry in one direction; None when the link is not known."""
    lane = None if generation is None else _lanes().get(generation)
    return None if lane is None or width is None else lane * width
