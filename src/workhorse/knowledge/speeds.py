"""What is known of speed before anything was measured here."""

from dataclasses import dataclass
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class SpeedConstants:
    """Constants of the speed model for one kind of device; see speed.toml."""

    device: Literal["cpu", "gpu"]
    bandwidth_share: float
    weights_per_s: float
    prefill_flops_per_s: float
    overhead_per_layer_s: float
    overhead_per_vocabulary_entry_s: float
    attention_per_s: float
    overhead_per_token_s: float
    low: float
    high: float
    source: str
    date: str
    capability_from: float = 0.0


def speed_constants(
    device: Literal["cpu", "gpu"], capability: tuple[int, int] | None = None
) -> SpeedConstants:
    """The constants of a kind of device; of an unknown card those of the oldest."""
    reached = float(f"{capability[0]}.{capability[1]}") if capability else 0.0
    fitting = [
        row
        for row in rows("speed", "speed", SpeedConstants)
        if row.device == device and row.capability_from <= reached
    ]
    return max(fitting, key=lambda row: row.capability_from)
