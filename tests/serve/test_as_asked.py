"""An engine that stops by itself gets requests as clients sent them, under its model's name."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from stand_ins import PATIENCE_S, Exchange, Json, Script, StandInBackend, chunk, scripted

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.ask import ask_as_asked, ask_engine
from workhorse.serve.backend import Roster, Served

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


@asynccontextmanager
async def vllm_behind_a_gateway(script: Script) -> AsyncIterator[tuple[Any, str]]:
    async with scripted(script) as (engine, url):
        served = Served("horse", StandInBackend(url), engine="vllm")
        opened = Gateway(build_app(Roster((served,)), activity=Activity()))
        await opened.start(port=0)
        assert opened.url is not None
        try:
            yield engine, opened.url
        finally:
            await opened.stop()


async def streams(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(chunk("a"))
    await to.event(chunk("b", finish="length"))
    last = {**chunk(None), "choices": [], "usage": USAGE}
    await to.chunk(b"data: " + json.dumps(last, separators=(",", ":")).encode() + b"\n\n")
    await to.end_stream()


async def answers(to: Exchange) -> None:
    await to.whole({"id": "1", "choices": [{"text": "ab"}], "usage": USAGE})


async def post(url: str, path: str, body: Json) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(url + path, json=body) as answer:
        return answer.status, await answer.text()


async def counted(url: str) -> list[str]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        page = await answer.text()
    return [
        line for line in page.splitlines() if "_tokens_total{" in line or "_tokens_total " in line
    ]


@pytest.mark.parametrize("wants_usage", [True, False])
async def test_a_stream_goes_on_as_it_was_asked_for(wants_usage: bool) -> None:
    body: Json = {"model": "any", "stream": True, "messages": [], "return_progress": True}
    if wants_usage:
        body["stream_options"] = {"include_usage": True}
    async with vllm_behind_a_gateway(streams) as (engine, url):
        status, text = await post(url, "/v1/chat/completions", body)
        asked = engine.exchanges[0].json
        assert any(" 7.0" in line for line in await counted(url))
    assert asked == {
        "model": "horse",
        "stream": True,
        "messages": [],
        "stream_options": {"include_usage": True},
    }
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert ('"usage":' in text) is wants_usage
    assert text.count('"content"') == 2


async def test_a_whole_answer_is_asked_for_whole() -> None:
    body = {"model": "any", "prompt": "x", "max_tokens": 2}
    async with vllm_behind_a_gateway(answers) as (engine, url):
        status, text = await post(url, "/v1/completions", body)
        assert engine.exchanges[0].json == {"model": "horse", "prompt": "x", "max_tokens": 2}
        assert any(" 7.0" in line for line in await counted(url))
    assert (status, json.loads(text)["choices"]) == (200, [{"text": "ab"}])


async def test_an_embedding_is_asked_for_under_the_engines_name() -> None:
    async with vllm_behind_a_gateway(answers) as (engine, url):
        await post(url, "/v1/embeddings", {"model": "any", "input": "x"})
        assert engine.exchanges[0].json == {"model": "horse", "input": "x"}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_gone_for_the_engine_at_once(stream: bool) -> None:
    async def computes(to: Exchange) -> None:
        await to.client_leaves()

    async with vllm_behind_a_gateway(computes) as (engine, url):
        asking = asyncio.create_task(
            post(url, "/v1/completions", {"model": "m", "prompt": "x", "stream": stream})
        )
        exchange = await engine.first()
        asking.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await exchange.left.wait()


def test_what_is_no_request_goes_on_as_it_is() -> None:
    broken = b'{"stream": tru'
    ask = ask_as_asked(ask_engine(broken, "chat"), broken, "chat", "horse")
    assert (ask.body, ask.answer) == (broken, "unchanged")
