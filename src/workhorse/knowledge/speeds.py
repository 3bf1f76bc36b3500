"""What is known of decode speed before anything was measured here."""

from dataclasses import dataclass
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class DecodeConstants:
    """Constants of the two-term decode model for one kind of device; see speed.toml."""

    device: Literal["cpu", "gpu"]
    bandwidth_share: float
    weights_per_s_per_core: float
    overhead_per_layer_s: float
    overhead_per_vocabulary_entry_s: float
    low: float
    high: float
    source: str
    date: str


def decode_constants(device: Literal["cpu", "gpu"]) -> DecodeConstants:
    """The constants of a kind of device."""
    return next(row for row in rows("speed", "decode", DecodeConstants) if row.device == device)
