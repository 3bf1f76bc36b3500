"""A client that leaves takes its request to the engine with it, wherever that is."""

import asyncio
import json

import pytest
from stand_ins import (
    PATIENCE_S,
    Exchange,
    Script,
    StandInBackend,
    chunk,
    gateway,
    progress,
    scripted,
)

from workhorse.serve.activity import Activity


async def queued(to: Exchange) -> None:
    await to.client_leaves()


async def in_prefill(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(progress(0))
    await to.client_leaves()


async def in_decode(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(chunk("a"))
    await to.client_leaves()


async def faster_than_the_client_reads(to: Exchange) -> None:
    await to.begin_stream()
    try:
        while not to.left.is_set():
            await to.event(chunk("x" * 10_000))
    except ConnectionError:
        await to.client_leaves()


async def send_request(url: str, body: object) -> asyncio.StreamWriter:
    """A client that sends a request and reads nothing."""
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [queued, in_prefill, in_decode, faster_than_the_client_reads])
async def test_the_engine_is_left_too(script: Script, stream: bool) -> None:
    activity = Activity()
    async with (
        scripted(script) as (engine, url),
        gateway(StandInBackend(url), activity=activity) as front,
    ):
        client = await send_request(front, {"stream": stream})
        exchange = await engine.first()
        assert not exchange.left.is_set()
        assert activity.in_flight == 1
        client.transport.abort()
        await exchange.client_leaves()
        await gone(activity)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize"])
async def test_also_where_there_is_no_stream(path: str) -> None:
    async with scripted(queued) as (engine, url), gateway(StandInBackend(url)) as front:
        host, port = front.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        )
        exchange = await engine.first()
        writer.close()
        await exchange.client_leaves()


async def test_a_client_that_leaves_during_a_restart_is_forgotten() -> None:
    activity, backend = Activity(), StandInBackend(None, "restarting")
    async with scripted(queued) as (engine, url), gateway(backend, activity=activity) as front:
        client = await send_request(front, {})
        await asyncio.wait_for(backend.asked.wait(), PATIENCE_S)
        client.transport.abort()
        await gone(activity)
        backend.comes_back(url)
        assert engine.exchanges == []


async def test_a_client_that_leaves_in_the_middle_of_its_request() -> None:
    activity = Activity()
    async with (
        scripted(queued) as (engine, url),
        gateway(StandInBackend(url), activity=activity) as front,
    ):
        host, port = front.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n{"
        )
        assert b" 100 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        assert activity.in_flight == 0, "half a request makes nobody work"
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            while "workhorse_clients_left_total 1.0" not in await get(front, "/metrics"):
                pass
        assert engine.exchanges == []


async def test_left_clients_are_counted() -> None:
    activity = Activity()
    async with (
        scripted(in_decode) as (engine, url),
        gateway(StandInBackend(url), activity=activity) as front,
    ):
        client = await send_request(front, {"stream": True})
        exchange = await engine.first()
        client.transport.abort()
        await exchange.client_leaves()
        await gone(activity)
        page = await get(front, "/metrics")
    assert "workhorse_clients_left_total 1.0" in page
    assert 'workhorse_requests_total{route="/v1/chat/completions",status="499"} 1.0' in page


async def test_stopping_cuts_what_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workhorse.serve.app.DRAIN_S", 0.1)
    async with scripted(in_decode) as (engine, url):
        async with gateway(StandInBackend(url)) as front:
            client = await send_request(front, {"stream": True})
            exchange = await engine.first()
        await exchange.client_leaves()
        client.close()


async def get(url: str, path: str) -> str:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def gone(activity: Activity) -> None:
    """Returns once nobody is served any more."""
    async with asyncio.timeout(PATIENCE_S):
        await activity.wait_idle(0)
    assert activity.in_flight == 0
