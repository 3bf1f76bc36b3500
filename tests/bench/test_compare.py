import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.bench.compare import PAIRS_MIN, Comparison, compare


def noisy(level: float, pairs: int, *, seed: int, noise: float = 0.02) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.uniform(1 - noise, 1 + noise) for _ in range(pairs)]


def interval(result: Comparison) -> tuple[float, float]:
    assert result.interval is not None
    return result.interval


def test_equal_speeds_make_no_difference() -> None:
    result = compare(noisy(40, 12, seed=1), noisy(40, 12, seed=2))
    assert result.outcome == "no difference"
    low, high = interval(result)
    assert low < 1 < high


def test_a_faster_series_is_found_higher_and_the_other_lower() -> None:
    fast, slow = noisy(48, 10, seed=1), noisy(40, 10, seed=2)
    assert compare(fast, slow).outcome == "higher"
    assert compare(slow, fast).outcome == "lower"
    assert compare(fast, slow).ratio == pytest.approx(1.2, rel=0.03)


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(40):
        result = compare(noisy(44, 12, seed=2 * seed), noisy(40, 12, seed=2 * seed + 1), seed=seed)
        low, high = interval(result)
        held += low <= 1.1 <= high
    assert held >= 33


def test_drift_that_moves_both_does_not_hide_a_difference() -> None:
    drift = [1 - 0.05 * i for i in range(10)]
    a = [44 * d for d in drift]
    b = [40 * d for d in drift]
    assert compare(a, b).outcome == "higher"


def test_too_few_pairs_say_nothing() -> None:
    result = compare([2.0] * (PAIRS_MIN - 1), [1.0] * (PAIRS_MIN - 1))
    assert (result.outcome, result.interval) == ("too few pairs", None)
    assert result.ratio == 2.0


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = noisy(41, 9, seed=3), noisy(40, 9, seed=4)
    assert compare(a, b, seed=5) == compare(a, b, seed=5)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_what_cannot_be_compared_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"series|positive"):
        compare(a, b)


SPEEDS = st.floats(1e-3, 1e6)


@settings(max_examples=25)  # each draws thousands of resamples
@given(st.lists(st.tuples(SPEEDS, SPEEDS), min_size=PAIRS_MIN, max_size=9))
def test_the_interval_is_finite_and_ordered(pairs: list[tuple[float, float]]) -> None:
    result = compare([a for a, _ in pairs], [b for _, b in pairs])
    low, high = interval(result)
    assert 0 < low <= high
    assert math.isfinite(high)
