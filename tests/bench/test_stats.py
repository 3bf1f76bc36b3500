import math
from dataclasses import astuple, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.bench import stats
from workhorse.bench.doubts import doubts
from workhorse.bench.scenario import Scenario
from workhorse.codec import from_json, to_json
from workhorse.machine.probe import probe
from workhorse.records import Conditions, Measurement, Run

CONDITIONS = Conditions("2026-11-30T00:00:00+00:00", None, None, "http://127.0.0.1:1", "0")


def run(
    *arrivals_s: float,
    tokens: int | None = None,
    stream: int = 0,
    prompt: int | None = 768,
    cached: int | None = 0,
    end_s: float | None = None,
    error: str | None = None,
) -> Run:
    return Run(
        stream=stream,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=len(arrivals_s) if tokens is None else tokens,
        arrivals_s=arrivals_s,
        end_s=(arrivals_s[-1] if arrivals_s else 1.0) if end_s is None else end_s,
        error=error,
    )


def steady(rate: float, tokens: int = 200, first_s: float = 0.5, **more: Any) -> Run:
    return run(*(first_s + i / rate for i in range(tokens)), **more)


def measurement(*runs: Run, streams: int = 1, output: int = 200) -> Measurement:
    scenario = Scenario("x", output_tokens=output, streams=streams, repeats=3)
    return scenario.measurement(runs, CONDITIONS)


def codes(*runs: Run, **more: int) -> list[str]:
    return [finding.code for finding in doubts(measurement(*runs, **more)).findings]


def test_first_token_and_decode_are_apart() -> None:
    one = run(2.0, 2.1, 2.2, 2.3)
    assert stats.ttft_s(one) == 2.0
    assert stats.decode_tokens_per_s(one) == pytest.approx(3 / 0.3)
    assert stats.prefill_tokens_per_s(one) == pytest.approx(384)


def test_decode_counts_tokens_and_not_pieces() -> None:
    assert stats.decode_tokens_per_s(run(1.0, 2.0, tokens=11)) == pytest.approx(10)


def test_cached_tokens_are_not_prefilled() -> None:
    assert stats.prefill_tokens_per_s(run(2.0, cached=700)) == pytest.approx(34)


@pytest.mark.parametrize(
    "one",
    [
        run(),
        run(tokens=0),
        run(1.0),
        run(1.0, tokens=5),  # all tokens in one piece
        run(1.0, 1.0, 1.0),  # all pieces in one read
        run(1.0, 2.0, tokens=1),
        run(1.0, 2.0, tokens=0),
        run(1.0, 2.0, error="lost"),
    ],
)
def test_no_decode_speed_without_time_between_tokens(one: Run) -> None:
    assert stats.decode_tokens_per_s(one) is None


def test_a_failed_run_counts_in_no_figure() -> None:
    summary = stats.summarise(measurement(steady(10), steady(99, error="lost")))
    assert (summary.runs, summary.failed) == (2, 1)
    assert summary.decode_tokens_per_s is not None
    assert summary.decode_tokens_per_s.samples == 1
    assert summary.decode_tokens_per_s.median == pytest.approx(10)


def test_nothing_known_is_none_and_not_zero() -> None:
    summary = stats.summarise(measurement(run(error="lost"), run(prompt=None)))
    assert summary.ttft_s is None
    assert summary.decode_tokens_per_s is None
    assert summary.prefill_tokens_per_s is None
    assert summary.total_tokens_per_s is None


def test_spread_is_the_distance_of_least_and_most() -> None:
    spread = stats.spread([10.0, None, 12.0, 11.0])
    assert spread == stats.Spread(median=11.0, low=10.0, high=12.0, samples=3)
    assert spread.share == pytest.approx(2 / 11)


def test_total_is_what_all_streams_got_over_the_whole_time() -> None:
    pair = [run(1.0, 5.0, tokens=100, stream=0), run(2.0, 8.0, tokens=100, stream=1)]
    summary = stats.summarise(measurement(*pair, *pair, streams=2))
    assert summary.total_tokens_per_s == stats.Spread(25.0, 25.0, 25.0, 2)


def test_a_round_with_a_failed_or_missing_stream_has_no_total() -> None:
    failed = [run(1.0, 2.0), run(stream=1, error="lost")]
    partial = [run(1.0, 2.0)]
    summary = stats.summarise(measurement(*failed, *partial, streams=2))
    assert summary.total_tokens_per_s is None


def test_rounds_follow_each_stream() -> None:
    first = [run(stream=0), run(stream=1)]
    second = [run(stream=1), run(stream=0)]
    assert stats.rounds([*first, *second]) == (tuple(first), tuple(second))


def test_steady_runs_raise_no_doubt() -> None:
    assert codes(steady(100), steady(101), steady(99.5)) == []


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ((steady(100), steady(100), run(error="lost")), "bench-errors"),
        ((steady(100), steady(100, cached=5), steady(100)), "bench-cached-prompt"),
        ((steady(100), steady(100, tokens=199), steady(100)), "bench-short-answer"),
        ((steady(100), steady(100, prompt=700), steady(100)), "bench-prompt-length"),
        ((steady(100), steady(100)), "bench-few-runs"),
        ((steady(100), steady(110), steady(100), steady(110)), "bench-spread"),
        ((steady(80), steady(101), steady(100)), "bench-warm-up"),
        ((run(1.0, 2.0, tokens=200),) * 3, "bench-coarse-pieces"),
        ((run(1.0, 1.0, tokens=200),) * 3, "bench-all-at-once"),
        ((steady(100, prompt=None),) * 3, "bench-no-usage"),
    ],
)
def test_each_doubt_has_its_cause(runs: tuple[Run, ...], code: str) -> None:
    assert code in codes(*runs)


def test_one_answer_that_was_read_late_does_not_make_the_service_coarse() -> None:
    late = run(1.0, 2.0, tokens=200)
    assert "bench-coarse-pieces" not in codes(steady(100), late, steady(100))


@pytest.mark.parametrize(
    ("busy_cpus", "doubted"), [(None, []), (0.0, []), (1.5, ["bench-busy-host"])]
)
def test_other_work_on_the_machine_is_told(busy_cpus: float | None, doubted: list[str]) -> None:
    machine = replace(probe(measure_s=0), busy_cpus=busy_cpus)
    conditions = replace(CONDITIONS, machine=machine)
    busy = replace(measurement(*[steady(100)] * 3), conditions=conditions)
    assert [finding.code for finding in doubts(busy).findings] == doubted


def test_a_doubt_says_what_was_seen_in_both_languages() -> None:
    (finding,) = doubts(measurement(steady(80), steady(101), steady(100))).findings
    assert "80.0 tok/s" in finding.seen.en
    assert "80.0 tok/s" in finding.seen.zh
    assert finding.source == "workhorse bench"


def test_streams_of_one_round_may_differ_without_doubt() -> None:
    one_round = [steady(50, stream=0), steady(90, stream=1, end_s=4.5)]
    assert codes(*one_round * 3, streams=2) == []


def test_rounds_whose_total_differs_are_doubted() -> None:
    def pair(end_s: float) -> list[Run]:
        return [steady(100, stream=0, end_s=end_s), steady(100, stream=1, end_s=end_s)]

    assert codes(*pair(3), *pair(4), *pair(3), *pair(5), streams=2) == ["bench-spread"]


def test_a_measurement_survives_storing() -> None:
    stored = measurement(steady(100), run(error="lost"), run(prompt=None, cached=None))
    assert from_json(Measurement, to_json(stored), what="it") == stored


def test_suites_of_prompts_are_judged_by_their_prompts() -> None:
    slower = [steady(100, first_s=0.5), steady(140, first_s=0.5), steady(90, first_s=0.5)]
    assert codes(*slower) == ["bench-spread"]
    of_prompts = replace(measurement(*slower), scenario="prompts")
    assert doubts(of_prompts).findings == ()
    first_s = (0.5, 0.9, 0.5, 0.8)
    late = replace(measurement(*(steady(100, first_s=s) for s in first_s)), scenario="prompts")
    assert [finding.code for finding in doubts(late).findings] == ["bench-spread"]


def test_prompts_that_missed_the_cache_are_told() -> None:
    shared = replace(measurement(*[steady(100, cached=0)] * 3), shared_tokens=600, cache_asked=True)
    assert [finding.code for finding in doubts(shared).findings] == ["bench-cache-missed"]
    hit = replace(measurement(*[steady(100, cached=600)] * 3), shared_tokens=600, cache_asked=True)
    assert doubts(hit).findings == ()
    assert stats.summarise(hit).cached_share == pytest.approx(600 / 768)


def test_requests_that_differ_are_held_against_their_own_sizes() -> None:
    def one(prompt: int, output: int, sent_s: float) -> Run:
        asked = {"asked_prompt_tokens": prompt, "asked_output_tokens": 100, "sent_s": sent_s}
        return replace(steady(50, tokens=output, prompt=prompt), **asked)

    mixed = replace(measurement(one(50, 100, 0.0), one(900, 100, 10.0)), scenario="chat")
    assert doubts(mixed).findings == ()
    total = stats.summarise(mixed).total_tokens_per_s
    assert total is not None
    assert total.median == pytest.approx(200 / (10.0 + 0.5 + 99 / 50))
    short = replace(measurement(one(50, 60, 0.0), one(900, 100, 10.0)), scenario="chat")
    (finding,) = doubts(short).findings
    assert "60 of 100 tokens" in finding.seen.en


TIMES = st.floats(0, 1e6)
COUNTS = st.integers(0, 10**6)
RUNS = st.builds(
    Run,
    stream=st.integers(0, 3),
    prompt_tokens=st.none() | COUNTS,
    cached_tokens=st.none() | COUNTS,
    output_tokens=COUNTS,
    arrivals_s=st.lists(TIMES, max_size=8).map(sorted).map(tuple),
    end_s=TIMES,
    error=st.none() | st.text("refusd, 503", max_size=5),  # its words are shown as they are
)


def figures(value: object) -> list[float]:
    if is_dataclass(value) and not isinstance(value, type):
        value = astuple(value)
    if isinstance(value, tuple):
        return [figure for part in value for figure in figures(part)]
    return [value] if isinstance(value, float) else []


@given(st.lists(RUNS, max_size=12), st.integers(1, 4))
def test_no_figure_is_ever_negative_or_not_a_number(runs: list[Run], streams: int) -> None:
    one = measurement(*runs, streams=streams)
    summary = stats.summarise(one)
    assert all(math.isfinite(figure) and figure >= 0 for figure in figures(summary))
    for finding in doubts(one).findings:
        words = f"{finding.seen.en} {finding.why.en}".split()
        assert not {"nan", "inf", "NaN"} & set(words)
