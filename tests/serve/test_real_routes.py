"""Messages, responses and the small routes on the real engine, and clients that leave them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from real_engine import RealEngine, real_engine
from stand_ins import StandInBackend, gateway
from test_messages import heard
from test_real_leaving import (
    BATCH_TOKENS,
    LONG,
    PROMPT_TOKENS,
    SECOND_OF_DECODE_TOKENS,
    SHORT_TOKENS,
    decoded,
    frees_its_slot,
    prefilled,
)

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ASK = "Name three colours."
GREEDY: Any = {"temperature": 0, "top_k": 1, "max_tokens": 16}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    real_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealEngine]:
    async with real_engine(real_model, tmp_path_factory.mktemp("engine") / "log") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(engine: RealEngine) -> AsyncIterator[str]:
    async with gateway(StandInBackend(engine.url)) as url:
        yield url


async def post(url: str, body: Any, *, stream: bool = False) -> Any:
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.read() if stream else await answer.json()


async def test_a_message_is_what_the_engine_itself_says(engine: RealEngine, front: str) -> None:
    """The engine's own translation of the same request, greedily, is the reference."""
    asked = {"messages": [{"role": "user", "content": ASK}], "system": "Be brief.", **GREEDY}
    own = await post(f"{engine.url}/v1/messages", asked)
    ours = await post(f"{front}/v1/messages", asked)
    streamed = heard(await post(f"{front}/v1/messages", {**asked, "stream": True}, stream=True))
    for message in (ours, streamed):
        assert message.keys() == own.keys()
        for name in ("content", "stop_reason", "stop_sequence", "role", "type"):
            assert message[name] == own[name], name
        read = message["usage"]
        assert read["output_tokens"] == own["usage"]["output_tokens"] <= 16
        both = ("input_tokens", "cache_read_input_tokens")
        assert sum(read[name] for name in both) == sum(own["usage"][name] for name in both)


async def test_a_response_and_its_stream(front: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{front}/v1", api_key="-", max_retries=0) as client:
        whole = await client.responses.create(
            model="horse", input=ASK, max_output_tokens=16, temperature=0
        )
        assert whole.status == "completed"
        assert whole.output_text
        assert whole.usage is not None
        assert whole.usage.output_tokens == 16
        said, last = "", None
        stream = await client.responses.create(
            model="horse", input=ASK, max_output_tokens=16, temperature=0, stream=True
        )
        async for event in stream:
            assert not getattr(event, "prompt_progress", None)
            if event.type == "response.output_text.delta":
                said += event.delta
            last = event
        assert last is not None
        assert last.type == "response.completed"
        assert said == whole.output_text == last.response.output_text


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/chat/completions/input_tokens"])
async def test_tokens_are_counted(front: str, path: str) -> None:
    counted = await post(f"{front}{path}", {"messages": [{"role": "user", "content": ASK}]})
    assert counted["input_tokens"] > 5


async def test_the_template_is_applied(front: str) -> None:
    applied = await post(
        f"{front}/apply-template", {"messages": [{"role": "user", "content": ASK}]}
    )
    assert ASK in applied["prompt"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
async def test_what_the_model_cannot_is_said_by_the_engine(front: str, path: str) -> None:
    async with aiohttp.ClientSession() as http:
        body = {"query": "a", "documents": ["b"]}
        async with http.post(f"{front}{path}", json=body) as answer:
            assert answer.status == 501
            assert "does not support reranking" in (await answer.json())["error"]["message"]


def request(kind: str, words: str, stream: bool) -> tuple[str, dict[str, Any]]:
    if kind == "messages":
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": words}]}
        return "/v1/messages", {**asked, "max_tokens": 3000, "stream": stream, "ignore_eos": True}
    if kind == "completions":
        limit = {"max_tokens": 3000, "ignore_eos": True}
        return "/v1/completions", {"prompt": words, "stream": stream, **limit}
    limits = {"max_output_tokens": 3000, "ignore_eos": True}
    return "/v1/responses", {"input": words, "stream": stream, **limits}


class Guest:
    """A client of one route that can leave."""

    def __init__(self, front: str, kind: str, words: str, stream: bool) -> None:
        path, body = request(kind, words, stream)
        self._task = asyncio.create_task(self._ask(front + path, body))

    async def _ask(self, url: str, body: dict[str, Any]) -> None:
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, data=json.dumps(body)) as answer,
        ):
            await answer.read()

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def leave(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["messages", "responses", "completions"])
async def test_who_leaves_in_prefill_frees_the_slot(
    engine: RealEngine, front: str, kind: str, stream: bool
) -> None:
    def comes(attempt: int) -> Guest:
        return Guest(front, kind, f"{kind} {stream} {attempt} {LONG}", stream)

    most = PROMPT_TOKENS - 3 * BATCH_TOKENS
    await frees_its_slot(engine, comes, prefilled, most_done=most, more=3 * BATCH_TOKENS)


@pytest.mark.parametrize("kind", ["messages", "responses", "completions"])
async def test_who_leaves_in_decode_frees_the_slot(
    engine: RealEngine, front: str, kind: str
) -> None:
    def comes(_: int) -> Guest:
        return Guest(front, kind, "Tell a story.", stream=False)

    more = SHORT_TOKENS + SECOND_OF_DECODE_TOKENS
    await frees_its_slot(engine, comes, decoded, most_done=3000, more=more)
