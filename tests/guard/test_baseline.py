"""What speed is expected: the measurement's height, the forecast's shape, the live service."""

from dataclasses import replace

import pytest
from guard_scenes import Play, cpu_plan, engine, forecast
from hypothesis import given
from hypothesis import strategies as st

from workhorse.guard.baseline import LEARN_FROM, LEARN_UP_TO, Baseline

NOTHING = replace(forecast(), decode_tokens_per_s=None, streams=(), depths=())


def speed(baseline: Baseline, depth: int | None = 868, streams: int | None = 1) -> float:
    expected = baseline.expect(depth, streams)
    assert expected is not None
    return expected.tokens_per_s


def test_the_shape_is_the_forecasts_and_the_height_is_what_was_measured() -> None:
    baseline = Baseline(forecast(100.0))
    assert speed(baseline) == pytest.approx(100)
    assert speed(baseline, 8192) == pytest.approx(80)
    assert speed(baseline, 868, 4) == pytest.approx(40)
    assert speed(baseline, 868, 2) > speed(baseline, 868, 3) > speed(baseline, 868, 4)
    assert speed(baseline, None, None) == pytest.approx(100)
    baseline.accept(50.0)
    assert speed(baseline, 8192) == pytest.approx(40)
    expected = baseline.expect(868, 1)
    assert expected is not None and expected.basis == "measured"


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_deeper_and_more_streams_are_never_expected_to_be_faster(depth: int, streams: int) -> None:
    baseline = Baseline(forecast(100.0))
    assert 0 < speed(baseline, depth + 1000, streams) <= speed(baseline, depth, streams) + 1e-9
    assert speed(baseline, depth, streams + 1) <= speed(baseline, depth, streams) + 1e-9


def test_a_mere_forecast_is_held_against_the_service_only_when_it_is_far_off() -> None:
    guessed = Baseline(forecast(100.0, "estimated")).expect(868, 1)
    measured = Baseline(forecast(100.0, "measured")).expect(868, 1)
    assert guessed is not None and measured is not None
    assert guessed.low_tokens_per_s < 0.6 * measured.low_tokens_per_s


def test_it_learns_where_nobody_measured() -> None:
    baseline = Baseline(forecast(100.0, "estimated"))
    for index in range(LEARN_FROM):
        assert baseline.learn(60.0 + index % 3, 868, 1)
    expected = baseline.expect(868, 1)
    assert expected is not None and expected.basis == "learned"
    assert expected.tokens_per_s == pytest.approx(61, abs=1.5)
    assert expected.low_tokens_per_s > 40
    assert speed(baseline, 868, 4) == pytest.approx(40), "of another batch it has learned nothing"


def test_without_any_forecast_it_says_nothing_until_it_has_learned() -> None:
    baseline = Baseline(NOTHING)
    assert baseline.expect(868, 1) is None
    for _ in range(LEARN_FROM):
        baseline.learn(30.0, 868, 2)
    assert speed(baseline, 868, 2) == pytest.approx(30)
    deep = baseline.expect(30_000, 2)
    assert deep is not None and deep.low_tokens_per_s == 0


def test_it_never_learns_from_a_collapse() -> None:
    baseline = Baseline(forecast(100.0))
    assert not any(baseline.learn(30.0, 868, 1) for _ in range(100))
    assert speed(baseline) == pytest.approx(100)


@given(st.lists(st.floats(0.1, 2000), max_size=200))
def test_no_course_of_readings_talks_a_measurement_down(speeds: list[float]) -> None:
    """Not even a slow decline, each step of which is small."""
    baseline = Baseline(forecast(100.0))
    for one in speeds:
        baseline.learn(one, 868, 1)
    assert speed(baseline) >= 80 - 1e-9
    expected = baseline.expect(868, 1)
    assert expected is not None and expected.low_tokens_per_s >= 0.55 * 100


def test_it_stops_learning_after_an_hour() -> None:
    baseline = Baseline(forecast(100.0))
    taken = sum(baseline.learn(100.0, 868, 1) for _ in range(LEARN_UP_TO + 50))
    assert taken == LEARN_UP_TO


def test_it_learns_nothing_while_anything_is_suspected() -> None:
    play = Play(cpu_plan(forecast=forecast(100.0, "estimated")))
    play.run(40, engines=(engine(decode_tokens_per_s=75.0, swapped_bytes=10**9),))
    expected = play.judge.baseline("horse", play.plan).expect(868, 1)
    assert expected is not None and expected.basis == "estimated"
    play.run(40, engines=(engine(decode_tokens_per_s=75.0),))
    expected = play.judge.baseline("horse", play.plan).expect(868, 1)
    assert expected is not None and expected.tokens_per_s == pytest.approx(75, rel=0.01)


def test_it_learns_nothing_beside_programs_that_take_most_of_the_cpus() -> None:
    play = Play(cpu_plan(forecast=forecast(100.0, "estimated")))
    play.run(40, other_cpus_busy=3.0, engines=(engine(decode_tokens_per_s=60.0),))
    expected = play.judge.baseline("horse", play.plan).expect(868, 1)
    assert expected is not None and expected.basis == "estimated" and play.raised == []


def test_it_learns_beside_programs_that_take_only_what_it_leaves() -> None:
    play = Play(cpu_plan(forecast=forecast(100.0, "estimated")))
    healthy = engine(decode_tokens_per_s=75.0, waited_share=0.02)
    play.run(40, other_cpus_busy=3.0, engines=(healthy,))
    assert speed(play.judge.baseline("horse", play.plan)) == pytest.approx(75, rel=0.01)


def test_a_service_that_is_faster_than_was_measured_is_held_against_what_it_shows() -> None:
    play = Play(cpu_plan(forecast=forecast(5.0)))
    play.run(30, engines=(engine(decode_tokens_per_s=100.0),))
    play.run(10, engines=(engine(decode_tokens_per_s=20.0),))
    assert play.raised == ["live.decode-collapsed"]


def test_another_plan_begins_anew() -> None:
    play = Play(cpu_plan(forecast=forecast(100.0)))
    play.run(30, engines=(engine(decode_tokens_per_s=140.0),))
    assert speed(play.judge.baseline("horse", play.plan)) > 120
    other = cpu_plan(forecast=forecast(50.0))
    assert speed(play.judge.baseline("horse", other)) == pytest.approx(50)
