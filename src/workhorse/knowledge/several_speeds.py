"""Speeds that owners of several cards published, which the forecast of a split is held to."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class SeveralSpeed:
    """One published decode speed; see the top of `several_speeds.toml`."""

    cards: tuple[str, ...]
    split: Literal["layer", "tensor"]
    link: Literal["nvlink", "pcie"]
    model: str
    quant: str
    tokens_per_s: float
    reads: dict[str, float]
    engine: str
    served: bool
    source: str
    date: str
    shares: tuple[float, ...] = ()
    about: bool = False
    note: str | None = None

    @property
    def parts(self) -> tuple[float, ...]:
        """The share of each card; equal where none is told."""
        return self.shares or (1 / len(self.cards),) * len(self.cards)


@cache
def several_speeds() -> tuple[SeveralSpeed, ...]:
    """Every published figure."""
    return rows("several_speeds", "row", SeveralSpeed)
