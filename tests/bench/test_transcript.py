import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.bench.transcript import Transcript, events, to_run


def piece(text: str, **more: object) -> dict[str, object]:
    return {"choices": [{"text": text, "index": 0, "finish_reason": None}], **more}


LAST = {
    "choices": [{"text": "", "finish_reason": "length"}],
    "usage": {
        "completion_tokens": 3,
        "prompt_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
    "timings": {"cache_n": 5, "prompt_n": 2, "predicted_n": 9},
}


def line(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def transcript(
    *reads: tuple[float, bytes],
    status: int | None = 200,
    problem: str | None = None,
    sent_s: float = 10.0,
) -> Transcript:
    return Transcript(3, sent_s, 20.0, status, reads, problem)


STREAM = (
    (11.0, line({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})),
    (11.5, line(piece("", prompt_progress={"total": 7, "processed": 7}))),
    (12.0, line(piece("a"))),
    (12.5, line(piece("b")) + line(piece("c"))),
    (13.0, line(LAST) + b"data: [DONE]\n\n"),
)


def test_a_stream_becomes_a_run() -> None:
    run = to_run(transcript(*STREAM))
    assert run.arrivals_s == (2.0, 2.5, 2.5)  # not the role, the progress, the empty last one
    assert (run.stream, run.end_s, run.error) == (3, 10.0, None)
    assert (run.prompt_tokens, run.cached_tokens, run.output_tokens) == (7, 2, 3)


@given(st.integers(1, 400))
def test_where_the_bytes_are_cut_does_not_matter(size: int) -> None:
    data = b"".join(read for _, read in STREAM)
    cuts = [(12.0, data[at : at + size]) for at in range(0, len(data), size)]
    run = to_run(transcript(*cuts))
    assert run.arrivals_s == (2.0, 2.0, 2.0)
    assert run.error is None


def test_an_event_has_the_time_at_which_its_line_was_complete() -> None:
    whole = line(piece("a"))
    assert [time_s for time_s, _ in events([(1.0, whole[:9]), (2.0, whole[9:])])] == [2.0]


def test_windows_line_ends_and_comments_are_understood() -> None:
    reads = [(1.0, b": ping\r\ndata: [DONE]\r\n\r\n")]
    assert list(events(reads)) == [(1.0, b"[DONE]")]


def test_engine_timings_stand_in_for_missing_usage() -> None:
    last = {key: value for key, value in LAST.items() if key != "usage"}
    run = to_run(transcript((11.0, line(piece("a"))), (12.0, line(last))))
    assert (run.prompt_tokens, run.cached_tokens, run.output_tokens) == (7, 5, 9)


def test_pieces_stand_in_for_tokens_where_nothing_is_counted() -> None:
    reads = [(11.0, line(piece("a")) + line(piece("b"))), (12.0, b"data: [DONE]\n\n")]
    run = to_run(transcript(*reads))
    assert (run.prompt_tokens, run.cached_tokens, run.output_tokens) == (None, None, 2)
    assert run.error is None


@pytest.mark.parametrize(
    ("reads", "status", "problem", "said"),
    [
        ([(11.0, line(piece("a")))], 200, None, "ended before"),
        ([], 200, None, "ended before"),
        ([(11.0, line(piece("a")))], 200, "Connection reset by peer", "reset by peer"),
        ([(11.0, line({"error": {"message": "out of memory"}}))], 200, None, "out of memory"),
        ([(11.0, b'error: {"message":"slot lost"}\n\n')], 200, None, "slot lost"),
        ([(11.0, line({"error": "plain words"}))], 200, None, "plain words"),
        ([(11.0, b"data: {oops\n\n")], 200, None, "{oops"),
        ([(11.0, b"data: [1]\n\n")], 200, None, "not a completion"),
        ([(11.0, b'{"error":{"message":"too long"}}')], 400, None, "HTTP 400: too long"),
        ([(11.0, b"<html>no</html>")], 502, None, "HTTP 502: <html>no</html>"),
        ([(11.0, b"\xff\xfe")], 500, None, "HTTP 500"),
        ([], 404, None, "HTTP 404"),
        ([], None, "Connection refused", "Connection refused"),
        ([], None, None, "no answer"),
    ],
)
def test_what_went_wrong_is_in_the_run(
    reads: list[tuple[float, bytes]], status: int | None, problem: str | None, said: str
) -> None:
    run = to_run(transcript(*reads, status=status, problem=problem))
    assert run.error is not None
    assert said in run.error


def test_tokens_before_an_error_are_kept() -> None:
    reads = [(11.0, line(piece("a"))), (12.0, line({"error": {"message": "lost"}}))]
    run = to_run(transcript(*reads))
    assert (run.arrivals_s, run.output_tokens, run.error) == ((1.0,), 1, "lost")


@given(
    st.lists(st.binary(max_size=60) | st.just(b"data: ") | st.just(b"\n")),
    st.sampled_from([200, 500, None]),
)
def test_no_answer_can_break_the_reader(reads: list[bytes], status: int | None) -> None:
    run = to_run(transcript(*((11.0, data) for data in reads), status=status))
    assert run.error or run.output_tokens >= 0


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["choices", "usage", "error", "text", "timings"]), x)
        ),
    )
)
def test_no_event_can_break_the_reader(document: object) -> None:
    run = to_run(transcript((11.0, line(document))))
    assert run.error
