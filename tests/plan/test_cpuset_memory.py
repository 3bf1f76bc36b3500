"""A cpuset may allow the CPUs of a node and not its memory: containers get such."""

from dataclasses import replace

import pytest

import builders
from workhorse.machine.files import PackedFiles
from workhorse.machine.limits import read_limits
from workhorse.plan.cpus import choose_cpus, spread_cpus
from workhorse.records import Machine


def host(memory_nodes: tuple[int, ...] | None) -> Machine:
    machine = builders.machine(nodes=2, cores=4)
    return replace(machine, limits=replace(machine.limits, memory_nodes=memory_nodes))


@pytest.mark.parametrize(
    ("allowed", "node", "all_nodes"),
    [(None, 0, (0, 1)), ((0, 1), 0, (0, 1)), ((0,), 0, (0,)), ((1,), 1, (1,))],
)
def test_a_node_with_memory_for_us_is_chosen(
    allowed: tuple[int, ...] | None, node: int, all_nodes: tuple[int, ...]
) -> None:
    choice = choose_cpus(host(allowed))
    assert choice.memory_nodes == (node,)
    assert choice.cpus == tuple(range(4 * node, 4 * node + 4))
    assert spread_cpus(host(allowed)).memory_nodes == all_nodes


def test_beside_a_gpu_whose_node_has_no_memory_for_us_nothing_is_bound() -> None:
    choice = choose_cpus(host((0,)), beside_node=1)
    assert (choice.cpus, choice.memory_nodes) == ((4, 5, 6, 7), None)
    assert "no memory for this process" in choice.reason.because.en
    assert "stay on one node" in choose_cpus(host((0, 1)), beside_node=1).reason.because.en


def test_a_socket_without_modules_is_never_bound() -> None:
    machine = builders.machine(nodes=2, cores=4)
    bare = replace(machine.nodes[0], memory_total_bytes=0, memory_free_bytes=0)
    machine = replace(machine, nodes=(bare, machine.nodes[1]))
    assert choose_cpus(machine).memory_nodes == (1,)
    assert choose_cpus(machine, beside_node=0).memory_nodes is None
    assert spread_cpus(machine).memory_nodes == (1,)


@pytest.mark.parametrize(
    ("status", "nodes"),
    [
        ("Name:\tpython\nMems_allowed:\t00000000,00000001\nMems_allowed_list:\t0\n", (0,)),
        ("Mems_allowed_list:\t0-1,3\n", (0, 1, 3)),
        ("Mems_allowed_list:\t-5\n", None),
        ("", None),
    ],
)
def test_the_kernel_says_whose_memory_is_allowed(
    status: str, nodes: tuple[int, ...] | None
) -> None:
    limits = read_limits(PackedFiles({"proc/self/status": status}), (0, 1), None, None)
    assert limits.memory_nodes == nodes
