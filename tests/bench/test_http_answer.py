"""Raw bytes of answers, cut anywhere, broken anywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.bench.http_answer import BROKE_OFF, CLOSED, NO_HTTP, read_answer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = (b"data: a\n\n", b"data: bb\r\n\r\n", b"data: [DONE]\n\n")


def chunked(*pieces: bytes, extension: bytes = b"") -> bytes:
    chunks = (b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return b"".join(chunks) + b"0\r\n\r\n"


def cut(data: bytes, size: int) -> list[tuple[float, bytes]]:
    return [(float(at), data[at : at + size]) for at in range(0, len(data), size)]


@settings(deadline=None)
@given(st.integers(1, 300), st.booleans())
def test_where_the_bytes_are_cut_does_not_matter(size: int, interim: bool) -> None:
    first = b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b""
    answer = read_answer(cut(first + HEAD + chunked(*PIECES, extension=b"; x=1"), size))
    assert (answer.status, answer.problem) == (200, None)
    assert b"".join(data for _, data in answer.reads) == b"".join(PIECES)


def test_each_part_has_the_time_of_the_read_that_brought_it() -> None:
    raw = [(1.0, HEAD), (2.0, b"9\r\ndata:"), (3.0, b" a\n\n\r\n"), (4.0, b"0\r\n\r\n")]
    assert read_answer(raw).reads == [(2.0, b"data:"), (3.0, b" a\n\n")]


@pytest.mark.parametrize(
    ("raw", "status", "body", "problem"),
    [
        (b"", None, b"", CLOSED),
        (b"hello\r\n\r\n", None, b"", NO_HTTP),
        (b"HTTP/1.1 999 No\r\n\r\n", None, b"", NO_HTTP),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nwait", 503, b"wait", None),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nwait", 503, b"wait", BROKE_OFF),
        (b"HTTP/1.0 200 OK\r\n\r\nup to the end", 200, b"up to the end", None),
        (HEAD + b"5\r\nabc", 200, b"abc", BROKE_OFF),
        (HEAD + b"3\r\nabc\r\n", 200, b"abc", BROKE_OFF),
        (HEAD + b"3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", 200, b"abc", None),
    ],
)
def test_whole_and_broken_answers(
    raw: bytes, status: int | None, body: bytes, problem: str | None
) -> None:
    answer = read_answer(cut(raw, 7))
    assert (answer.status, answer.problem) == (status, problem)
    assert b"".join(data for _, data in answer.reads) == body


@settings(deadline=None)
@given(st.lists(st.binary(max_size=80) | st.sampled_from([HEAD, b"5\r\n", b"\r\n", b"0\r\n\r\n"])))
def test_no_bytes_can_break_the_reader(blocks: list[bytes]) -> None:
    answer = read_answer([(0.0, block) for block in blocks])
    assert sum(len(data) for _, data in answer.reads) <= sum(map(len, blocks))
