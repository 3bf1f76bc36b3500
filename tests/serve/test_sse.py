"""Events as bytes: whole ones only, unchanged, progress taken out."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import chunk, progress

from workhorse.serve.sse import EventFilter, event_data, parse_object, split_events


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


HELLO = event(chunk("Grüße, 世界 👋"))
BYE = event(chunk(None, finish="stop"))
STEP = event(progress(512))
DONE = b"data: [DONE]\n\n"
STREAM = STEP + b":\n\n" + STEP + HELLO + STEP + BYE + DONE
KEPT = b":\n\n" + HELLO + BYE + DONE


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_however_it_is_cut_the_bytes_are_the_same(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    passed = EventFilter(keep_progress=False)
    parts = [passed.feed(STREAM[a:b]) for a, b in pairwise(ends)]
    assert b"".join(parts) == KEPT
    for part in parts:
        assert part == b"" or part.endswith(b"\n\n")


def test_progress_stays_for_those_who_asked() -> None:
    passed = EventFilter(keep_progress=True)
    assert passed.feed(STREAM[:100]) + passed.feed(STREAM[100:]) == STREAM


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard(line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    passed = EventFilter(keep_progress=False)
    parts = [passed.feed(stream[i : i + 1]) for i in range(len(stream))]
    assert b"".join(parts) == KEPT.replace(b"\n", line_end)


def test_half_an_event_is_never_passed_on() -> None:
    passed = EventFilter(keep_progress=False)
    assert passed.feed(HELLO + BYE[:-1]) == HELLO
    assert passed.feed(b"\n") == BYE


@pytest.mark.parametrize("keep", [True, False])
def test_started_with_the_first_event_that_is_no_progress(keep: bool) -> None:
    passed = EventFilter(keep_progress=keep)
    for block in (STEP, b":\n\n", HELLO[:20]):
        passed.feed(block)
        assert not passed.started
    passed.feed(HELLO[20:])
    assert passed.started


def test_text_that_speaks_of_progress_is_no_progress() -> None:
    said = event(chunk('{"prompt_progress": {"total": 1}}'))
    assert EventFilter(keep_progress=False).feed(said) == said


def test_progress_that_carries_words_loses_only_the_progress() -> None:
    carried = progress(512)
    carried["choices"][0]["delta"] = {"content": "The colours are"}
    (left,) = split_events(EventFilter(keep_progress=False).feed(event(carried)))
    del carried["prompt_progress"]
    assert parse_object(event_data(left)) == carried


def test_progress_of_a_plain_completion_goes_too() -> None:
    step = progress(512)
    step["choices"] = [{"text": "", "index": 0, "logprobs": None, "finish_reason": None}]
    assert EventFilter(keep_progress=False).feed(event(step)) == b""


def test_an_event_of_many_megabytes_in_small_blocks() -> None:
    huge = event(chunk("x" * 8_000_000))
    passed = EventFilter(keep_progress=False)
    size = 60_000
    parts = [passed.feed(huge[i : i + size]) for i in range(0, len(huge), size)]
    assert parts[:-1] == [b""] * (len(parts) - 1)
    assert parts[-1] == huge


def test_what_an_event_carries() -> None:
    assert event_data(b"event: x\ndata: one\ndata:two\n\n") == b"one\ntwo"
    assert event_data(b": a comment\n\n") is None
    assert parse_object(None) is None
    assert parse_object(b"[DONE]") is None
    assert parse_object(b"[1]") is None
    assert parse_object(b'{"a":') is None
    assert parse_object(b'{"a":1}') == {"a": 1}
