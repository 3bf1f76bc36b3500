"""The limits of the door: bodies, idle and stalled connections, too many of them."""

import asyncio
import gzip
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stand_ins import PATIENCE_S, Exchange, StandInBackend, chunk, gateway, scripted

from workhorse.serve.activity import Activity
from workhorse.serve.door import Limits, most_connections

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def whole(to: Exchange) -> None:
    await to.whole({"got": len(to.body)})


async def endless(to: Exchange) -> None:
    await to.begin_stream()
    try:
        while not to.left.is_set():
            await to.event(chunk("x" * 10_000))
    except ConnectionError:
        await to.client_leaves()


@asynccontextmanager
async def door(**limits: Any) -> AsyncIterator[str]:
    async with (
        scripted(whole) as (_, url),
        gateway(StandInBackend(url), limits=Limits(**limits)) as front,
    ):
        yield front


async def connect(url: str, words: bytes = b"") -> Streams:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(words)
    return reader, writer


async def answer(to: Streams) -> bytes:
    """All that is said until the connection closes; what was not yet sent may be lost."""
    reader, writer = to
    said = b""
    try:
        while block := await asyncio.wait_for(reader.read(2**16), PATIENCE_S):
            said += block
    except ConnectionError:
        pass
    writer.close()
    return said


def post(headers: str, body: bytes = b"") -> bytes:
    return f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n".encode() + body


async def test_a_body_that_is_announced_too_large_is_not_read() -> None:
    async with door(body_bytes=1000) as url:
        reader, writer = await connect(url, post("Content-Length: 100000000"))
        assert b" 413 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.close()


async def test_a_body_that_turns_out_too_large() -> None:
    chunks = (b"400\r\n" + b"x" * 1024 + b"\r\n") * 100
    async with door(body_bytes=1000) as url:
        said = await answer(await connect(url, post("Transfer-Encoding: chunked", chunks)))
        assert b" 413 " in said.split(b"\r\n")[0]


async def test_a_small_body_that_unpacks_to_a_large_one() -> None:
    packed = gzip.compress(b"0" * 50_000_000)
    headers = f"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: {len(packed)}"
    async with door(body_bytes=1_000_000) as url:
        said = await answer(await connect(url, post(headers, packed)))
        assert b" 413 " in said.split(b"\r\n")[0]


async def test_a_body_that_does_not_come() -> None:
    async with door(body_s=0.05) as url:
        said = await answer(await connect(url, post("Content-Length: 10", b"half")))
        assert b" 408 " in said.split(b"\r\n")[0]
        assert b"0.05 s" in said


@pytest.mark.parametrize("words", [b"", b"POST /tokenize HTTP/1.1\r\nHost: loc"])
async def test_a_request_that_does_not_come(words: bytes) -> None:
    async with door(idle_s=0.05) as url:
        assert await answer(await connect(url, words)) == b""


async def test_too_many_header_lines() -> None:
    lines = "\r\n".join(f"X-{n}: y" for n in range(500))
    async with door() as url:
        assert b" 400 " in (await answer(await connect(url, post(lines)))).split(b"\r\n")[0]


async def test_one_connection_too_many_is_told_and_the_next_one_is_served() -> None:
    ask = post("Content-Length: 2\r\nConnection: close", b"{}")
    async with door(connections=2) as url:
        held = [await connect(url) for _ in range(2)]
        said = await answer(await connect(url, ask))
        assert b" 503 " in said.split(b"\r\n")[0]
        assert b'"gateway"' in said
        held[0][1].close()
        async with asyncio.timeout(PATIENCE_S):
            while b" 200 " not in (await answer(await connect(url, ask))).split(b"\r\n")[0]:
                pass
        held[1][1].close()


async def test_an_answer_that_is_not_read_is_cut() -> None:
    activity = Activity()
    async with (
        scripted(endless) as (engine, url),
        gateway(StandInBackend(url), activity=activity, limits=Limits(stalled_s=0.1)) as front,
    ):
        host, port = front.removeprefix("http://").split(":")
        asking = socket.create_connection((host, int(port)))  # nobody reads from it
        body = b'{"stream":true}'
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        asking.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
        exchange = await engine.first()
        await exchange.client_leaves()
        async with asyncio.timeout(PATIENCE_S):
            await activity.wait_idle(0)
        asking.close()


def test_connections_are_bounded_by_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
        assert most_connections(300) == 300, "its own limit is raised for them"
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 800
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
