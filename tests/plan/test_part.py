"""What one engine of several sees of the machine."""

from dataclasses import replace

import builders
from workhorse.plan.part import part_of, parts_of
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import GpuLink, Machine
from workhorse.units import GIB

LINKS = (GpuLink(0, 1, "PHB", None, True), GpuLink(0, 2, "SYS", None, True))


def two_sockets() -> Machine:
    """Two cards on node 0, one on node 1; eight cores a node, two threads each."""
    cards = tuple(builders.gpu(n, numa_node=node) for n, node in ((0, 0), (1, 0), (2, 1)))
    made = builders.machine(nodes=2, cores=8, threads_a_core=2, gpus=cards)
    return replace(made, gpu_links=LINKS)


def test_engines_of_one_node_divide_it_and_others_keep_theirs() -> None:
    first, second, third = parts_of(two_sockets(), ((0,), (1,), (2,)))
    cpus = [set(part.limits.cpus) for part in (first, second, third)]
    assert [len(c) for c in cpus] == [8, 8, 16]
    assert not cpus[0] & cpus[1] and not (cpus[0] | cpus[1]) & cpus[2]
    assert {16, 17} <= cpus[0]  # both threads of a core go together
    assert [p.memory.available_bytes for p in (first, second, third)] == [
        8 * GIB, 8 * GIB, 16 * GIB,
    ]  # fmt: skip
    assert [p.limits.memory_nodes for p in (first, second, third)] == [(0,), (0,), (1,)]
    assert [b.bytes_per_s for b in first.memory.bandwidths] == [10e9, 20e9]
    assert third.memory.bandwidths == two_sockets().memory.bandwidths


def test_a_part_has_its_cards_and_the_links_between_them() -> None:
    part = part_of(two_sockets(), (0, 1))
    assert [gpu.index for gpu in part.gpus] == [0, 1]
    assert part.gpu_links == LINKS[:1]
    assert part.limits.memory_nodes == (0,)


def test_cards_on_two_nodes_have_both() -> None:
    whole = two_sockets()
    part = part_of(whole, (1, 2))
    assert part.limits.memory_nodes == (0, 1)
    assert part.limits.cpus == whole.limits.cpus
    assert part.memory.available_bytes == whole.memory.available_bytes


def test_a_part_without_cards_is_planned_on_its_own_node() -> None:
    part = part_of(two_sockets(), (), (1,))
    plan = make_plan(part, builders.model(), builders.EMBEDDED, Wish())
    assert plan.memory_nodes == (1,)
    assert set(plan.cpus) <= set(part.limits.cpus) and plan.threads == 8


def test_limits_of_a_control_group_are_shared() -> None:
    whole = two_sockets()
    limits = replace(
        whole.limits, quota_cpus=16.0, memory_bytes=20 * GIB, memory_used_bytes=4 * GIB
    )
    parts = parts_of(replace(whole, limits=limits), ((0,), (1,), (2,)))
    assert [p.limits.quota_cpus for p in parts] == [4.0, 4.0, 8.0]
    assert [p.limits.memory_bytes for p in parts] == [8 * GIB, 8 * GIB, 12 * GIB]


def test_what_is_not_known_stays_so() -> None:
    """No topology, no node of a card, no sizes: slices of the mask, equal shares."""
    whole = two_sockets()
    whole = replace(
        whole,
        cpu=replace(whole.cpu, cores=()),
        nodes=(),
        gpus=tuple(replace(gpu, numa_node=None) for gpu in whole.gpus),
        memory=replace(whole.memory, available_bytes=None),
        limits=replace(whole.limits, cpus=(3,)),
    )
    parts = parts_of(whole, ((0,), (1,)))
    assert [p.limits.cpus for p in parts] == [(3,), (3,)]
    assert parts[0].memory.available_bytes is None and parts[0].limits.memory_nodes is None
