"""The gateway in front of replicas on other machines: who is asked, and what is lost when."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from stand_in_fleet import (
    KEY,
    PATIENCE_S,
    StandInReplica,
    front_of,
    piece,
    sse,
    until,
)

from workhorse.fleet.pulse import Patience

CHAT = "/v1/chat/completions"
# Gives up quickly: for tests in which it has to.
SHORT = Patience(poll_s=1.0, silent_s=5.0, gone_s=10.0)  # a busy machine stalls for seconds


async def ask(url: str, **body: Any) -> tuple[int, str]:
    """Status, and the text of the answer or of the error."""
    async with aiohttp.ClientSession(url) as http, http.post(CHAT, json=body) as answer:
        document = await answer.json()
        if answer.status != 200:
            return answer.status, document["error"]["message"]
        return 200, document["choices"][0]["message"]["content"]


async def ask_for_stream(url: str) -> str:
    async with aiohttp.ClientSession(url) as http, http.post(CHAT, json={"stream": True}) as answer:
        return (await answer.read()).decode()


class Held:
    """Answers that begin and then wait to be let go."""

    def __init__(self, replica: StandInReplica) -> None:
        self.replica, self.go, self.begun = replica, asyncio.Event(), 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = await self.replica.begin(request)
        await response.write(sse(piece("half")))
        self.begun += 1
        await self.go.wait()
        await response.write(sse(piece(None, "stop")) + b"data: [DONE]\n\n")
        return response


def hold(*replicas: StandInReplica) -> list[Held]:
    held = [Held(one) for one in replicas]
    for one in held:
        one.replica.answer = one
    return held


async def test_requests_go_to_free_slots_of_all_replicas_and_never_beyond(tmp_path: Path) -> None:
    one, two = StandInReplica("one"), StandInReplica("two")
    holds = hold(one, two)
    async with front_of(tmp_path, one, two) as (front, _):
        asking = [asyncio.create_task(ask_for_stream(front.url)) for _ in range(5)]
        await until(lambda: holds[0].begun == holds[1].begun == 2)
        await until(lambda: front.status().waiting == 1)
        for held in holds:
            held.go.set()
        assert all("half" in text and "[DONE]" in text for text in await asyncio.gather(*asking))
        assert (one.most_at_once, two.most_at_once) == (2, 2)
        (sent,) = {request.headers["Authorization"] for request in (*one.asked, *two.asked)}
        assert sent == f"Bearer {KEY}"
        assert {request.path for request in one.asked} == {f"/r/one{CHAT}"}


async def test_what_begins_alike_goes_to_the_replica_that_has_it_cached(tmp_path: Path) -> None:
    one, two = StandInReplica("one"), StandInReplica("two")
    async with front_of(tmp_path, one, two) as (front, _):
        for template in ("You are a clerk. ", "You are a judge. "):
            begins = {"role": "system", "content": template * 400}
            answers = {
                (await ask(front.url, messages=[begins, {"role": "user", "content": str(n)}]))[1]
                for n in range(6)
            }
            assert len(answers) == 1


async def test_measured_capacity_is_what_counts(tmp_path: Path) -> None:
    replica = StandInReplica("one", slots=7)
    async with front_of(tmp_path, replica) as (front, _):
        (served,) = front.roster.served
        assert served.capacity is not None
        assert served.capacity.slots == 7
        assert served.capacity.decode_tokens_per_s == 25.0
        assert served.capacity.images is False
        async with aiohttp.ClientSession(front.url) as http:
            status = await (await http.get("/workhorse/status")).json()
            metrics = await (await http.get("/metrics")).text()
            state = await (await http.get("/workhorse/state")).json()
        assert status["state"] == "ready"
        assert 'workhorse_slots{model="horse"} 7.0' in metrics
        assert state["engines"][0]["measured"]["decode_tokens_per_s"] == 25.0


@pytest.mark.parametrize("how", ["refused", "hung up", "no such route"])
async def test_what_fails_before_its_first_byte_is_answered_by_another(
    tmp_path: Path, how: str
) -> None:
    one, two = StandInReplica("one"), StandInReplica("two")
    async with front_of(tmp_path, one, two) as (front, (way,)):

        async def hangs_up(request: web.Request) -> web.StreamResponse:
            one.gone = True
            assert request.transport is not None
            request.transport.abort()
            raise asyncio.CancelledError

        one.answer = two.answer = None
        if how == "hung up":
            one.answer = hangs_up
        elif how == "refused":
            one.gone = True
        else:
            del way.replicas["one"]
        answers = await asyncio.gather(*(ask(front.url) for _ in range(4)))
        assert answers == [(200, "two")] * 4
        assert front.replicas["one"].state == "away"


async def test_what_breaks_in_the_middle_says_so(tmp_path: Path) -> None:
    one, two = StandInReplica("one"), StandInReplica("two")

    async def breaks(request: web.Request) -> web.StreamResponse:
        response = await one.begin(request)
        await response.write(sse(piece("half")))
        assert request.transport is not None
        request.transport.close()
        return response

    one.answer = breaks
    two.state = "starting"
    async with front_of(tmp_path, one, two) as (front, _):
        text = await ask_for_stream(front.url)
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert events[0]["choices"][0]["delta"] == {"content": "half"}
        assert "connection to the engine was lost" in events[-1]["error"]["message"]


@pytest.fixture
async def cut_off(tmp_path: Path) -> AsyncIterator[tuple[Any, StandInReplica, StandInReplica]]:
    """Two replicas: the machine of the first can be cut off, the second is still starting."""
    one, two = StandInReplica("one", slots=3), StandInReplica("two", state="starting")
    async with front_of(tmp_path, one, two, patience={"one": SHORT}) as (front, _):
        yield front, one, two


async def test_a_machine_that_is_cut_off_holds_no_request(cut_off: Any) -> None:
    """What the client has seen a part of ends in an error, all else is answered by the other."""
    front, one, two = cut_off
    (held,) = hold(one)
    streaming = asyncio.create_task(ask_for_stream(front.url))
    half_done = asyncio.create_task(ask(front.url))
    await until(lambda: held.begun == 2)

    async def nothing(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    one.answer = nothing
    not_begun = asyncio.create_task(ask(front.url))
    await until(lambda: len(one.asked) == 3)
    one.link.clear()
    two.state = "ready"
    async with asyncio.timeout(PATIENCE_S):
        assert "connection to the engine was lost" in await streaming
        assert await half_done == await not_begun == (200, "two")
    assert front.replicas["one"].state == "silent"
    one.link.set()
    one.answer = None
    await until(lambda: front.replicas["one"].state == "ready")


async def test_a_stream_that_goes_on_is_a_sign_of_life(cut_off: Any) -> None:
    """Polls get no answer for longer than a silent replica is given; pieces still come."""
    front, one, _ = cut_off
    enough = asyncio.Event()

    async def goes_on(request: web.Request) -> web.StreamResponse:
        response = await one.begin(request)
        one.link.clear()
        while not enough.is_set():
            await response.write(sse(piece("on")))
            await asyncio.sleep(0.02)
        await response.write(sse(piece(None, "stop")) + b"data: [DONE]\n\n")
        return response

    one.answer = goes_on
    streaming = asyncio.create_task(ask_for_stream(front.url))
    replica = front.replicas["one"]
    await until(lambda: one.asked)
    began_s = replica._clock()
    await until(lambda: replica._clock() - began_s > 1.5 * SHORT.gone_s)
    enough.set()
    async with asyncio.timeout(PATIENCE_S):
        assert "[DONE]" in await streaming


async def test_another_node_s_proxy_while_the_head_s_is_dead_and_back(tmp_path: Path) -> None:
    replica = StandInReplica("one")
    async with front_of(tmp_path, replica, proxies=2) as (front, (head, other)):
        assert front.entries.best is not None
        assert front.entries.best.url == head.url
        await head.stop()
        assert await ask(front.url) == (200, "one")
        assert front.entries.best.url == other.url
        await head.start()
        await until(lambda: front.entries.best.url == head.url)
        before = head.requests
        assert await ask(front.url) == (200, "one")
        assert head.requests > before


async def test_another_start_has_forgotten_its_cache(tmp_path: Path) -> None:
    replica = StandInReplica("one")
    async with front_of(tmp_path, replica) as (front, _):
        assert front.replicas["one"].restarts == 0
        replica.boot = "2"
        await until(lambda: front.replicas["one"].restarts == 1)


async def test_a_lone_replica_that_is_away_is_told_in_words(tmp_path: Path) -> None:
    replica = StandInReplica("one", state="starting")
    async with front_of(tmp_path, replica) as (front, _):
        with pytest.raises(Exception, match="Replica one is still being started"):
            await front.replicas["one"].address(0.0)
        async with aiohttp.ClientSession(front.url) as http:
            health = await http.get("/healthz")
            assert health.status == 503
