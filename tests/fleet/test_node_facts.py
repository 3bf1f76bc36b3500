"""What a node tells of itself: made of whole machines, real and composed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import machine
from workhorse.fleet.node_facts import (
    CAPABILITY,
    CARD,
    KIND,
    NAME,
    NUMA_NODES,
    VRAM_GIB,
    Node,
    kind_of,
    label_value,
    labels_of,
    resources_of,
)
from workhorse.machine.probe import probe
from workhorse.records import Machine

CAPTURES = Path(__file__).resolve().parent.parent / "captures"
# ray/_private/label_utils.py of Ray 2.60.0, LABEL_REGEX (2026-11)
RAYS_LABEL = re.compile(r"([a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?)")
SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def captured(name: str) -> Machine:
    return probe(CAPTURES / f"{name}.json", measure_s=0)


ALL = sorted(path.stem for path in CAPTURES.glob("*.json"))


@pytest.fixture(scope="module")
def machines() -> dict[str, Machine]:
    return {name: captured(name) for name in ALL}


def test_each_captured_machine_has_a_kind_and_labels_that_ray_takes(
    machines: dict[str, Machine],
) -> None:
    for name, one in machines.items():
        kind = kind_of(one)
        assert SLUG.fullmatch(kind), name
        assert len(kind) <= 40
        labels = labels_of(one, name)
        assert labels[KIND] == kind
        assert all(RAYS_LABEL.fullmatch(value) for value in labels.values()), labels


def test_kinds_tell_machines_apart(machines: dict[str, Machine]) -> None:
    kinds = {name: kind_of(one) for name, one in machines.items()}
    assert len(set(kinds.values())) == len(kinds), kinds


def test_a_box_with_two_sockets_and_eight_cards(machines: dict[str, Machine]) -> None:
    one = machines["eight_v100"]
    resources = resources_of(one)
    assert resources == {f"gpu_{i}": 1.0 for i in range(8)} | {"numa_0": 1.0, "numa_1": 1.0}
    labels = labels_of(one, "eight")
    assert labels[NAME] == "eight"
    assert labels[CARD] == label_value(one.gpus[0].name)
    assert "V100" in labels[CARD]
    assert labels[CAPABILITY] == "7.0"
    assert labels[NUMA_NODES] == "2"
    assert labels[VRAM_GIB] in ("16", "32")


def test_equal_boxes_are_of_one_kind_though_their_firmware_keeps_other_memory() -> None:
    one = machine()
    assert one.memory.total_bytes is not None
    for share in (1.0, 0.995, 0.985):
        total = round(128 * 2**30 * 0.98 * share)
        other = replace(one, memory=replace(one.memory, total_bytes=total))
        assert "128g" in kind_of(other)


def test_of_a_machine_without_cards_the_labels_of_cards_are_left_out() -> None:
    labels = labels_of(replace(machine(), gpus=()), "plain")
    assert CARD not in labels
    assert CAPABILITY not in labels
    assert VRAM_GIB not in labels


def test_a_memory_node_without_cpus_that_may_be_used_is_nobodys() -> None:
    one = captured("machine_b")
    first = one.nodes[0]
    limited = replace(one, limits=replace(one.limits, cpus=first.cpus))
    nodes = {name for name in resources_of(limited) if name.startswith("numa_")}
    assert nodes == {f"numa_{first.index}"}


@given(st.text(max_size=200))
def test_any_words_become_a_label_or_nothing(words: str) -> None:
    value = label_value(words)
    assert value == "" or RAYS_LABEL.fullmatch(value)


def test_long_names_that_begin_alike_stay_apart() -> None:
    one = captured("machine_a")
    names = [f"Intel(R) Xeon(R) Very Long Name Of A Processor Nobody Ever Saw {i}" for i in (1, 2)]
    kinds = {kind_of(replace(one, cpu=replace(one.cpu, name=name))) for name in names}
    assert len(kinds) == 2
    assert all(len(kind) <= 40 for kind in kinds)


def test_a_node_without_labels_is_of_unknown_kind() -> None:
    node = Node("ab", "n", "10.0.0.1", False, True, False, labels={}, resources={})
    assert node.kind == "unknown"
