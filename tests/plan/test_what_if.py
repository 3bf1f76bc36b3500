"""Machines that are not here: put together from tables, and said to be so."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.knowledge.gpus import Card, card_of, cards
from workhorse.plan.planner import make_plan
from workhorse.plan.readers import rated_bandwidth
from workhorse.plan.what_if import Parts, assumed_build, card_named, composed_machine, line_named
from workhorse.plan.wish import Wish
from workhorse.units import GB, GIB

PARTS = Parts("Tesla V100-PCIE-16GB", 2, 128 * GIB, 2, "Xeon E5-2690 v4", 14)


def test_the_machine_has_what_was_asked_and_what_the_tables_know() -> None:
    machine = composed_machine(PARTS)
    assert [gpu.name for gpu in machine.gpus] == ["Tesla V100-PCIE-16GB"] * 2
    assert [gpu.numa_node for gpu in machine.gpus] == [0, 1]
    assert machine.gpus[0].compute_capability == (7, 0)
    assert machine.gpus[0].rated_bandwidth_bytes_per_s == 897 * GB
    assert (machine.gpus[0].memory_free_bytes or 0) < 16 * GIB
    assert [len(node.cpus) for node in machine.nodes] == [14, 14]
    assert machine.memory.rated_bandwidth_bytes_per_s == pytest.approx(153.6 * GB)
    assert machine.memory.total_bytes == 128 * GIB


def test_every_composed_fact_says_so() -> None:
    machine = composed_machine(PARTS)
    assert set(machine.learned_from) == {"memory", "nodes", "cpu", "gpus"}
    assert all(words.startswith("composed") for words in machine.learned_from.values())
    assert "put together" in machine.doubts[0].en
    assert machine.memory.bandwidths == () and machine.driver is None and machine.busy_cpus is None


def test_cores_that_were_not_told_are_a_doubt() -> None:
    machine = composed_machine(replace(PARTS, cores=None))
    assert "--cores" in machine.doubts[-1].en
    assert "assumed" in machine.learned_from["cpu"]


def test_a_memory_speed_that_was_not_told_is_a_doubt() -> None:
    told, untold = composed_machine(PARTS), composed_machine(replace(PARTS, cpu=None))
    assert not any("--cpu" in doubt.en for doubt in told.doubts)
    assert "--cpu" in untold.doubts[-1].en and "--cpu" in untold.doubts[-1].zh
    assert rated_bandwidth(untold) is None


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-16GB"),
        ("v100 pcie 16gb", "Tesla V100-PCIE-16GB"),
        ("NVIDIA Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        ("P40", "Tesla P40"),
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("rtx 2080 ti 22GB", "NVIDIA GeForce RTX 2080 Ti"),
        ("T4", "Tesla T4"),
    ],
)
def test_cards_are_found_as_people_write_them(said: str, name: str) -> None:
    assert card_named(said).name == name


def test_an_unknown_card_is_an_error_with_near_names() -> None:
    with pytest.raises(AppError) as error:
        card_named("Tesla V100")
    assert error.value.exit_code == EXIT_USAGE
    for text in (error.value.next_step.en, error.value.next_step.zh):
        assert "Tesla V100-PCIE-16GB" in text and "Tesla V100-SXM2-32GB" in text
    with pytest.raises(AppError) as error:
        card_named("GeForce RTX 3909")
    assert "RTX 3090" in error.value.next_step.en
    with pytest.raises(AppError) as error:
        card_named("\u2603")
    assert "nvidia-smi" in error.value.next_step.en


def test_a_name_of_two_cards_asks_for_the_memory() -> None:
    with pytest.raises(AppError) as error:
        card_named("GeForce RTX 2080 Ti")
    assert "11GB" in error.value.next_step.en and "22GB" in error.value.next_step.en


def test_an_unknown_cpu_is_an_error() -> None:
    assert line_named("Intel(R) Xeon(R) Gold 6226R CPU @ 2.90GHz").channels == 6
    with pytest.raises(AppError) as error:
        line_named("Z80")
    assert error.value.exit_code == EXIT_USAGE


NAMES = Counter(card.name for card in cards())


@pytest.mark.parametrize("card", cards(), ids=lambda card: f"{card.name} {card.memory_gib}")
def test_every_card_of_the_table_can_be_planned_with(card: Card) -> None:
    name = card.name if NAMES[card.name] == 1 else f"{card.name} {card.memory_gib}GB"
    machine = composed_machine(Parts(name, 1, 64 * GIB))
    assert card_of(machine.gpus[0]) == card
    build = assumed_build(machine) or builders.EMBEDDED
    plan = make_plan(machine, builders.model(), build, Wish())
    assert not plan.verdict.blocked
    old = card.capability < (5, 0)
    assert plan.gpu_indexes == (() if old else (0,))


def test_memory_that_nobody_measured_counts_by_its_channels() -> None:
    machine = composed_machine(PARTS)
    build = assumed_build(machine)
    assert build is not None
    cpu = make_plan(machine, builders.model(), builders.EMBEDDED, Wish())
    decode = cpu.forecast.ceiling_tokens_per_s
    assert decode is not None and decode.basis == "estimated"
    assert "probe" in decode.source.en
    assert rated_bandwidth(machine) == pytest.approx(153.6 * GB)
    unknown = composed_machine(replace(PARTS, cpu=None))
    assert rated_bandwidth(unknown) is None
    blind = make_plan(unknown, builders.model(), builders.EMBEDDED, Wish())
    assert blind.forecast.decode_tokens_per_s is None


@given(
    st.integers(0, 8),
    st.integers(1, 4),
    st.integers(1, 64),
    st.integers(1 * GIB, 1024 * GIB),
)
def test_no_parts_break_the_planner(gpus: int, nodes: int, cores: int, ram_bytes: int) -> None:
    parts = Parts("Tesla P40" if gpus else None, gpus, ram_bytes, nodes, None, cores)
    machine = composed_machine(parts)
    build = assumed_build(machine) or builders.EMBEDDED
    plan = make_plan(machine, builders.model(), build, Wish())
    assert set(plan.gpu_indexes) <= set(range(gpus))
    assert set(plan.memory_nodes or ()) <= set(range(nodes))
    assert set(plan.cpus) <= set(machine.limits.cpus)
