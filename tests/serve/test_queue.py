"""The line in front of the engines, through a gateway: who waits, leaves, is told, is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from stand_ins import (
    PATIENCE_S,
    Exchange,
    Script,
    StandInBackend,
    chunk,
    gateway,
    scripted,
    until,
)

from workhorse.serve.activity import Activity
from workhorse.serve.admission import LONGEST_WAIT_S
from workhorse.serve.backend import Capacity
from workhorse.serve.keys import Key
from workhorse.serve.usage import Totals, Usage, read_usage

ONE_SLOT = Capacity(1, 4096, 100.0, 10.0)
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TIMINGS = {"cache_n": 10, "prompt_n": 90, "predicted_n": 4, "predicted_per_second": 50.0}


class Turns:
    """A script whose answers wait until they are let go, one by one."""

    def __init__(self) -> None:
        self.came = asyncio.Semaphore(0)
        self.go = asyncio.Semaphore(0)

    async def __call__(self, to: Exchange) -> None:
        self.came.release()
        await self.go.acquire()
        if "/v1/embeddings" in to.head:
            await to.whole({"data": [], "usage": {"prompt_tokens": 7}})
            return
        await to.begin_stream()
        await to.event(chunk("a"))
        await to.event(chunk(None, finish="stop", timings=TIMINGS))
        await to.end_stream()

    async def asked(self) -> None:
        """Returns once the engine has got one more request."""
        async with asyncio.timeout(PATIENCE_S):
            await self.came.acquire()


async def post(http: aiohttp.ClientSession, path: str = CHAT, **body: Any) -> tuple[int, str, Any]:
    async with http.post(path, json=body) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_who_finds_no_slot_waits_and_is_told_how_long() -> None:
    turns, activity = Turns(), Activity()
    loop = asyncio.get_running_loop()
    async with (
        scripted(turns) as (engine, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, activity=activity) as front,
        aiohttp.ClientSession(front) as http,
    ):
        began_s = loop.time()
        first = asyncio.create_task(post(http))
        await turns.asked()
        second = asyncio.create_task(post(http))
        await until(lambda: activity.in_flight == 2)
        assert len(engine.exchanges) == 1
        turns.go.release()
        assert "X-Queue-Position" not in (await first)[2]
        await turns.asked()
        turns.go.release()
        status, _, headers = await second
        assert status == 200
        assert headers["X-Queue-Position"] == "1"
        # What the first one was expected to take, less what it had taken by then.
        took_s = loop.time() - began_s
        assert 25.6 - took_s - 0.1 <= float(headers["X-Queue-Expected-Wait"]) <= 25.6 + 0.1
        assert 0 <= float(headers["X-Queue-Wait"]) <= took_s


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_gives_its_slot_to_the_next(path: str, stream: bool) -> None:
    turns, activity = Turns(), Activity()
    async with (
        scripted(turns) as (engine, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, activity=activity) as front,
        aiohttp.ClientSession(front) as http,
    ):
        leaver = asyncio.create_task(post(http, path, stream=stream))
        await turns.asked()
        next_one = asyncio.create_task(post(http))
        await until(lambda: activity.in_flight == 2)
        leaver.cancel()
        await turns.asked()
        turns.go.release()
        turns.go.release()
        assert (await next_one)[0] == 200
        assert len(engine.exchanges) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_the_line_is_never_asked_for(stream: bool) -> None:
    turns, activity = Turns(), Activity()
    async with (
        scripted(turns) as (engine, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, activity=activity) as front,
        aiohttp.ClientSession(front) as http,
    ):
        first = asyncio.create_task(post(http))
        await turns.asked()
        leaver = asyncio.create_task(post(http, stream=stream, max_tokens=666))
        await until(lambda: activity.in_flight == 2)
        leaver.cancel()
        await until(lambda: activity.in_flight == 1)
        turns.go.release()
        turns.go.release()
        assert (await first)[0] == (await post(http))[0] == 200
        assert not any(b"666" in exchange.body for exchange in engine.exchanges)


async def test_a_stream_in_the_line_shows_signs_of_life_and_then_its_answer() -> None:
    turns = Turns()
    async with (
        scripted(turns) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT) as front,
        aiohttp.ClientSession(front) as http,
    ):
        first = asyncio.create_task(post(http))
        await turns.asked()
        body = {"stream": True, "sse_ping_interval": 0.02}
        async with http.post(CHAT, json=body) as answer:
            assert answer.headers["X-Queue-Position"] == "1"
            sign = await answer.content.readuntil(b"\n\n")
            assert sign == b": waiting for a slot, number 1\n\n"
            turns.go.release()
            turns.go.release()
            rest = await answer.text()
        assert rest.count("data: ") == 3
        assert rest.endswith("data: [DONE]\n\n")
        assert (await first)[0] == 200


async def test_what_the_engine_refuses_after_a_sign_ends_the_stream() -> None:
    turns = Turns()
    refusal = {"error": {"code": 400, "message": "too  long"}}

    async def script(to: Exchange) -> None:
        if b"first" in to.body:
            await turns(to)
        else:
            await to.whole(refusal, status=400)

    async with (
        scripted(script) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT) as front,
        aiohttp.ClientSession(front) as http,
    ):
        first = asyncio.create_task(post(http, user="first"))
        await turns.asked()
        body = {"stream": True, "sse_ping_interval": 0.02}
        async with http.post(CHAT, json=body) as answer:
            await answer.content.readuntil(b"\n\n")
            turns.go.release()
            *_, last = (await answer.text()).removesuffix("\n\n").split("\n\n")
        told = json.loads(last.removeprefix("data: "))["error"]
        assert told == refusal["error"] | {"speaker": "engine"}
        await first


async def test_an_engine_that_is_lost_after_a_sign_ends_the_stream() -> None:
    turns, backend = Turns(), StandInBackend(None)
    async with (
        scripted(turns) as (_, url),
        gateway(backend, capacity=ONE_SLOT, restart_wait_s=1) as front,
        aiohttp.ClientSession(front) as http,
    ):
        backend.comes_back(url)
        first = asyncio.create_task(post(http))
        await turns.asked()
        body = {"stream": True, "sse_ping_interval": 0.02}
        async with http.post(CHAT, json=body) as answer:
            await answer.content.readuntil(b"\n\n")
            backend.goes_away()
            turns.go.release()
            *_, last = (await answer.text()).removesuffix("\n\n").split("\n\n")
        told = json.loads(last.removeprefix("data: "))["error"]
        assert (told["message"], told["code"]) == ("It fell over. Wait.", 503)  # as without a sign
        await first


async def test_a_full_line_refuses_and_says_when_to_come_again() -> None:
    turns, activity = Turns(), Activity()
    async with (
        scripted(turns) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, activity=activity, queue_length=1) as front,
        aiohttp.ClientSession(front) as http,
    ):
        tasks = [asyncio.create_task(post(http))]
        await turns.asked()
        tasks.append(asyncio.create_task(post(http, EMBED, input="x")))
        await until(lambda: activity.in_flight == 2)
        status, text, headers = await post(http)
        assert status == 429
        error = json.loads(text)["error"]
        assert error["speaker"] == "gateway"
        assert error["type"] == "rate_limit_error"
        assert error["queue"]["position"] == 2
        assert 0 < error["queue"]["expected_wait_s"] <= int(headers["Retry-After"])
        assert int(headers["Retry-After"]) <= LONGEST_WAIT_S
        turns.go.release()
        turns.go.release()
        assert [(await task)[0] for task in tasks] == [200, 200]
        async with http.get("/metrics") as answer:
            page = await answer.text()
        assert 'workhorse_requests_refused_total{why="queue full"} 1.0' in page
        assert "workhorse_request_queue_time_seconds_count 2.0" in page


async def test_routes_that_take_no_slot_do_not_wait() -> None:
    turns = Turns()

    async def script(to: Exchange) -> None:
        if "/tokenize" in to.head:
            await to.whole({"tokens": []})
        else:
            await turns(to)

    async with (
        scripted(script) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT) as front,
        aiohttp.ClientSession(front) as http,
    ):
        first = asyncio.create_task(post(http))
        await turns.asked()
        assert (await post(http, "/tokenize", content="a"))[0] == 200
        turns.go.release()
        await first


async def test_the_limits_of_a_key() -> None:
    turns = Turns()
    key = Key("k", rpm=1)
    async with (
        scripted(turns) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, key=key) as front,
        aiohttp.ClientSession(front) as http,
    ):
        turns.go.release()
        assert (await post(http))[0] == 200
        status, text, headers = await post(http)
        assert status == 429
        assert "1 requests a minute" in json.loads(text)["error"]["message"]
        assert 1 <= int(headers["Retry-After"]) <= 60


async def test_a_key_for_other_models_finds_none_and_sees_no_names() -> None:
    async with (
        scripted(Turns()) as (engine, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, key=Key("k", models=("cow",))) as front,
        aiohttp.ClientSession(front) as http,
    ):
        for path in (CHAT, EMBED, "/tokenize"):
            status, text, _ = await post(http, path, model="horse")
            assert status == 404
            assert "No model is served here to this client." in text
        assert engine.exchanges == []


async def dies(to: Exchange) -> None:
    to.die()


async def test_who_was_queued_in_an_engine_that_dies_is_served_by_another() -> None:
    """The first engine has died and its owner knows; the other one is there."""
    turns = Turns()
    async with scripted(turns) as (_, living), scripted(dies) as (_, dying):
        first, second = StandInBackend(dying), StandInBackend(living)

        async def dies_and_is_known_to(to: Exchange) -> None:
            first.state = "restarting"
            to.die()

        async with scripted(dies_and_is_known_to) as (_, known):
            first.comes_back(known)
            async with (
                gateway(first, second, capacity=ONE_SLOT) as front,
                aiohttp.ClientSession(front) as http,
            ):
                turns.go.release()
                assert (await post(http))[0] == 200


@pytest.mark.parametrize("script", [dies, Turns()])
async def test_what_requests_took_is_kept_by_key(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "service-1.sqlite"
    if isinstance(script, Turns):
        script = Turns()  # its semaphores belong to this test's loop
        script.go.release()
    async with (
        scripted(script) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, key=Key("k"), usage=Usage(path)) as front,
        aiohttp.ClientSession(front) as http,
    ):
        status, _, _ = await post(http)
    (row,) = read_usage(path, by=("key", "model"))
    assert (row.key, row.model) == ("k", "horse")
    got: Totals = row.totals
    if status == 200:
        assert (got.requests, got.failed) == (1, 0)
        assert (got.prompt_tokens, got.cached_tokens, got.generated_tokens) == (100, 10, 4)
        assert got.served_s > 0
    else:
        assert (got.requests, got.failed, got.prompt_tokens) == (1, 1, 0)


async def test_answers_teach_what_to_expect() -> None:
    """After an answer at 50 tok/s the wait told to the next is shorter than by the plan."""
    turns, activity = Turns(), Activity()
    async with (
        scripted(turns) as (_, url),
        gateway(StandInBackend(url), capacity=ONE_SLOT, activity=activity) as front,
        aiohttp.ClientSession(front) as http,
    ):
        turns.go.release()
        await post(http)
        await turns.asked()
        first = asyncio.create_task(post(http))
        await turns.asked()
        second = asyncio.create_task(post(http))
        await until(lambda: activity.in_flight == 2)
        turns.go.release()
        turns.go.release()
        await first
        _, _, headers = await second
        assert float(headers["X-Queue-Expected-Wait"]) < 10


async def test_the_tap_sees_what_clients_get() -> None:
    seen: list[bytes] = []
    turns = Turns()
    async with (
        scripted(turns) as (_, url),
        gateway(
            StandInBackend(url), capacity=ONE_SLOT, tap=lambda _, block: seen.append(block)
        ) as front,
        aiohttp.ClientSession(front) as http,
    ):
        for stream in (True, False):
            turns.go.release()
            await post(http, stream=stream)
    whole = b"".join(seen)
    assert whole.count(b'"content": "a"') == 2
    assert whole.count(b"[DONE]") == 2
