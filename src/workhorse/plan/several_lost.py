"""Cards between which copies were tried and do not arrive: which may still share a model. Pure."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations

from workhorse.records import Gpu, GpuLink, Machine, PeerCopy
from workhorse.text import Text

HANGS = "hangs"
Pair = tuple[int, int]


def lost_copies(machine: Machine, gpus: Sequence[int], *, direct: bool) -> Text | None:
    """Why nothing may be handed between these cards: a copy was tried and did not arrive.

    `direct`: NCCL, which a build may have, reads the other card's memory.
    """
    lost = lost_pairs(machine.gpu_links, direct=direct)
    pair = next((two for two in combinations(sorted(gpus), 2) if two in lost), None)
    if pair is None:
        return None
    first, second = pair
    return Text(
        f"Copies between GPU {first} and {second} do not arrive as they were "
        "sent (`workhorse doctor`).",
        f"GPU {first} 与 {second} 之间的拷贝不可靠（见 `workhorse doctor`）。",
    )


def lost_pairs(links: Sequence[GpuLink], *, direct: bool = False) -> frozenset[Pair]:
    """The pairs of cards between which copies are lost.

    A card that hung is left alone after: what was not tried with it may hang as well.
    """
    tried = {
        (link.first, link.second): [copy for copy in link.copies if direct or not copy.direct]
        for link in links
    }
    hung = {
        card
        for pair, copies in tried.items()
        if any(copy.failure == HANGS for copy in copies)
        for card in pair
    }
    return frozenset(
        pair
        for pair, copies in tried.items()
        if any(is_lost(copy) for copy in copies) or (not copies and hung.intersection(pair))
    )


def is_lost(copy: PeerCopy) -> bool:
    """True when wrong data arrived, or the copy never ended."""
    return copy.right is False or copy.failure == HANGS


def trusted(machine: Machine, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Those of these cards that may share a model: the most memory without a lost pair."""
    lost = lost_pairs(machine.gpu_links)
    room = {gpu.index: gpu.memory_total_bytes or 0 for gpu in gpus}

    @cache
    def largest(cards: tuple[int, ...]) -> tuple[int, ...]:
        pair = next((two for two in combinations(sorted(cards), 2) if two in lost), None)
        if pair is None:
            return cards
        # The first one stays where both are worth the same.
        rests = [largest(tuple(c for c in cards if c != out)) for out in reversed(pair)]
        return max(rests, key=lambda some: sum(room[card] for card in some))

    return largest(tuple(gpu.index for gpu in gpus))
