"""Whether a second engine has room beside the first, and how the machine is without that one."""

from dataclasses import replace

import pytest

import builders
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import BudgetLine, Machine, Plan
from workhorse.text import same
from workhorse.units import GIB
from workhorse.up.room import Held, fits_beside, held_by, together, without

CARD = builders.gpu(index=1)


def machine(free_bytes: int, card_free_bytes: int | None = 10 * GIB) -> Machine:
    found = builders.machine(ram_bytes=64 * GIB, gpus=(CARD,))
    card = replace(CARD, memory_free_bytes=card_free_bytes, memory_total_bytes=16 * GIB)
    return replace(found, gpus=(card,), memory=replace(found.memory, available_bytes=free_bytes))


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = builders.machine(ram_bytes=64 * GIB)
    return make_plan(found, builders.model(), builders.EMBEDDED, Wish())


def wants(plan: Plan, **devices: int) -> Plan:
    lines = tuple(
        BudgetLine(name.replace("_", " "), "weights", n_bytes, "header", same("test"))
        for name, n_bytes in devices.items()
    )
    return replace(plan, budget=lines)


@pytest.mark.parametrize(
    ("held_bytes", "wanted_bytes", "fits"),
    [(10 * GIB, 9 * GIB, True), (10 * GIB, 10 * GIB, False), (15 * GIB, 5 * GIB, False)],
)
def test_main_memory_holds_both_or_not(
    plan: Plan, held_bytes: int, wanted_bytes: int, fits: bool
) -> None:
    alone = machine(20 * GIB)
    assert fits_beside(wants(plan, RAM=wanted_bytes), alone, Held(held_bytes)) is fits


def test_each_card_counts_for_itself(plan: Plan) -> None:
    alone, small = machine(20 * GIB, 15 * GIB), wants(plan, RAM=GIB, GPU_1=7 * GIB)
    assert fits_beside(small, alone, Held(GIB, {1: 7 * GIB}))
    assert not fits_beside(small, alone, Held(GIB, {1: 8 * GIB}))
    assert fits_beside(small, alone, Held(GIB, {0: 8 * GIB}))


def test_what_is_not_known_is_no_room(plan: Plan) -> None:
    alone = machine(20 * GIB, None)
    assert not fits_beside(wants(plan, GPU_1=GIB), alone, Held())
    assert not fits_beside(wants(plan, GPU_7=GIB), alone, Held())
    blind = replace(alone, memory=replace(alone.memory, available_bytes=None))
    assert not fits_beside(wants(plan, RAM=GIB), blind, Held())


def test_a_control_group_limits_the_room(plan: Plan) -> None:
    alone = machine(60 * GIB)
    limited = replace(
        alone, limits=replace(alone.limits, memory_bytes=16 * GIB, memory_used_bytes=2 * GIB)
    )
    assert fits_beside(wants(plan, RAM=6 * GIB), limited, Held(6 * GIB))
    assert not fits_beside(wants(plan, RAM=8 * GIB), limited, Held(6 * GIB))


def test_the_machine_without_an_engine() -> None:
    before = machine(40 * GIB)
    bandwidths = before.memory.bandwidths
    now = machine(30 * GIB, 4 * GIB)
    nodes = tuple(replace(node, memory_free_bytes=GIB) for node in now.nodes)
    memory = replace(now.memory, bandwidths=())
    now = replace(now, memory=memory, nodes=nodes, busy_cpus=7.0)
    alone = without(now, Held(8 * GIB, {1: 6 * GIB}), before)
    assert alone.memory.available_bytes == 38 * GIB
    assert alone.gpus[0].memory_free_bytes == 10 * GIB
    assert alone.memory.bandwidths == bandwidths != ()
    assert alone.busy_cpus == before.busy_cpus
    assert [node.memory_free_bytes for node in alone.nodes] == [9 * GIB]
    whole = without(now, Held(80 * GIB, {1: 60 * GIB}), before)
    assert whole.memory.available_bytes == now.memory.total_bytes
    assert whole.gpus[0].memory_free_bytes == 16 * GIB


def test_what_a_plan_holds(plan: Plan) -> None:
    split = replace(wants(plan, RAM=3, GPU_0=5, GPU_1=7), gpu_indexes=(0, 1), gpu_index=0)
    assert held_by(split, None) == Held(3, {0: 5, 1: 7}, plan.memory_nodes)
    assert held_by(split, 2).ram_bytes == 2
    assert together([held_by(split, None), held_by(split, 2)]) == Held(5, {0: 10, 1: 14})
