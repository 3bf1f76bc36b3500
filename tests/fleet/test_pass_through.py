"""A replica's way to its engine: who is let in, how an answer comes back, what leaving does."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "engines"))
sys.path.append(str(Path(__file__).parent.parent / "serve"))

from asgi_driver import Exchange
from fake_client import Client, fake, until
from stand_ins import Exchange as Got
from stand_ins import ScriptedEngine, scripted

from workhorse.codec import from_json
from workhorse.fleet.pass_through import PassThrough
from workhorse.fleet.spec import FACTS_PATH, REPLICA_HEADER, ReplicaFacts
from workhorse.run.address import Address
from workhorse.serve.engine_socket import RefusesError
from workhorse.serve.wire import BrokenAnswerError

FACTS = ReplicaFacts(
    "a-1", "m", "ready", "box", 4711, 2, 4096, 300.0, 20.0, None, True, None, 1.0, "boot7"
)


def replica(address: Address | None) -> PassThrough:
    return PassThrough(
        "the key", "boot7", route="/r/a-1", address=lambda: address, facts=lambda: FACTS
    )


@asynccontextmanager
async def behind(**told: Any) -> AsyncIterator[tuple[PassThrough, Client]]:
    async with fake(**told) as engine:
        yield replica(Address(engine.url)), engine


@asynccontextmanager
async def before_a_script() -> AsyncIterator[tuple[PassThrough, ScriptedEngine]]:
    """A replica before an engine that the test answers for."""

    async def wait(exchange: Got) -> None:
        await exchange.client_leaves()

    async with scripted(wait) as (engine, url):
        yield replica(Address(url)), engine


def asked(app: PassThrough, body: dict[str, Any], **more: Any) -> Exchange:
    return Exchange(app, "/r/a-1/completion", body=json.dumps(body).encode(), **more)


async def test_an_answer_passes_with_the_mark_of_the_replica() -> None:
    async with behind() as (app, _):
        answer = await asked(app, {"prompt": "one two", "n_predict": 3}).run()
    assert answer.status == 200
    assert answer.is_whole
    assert json.loads(answer.text)["tokens_predicted"] == 3
    assert answer.headers[REPLICA_HEADER.lower()] == "boot7"
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["connection"] == "close"


async def test_path_and_query_reach_the_engine_without_the_route() -> None:
    async with before_a_script() as (app, engine):
        one = Exchange(app, "/r/a-1/slots/0", query="action=save%20it")
        running = asyncio.create_task(one.run())
        exchange = await engine.first()
        assert exchange.head.splitlines()[0] == "POST /slots/0?action=save%20it HTTP/1.1"
        await exchange.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        await running
    assert one.status == 204


@pytest.mark.parametrize("key", [None, "", "another", "the key ", "thé key"])
@pytest.mark.parametrize("path", ["/r/a-1/completion", f"/r/a-1{FACTS_PATH}"])
async def test_who_has_not_the_key_gets_nothing(key: str | None, path: str) -> None:
    async with before_a_script() as (app, engine):
        answer = await Exchange(app, path, key=key).run()
        assert answer.status == 401
        assert "boot" not in answer.text
        assert engine.exchanges == []


@pytest.mark.parametrize("path", ["/r/a-1", "/r/a-12/completion", "/r/b/completion", "/completion"])
async def test_what_was_meant_for_another_replica_is_not_answered(path: str) -> None:
    answer = await Exchange(replica(None), path).run()
    assert answer.status == 404
    assert answer.headers[REPLICA_HEADER.lower()] == "boot7"


async def test_the_facts_are_told_without_asking_the_engine() -> None:
    answer = await Exchange(replica(None), f"/r/a-1{FACTS_PATH}", method="GET").run()
    assert from_json(ReplicaFacts, answer.text, what="facts") == FACTS


async def test_a_stream_comes_piece_by_piece() -> None:
    async with before_a_script() as (app, engine):
        one = asked(app, {})
        running = asyncio.create_task(one.run())
        exchange = await engine.first()
        await exchange.begin_stream()
        await until(lambda: one.sent)  # the head alone, before there is any text
        assert one.headers["content-type"] == "text/event-stream"
        for number in range(3):
            await exchange.chunk(b"data: %d\n\n" % number)
            await until(lambda: f"data: {number}" in one.text)  # noqa: B023
        assert not one.is_whole
        await exchange.end_stream()
        await running
    assert one.is_whole


async def test_a_client_that_leaves_frees_the_slot() -> None:
    async with behind(gap_s=0.01) as (app, engine):
        one = asked(app, {"prompt": "on", "n_predict": 4000, "stream": True, "ignore_eos": True})
        running = asyncio.create_task(one.run())
        await until(lambda: len(one.sent) > 2)
        assert app.asked == 1
        assert any(await engine.busy())
        one.left.set()
        await running
        assert app.asked == 0
        assert not one.is_whole
        await until(engine_at_rest(engine))


async def test_a_request_that_the_server_gives_up_frees_the_slot() -> None:
    async with behind(gap_s=0.01) as (app, engine):
        one = asked(app, {"prompt": "on", "n_predict": 4000, "stream": True, "ignore_eos": True})
        running = asyncio.create_task(one.run())
        await until(lambda: len(one.sent) > 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(engine_at_rest(engine))


async def test_without_an_engine_no_answer_is_made_up() -> None:
    one = asked(replica(None), {})
    with pytest.raises(RefusesError):
        await one.run()
    assert one.sent == []


async def test_an_engine_that_dies_in_its_answer_ends_it_unfinished() -> None:
    async with before_a_script() as (app, engine):
        one = asked(app, {})
        running = asyncio.create_task(one.run())
        exchange = await engine.first()
        await exchange.begin_stream()
        await exchange.chunk(b"data: 1\n\n")
        await until(lambda: "data: 1" in one.text)
        exchange.die()
        with pytest.raises(BrokenAnswerError):
            await running
    assert not one.is_whole


async def test_a_web_socket_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read of it")

    await replica(None)({"type": "websocket"}, receive, send)
    assert [one["type"] for one in sent] == ["websocket.close"]


def engine_at_rest(engine: Client) -> Any:
    async def at_rest() -> bool:
        return not any(await engine.busy())

    return at_rest
