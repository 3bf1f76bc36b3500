"""From measured speeds and counted documents to hours, before and while a job runs."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from measured_speeds import measured

from workhorse.batch.capacity import (
    Capacity,
    Range,
    benched_capacity,
    guessed_capacity,
)
from workhorse.batch.census import SAMPLED, Census, TokensAChar, tokens_a_char
from workhorse.batch.forecast import Answers, Asking, TimeLeft, expected_answers, forecast
from workhorse.batch.item import NewItem, Usage
from workhorse.records import Measurement
from workhorse.text import same


def ladder(**decode: float) -> tuple[Measurement, ...]:
    return tuple(measured(int(name[1:]), decode=speed) for name, speed in decode.items())


# --- capacity ------------------------------------------------------------------------------------


def test_the_best_of_a_ladder_with_its_speeds() -> None:
    found = benched_capacity(ladder(s1=60, s2=90, s4=130, s8=131), "7")
    assert found is not None
    assert found.streams == 4  # eight bring nothing that would be worth the wait
    assert found.prefill_tokens_per_s.value == pytest.approx(400)
    assert found.decode_tokens_per_s.value == pytest.approx(130)
    assert found.benched
    assert "7" in found.source.en


def test_the_capacity_says_of_the_bench_itself_just_its_time() -> None:
    """Or a share of the bench would mean nothing."""
    runs = ladder(s1=60, s2=90, s4=130)
    found = benched_capacity(runs, "7")
    assert found is not None
    assert found.seconds(4 * 256, 4 * 64) == pytest.approx(runs[2].runs[0].end_s)


def test_groups_of_requests_are_not_mixed() -> None:
    """Long prompts at one stream say how fast prompts are read, not what four streams do."""
    prompts = [replace(measured(1, prompt=2048, output=16), scenario="prompts")]
    found = benched_capacity([*prompts, *ladder(s1=60, s4=130)], "7")
    assert found is not None
    assert found.decode_tokens_per_s.value == pytest.approx(130)


@pytest.mark.parametrize(
    "measurements",
    [
        (),
        ladder(s4=130),  # nothing to tell prefill from
        ladder(s1=60),  # no other count
        [replace(one, shared_tokens=64) for one in ladder(s1=60, s4=130)],
        [
            replace(one, runs=tuple(replace(run, error="HTTP 500") for run in one.runs))
            for one in ladder(s1=60, s4=130)
        ],
        [measured(1, output=4), measured(4, output=4)],  # too short to tell anything of decoding
    ],
)
def test_a_run_that_does_not_tell_gives_no_capacity(measurements: Sequence[Measurement]) -> None:
    assert benched_capacity(measurements, "7") is None


def test_a_failed_round_is_left_out() -> None:
    good = measured(4, decode=130)
    runs = (replace(good.runs[0], error="HTTP 500"), *good.runs[1:])
    found = benched_capacity([measured(1, decode=60), replace(good, runs=runs)], "7")
    assert found is not None
    assert found.decode_tokens_per_s.value == pytest.approx(130)


def test_one_stream_alone_leaves_the_gain_of_more_open() -> None:
    found = guessed_capacity(4, 400.0, 60.0, same("x"))
    assert found is not None
    assert not found.benched
    assert found.decode_tokens_per_s.low < 60
    assert found.decode_tokens_per_s.high == 240
    assert guessed_capacity(4, None, 60.0, same("x")) is None


# --- census --------------------------------------------------------------------------------------


def documents(lengths: Sequence[int]) -> list[NewItem]:
    return [
        NewItem(id=str(number), source=str(number), content="x" * length if length else None)
        for number, length in enumerate(lengths)
    ]


def test_documents_are_counted_as_they_pass() -> None:
    census, items = Census(), documents([10, 0, 30])
    assert list(census.passing(iter(items))) == items
    assert list(census.chars) == [10, 0, 30]
    assert (census.readable, census.unreadable) == (2, 1)
    assert sorted(map(len, census.sample)) == [10, 30]


def test_of_many_documents_some_by_chance_stand_for_all() -> None:
    draw = random.Random(5)
    lengths = [draw.randint(100, 4000) for _ in range(3000)]
    census = Census()
    for _ in census.passing(iter(documents(lengths))):
        pass
    assert len(census.sample) == SAMPLED
    # Half of the sample comes from each half of the input, more or less.
    places = [lengths.index(len(text)) for text in census.sample]
    assert 15 < sum(place < 1500 for place in places) < SAMPLED - 15


def test_counted_documents_have_no_band_and_a_sample_has_one() -> None:
    sample, tokens = ["x" * 100, "x" * 200, "x" * 300], [20, 60, 70]
    whole = tokens_a_char(sample, tokens, 3).share
    assert whole == Range(0.25, 0.25, 0.25)
    some = tokens_a_char(sample, tokens, 3000).share
    assert some.low < 0.25 < some.high
    assert tokens_a_char([], [], 0).share.value == 0
    one = tokens_a_char(["x" * 100], [25], 2).share
    assert one.low < one.value < one.high


# --- forecast ------------------------------------------------------------------------------------

EACH = TokensAChar(Range(0.2, 0.25, 0.3), 64)
ASKING = Asking(prompt_tokens=100, room_tokens=1000)
ANSWERS = Answers(Range(40, 50, 80), of_document=False, source=same("x"))
CAPACITY = Capacity(4, Range(380, 400, 420), Range(95, 100, 105), same("bench"), benched=True)


def test_tokens_and_hours_of_documents_that_fit() -> None:
    found = forecast(
        [400, 800, 0], each=EACH, asking=ASKING, answers=ANSWERS, capacity=CAPACITY, streams=5
    )
    assert (found.documents, found.unreadable, found.requests) == (3, 1, 2)
    assert found.document_tokens == Range(240, 300, 360)
    # The template's own words are computed once for each slot that is used.
    assert found.prompt_tokens.value == 300 + 2 * 100
    assert found.output_tokens == Range(80, 100, 160)
    assert found.seconds is not None
    assert found.seconds.value == pytest.approx(500 / 400 + 100 / 100)
    assert found.seconds.low < found.seconds.value < found.seconds.high


def test_a_long_document_is_several_requests_and_one_to_join_them() -> None:
    found = forecast(
        [10_000], each=EACH, asking=ASKING, answers=ANSWERS, capacity=CAPACITY, streams=1
    )
    assert found.requests == 4  # 2500 tokens in pieces of 1000, then their join
    assert found.output_tokens.value == 4 * 50
    assert found.prompt_tokens.value == 2500 + 3 * 50 + 100


def test_answers_that_grow_with_the_document() -> None:
    answers = replace(ANSWERS, tokens=Range(0.5, 1.0, 2.0), of_document=True)
    found = forecast([4000], each=EACH, asking=ASKING, answers=answers, capacity=None, streams=1)
    assert found.output_tokens == Range(500, 1000, 2000)
    assert found.seconds is None
    assert "bench" in found.speed_source.en


def test_an_input_of_nothing_readable_takes_nothing() -> None:
    found = forecast(
        [0, 0], each=EACH, asking=ASKING, answers=ANSWERS, capacity=CAPACITY, streams=4
    )
    assert found.requests == 0
    assert found.seconds == Range(0, 0, 0)


@pytest.mark.parametrize(
    ("told", "value", "high"),
    [
        ({"before": (50, Usage(output_tokens=3000, requests=60))}, 50, 62.5),
        (
            {"before": (3, Usage(output_tokens=3000, requests=3))},
            76.8,
            512,
        ),  # too few to learn from
        ({"words": 100}, 140, 210),
        ({"words": 5000}, 512, 512),  # the limit cuts it
        ({}, 76.8, 512),
    ],
)
def test_what_answers_take_by_what_is_known(
    told: dict[str, object], value: float, high: float
) -> None:
    known = {"words": None, "before": None, "share": None, **told}
    found = expected_answers(answer_tokens=512, **known)  # type: ignore[arg-type]
    assert found.tokens.value == pytest.approx(value)
    assert found.tokens.high == pytest.approx(high)
    assert found.tokens.low < found.tokens.value


def test_a_share_of_the_document_is_learned_from_what_was_read() -> None:
    usage = Usage(prompt_tokens=10_000, output_tokens=4000, requests=20)
    found = expected_answers(
        answer_tokens=512, words=None, before=(20, usage), share=Range(0.5, 1, 2)
    )
    assert found.of_document
    assert found.tokens.value == pytest.approx(0.4)


# --- while it runs -------------------------------------------------------------------------------


def test_the_time_left_follows_the_forecast_then_what_is_seen() -> None:
    left = TimeLeft([10.0] * 100, sure=True)
    assert left.left_s(0.0) == pytest.approx(1000)
    left.ended(50)
    # Twice as slow as was forecast, all the time.
    assert left.left_s(1000.0) == pytest.approx(1000, rel=0.07)
    left.ended(100)
    assert left.left_s(2000.0) == 0


def test_without_a_speed_it_is_known_as_soon_as_some_have_ended() -> None:
    left = TimeLeft([1.0, 1.0, 8.0], sure=False)
    assert left.left_s(5.0) is None
    left.ended(2)
    assert left.left_s(10.0) == pytest.approx(40)  # the long one is still to come
    left.ended(99)
    assert left.left_s(50.0) == 0
    assert TimeLeft((), sure=True).left_s(0.0) == 0
