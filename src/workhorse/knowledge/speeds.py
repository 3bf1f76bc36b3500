"""What is known of speed before anything was measured here: of CPUs, of odd architectures."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class SpeedConstants:
    """Constants of the CPU's speed model; see speed.toml."""

    bandwidth_share: float
    weights_per_s: float
    prefill_flops_per_s: float
    prefill_attention_share: float
    overhead_per_layer_s: float
    overhead_per_vocabulary_entry_s: float
    attention_per_s: float
    overhead_per_token_s: float
    low: float
    high: float
    source: str
    source_zh: str
    date: str


def speed_constants() -> SpeedConstants:
    """The constants of a CPU."""
    return rows("speed", "speed", SpeedConstants)[0]


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a layer of an architecture starts on a card beside one kernel for each tensor."""

    architecture: str
    a_layer: float
    source: str
    date: str


@cache
def kernels_beside_tensors(architecture: str) -> float:
    """Kernels of one layer beside one for each tensor; 0 for all but the odd architectures."""
    known = {row.architecture: row.a_layer for row in rows("speed", "kernels", Kernels)}
    return known.get(architecture, 0.0)
