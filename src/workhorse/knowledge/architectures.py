"""What the layers of an architecture keep where the file's metadata does not say it."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows
from workhorse.knowledge.tables import table

State = Literal["ssm", "wkv", "shortconv", "kda", "lightning"]
RecurrentLayers = Literal["every", "period", "no-kv-heads", "no-kv-heads-no-ffn"]
IndexedLayers = Literal["every", "listed", "past-dense", "compressed"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture differs from K and V of the whole context in every layer.

    The columns are explained at the top of `architectures.toml`.
    """

    name: str
    keeps_kv: bool = True
    embeds: bool = False
    window_period: int | None = None
    dense_first: bool = False
    window_default_tokens: int | None = None
    window_fixed_tokens: int | None = None
    window_ignored: bool = False
    window_if_layers: int | None = None
    kv_layers: int | None = None
    state: State | None = None
    recurrent: RecurrentLayers | None = None
    attention_period: int | None = None
    attention_too: bool = False
    index: IndexedLayers | None = None
    index_unlisted: bool = False
    index_values: bool = False
    index_score_bytes: int = 0
    index_head_score_bytes: int = 0
    router_layer: bool = False
    rolls_back: bool = False


@cache
def _architectures() -> dict[str, Architecture]:
    common = {name: Architecture(name) for name in table("architectures")["common"]}
    return common | {row.name: row for row in rows("architectures", "architecture", Architecture)}


def architecture(name: str) -> Architecture:
    """The facts about `name`; the common case when nothing else is known of it."""
    return _architectures().get(name, Architecture(name))


def known_architecture(name: str) -> bool:
    """True when the engine whose source the table was read from has this architecture."""
    return name in _architectures()
