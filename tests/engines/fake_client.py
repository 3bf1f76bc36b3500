"""The fake engine inside the test's own process, and a client of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from workhorse.engines.fake.decode import Behaviour
from workhorse.engines.fake.server import Server

Json = dict[str, Any]


@dataclass
class Client:
    """The fake engine in this process and a client of it."""

    http: aiohttp.ClientSession
    url: str
    server: Server

    async def post(self, path: str, body: Json | None) -> tuple[int, str, str]:
        method = "GET" if body is None else "POST"
        async with self.http.request(method, self.url + path, json=body) as answer:
            return answer.status, answer.content_type, await answer.text()

    async def events(self, path: str, body: Json) -> list[Any]:
        _, _, text = await self.post(path, {**body, "stream": True})
        return read_events(text)

    async def busy(self) -> list[bool]:
        _, _, text = await self.post("/slots", None)
        return [slot["is_processing"] for slot in json.loads(text)]


def read_events(text: str) -> list[Any]:
    """The documents of an event stream, `[DONE]` as it is."""
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events), events
    bodies = [event.removeprefix("data: ") for event in events]
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


@asynccontextmanager
async def fake(**told: Any) -> AsyncIterator[Client]:
    server = Server(Behaviour(**told), model="fake")
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            yield Client(http, url, server)
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], Any], within_s: float = 120.0) -> None:
    """Wait for a condition that must come true; awaitable conditions are awaited."""
    async with asyncio.timeout(within_s):
        while True:
            held = condition()
            if await held if asyncio.iscoroutine(held) else held:
                return
            await asyncio.sleep(0.005)
