"""Which card a GPU is: by id, by whole name, never by a part of it."""

import re
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.knowledge import rows
from workhorse.knowledge.gpus import (
    Card,
    architecture_of,
    card_of,
    cards,
    cards_with_id,
    generation_of,
    generations,
)
from workhorse.records import Gpu
from workhorse.units import GIB, MIB

# Only its PCI id tells it from the card of the same name.
LATE_V100 = "10de:1df5"
NAMED = [card for card in cards() if LATE_V100 not in card.pci_ids]
# Data rate of one pin, in Gbit/s: JEDEC's grades that were sold (2026-11).
PIN_RATES = {
    "GDDR5": (3.6, 9.1),
    "GDDR5X": (9.0, 12.1),
    "GDDR6": (10.0, 20.1),
    "GDDR6X": (18.0, 24.1),
    "GDDR7": (24.0, 33.0),
    "HBM2": (1.3, 2.5),
    "HBM2e": (2.4, 3.7),
    "HBM3": (5.0, 6.6),
    "HBM3e": (6.0, 9.9),
}


def a_gpu(name: str = "?", **facts: Any) -> Gpu:
    nothing: dict[str, Any] = {
        "compute_capability": None,
        "memory_total_bytes": None,
        "pci_id": None,
    }
    return replace(builders.gpu(), name=name, **nothing | facts)


def label(card: Card) -> str:
    return f"{card.name} {card.memory_gib} {card.pci_ids}"


# What a driver shows of the memory: with ECC and its own share off, with ECC, all of it.
SHOWN = (0.923, 0.9375, 1.0)


def test_a_card_is_found_by_its_id_and_memory() -> None:
    for card, shown in product(cards(), SHOWN):
        for pci_id, subsystem in product(card.pci_ids, card.pci_subsystems or (None,)):
            gpu = a_gpu(
                card.name,
                pci_id=pci_id.upper(),
                pci_subsystem=subsystem,
                memory_total_bytes=int(card.memory_gib * GIB * shown),
                compute_capability=card.capability,
            )
            assert card_of(gpu) is card, label(card)


def test_a_card_is_found_by_its_name_with_and_without_the_prefix() -> None:
    for card in NAMED:
        bare = card.name.removeprefix("NVIDIA ")
        for name in (bare, f"NVIDIA {bare}", *card.also_named):
            gpu = a_gpu(name, memory_total_bytes=card.memory_gib * GIB)
            assert card_of(gpu) is card, label(card)


def test_another_memory_or_capability_makes_it_unknown() -> None:
    for card in cards():
        whole = card.memory_gib * GIB
        major, minor = card.capability
        changes: tuple[dict[str, Any], ...] = (
            {"memory_total_bytes": whole // 4},
            {"memory_total_bytes": whole * 5},
            {"compute_capability": (major + 20, minor)},
        )
        for pci_id, change in product((*card.pci_ids, None), changes):
            gpu = a_gpu(card.name, pci_id=pci_id, memory_total_bytes=whole)
            assert card_of(replace(gpu, **change)) is None, label(card)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "GRID V100-8Q",
        "Tesla V100-PCIE-16GBx",
        "Tesla V100",
        "V100",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA Graphics Device",
        "NVIDIA GPU",
        "NVIDIA",
        "",
        "NVIDIA NVIDIA H200",
        "Tesla M2090X",
    ],
)
def test_a_part_of_a_name_is_no_card(name: str) -> None:
    assert card_of(a_gpu(name)) is None


@given(st.sampled_from(NAMED), st.text(st.characters(categories=["L", "N"]), min_size=1))
def test_letters_more_make_another_card(card: Card, more: str) -> None:
    known = {k.casefold() for c in cards() for k in (c.name, *c.also_named)}
    for name in (card.name + more, more + card.name, f"{card.name} {more}"):
        if name.casefold() not in known:
            assert card_of(a_gpu(name)) is None


@given(st.text(), st.none() | st.text(), st.none() | st.text(), st.none() | st.integers())
def test_nothing_a_driver_says_raises(
    name: str, pci_id: str | None, subsystem: str | None, memory: int | None
) -> None:
    gpu = a_gpu(name, pci_id=pci_id, pci_subsystem=subsystem, memory_total_bytes=memory)
    assert card_of(gpu) is None or card_of(gpu) in cards()


def test_variants_of_one_id_are_told_apart() -> None:
    def name_of(**facts: Any) -> str | None:
        card = card_of(a_gpu(**facts))
        return card.name if card else None

    turing = {"pci_id": "10de:1e30", "compute_capability": (7, 5)}
    assert name_of(**turing, memory_total_bytes=24 * GIB) == "Quadro RTX 6000"
    assert name_of(**turing, memory_total_bytes=45556 * MIB) == "Quadro RTX 8000"
    assert name_of(**turing) is None
    maxwell = {"pci_id": "10de:17fd"}
    assert name_of(**maxwell, memory_total_bytes=11443 * MIB) == "Tesla M40"
    assert name_of(**maxwell, memory_total_bytes=22945 * MIB) == "Tesla M40 24GB"
    # A2 and A16 have the same chip and the same memory: only the subsystem or the name tells.
    ampere = {"pci_id": "10de:25b6", "memory_total_bytes": 15356 * MIB}
    assert name_of(**ampere, pci_subsystem="10de:14a9") == "NVIDIA A16"
    assert name_of(**ampere, pci_subsystem="10DE:157E") == "NVIDIA A2"
    assert name_of(**ampere, name="NVIDIA A16") == "NVIDIA A16"
    assert name_of(**ampere) is None
    # 22 GB is the modified card; without the memory it may be either.
    ti = a_gpu("NVIDIA GeForce RTX 2080 Ti", memory_total_bytes=22528 * MIB)
    found = card_of(ti)
    assert found is not None and found.memory_gib == 22
    assert card_of(replace(ti, memory_total_bytes=None)) is None
    # A memory size that the name was never sold with.
    assert name_of(name="NVIDIA GeForce RTX 4060 Ti", memory_total_bytes=12 * GIB) is None
    # The id is shared by both sizes and stands with the larger one; the name finds the other.
    small = card_of(
        a_gpu("NVIDIA GeForce RTX 3060", pci_id="10de:2504", memory_total_bytes=8 * GIB)
    )
    assert small is not None and small.memory_bus_bits == 128


def test_v100s_have_the_bandwidth_of_their_memory_not_of_their_slot() -> None:
    rated = {
        card.name: card.bandwidth_gb_per_s
        for card in cards()
        if card.capability == (7, 0) and card.bandwidth_gb_per_s
    }
    for size in ("16", "32"):
        pcie, sxm = rated[f"Tesla V100-PCIE-{size}GB"], rated[f"Tesla V100-SXM2-{size}GB"]
        assert pcie and sxm and abs(pcie - sxm) < 2
    assert rated["Tesla V100-FHHL-16GB"] < 0.95 * rated["Tesla V100-PCIE-16GB"]
    assert rated["Tesla V100S-PCIE-32GB"] > 1.2 * rated["Tesla V100-PCIE-32GB"]
    (late,) = cards_with_id(LATE_V100)
    assert late.bandwidth_gb_per_s is None and late.doubt


def test_bandwidth_is_bus_width_times_a_rate_that_exists() -> None:
    for card in cards():
        if card.bandwidth_gb_per_s is not None:
            low, high = PIN_RATES[card.memory_kind]
            rate = card.bandwidth_gb_per_s * 8 / card.memory_bus_bits
            assert low <= rate <= high, label(card)


def test_every_card_says_from_where_it_is_known() -> None:
    for card in cards():
        assert len(card.source) > 8 and re.fullmatch(r"20\d\d-\d\d", card.date), label(card)
        assert (card.odd_en is None) == (card.odd_zh is None), label(card)
        assert generation_of(card.capability) is not None, label(card)
        assert all(re.fullmatch(r"10de:[0-9a-f]{4}", each) for each in card.pci_ids), label(card)
        if card.tensor_tflops is not None:
            assert card.capability >= (7, 0), label(card)


def test_generations_cover_every_capability_without_a_gap() -> None:
    row = generations()
    for older, newer in pairwise(row):
        assert older.capability_below == newer.capability_from
        assert older.capability_from < older.capability_below
    assert all(re.fullmatch(r"20\d\d-\d\d", each.date) and each.source for each in row)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((1, 3), None),
        ((2, 0), "Fermi"),
        ((3, 0), "Kepler"),
        ((3, 7), "Kepler"),
        ((5, 2), "Maxwell"),
        ((6, 0), "Pascal"),
        ((6, 1), "Pascal"),
        ((7, 0), "Volta"),
        ((7, 2), "Volta"),
        ((7, 5), "Turing"),
        ((8, 0), "Ampere"),
        ((8, 6), "Ampere"),
        ((8, 9), "Ada"),
        ((9, 0), "Hopper"),
        ((10, 3), "Blackwell"),
        ((12, 0), "Blackwell"),
        ((13, 0), None),
        ((99, 99), None),
    ],
)
def test_architectures(capability: tuple[int, int], name: str | None) -> None:
    assert architecture_of(capability) == name


def test_what_a_generation_lacks() -> None:
    def of(capability: tuple[int, int]) -> tuple[bool, bool, bool]:
        found = generation_of(capability)
        assert found is not None
        return found.bf16, found.dp4a, found.fast_fp16

    assert of((3, 7)) == (False, False, False)
    assert of((6, 0)) == (False, False, True)
    assert of((6, 1)) == (False, True, False)
    assert of((7, 0)) == of((7, 5)) == (False, True, True)
    assert of((8, 0)) == of((12, 0)) == (True, True, True)


def test_an_unknown_column_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "table", lambda name: {"gpu": [{"name": "x", "colour": "red"}]})
    with pytest.raises(ValueError, match="colour"):
        rows.rows("gpus", "gpu", Card)
