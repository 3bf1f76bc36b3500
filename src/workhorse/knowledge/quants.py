"""The types a tensor of a GGUF file can have, and the bytes they take."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class Quant:
    """One tensor type: `block_elements` neighbours in a row share one block of `block_bytes`."""

    id: int
    name: str
    block_elements: int
    block_bytes: int


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
