"""What is known of a CPU's speed before anything was measured here."""

from dataclasses import dataclass

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class SpeedConstants:
    """Constants of the CPU's speed model; see speed.toml."""

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


def speed_constants() -> SpeedConstants:
    """The constants of a CPU."""
    return rows("speed", "speed", SpeedConstants)[0]
