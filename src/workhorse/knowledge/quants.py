"""The types a tensor of a GGUF file can have, and the bytes they take."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class Scale:
    """A field of a block that holds a number: where, in which form, times what."""

    at: int
    form: Literal["f16", "bf16", "f32", "f64", "e8m0", "ue4m3", "f16 in nibbles"]
    times: float = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes of a block whose random bits are cut to `keep` and then get those of `set`."""

    at: int
    bytes: int
    keep: int
    set: int = 0


@dataclass(frozen=True, slots=True)
class Quant:
    """One tensor type: `block_elements` neighbours in a row share one block of `block_bytes`.

    The other columns say what makes random bits a valid block; see the top of `quants.toml`.
    """

    id: int
    name: str
    block_elements: int
    block_bytes: int
    scales: tuple[Scale, ...] = ()
    limits: tuple[Limit, ...] = ()
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class RemovedQuant:
    """A type that old files hold and no engine reads any more; `use` is its successor."""

    id: int
    name: str
    use: str


@cache
def quants() -> dict[int, Quant]:
    """Every type the engine reads, by the id a file has for it."""
    return {kind.id: kind for kind in rows("quants", "type", Quant)}


@cache
def removed_quants() -> dict[int, RemovedQuant]:
    """Types that files of 2023 and 2024 may still hold, by id."""
    return {kind.id: kind for kind in rows("quants", "removed", RemovedQuant)}


@cache
def quant(name: str) -> Quant:
    """The type called `name` (lower case, such as `q4_k`); `KeyError` when there is none."""
    return {kind.name: kind for kind in quants().values()}[name]
