"""What cards hand to each other when they share a model, and how long it takes. Pure.

Layers on several cards hand on one row of activations a token, at each border. By tensors every
card computes a part of each layer, and all add up their parts twice a layer: after the attention
and after the feed-forward. By rows every matrix is put together on one card.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Literal

from workhorse.knowledge.links import NVLINK, exchanges, nvlink_bytes_per_s, pcie_paths
from workhorse.plan.speed.device import PCIE_LANE_BYTES_PER_S, UNKNOWN_CAPABILITY
from workhorse.records import Gpu, GpuLink, Model
from workhorse.text import Text
from workhorse.units import show_bandwidth

SUMS_A_LAYER = 2
F32_BYTES = 4
# A card whose link is not known: PCIe 3.0 x16, as the servers of 2012 to 2019 have it.
USUAL_LANES = (3, 16)
UNKNOWN_PATH = "PHB"


@dataclass(frozen=True, slots=True)
class CardLink:
    """The slowest link among cards that work together."""

    way: Literal["nvlink", "pcie"]
    bytes_per_s: float  # of one copy
    exchange_s: float  # what an exchange costs beside its bytes
    words: Text


@dataclass(frozen=True, slots=True)
class Shared:
    """Cards that compute every layer together."""

    mode: Literal["tensor", "row"]
    shares: Mapping[str, float]  # of the matrices, by device; together 1
    link: CardLink
    kv_heads: int = 0  # of a layer; 0: not known

    def attention_share(self, share: float) -> float:
        """The part of a layer's attention that the others wait for on a card with this share.

        llama.cpp cuts between whole KV heads and turns the larger part from layer to layer to
        another card (`rotation` in llama-model.cpp, 0c1e570, 2026-10-01): three cards hold a third
        of the KV of four heads each, and in each layer one of them computes half.
        """
        if self.mode != "tensor":
            return 1.0
        return ceil(share * self.kv_heads - 1e-6) / self.kv_heads if self.kv_heads else share

    def exchanged_bytes(self, model: Model) -> float:
        """Bytes of one token that the busiest link carries, over all layers."""
        others = 2 * (len(self.shares) - 1) / len(self.shares)  # a sum over a ring
        if self.mode == "tensor":
            return self.exchanges(model) * model.embedding_size * F32_BYTES * others
        return sum(rows_and_columns(model)) * F32_BYTES * others / 2

    def exchanges(self, model: Model) -> int:
        """How often a token's cards wait for each other."""
        if self.mode == "tensor":
            return SUMS_A_LAYER * (model.layers - model.draft_layers)
        return 2 * sum(1 for _ in rows_and_columns(model))

    def seconds(self, model: Model, tokens: int, steps: int = 1) -> float:
        """Seconds of all exchanges when `tokens` go through the layers in so many steps.

        Over a ring each further card is one more to wait for.
        """
        moved = tokens * self.exchanged_bytes(model) / self.link.bytes_per_s
        waits = self.exchanges(model) * (len(self.shares) - 1)
        return steps * waits * self.link.exchange_s + moved


def rows_and_columns(model: Model) -> list[int]:
    """For each matrix that a token goes through: elements in and out; of experts, those in use."""
    found = []
    for tensor in model.tensors:
        if not tensor.name.startswith("blk.") or len(tensor.shape) < 2:
            continue
        used = model.experts_used if "_exps." in tensor.name else 1
        found.append((tensor.shape[0] + tensor.shape[1]) * max(1, used))
    return found


def slowest_link(gpus: Sequence[Gpu], links: Sequence[GpuLink], *, direct: bool) -> CardLink:
    """The slowest link between any two of these cards.

    `direct`: they read each other's memory where the driver allows it; else what is not NVLink
    goes through main memory, as in llama.cpp by default.
    """
    known = {(link.first, link.second): link for link in links}
    pairs = [
        one_link(one, other, known.get((one.index, other.index)), direct=direct)
        for one, other in combinations(sorted(gpus, key=lambda gpu: gpu.index), 2)
    ]
    return max(pairs, key=lambda link: (link.exchange_s, -link.bytes_per_s))


def one_link(one: Gpu, other: Gpu, link: GpuLink | None, *, direct: bool) -> CardLink:
    """What two cards reach between each other: as measured, else by what is known of the way."""
    reckoned = reckoned_link(one, other, link, direct=direct)
    fast = reckoned.way == "nvlink" or (direct and link is not None and bool(link.peer_access))
    seen = next((c for c in (link.copies if link else ()) if c.right and c.direct == fast), None)
    if seen is None or seen.bytes_per_s is None:
        return reckoned
    shown = show_bandwidth(seen.bytes_per_s)
    words = Text(f"{shown} a copy, measured here", f"单次拷贝 {shown}（本机实测）")
    # A copy alone is not an exchange: kernels wait before and after it.
    exchange_s = max(reckoned.exchange_s, seen.latency_s or 0.0)
    return CardLink(reckoned.way, seen.bytes_per_s, exchange_s, words)


def reckoned_link(one: Gpu, other: Gpu, link: GpuLink | None, *, direct: bool) -> CardLink:
    """What is known of the way between two cards."""
    if link is not None and link.path == NVLINK:
        capability = min(gpu.compute_capability or UNKNOWN_CAPABILITY for gpu in (one, other))
        count = link.nvlinks or 1
        rate = nvlink_bytes_per_s(capability, count)
        shown = show_bandwidth(rate)
        words = Text(f"{count} NVLinks, {shown} a copy", f"{count} 条 NVLink，单次拷贝 {shown}")
        return CardLink("nvlink", rate, exchanges()["nvlink"].seconds, words)
    path = pcie_paths()[UNKNOWN_PATH if link is None else link.path]
    peers = direct and link is not None and bool(link.peer_access)
    share = path.direct_share if peers else path.staged_share
    rate = share * min(lanes_bytes_per_s(one), lanes_bytes_per_s(other))
    shown = show_bandwidth(rate)
    if link is None:
        words = Text(
            f"the link is not known: PCIe through main memory assumed, {shown} a copy",
            f"链路未知：假定经内存的 PCIe，单次拷贝 {shown}",
        )
        return CardLink("pcie", rate, exchanges()["pcie"].seconds, words)
    words = Text(
        f"PCIe ({path.name}){'' if peers else ' through main memory'}, {shown} a copy",
        f"PCIe（{path.name}）{'' if peers else '经内存中转'}，单次拷贝 {shown}",
    )
    return CardLink("pcie", rate, exchanges()["pcie"].seconds, words)


def lanes_bytes_per_s(gpu: Gpu) -> float:
    """The rated speed of a card's lanes; the usual ones where they are not known."""
    generation = gpu.pcie_generation_loaded or gpu.pcie_generation_max or USUAL_LANES[0]
    width = gpu.pcie_width_loaded or gpu.pcie_width_max or USUAL_LANES[1]
    lane = PCIE_LANE_BYTES_PER_S.get(generation, PCIE_LANE_BYTES_PER_S[USUAL_LANES[0]])
    return lane * width
