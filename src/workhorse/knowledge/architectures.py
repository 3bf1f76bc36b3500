"""What an architecture keeps in its KV cache where the file's metadata does not say it."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.rows import rows


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
    attention_period: int | None = None
    kv_layers: int | None = None


@cache
def _architectures() -> dict[str, Architecture]:
    return {row.name: row for row in rows("architectures", "architecture", Architecture)}


def architecture(name: str) -> Architecture:
    """The facts about `name`; the common case when nothing else is known of it."""
    return _architectures().get(name, Architecture(name))
