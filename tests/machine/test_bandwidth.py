"""Memory bandwidth: the plan and the arithmetic exactly, the measurement as far as it is sure."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from captured_machines import CAPTURES

from workhorse.machine import bandwidth
from workhorse.machine.bandwidth import measure_bandwidths
from workhorse.machine.bandwidth_plan import Chunk, Reading, best_rate, plan_readings
from workhorse.machine.memory_policy import nodes_of_memory, place_memory
from workhorse.machine.probe import probe
from workhorse.records import Bandwidth, Limits, Machine
from workhorse.text import Text
from workhorse.units import GIB, MIB

ATTEMPTS = 10
Measured = tuple[tuple[Bandwidth, ...], tuple[Text, ...]]


@pytest.fixture(scope="module")
def machine_b() -> Machine:
    return probe(CAPTURES / "machine_b.json")


@pytest.fixture(scope="module")
def here() -> Machine:
    """This machine, taken for one without a third-level cache.

    So any memory is enough, however slowly a loaded machine hands it out.
    """
    machine = probe(measure_s=0)
    return replace(machine, cpu=replace(machine.cpu, l3_bytes=None))


def measured(
    machine: Machine, duration_s: float, holds: Callable[[Measured], bool], **more: Any
) -> Measured:
    """What was measured, once it holds, or the last try.

    A machine that stands still for the length of a measurement has no figure of it.
    """
    for _ in range(ATTEMPTS):
        found = measure_bandwidths(machine, duration_s=duration_s, **more)
        if holds(found):
            break
    return found


def steady(start_s: float, end_s: float, each_s: float, n_bytes: int) -> list[Chunk]:
    count = round((end_s - start_s) / each_s)
    return [Chunk(start_s + i * each_s, start_s + (i + 1) * each_s, n_bytes) for i in range(count)]


def test_steady_reads_give_their_rate() -> None:
    threads = [steady(0.0, 1.0, 0.001, 1000), steady(0.0003, 1.0003, 0.002, 1000)]
    assert best_rate(threads, 0.01) == pytest.approx(1.5e6, rel=0.01)


def test_only_time_in_which_all_threads_read_counts() -> None:
    threads = [steady(0.0, 1.0, 0.001, 1000), steady(0.5, 2.0, 0.001, 1000)]
    assert best_rate(threads, 0.01) == pytest.approx(2e6, rel=0.01)
    assert best_rate([steady(0.0, 1.0, 0.1, 1), steady(1.0, 2.0, 0.1, 1)], 0.01) is None
    assert best_rate([steady(0.0, 1.0, 0.1, 1), []], 0.01) is None and best_rate([], 0.01) is None


def test_a_disturbance_is_left_out() -> None:
    quiet = steady(0.0, 0.1, 0.001, 1000)
    disturbed = steady(0.1, 1.0, 0.01, 1000)
    assert best_rate([quiet + disturbed], 0.01) == pytest.approx(1e6, rel=0.01)


def test_less_than_a_window_is_its_own_window() -> None:
    assert best_rate([[Chunk(0.0, 0.004, 4000)]], 0.01) == pytest.approx(1e6)


def test_each_node_is_read_by_its_own_cores_with_both_page_sizes(machine_b: Machine) -> None:
    readings, doubts = plan_readings(machine_b)
    assert doubts == ()
    assert [(r.node, r.memory_nodes, r.pages) for r in readings] == [
        (0, None, "small"), (0, None, "huge"), (1, None, "small"), (1, None, "huge"),
        (0, (1,), "huge"), (1, (0,), "huge"), (None, (0, 1), "small"), (None, (0, 1), "huge"),
    ]  # fmt: skip
    assert readings[0].cpus == tuple(range(14)) and readings[2].cpus == tuple(range(14, 28))
    assert sorted(readings[-1].cpus) == list(range(28))
    for reading in readings:
        total = reading.thread_bytes * len(reading.cpus)
        assert 8 * 35 * MIB <= total <= 0.1 * 119 * GIB


def test_a_quota_a_mask_and_the_page_switch_are_kept_to(machine_b: Machine) -> None:
    limits = Limits(cpus=(28, 29, 30, 31, 14), quota_cpus=2.5, memory_bytes=None,
                    memory_used_bytes=None)  # fmt: skip
    memory = replace(machine_b.memory, thp="never")
    readings, _ = plan_readings(replace(machine_b, limits=limits, memory=memory))
    assert [(r.node, r.cpus, r.memory_nodes, r.pages) for r in readings] == [
        (0, (28, 29), None, "small"), (1, (14,), None, "small"), (0, (28, 29), (1,), "small"),
        (1, (14,), (0,), "small"), (None, (28, 14), (0, 1), "small"),
    ]  # fmt: skip


@pytest.mark.parametrize("why", ["a cpuset", "empty slots"])
def test_a_node_without_memory_for_us_reads_that_of_another(machine_b: Machine, why: str) -> None:
    limits = replace(machine_b.limits, memory_nodes=(1,))
    bare = replace(machine_b.nodes[0], memory_total_bytes=0, memory_free_bytes=0)
    readings, doubts = plan_readings(
        replace(machine_b, limits=limits)
        if why == "a cpuset"
        else replace(machine_b, nodes=(bare, machine_b.nodes[1]))
    )
    assert doubts == ()
    assert [(r.node, r.memory_nodes, r.pages) for r in readings] == [
        (1, None, "small"), (1, None, "huge"), (0, (1,), "huge"),
    ]  # fmt: skip


def test_of_several_nodes_the_farthest_is_read_across(machine_b: Machine) -> None:
    """Four sockets in a ring: the one opposite is two links away."""
    first = machine_b.nodes[0]
    distances = ((10, 21, 31, 21), (21, 10, 21, 31), (31, 21, 10, 21), (21, 31, 21, 10))
    nodes = tuple(replace(first, index=i, distances=distances[i]) for i in range(4))
    cores = tuple(replace(core, node=i % 4) for i, core in enumerate(machine_b.cpu.cores))
    ring = replace(machine_b, nodes=nodes, cpu=replace(machine_b.cpu, cores=cores))
    readings, _ = plan_readings(ring)
    across = [(r.node, r.memory_nodes) for r in readings if r.memory_nodes and r.node is not None]
    assert across == [(0, (2,)), (1, (3,)), (2, (0,)), (3, (1,))]
    assert readings[-1].memory_nodes == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("available_bytes", "limit_bytes"),
    [(GIB, None), (100 * GIB, GIB), (None, None)],
)
def test_too_little_memory_is_a_doubt_and_no_figure(
    machine_b: Machine, available_bytes: int | None, limit_bytes: int | None
) -> None:
    tight = replace(
        machine_b,
        memory=replace(machine_b.memory, available_bytes=available_bytes),
        limits=replace(machine_b.limits, memory_bytes=limit_bytes, memory_used_bytes=0),
    )
    readings, doubts = plan_readings(tight)
    assert readings == () and "tenth of the available memory" in doubts[0].en


def test_a_full_node_takes_less(machine_b: Machine) -> None:
    nodes = tuple(replace(n, memory_free_bytes=600 * MIB) for n in machine_b.nodes)
    readings, _ = plan_readings(replace(machine_b, nodes=nodes))
    each = [r for r in readings if r.node is not None]
    assert all(r.thread_bytes * len(r.cpus) <= 300 * MIB for r in each) and each


def test_no_cpu_is_a_doubt(machine_b: Machine) -> None:
    nobody = replace(machine_b, limits=replace(machine_b.limits, cpus=()))
    assert plan_readings(nobody)[0] == () and "CPU" in plan_readings(nobody)[1][0].en


def test_this_machine_is_measured(here: Machine) -> None:
    shares: list[float] = []

    def holds(found: Measured) -> bool:
        # Wide: two cores that six processes share read 1 GB/s; nobody builds 2 TB/s.
        rates = [figure.bytes_per_s for figure in found[0]]
        good = has_small(found) and all(1e8 < rate < 2e12 for rate in rates)
        if not good:
            shares.clear()
        return good

    found = measured(here, 0.8, holds, on_progress=shares.append)
    assert holds(found), found
    bandwidths, doubts = found
    readings, _ = plan_readings(here)
    assert len(bandwidths) + len(doubts) == len(readings)
    for figure in bandwidths:
        assert figure.threads >= 1 and figure.duration_s > 0 and "memchr" in figure.method
    assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares)


def has_small(found: Measured) -> bool:
    return [b.pages for b in found[0] if b.pages == "small"] == ["small"]


def as_two_nodes(here: Machine) -> Machine:
    """This machine with its last core said to be on a node of its own, which it does not have."""
    (node,) = here.nodes
    far = 1023
    nodes = (replace(node, distances=(10, 21)), replace(node, index=far, distances=(21, 10)))
    cores = (*here.cpu.cores[:-1], replace(here.cpu.cores[-1], node=far))
    limits = replace(here.limits, memory_nodes=None)
    return replace(here, nodes=nodes, cpu=replace(here.cpu, cores=cores), limits=limits)


def test_a_node_that_cannot_be_had_is_a_doubt_and_the_rest_is_measured(here: Machine) -> None:
    if len(here.nodes) != 1 or len(here.cpu.cores) < 2:
        pytest.skip("needs one node with two cores")
    machine = as_two_nodes(here)

    def own(found: Measured) -> list[int | None]:
        return [b.node for b in found[0] if b.memory_nodes is None and b.pages == "small"]

    found = measured(machine, 1.0, lambda found: bool(own(found)))
    bandwidths, doubts = found
    across = [b for b in bandwidths if b.memory_nodes is not None]
    assert any("cannot be put on node 1023" in doubt.en for doubt in doubts)
    assert all(b.memory_nodes == (0,) for b in across)
    assert own(found)


def test_memory_lies_where_it_was_put() -> None:
    node = nodes_of_here()[0]
    with bandwidth._private_memory(4 * MIB) as memory:
        view = (bandwidth.ctypes.c_char * (4 * MIB)).from_buffer(memory)
        address = bandwidth.ctypes.addressof(view)
        try:
            place_memory(address, 4 * MIB, (node,))
        except OSError as error:
            pytest.skip(f"memory policy: {error.strerror}")
        finally:
            del view
        memory.write(b"x" * 4 * MIB)
        found = nodes_of_memory([address, address + MIB])
        assert found in (None, (node, node))
        with pytest.raises(OSError):
            place_memory(address, 4 * MIB, (1023,))


def nodes_of_here() -> list[int]:
    return [node.index for node in probe(measure_s=0).nodes]


@pytest.mark.parametrize(
    ("nodes", "found", "words"),
    [
        (None, [], ""),
        ((1,), [1] * 64, ""),
        ((1,), [], "not checked"),
        ((0, 1), [0, 1] * 40, ""),
        ((0, 1), [0] * 34 + [1] * 46, ""),
    ],
)
def test_where_the_memory_lies_is_told(
    nodes: tuple[int, ...] | None, found: list[int], words: str
) -> None:
    placed = bandwidth._placed(Reading(0, (0,), "small", 1, 1, nodes), found)
    assert isinstance(placed, str) and words in placed


@pytest.mark.parametrize(("nodes", "found"), [((1,), [0] * 20 + [1] * 44), ((0, 1), [0] * 64)])
def test_memory_that_lies_elsewhere_is_not_measured(
    nodes: tuple[int, ...], found: list[int]
) -> None:
    placed = bandwidth._placed(Reading(0, (0,), "small", 1, 1, nodes), found)
    assert not isinstance(placed, str) and "did not put the memory" in placed.en


def test_threads_that_cannot_be_had_are_a_doubt(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bandwidth._Reader, "start", refuse)
    bandwidths, doubts = measure_bandwidths(here, duration_s=0.1)
    assert bandwidths == () and "can't start new thread" in doubts[0].en


def test_memory_that_cannot_be_had_is_a_doubt(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(bandwidth, "_private_memory", refuse)
    bandwidths, doubts = measure_bandwidths(here, duration_s=0.1)
    assert bandwidths == () and "Cannot allocate memory" in doubts[0].en


def test_memory_that_comes_too_slowly_is_a_doubt(here: Machine) -> None:
    slow = replace(here, cpu=replace(here.cpu, l3_bytes=64 * MIB))
    bandwidths, doubts = measure_bandwidths(slow, duration_s=1e-6)
    assert bandwidths == () and "in time" in doubts[0].en


def test_huge_pages_that_were_not_given_are_a_doubt(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "_anonymous_huge_bytes", lambda: 0)
    thp = replace(here, memory=replace(here.memory, thp="always"))

    def holds(found: Measured) -> bool:
        return any("huge pages" in doubt.en for doubt in found[1])

    found = measured(thp, 0.8, holds)
    assert all(figure.pages == "small" for figure in found[0])
    assert holds(found), found


def test_a_mask_that_cannot_be_set_is_told(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("workhorse.machine.bandwidth.os.sched_setaffinity", refuse)
    small = replace(here, memory=replace(here.memory, thp="never"))
    bandwidths, doubts = measured(small, 0.8, lambda found: found[1] == ())
    assert doubts == () and "not pinned" in bandwidths[0].method
