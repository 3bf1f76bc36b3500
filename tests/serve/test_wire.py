"""Answers of engines in HTTP/1.1, whole, cut anywhere, and broken."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import PATIENCE_S

from workhorse.run.address import Address
from workhorse.serve.engine_socket import MOST_UNREAD_BYTES, RefusesError, ask
from workhorse.serve.wire import LARGEST_HEAD_BYTES, Answer, BrokenAnswerError

BODY = b"data: one\n\ndata: two\r\n\r\ndata: [DONE]\n\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Type: Text/Event-Stream; x=y\r\n\r\n"
    b"B\r\ndata: one\n\n\r\n"
    b"1b;name=value\r\ndata: two\r\n\r\ndata: [DONE]\n\n\r\n"
    b"0\r\nTrailer: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
TO_THE_END = b"HTTP/1.0 200\r\nContent-Type:text/event-stream\r\n\r\n" + BODY
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED


def read(blocks: list[bytes]) -> tuple[Answer, bytes]:
    answer = Answer()
    body = b"".join(answer.feed(block) for block in blocks)
    if not answer.done:
        answer.end()
    return answer, body


def cut(whole: bytes, at: list[int]) -> list[bytes]:
    ends = sorted(place % (len(whole) + 1) for place in at)
    return [whole[a:b] for a, b in zip([0, *ends], [*ends, len(whole)], strict=True) if a < b]


@pytest.mark.parametrize("whole", [CHUNKED, SIZED, TO_THE_END, CONTINUED])
@given(at=st.lists(st.integers(0, 1000), max_size=12))
def test_the_same_body_however_it_is_cut(whole: bytes, at: list[int]) -> None:
    answer, body = read(cut(whole, at))
    assert body == BODY
    assert answer.done
    assert answer.head is not None
    if whole is CHUNKED:
        assert answer.head.content_type == "text/event-stream"
    assert answer.head.status == (404 if b"404" in whole else 200)


@pytest.mark.parametrize("whole", [CHUNKED, SIZED])
@given(st.integers(0, 1000))
def test_an_end_too_early_is_never_taken_for_the_end(whole: bytes, at: int) -> None:
    with pytest.raises(BrokenAnswerError):
        read([whole[: at % len(whole)]])


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/2 200\r\n\r\n",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xc2\xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * LARGEST_HEAD_BYTES,
    ],
)
def test_what_is_no_answer(whole: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        read([whole])


@given(st.binary(max_size=300), st.sampled_from([b"", CHUNKED[:80], SIZED[:30]]))
def test_nothing_else_is_raised_whatever_comes(noise: bytes, before: bytes) -> None:
    with suppress(BrokenAnswerError):
        read([before, noise])


def test_an_answer_without_a_body() -> None:
    answer, body = read([b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"])
    assert (answer.done, body) == (True, b"")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def served(serve: Serve, body: bytes = b"{}", path: str = "/x") -> tuple[int, bytes]:
    """The answer of a server that does what it is told."""
    done = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            done.set()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await ask(Address(f"http://127.0.0.1:{port}"), "POST", path, body)
            try:
                return answer.head.status, await answer.read()
            finally:
                answer.close()
    finally:
        server.close()
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        await server.wait_closed()


async def test_a_request_and_its_answer_of_many_megabytes() -> None:
    large = bytes(range(256)) * (MOST_UNREAD_BYTES // 32)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(large) in head.lower()
        body = await reader.readexactly(len(large))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    assert await served(echo, large) == (200, large)


async def test_a_refusal_before_the_request_was_taken() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await writer.drain()
        await reader.read()

    assert await served(refuse, b"x" * 100) == (404, BODY)


async def test_an_engine_that_hangs_up() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    with pytest.raises(BrokenAnswerError):
        await served(hang_up)


async def test_nobody_listens() -> None:
    with pytest.raises(RefusesError, match="ECONNREFUSED"):
        await ask(Address("http://127.0.0.1:1"), "GET", "/", b"")


async def test_a_path_cannot_smuggle_a_second_request() -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(SIZED)
        await writer.drain()

    await served(note, path="/props?a=\r\nX: y ü")
    assert seen[0].startswith(b"POST /props?a=%0D%0AX:%20y%20%C3%BC HTTP/1.1\r\n")
