"""What reads the weights: a card or the CPU, with the figures that decide its speed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Literal

from workhorse.knowledge.gpus import Capability, Card, card_of, cards, generation_of
from workhorse.records import Bandwidth, Basis, Gpu
from workhorse.text import Text

# A card whose capability is not known counts as one of these: old, and found most often.
UNKNOWN_CAPABILITY = (7, 0)

# llama.cpp runs CUDA graphs from this capability on (pull request 25749, July 2026).
GRAPHS_FROM = (7, 0)

# From 8.6 on half of the FP32 lanes take no integers (NVIDIA's whitepapers of GA102, AD102 and
# GH100); before, each lane pair does one of each. Shares of the rated FP32 operations a second.
INTEGER_SHARE, INTEGER_SHARE_FROM_8_6 = 0.5, 0.25

# Of the link's rated speed what one copy reaches (measured on two hosts, 2026-11: 80 to 87 %).
PCIE_SHARE = 0.8
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.56e9}


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads the weights: a kind of device, its memory and how many cores compute."""

    device: Literal["cpu", "gpu"]
    bandwidth_bytes_per_s: float | None
    bandwidth_source: Text
    bandwidth_basis: Basis
    cores: int  # 1 for a card: its rate is of the whole
    capability: tuple[int, int] | None = None
    integers_per_s: float | None = None  # of a card; None: what its generation has by bandwidth
    matrix_flops_per_s: float | None = None  # of a card's tensor cores, or of its FP16 or FP32
    link_bytes_per_s: float | None = None  # between the card and main memory


def card_reader(gpu: Gpu) -> Reader:
    """The reader that a card is: rated bandwidth of its memory clock, rates of its table row."""
    words = Text(f"{gpu.name}: bus width × memory clock", f"{gpu.name}：位宽 × 显存频率")
    card = card_of(gpu)
    bandwidth = gpu.rated_bandwidth_bytes_per_s
    if bandwidth is None and card is not None and card.bandwidth_gb_per_s is not None:
        bandwidth = card.bandwidth_gb_per_s * 1e9
        words = Text(f"{gpu.name}: maker's figure", f"{gpu.name}：厂商标称")
    capability = gpu.compute_capability or (card.capability if card else None)
    return Reader(
        "gpu",
        bandwidth,
        words,
        "datasheet",
        1,
        capability,
        None if card is None else integer_rate(card),
        None if card is None else matrix_rate(card),
        link_rate(gpu),
    )


def link_rate(gpu: Gpu) -> float | None:
    """Bytes a second over the card's PCIe link: measured, else of its width and generation."""
    measured = [c.bytes_per_s for c in gpu.copies if c.kind == "to device"]
    if measured:
        return max(measured)
    generation = gpu.pcie_generation_loaded or gpu.pcie_generation_max
    width = gpu.pcie_width_loaded or gpu.pcie_width_max
    lane = PCIE_LANE_BYTES_PER_S.get(generation or 0)
    return None if lane is None or width is None else lane * width * PCIE_SHARE


def integer_rate(card: Card) -> float:
    """Integer operations a second of a card, by its rated FP32."""
    share = INTEGER_SHARE_FROM_8_6 if card.capability >= (8, 6) else INTEGER_SHARE
    return card.fp32_tflops * 1e12 * share


def matrix_rate(card: Card) -> float:
    """Operations a second that matrices can reach: tensor cores, else FP16 where it is fast."""
    if card.tensor_tflops is not None:
        return card.tensor_tflops * 1e12
    return max(card.fp32_tflops, card.fp16_tflops or 0.0) * 1e12


@cache
def integers_a_byte(capability: Capability) -> float:
    """Integer operations for each byte that cards of this generation read, the usual one."""
    return _rate_a_byte(integer_rate, capability) or 8.0  # a V100's


@cache
def matrix_flops_a_byte(capability: Capability) -> float:
    """The same of matrix operations."""
    return _rate_a_byte(matrix_rate, capability) or 20.0


def _rate_a_byte(rate: Callable[[Card], float], capability: Capability) -> float | None:
    """A rate over the bandwidth, as it is usual among cards of this generation."""
    generation = generation_of(capability)
    kin = [
        rate(card) / (card.bandwidth_gb_per_s * 1e9)
        for card in cards()
        if card.bandwidth_gb_per_s and generation_of(card.capability) == generation
    ]
    return median(kin) if kin else None


def best_bandwidth(
    bandwidths: Sequence[Bandwidth],
    pages: Literal["small", "huge"],
    nodes: tuple[int, ...] | None,
) -> Bandwidth | None:
    """The measured bandwidth of the pages and the nodes in use; `None` when not measured.

    Of several nodes it is that of memory interleaved over just these, else the best of one of
    them. What was read across the link between two nodes counts for neither.
    """
    of_pages = [b for b in bandwidths if b.pages == pages]
    if nodes is not None and len(nodes) > 1:
        spread = [b for b in of_pages if b.memory_nodes == nodes]
        if spread:
            return max(spread, key=lambda b: b.bytes_per_s)
    own = [b for b in of_pages if b.memory_nodes is None]
    fitting = [b for b in own if b.node is None or (nodes and b.node in nodes)]
    return max(fitting, key=lambda b: (b.node is not None, b.bytes_per_s), default=None)
