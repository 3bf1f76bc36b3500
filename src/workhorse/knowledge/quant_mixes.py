"""Which types llama.cpp mixes into a file of a given quantisation."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows

Part = Literal[
    "head", "embedding", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_down", "other"
]
When = Literal[
    "always",
    "gqa4",
    "experts8",
    "experts_not8",
    "experts8_more_bits",
    "more_bits",
    "eighth",
    "sixteenth",
    "first2",
    "first4",
]


@dataclass(frozen=True, slots=True)
class QuantMix:
    """One kind of file, such as Q4_K_M; the columns are explained in `quant_mixes.toml`."""

    name: str
    base: str
    file_type: int
    bits: float | None = None
    quality_lost: float | None = None


@dataclass(frozen=True, slots=True)
class MixRule:
    """The type that some tensors of some files get instead of the base type."""

    part: Part
    files: tuple[str, ...]
    type: str
    when: When = "always"
    weighted: bool | None = None  # only with, or only without, an importance matrix


@dataclass(frozen=True, slots=True)
class Fallback:
    """The type that takes the place of one whose blocks do not fit the row."""

    of: str
    type: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Parts of the names of tensors that are never quantised."""

    parts: tuple[str, ...]


@cache
def quant_mixes() -> dict[str, QuantMix]:
    """Every kind of file by its name in capitals, best first."""
    return {mix.name: mix for mix in rows("quant_mixes", "file", QuantMix)}


@cache
def mix_rules() -> tuple[MixRule, ...]:
    """The exceptions, in the order in which they count."""
    return rows("quant_mixes", "rule", MixRule)


@cache
def fallbacks() -> dict[str, str]:
    """The type instead of one of 256 elements a block."""
    return {row.of: row.type for row in rows("quant_mixes", "fallback", Fallback)}


@cache
def kept_names() -> tuple[str, ...]:
    """Parts of the names of tensors that are never quantised."""
    return rows("quant_mixes", "kept", Kept)[0].parts
