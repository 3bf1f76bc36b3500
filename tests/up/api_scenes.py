"""A service with OpenAI's files and batches, its official client, and inputs for it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai
from openai.types import Batch
from service_inside import serving
from service_process import PATIENCE_S

from workhorse.machine.probe import probe
from workhorse.records import Machine
from workhorse.up.service import Service

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
OVER = ("completed", "failed", "expired", "cancelled")


def request(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """One line of an input."""
    asked: dict[str, Any] = {"model": "any", "max_tokens": 4}
    if url == CHAT:
        asked["messages"] = [{"role": "user", "content": f"Say {custom_id}."}]
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked | body}


def jsonl(*requests: dict[str, Any]) -> bytes:
    """An input file."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in requests)


def chats(count: int, **body: Any) -> bytes:
    """An input of so many chats."""
    return jsonl(*(request(f"r{n}", **body) for n in range(count)))


def client_of(service: Service, key: str = "none") -> openai.AsyncOpenAI:
    """The official client; what is refused is not asked again."""
    return openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0)


@asynccontextmanager
async def batch_service(
    home: Path, model: Path, *engine_options: str, config: str = "", key: str = "none"
) -> AsyncIterator[tuple[Service, openai.AsyncOpenAI]]:
    """A service on the fake engine that has taken its files and batches, and a client."""
    with patch("workhorse.up.decide.probe", lambda *_, **__: this_machine()):
        async with serving(home, model, *engine_options, config=config) as service:
            await until(lambda: service.batches.closed is None)
            async with client_of(service, key) as client:
                yield service, client


@cache
def this_machine() -> Machine:
    """It, looked at once and not measured."""
    return probe(measure_s=0)


async def ordered(
    client: openai.AsyncOpenAI, content: bytes, endpoint: Any = CHAT, **told: Any
) -> Batch:
    """A batch of an input."""
    sent = await client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    return await client.batches.create(
        input_file_id=sent.id, endpoint=endpoint, completion_window="24h", **told
    )


async def watched(
    client: openai.AsyncOpenAI, batch_id: str, enough: Callable[[Batch], bool]
) -> Batch:
    """The batch once it is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while not enough(found := await client.batches.retrieve(batch_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Batch:
    """The batch once it is over."""
    return await watched(client, batch_id, lambda one: one.status in OVER)


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file; none without a file."""
    if file_id is None:
        return []
    return [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
