"""What raises an alarm and what does not, over any course of things."""

from dataclasses import replace
from itertools import pairwise

from guard_scenes import PERIOD_S, Play, cpu_plan, engine, forecast
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.guard.hysteresis import Condition
from workhorse.guard.limits import Limits

LIMITS = Limits()
LOOKS = st.lists(st.booleans(), max_size=400)


def course(looks: list[bool], limits: Limits = LIMITS) -> tuple[list[float], list[float]]:
    """When a course of good and bad looks was told as raised, and as over."""
    condition, raised, over = Condition(limits), [], []
    for index, bad in enumerate(looks):
        at_s = 1000 + index * PERIOD_S
        condition.look(bad, at_s)
        news = condition.news(at_s)
        if news:
            (raised if news == "raised" else over).append(at_s)
    return raised, over


@given(LOOKS, st.integers(1, 8), st.integers(1, 30))
def test_whatever_comes_it_is_told_at_most_once_in_the_period(
    looks: list[bool], raise_after: int, clear_after: int
) -> None:
    limits = replace(LIMITS, raise_after=raise_after, clear_after=clear_after)
    raised, over = course(looks, limits)
    assert all(b - a >= limits.repeat_s for a, b in pairwise(raised))
    # Each end follows its own beginning.
    assert len(raised) - len(over) in (0, 1)
    assert all(a < b for a, b in zip(raised, over, strict=False))


@given(LOOKS)
def test_what_lasts_is_told_within_bounded_looks(before: list[bool]) -> None:
    """Even where it was told lately: as soon as the period is over."""
    looks = [*before, *[True] * LIMITS.raise_after]
    condition = Condition(LIMITS)
    for index, bad in enumerate(looks):
        condition.look(bad, index * PERIOD_S)
    assert condition.open
    most = LIMITS.raise_after + int(LIMITS.repeat_s / PERIOD_S) + 1
    raised, over = course([*before, *[True] * most])
    assert len(raised) == len(over) + 1, "it is told, and not as over"


@given(st.lists(st.integers(1, LIMITS.raise_after - 1), max_size=30))
def test_short_disturbances_far_apart_are_none(bursts: list[int]) -> None:
    looks = [look for n in bursts for look in [True] * n + [False] * LIMITS.of_latest]
    assert course(looks) == ([], [])


def test_what_comes_and_goes_is_one_alarm_that_came_so_often() -> None:
    condition = Condition(LIMITS)
    looks = ([True] * 8 + [False] * 12) * 4
    for index, bad in enumerate(looks[:-12]):
        condition.look(bad, 1000 + index * PERIOD_S)
    assert condition.open and condition.times == 4 and condition.since_s == 1000 + 5 * PERIOD_S


# --- the judge, over noise ------------------------------------------------------------------------

# Healthy answers scatter: most by a tenth, some much.
NOISE = st.lists(st.floats(0.75, 1.3), min_size=20, max_size=80)


@settings(deadline=None, max_examples=40)
@given(NOISE, st.sampled_from([1, 2, 4]), st.sampled_from([200, 868, 4000, 16000]))
def test_noise_within_the_band_is_no_alarm(noise: list[float], streams: int, depth: int) -> None:
    play = Play(cpu_plan(forecast=forecast(100.0)))
    expected = play.judge.baseline("horse", play.plan).expect(depth, streams)
    assert expected is not None
    for share in noise:
        speed = expected.tokens_per_s * share
        play.step(
            engines=(
                engine(
                    decode_tokens_per_s=speed,
                    depth_tokens=depth,
                    streams=streams,
                    prefill_share=0.0,
                ),
            )
        )
    assert play.raised == []


@settings(deadline=None, max_examples=40)
@given(NOISE, st.floats(0.02, 0.5), st.sampled_from([1, 4]))
def test_a_lasting_collapse_is_raised_within_bounded_readings_whatever_was_learned(
    noise: list[float], collapse: float, streams: int
) -> None:
    play = Play(cpu_plan(forecast=forecast(100.0)))
    expected = play.judge.baseline("horse", play.plan).expect(868, streams)
    assert expected is not None
    for share in [*noise, *[collapse] * LIMITS.of_latest]:
        speed = expected.tokens_per_s * share
        reading = engine(decode_tokens_per_s=speed, streams=streams, prefill_share=0.0)
        play.step(engines=(reading,))
    assert play.raised == ["live.decode-collapsed"]
