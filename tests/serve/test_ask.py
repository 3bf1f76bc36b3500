"""What the engine is asked for what a client asked."""

import json
from typing import Any

import pytest

from workhorse.serve.ask import (
    MOST_ANSWERS,
    MOST_COUNTED_BYTES,
    PING_DEFAULT_S,
    Ask,
    ask_engine,
    ask_unchanged,
)
from workhorse.serve.assemble import Kind


def asked(kind: Kind = "chat", **body: Any) -> tuple[Ask, dict[str, Any]]:
    ask = ask_engine(json.dumps(body).encode(), kind)
    return ask, json.loads(ask.body)


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_who_wants_no_stream_gets_one_assembled(stream: dict[str, Any]) -> None:
    ask, body = asked(n_predict=3, foo={"a": [1]}, **stream)
    assert ask.answer == "assembled"
    assert body == {
        "n_predict": 3,
        "foo": {"a": [1]},
        "stream": True,
        "stream_options": {"include_usage": True},
        "echo": True,
        "return_progress": True,
    }


def test_who_wants_a_stream_gets_it_without_progress() -> None:
    ask, body = asked(stream=True, stream_options={"include_usage": False}, id_slot=1)
    assert ask.answer == "without progress"
    assert body == {
        "stream": True,
        "stream_options": {"include_usage": False},
        "id_slot": 1,
        "return_progress": True,
    }


def test_who_wants_progress_too_gets_it_as_it_comes() -> None:
    ask, body = asked(stream=True, return_progress=True)
    assert ask.answer == "with progress"
    assert body == {"stream": True, "return_progress": True}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"x"',
        b"null",
        b'{"a": 1} x',
        b"\xff\xfe",
        b'{"stream": "yes"}',
        b'{"stream": 1}',
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_what_the_engine_will_refuse_goes_on_as_it_is(body: bytes) -> None:
    assert ask_engine(body, "chat") == Ask(body, "unchanged")


@pytest.mark.parametrize(
    ("kind", "wish"),
    [
        ("chat", {"logprobs": True}),
        ("chat", {"n_probs": 2}),
        ("text", {"logprobs": 2, "stop": ["x"]}),
        ("chat", {"verbose": True}),
        ("text", {"n_indent": 4}),
        ("chat", {"reasoning_format": "deepseek-legacy"}),
    ],
)
def test_what_a_stream_cannot_tell_is_asked_whole(kind: Kind, wish: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "a", **wish}).encode()
    assert ask_engine(body, kind) == Ask(body, "unchanged", prompt=b'"a"')
    streamed, _ = asked(kind, stream=True, **wish)
    assert streamed.answer == "without progress"


@pytest.mark.parametrize(
    ("kind", "wish"),
    [
        ("chat", {"logprobs": False, "n_probs": 0, "verbose": None}),
        ("text", {"logprobs": 2, "stop": []}),
        ("text", {"stop": ["x"]}),
        ("chat", {"reasoning_format": "deepseek"}),
    ],
)
def test_everything_else_is_assembled(kind: Kind, wish: dict[str, Any]) -> None:
    ask, _ = asked(kind, **wish)
    assert ask.answer == "assembled"


def test_values_go_on_as_the_bytes_they_were() -> None:
    body = b'{"temperature":1e-05,"seed":18446744073709551616,"prompt":"\\u00e9\\ud83d","n":1.0}'
    ask = ask_engine(body, "text")
    for value in (b"1e-05", b"18446744073709551616", b'"\\u00e9\\ud83d"', b"1.0"):
        assert value in ask.body


def test_other_stream_options_stay() -> None:
    _, body = asked(stream_options={"other": 1})
    assert body["stream_options"] == {"other": 1, "include_usage": True}
    for nonsense in (5, "x", [1], None):
        _, body = asked(stream_options=nonsense)
        assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("interval", "ping_s"),
    [(None, PING_DEFAULT_S), (1, 1), (2.5, 2.5), (-1, None), (0, None), ("x", None)],
)
def test_how_long_a_stream_may_be_silent(interval: object, ping_s: float | None) -> None:
    ask, body = asked(stream=True, sse_ping_interval=interval)
    assert ask.ping_s == ping_s
    assert body["sse_ping_interval"] == interval


@pytest.mark.parametrize(
    ("body", "kind", "answers"),
    [
        ({"n": 3}, "chat", 3),
        ({"n": None}, "chat", 1),
        ({"n": "3"}, "chat", 1),  # the engine refuses it
        ({"n": -1}, "chat", 1),
        ({"n": 10**30}, "chat", MOST_ANSWERS),
        ({"n_cmpl": 2}, "text", 2),
        ({"n": 3}, "messages", 1),
        ({"n": 2, "prompt": ["a", "b", [1, 2]]}, "text", 6),
        ({"prompt": [1, 2, 3]}, "text", 1),
        ({"prompt": ["a", 1, "b"]}, "text", 1),  # one, of words and tokens
        ({"prompt": [[1, 2], [3]]}, "text", 2),
        ({"prompt": []}, "text", 1),
        ({"prompt": ["a" * MOST_COUNTED_BYTES, "b"]}, "text", 2),
    ],
)
def test_how_many_answers_the_engine_computes(
    body: dict[str, Any], kind: Kind, answers: int
) -> None:
    for stream in (True, False):
        ask, _ = asked(kind, stream=stream, **body)
        assert ask.answers == answers


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ({"input": "a"}, 1),
        ({"input": ["a", "b"]}, 2),
        ({"input": [1, 2]}, 1),
        ({"content": [{"prompt_string": "a"}, {"prompt_string": "b"}]}, 2),
        ({"query": "a", "documents": ["a", "b", "c"]}, 3),
    ],
)
def test_how_many_texts_the_engine_embeds_or_ranks(body: dict[str, Any], answers: int) -> None:
    assert ask_unchanged(json.dumps(body).encode()).answers == answers
