"""Speeds that others published, which the speed model of a card is fitted to."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.gpus import Card, cards
from workhorse.knowledge.rows import rows
from workhorse.knowledge.tables import table


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides its speed; see the top of `published_speeds.toml`."""

    name: str
    layers: int
    tensors: int  # inside the layers
    recurrent_layers: int
    expert_layers: int
    experts: int  # of one layer
    weights: float  # elements that one token multiplies
    source: str
    date: str
    about: bool = False  # a count was inferred


@dataclass(frozen=True, slots=True)
class PublishedSpeed:
    """One published figure with its conditions; see the top of `published_speeds.toml`."""

    card: str
    model: str
    quant: str
    metric: Literal["decode", "prefill"]
    tokens_per_s: float
    reads: dict[str, float]  # bytes that one token reads, by kind of quant
    engine: str
    graphs: bool
    served: bool
    fitted: bool
    source: str
    date: str
    confidence: Literal["measured", "verified-in-source", "documented", "reported", "from memory"]
    cards: int = 1
    depth_tokens: int = 0
    prompt_tokens: int = 512
    micro_batch_tokens: int = 512
    power_limit_w: float | None = None
    note: str | None = None


@cache
def shapes() -> dict[str, Shape]:
    """Every shape of the table, by name."""
    return {shape.name: shape for shape in rows("published_speeds", "model", Shape)}


@cache
def published_speeds() -> tuple[PublishedSpeed, ...]:
    """Every published figure."""
    return rows("published_speeds", "row", PublishedSpeed)


@cache
def card_named(name: str) -> Card:
    """The card of a row; `KeyError` when the table of cards does not have it."""
    return {card.name: card for card in cards()}[name]


def published_version() -> str:
    """Names the state of the table: a correction of old constants says nothing of new ones."""
    return str(table("published_speeds")["version"]["name"])
