"""Which card a GPU is, and what is known of it and of its generation."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows
from workhorse.records import Gpu
from workhorse.text import Text
from workhorse.units import GIB

Confidence = Literal["verified-in-source", "documented", "reported", "from memory"]
Capability = tuple[int, int]

# What a driver shows of a card's memory, as a share of the figure on the box: ECC takes 1/16 of
# GDDR, the driver some more (45,556 of 49,152 MiB on a Quadro RTX 8000 is 0.927); never more than
# the box says. Variants of one PCI id are farther apart: 10 of 12 GiB is 0.83 (2026-11).
_MEMORY_SHARE_MIN, _MEMORY_SHARE_MAX = 0.90, 1.02


@dataclass(frozen=True, slots=True)
class Generation:
    """What all cards of a range of compute capabilities share; see the top of `gpus.toml`."""

    name: str
    capability_from: Capability
    capability_below: Capability
    kernel_module: Literal["proprietary", "either", "open"]
    bf16: bool
    dp4a: bool  # integer dot product of 4 bytes, which quantised kernels need
    fast_fp16: bool
    source: str
    date: str
    confidence: Confidence
    driver_first: int | None = None
    driver_last: int | None = None
    toolkit_first: str | None = None
    toolkit_last: str | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One card, or one variant of it; the maker's figures, explained at the top of `gpus.toml`."""

    name: str
    pci_ids: tuple[str, ...]
    capability: Capability
    memory_gib: int
    memory_kind: str
    memory_bus_bits: int
    fp32_tflops: float
    pcie_generation: int
    pcie_width: int
    power_w: int
    source: str
    date: str
    confidence: Confidence
    also_named: tuple[str, ...] = ()
    pci_subsystems: tuple[str, ...] = ()
    bandwidth_gb_per_s: float | None = None
    sm_count: int | None = None
    fp16_tflops: float | None = None
    tensor_tflops: float | None = None  # None: no tensor cores, or not known to work
    nvlinks: int | None = None
    nvlink_gb_per_s: float | None = None
    ecc: bool | None = None
    passive: bool | None = None
    gpus_on_board: int = 1
    odd_en: str | None = None
    odd_zh: str | None = None
    doubt: str | None = None

    @property
    def odd(self) -> Text | None:
        """What an owner should know of this card; None when it holds no surprise."""
        return Text(self.odd_en, self.odd_zh) if self.odd_en and self.odd_zh else None


@cache
def cards() -> tuple[Card, ...]:
    """Every card of the table."""
    return rows("gpus", "gpu", Card)


@cache
def generations() -> tuple[Generation, ...]:
    """Every generation, the oldest first."""
    return rows("gpus", "generation", Generation)


def generation_of(capability: Capability) -> Generation | None:
    """The generation of a compute capability; None when it is newer or older than the table."""
    for generation in generations():
        if generation.capability_from <= capability < generation.capability_below:
            return generation
    return None


def architecture_of(capability: Capability) -> str | None:
    """NVIDIA's name of the generation, such as `Volta`; None when unknown."""
    generation = generation_of(capability)
    return None if generation is None else generation.name


def cards_with_id(pci_id: str) -> tuple[Card, ...]:
    """The cards that have this PCI id (`10de:1db4`): variants may share one."""
    return tuple(card for card in cards() if pci_id.casefold() in card.pci_ids)


def cards_called(name: str) -> tuple[Card, ...]:
    """The cards of this name, spelt as the driver or as the list of PCI ids spells it."""
    wanted = _letters(name)
    return tuple(
        card
        for card in cards()
        if wanted in {_letters(known) for known in (card.name, *card.also_named)}
    )


def _letters(name: str) -> str:
    """`tesla v100 pcie 32gb` of `Tesla V100-PCIE-32GB`."""
    return " ".join("".join(c if c.isalnum() else " " for c in bare_name(name)).split())


def capability_of(gpu: Gpu) -> Capability | None:
    """The compute capability that the driver tells; else that of its PCI id, which is the chip's.

    Also of a card with other memory than any row; of a vGPU that of the card whose name it bears.
    """
    if gpu.compute_capability is not None:
        return gpu.compute_capability
    found = {card.capability for card in cards_with_id(gpu.pci_id or "")}
    if not found:
        name = vgpu_card_name(gpu.name) or gpu.name
        found = {card.capability for card in cards_called(name)}
    return found.pop() if len(found) == 1 else None


def vgpu_card_name(name: str) -> str | None:
    """`NVIDIA A40` of `NVIDIA A40-24Q`, a share of that card; None of a whole card's name."""
    match = re.fullmatch(r"(.{2,50})-\d{1,3}[ABCQ]", name)
    return match[1].removeprefix("GRID ") if match else None


def card_of(gpu: Gpu) -> Card | None:
    """The card that this GPU is; None when it is not in the table or two rows fit equally well.

    By PCI id, else by the whole name; both must agree with memory and compute capability as far
    as the driver told them. A modified card with other memory than its rows is unknown.
    """
    by_id = _fitting(gpu, cards_with_id(gpu.pci_id)) if gpu.pci_id else ()
    if by_id:
        return _only_one(gpu, by_id)
    named = tuple(card for card in cards() if _called(card, gpu.name))
    return _only_one(gpu, _fitting(gpu, named))


def _fitting(gpu: Gpu, candidates: tuple[Card, ...]) -> tuple[Card, ...]:
    return tuple(
        card
        for card in candidates
        if gpu.compute_capability in (None, card.capability) and _memory_fits(gpu, card)
    )


def _memory_fits(gpu: Gpu, card: Card) -> bool:
    if gpu.memory_total_bytes is None:
        return True
    share = gpu.memory_total_bytes / (card.memory_gib * GIB)
    return _MEMORY_SHARE_MIN <= share <= _MEMORY_SHARE_MAX


def _only_one(gpu: Gpu, candidates: tuple[Card, ...]) -> Card | None:
    """The one that subsystem, then name, leave over."""
    by_subsystem = tuple(
        card
        for card in candidates
        if gpu.pci_subsystem and gpu.pci_subsystem.casefold() in card.pci_subsystems
    )
    left = by_subsystem or candidates
    if len(left) > 1:
        left = tuple(card for card in left if _called(card, gpu.name))
    return left[0] if len(left) == 1 else None


def _called(card: Card, name: str) -> bool:
    return bare_name(name) in {bare_name(known) for known in (card.name, *card.also_named)}


def bare_name(name: str) -> str:
    """The name as drivers before and after 2020 agree on it: newer ones say `NVIDIA` first."""
    return " ".join(name.casefold().split()).removeprefix("nvidia ")
