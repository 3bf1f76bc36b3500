"""Memory that is read on a host with several nodes has a policy of its own."""

import os

import pytest

from workhorse.machine import bandwidth
from workhorse.machine.bandwidth_plan import Reading
from workhorse.records import Bandwidth
from workhorse.units import MIB

# A machine that stands still for the length of a measurement has no figure of it.
ATTEMPTS = 10


def measure(node: int | None) -> object:
    cpus = (max(os.sched_getaffinity(0)),)
    reading = Reading(node, cpus, "small", 8 * MIB, 4 * MIB)
    for _ in range(ATTEMPTS):
        found = bandwidth._measure(reading, 0.2, lambda share: None)
        if isinstance(found, Bandwidth):
            break
    return found


@pytest.mark.parametrize(("node", "told"), [(0, [(8 * MIB, (0,))]), (None, [])])
def test_numa_balancing_is_kept_off_the_pages(
    monkeypatch: pytest.MonkeyPatch, node: int | None, told: list[object]
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        bandwidth, "place_memory", lambda address, size, nodes: calls.append((size, nodes))
    )
    assert isinstance(measure(node), Bandwidth)
    assert calls[-len(told) :] == told if told else calls == []


def test_a_container_that_forbids_policies_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(address: int, size: int, nodes: tuple[int, ...]) -> None:
        raise PermissionError

    monkeypatch.setattr(bandwidth, "place_memory", refuse)
    assert isinstance(measure(0), Bandwidth)
