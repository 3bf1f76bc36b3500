"""How many replicas there should be: soon enough more, late enough fewer, never beyond bounds."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.fleet.scale import IDLE_S, PRESSED_S, Bounds, Load, Scale, replicas_for


def looks(scale: Scale, load: Load, seconds: float, every_s: float = 2.0) -> Iterator[int]:
    """What is wanted at each look while the load stays the same."""
    at_s = load.at_s
    while at_s <= load.at_s + seconds:
        yield scale.wanted(Load(at_s, *[getattr(load, n) for n in Load.__slots__[1:]]))
        at_s += every_s


BUSY = Load(0.0, ready=2, coming=0, slots=8, running=8, waiting=9)
IDLE = Load(0.0, ready=2, coming=0, slots=8, running=1, waiting=0)


def test_a_long_line_brings_one_more_and_only_after_a_while() -> None:
    wanted = list(looks(Scale(Bounds(1, 9)), BUSY, PRESSED_S + 2))
    assert wanted[:10] == [2] * 10
    assert wanted[-1] == 4  # nine wait where eight fit: as many again take them all


def test_a_short_wait_brings_none_and_a_long_one_does() -> None:
    short = Load(0.0, 2, 0, 8, 8, 1, expected_wait_s=3.0)
    assert set(looks(Scale(Bounds(1, 9)), short, 600)) == {2}
    long = Load(0.0, 2, 0, 8, 8, 1, expected_wait_s=40.0)
    assert list(looks(Scale(Bounds(1, 9)), long, 60))[-1] == 3


def test_a_queue_that_comes_and_goes_brings_none() -> None:
    scale, wanted = Scale(Bounds(1, 9)), set()
    for step in range(400):
        load = BUSY if step % 3 == 0 else IDLE
        wanted.add(scale.wanted(Load(step * 2.0, 2, 0, 8, load.running, load.waiting)))
    assert wanted == {2}


def test_nothing_more_is_wanted_while_one_is_coming() -> None:
    coming = Load(0.0, ready=2, coming=1, slots=8, running=8, waiting=50)
    assert set(looks(Scale(Bounds(1, 9)), coming, 600)) == {3}


def test_one_goes_after_a_long_quiet_time_and_then_the_count_begins_anew() -> None:
    scale = Scale(Bounds(1, 9))
    wanted = list(looks(scale, IDLE, IDLE_S + 2))
    assert wanted[:-3] == [2] * (len(wanted) - 3)
    assert wanted[-1] == 1
    fewer = Load(IDLE_S + 4, ready=1, coming=0, slots=4, running=0, waiting=0)
    assert scale.wanted(fewer) == 1


def test_a_busy_one_stays() -> None:
    half = Load(0.0, ready=2, coming=0, slots=8, running=4, waiting=0)
    assert set(looks(Scale(Bounds(1, 9)), half, 2 * IDLE_S)) == {2}


def test_what_was_lost_is_wanted_back_at_once() -> None:
    scale = Scale(Bounds(2, 9))
    assert scale.wanted(Load(0.0, 1, 0, 4, 4, 0)) == 2
    assert scale.wanted(Load(2.0, 0, 0, 0, 0, 4)) == 2


COUNTS = st.integers(0, 20)
LOADS = st.lists(
    st.tuples(COUNTS, st.integers(0, 3), COUNTS, COUNTS, st.none() | st.floats(0, 1e6)),
    max_size=60,
)


@given(LOADS, st.integers(1, 5), st.integers(0, 10))
def test_it_never_leaves_its_bounds(
    loads: list[tuple[int, int, int, int, float | None]], least: int, more: int
) -> None:
    bounds = Bounds(least, least + more)
    scale = Scale(bounds, pressed_s=10, idle_s=20)
    for step, (ready, coming, running, waiting, wait_s) in enumerate(loads):
        load = Load(step * 2.0, ready, coming, 4 * ready, running, waiting, wait_s)
        assert bounds.least <= scale.wanted(load) <= bounds.most


@pytest.mark.parametrize(
    ("users", "slots", "replicas"),
    [(1, [4, 4], 1), (12, [4, 4], 1), (13, [4, 4], 2), (900, [4, 4], 2), (5, [], 1)],
)
def test_replicas_for_people(users: int, slots: list[int], replicas: int) -> None:
    assert replicas_for(users, slots) == replicas
