"""The lines of a batch's files: what is wrong with a request, told as OpenAI tells it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.batch.api_lines import MOST_ERRORS, BadFile, Reader, result_line
from workhorse.batch.api_record import Batch
from workhorse.batch.api_results import read_lines
from workhorse.batch.item import Item, NewItem, Reason, Result

CHAT = "/v1/chat/completions"
MODELS = ("horse", "mule")


def resolve(name: str | None) -> str | None:
    return name if name in MODELS else None


def line(custom_id: Any = "1", **changed: Any) -> bytes:
    asked = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"model": "horse"}}
    return json.dumps(asked | changed).encode() + b"\n"


def read(lines: Iterable[bytes | None], most: int = 1000) -> list[NewItem]:
    return list(Reader(CHAT, resolve, most).items(lines))


def errors(*lines: bytes | None, most: int = 1000) -> list[tuple[int | None, str, str | None]]:
    with pytest.raises(BadFile) as bad:
        read(lines, most)
    assert all(one.message for one in bad.value.errors)
    return [(one.line, one.code, one.param) for one in bad.value.errors]


def test_good_lines_become_items_as_they_are() -> None:
    odd = b'  {"body": {"model": "horse", "n": 12345678901234567890}, "custom_id": "\\u00e4", '
    odd += b'"url": "/v1/chat/completions", "method": "POST", "extra": 1.50}\r\n'
    reader = Reader(CHAT, resolve, 10)
    items = list(reader.items([line("b"), b"\n", odd]))
    assert [one.id for one in items] == ["b", "ä"]
    assert [one.kind for one in items] == ["request", "request"]
    assert items[1].content == odd.decode().strip()
    assert items[1].source == "line 3"
    assert (reader.model, reader.count) == ("horse", 2)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], [(None, "empty_file", None)]),
        ([b"\n", b"  \n"], [(None, "empty_file", None)]),
        ([line(), b"{not json\n"], [(2, "invalid_json_line", None)]),
        ([b"[1]\n"], [(1, "invalid_json_line", None)]),
        ([b"null\n"], [(1, "invalid_json_line", None)]),
        ([b"\xff\xfe{}\n"], [(1, "invalid_json_line", None)]),
        ([b"[" * 100_000], [(1, "invalid_json_line", None)]),
        ([None], [(1, "invalid_request", None)]),
        ([line(None)], [(1, "missing_required_parameter", "custom_id")]),
        ([line(7)], [(1, "invalid_request", "custom_id")]),
        ([line("x" * 600)], [(1, "invalid_request", "custom_id")]),
        ([line("a"), line("b"), line("a")], [(3, "duplicate_custom_id", "custom_id")]),
        ([line(method="GET")], [(1, "invalid_method", "method")]),
        ([line(url="/v1/embeddings")], [(1, "invalid_url", "url")]),
        ([line(body="hello")], [(1, "invalid_request", "body")]),
        ([line(body={})], [(1, "missing_required_parameter", "body.model")]),
        ([line(body={"model": 3})], [(1, "invalid_request", "body.model")]),
        ([line(body={"model": "cow"})], [(1, "model_not_found", "body.model")]),
        (
            [line("a"), line("b", body={"model": "mule"})],
            [(2, "mismatched_model", "body.model")],
        ),
        (
            [line(body={"model": "horse", "stream": True})],
            [(1, "invalid_request", "body.stream")],
        ),
        (
            [b"{}\n", line("b", url="/x")],
            [
                *((1, "missing_required_parameter", name) for name in ("custom_id", "method")),
                *((1, "missing_required_parameter", name) for name in ("url", "body")),
                (2, "invalid_url", "url"),
            ],
        ),
    ],
)
def test_what_is_wrong(lines: list[bytes | None], found: list[Any]) -> None:
    assert errors(*lines) == found


def test_too_many_requests() -> None:
    assert len(read([line(str(n)) for n in range(3)], most=3)) == 3
    assert errors(*(line(str(n)) for n in range(4)), most=3) == [(None, "too_many_tasks", None)]


def test_a_file_that_is_all_wrong_is_not_read_to_its_end() -> None:
    lines = iter([b"no\n"] * (10 * MOST_ERRORS))
    with pytest.raises(BadFile) as bad:
        read(lines)
    assert len(bad.value.errors) == MOST_ERRORS
    assert len(list(lines)) == 9 * MOST_ERRORS


@given(st.lists(st.one_of(st.binary(max_size=40), st.just(line("a")), st.none())))
def test_no_line_raises_anything_else(lines: list[bytes | None]) -> None:
    try:
        assert read(lines)
    except BadFile as bad:
        assert bad.errors


def test_lines_are_read_one_by_one_and_none_is_longer_than_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"\xef\xbb\xbfab\n" + b"x" * 50 + b"\n" + b"0123456789\nlast")
    assert list(read_lines(path, 10, lambda: False)) == [b"ab\n", None, b"0123456789\n", b"last"]
    with pytest.raises(InterruptedError):
        list(read_lines(path, 10, lambda: True))


# --- results -------------------------------------------------------------------------------------


def batch(**changed: Any) -> Batch:
    return Batch(
        id="batch_1", owner="", endpoint=CHAT, input_file_id="f", created_unix_s=0.0, **changed
    )


def item(**changed: Any) -> Item:
    return Item(
        number=4,
        id="mine",
        source="line 5",
        kind="request",
        content="",
        media_type="application/json",
        attempts=0,
        **changed,
    )


def written(found: Item, of: Batch) -> tuple[str, Any]:
    where, text = result_line(found, of)
    assert text.endswith(b"\n") and text.count(b"\n") == 1
    return where, msgspec.json.decode(text)


@pytest.mark.parametrize(("status", "file"), [(200, "output"), (400, "error")])
def test_an_answer_is_written_as_it_came(status: int, file: str) -> None:
    response = {"status_code": status, "request_id": "req_1", "body": {"a": "ä\n"}}
    where, found = written(item(state="done", result=Result(value=response)), batch())
    assert where == file
    line = {"id": "batch_req_1_4", "custom_id": "mine", "response": response, "error": None}
    assert found == line


def test_no_answer_says_why() -> None:
    reason = Reason(cause="no answer", seen="HTTP 500: no", seen_zh="")
    where, found = written(item(state="failed", reason=reason), batch())
    assert where == "error"
    assert found["response"] is None
    assert found["error"] == {"code": "request_timeout", "message": "HTTP 500: no"}


@pytest.mark.parametrize(
    ("ending", "code"),
    [("expired", "batch_expired"), ("cancelled", "batch_cancelled"), (None, "batch_cancelled")],
)
def test_what_was_not_answered_in_time(ending: Any, code: str) -> None:
    where, found = written(item(state="cancelled"), batch(ending=ending))
    assert (where, found["error"]["code"]) == ("error", code)
