"""A scripted engine, a backend without an engine, and a gateway in front of either."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from workhorse.errors import AppError
from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Capacity, Roster, Served
from workhorse.serve.keys import Key
from workhorse.serve.who import KEY
from workhorse.text import same

PATIENCE_S = 120.0  # for what must come true on a machine with other work

Json = dict[str, Any]


class StandInBackend:
    """The owner of an engine at `url`; `url` None: there is none now."""

    def __init__(self, url: str | None, state: str = "ready", key: str | None = None) -> None:
        self.state = state
        self.key = key
        self.restarts = 0
        self.asked = asyncio.Event()
        self._url = url
        self._there = asyncio.Event()
        if url:
            self._there.set()

    def comes_back(self, url: str) -> None:
        self._url, self.state = url, "ready"
        self.restarts += 1
        self._there.set()

    def goes_away(self) -> None:
        self._url, self.state = None, "restarting"
        self._there.clear()

    async def address(self, wait_s: float) -> Address:
        self.asked.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._there.wait()
        if self._url is None:
            raise AppError(same("It fell over."), same("Wait."), speaker="engine")
        return Address(self._url, self.key)


@dataclass
class Exchange:
    """One request that the scripted engine got, and the means to answer it."""

    head: str
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found

    async def begin_stream(self) -> None:
        await self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Access-Control-Allow-Origin: *\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def event(self, document: Json) -> None:
        await self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def end_stream(self) -> None:
        await self.chunk(b"data: [DONE]\n\n")
        await self.send(b"0\r\n\r\n")

    async def whole(self, document: Json, status: int = 200) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
        await self.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def die(self) -> None:
        self.writer.transport.abort()

    async def client_leaves(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.left.wait()


Script = Callable[[Exchange], Awaitable[None]]


class ScriptedEngine:
    """Answers every request with its script; remembers what it got."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.came = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def first(self) -> Exchange:
        async with asyncio.timeout(PATIENCE_S):
            await self.came.wait()
        return self.exchanges[0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                exchange = await read_request(reader, writer)
                self.exchanges.append(exchange)
                self.came.set()
                # The next byte can only be the connection's end or the next request.
                watch = asyncio.create_task(watch_end(exchange))
                self._tasks.add(watch)
                await self.script(exchange)
                await asyncio.wait({watch})
                if exchange.left.is_set():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def watch_end(exchange: Exchange) -> None:
    with suppress(ConnectionError):
        if await exchange.reader.read(1):
            raise AssertionError("the scripted engine serves one request a connection")
    exchange.left.set()


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    return Exchange(head, body, reader, writer)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[tuple[ScriptedEngine, str]]:
    """A scripted engine and its base URL."""
    engine = ScriptedEngine(script)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=2**27)
    port = server.sockets[0].getsockname()[1]
    try:
        yield engine, f"http://127.0.0.1:{port}"
    finally:
        server.close()
        for exchange in engine.exchanges:
            exchange.die()
        await asyncio.sleep(0)
        await server.wait_closed()


@asynccontextmanager
async def gateway(
    *backends: Any,
    activity: Activity | None = None,
    capacity: Capacity | None = None,
    key: Key | None = None,
    **options: Any,
) -> AsyncIterator[str]:
    """The base URL of a running gateway; every request comes with `key`."""
    roster = Roster(Served("horse", backend, capacity) for backend in backends)
    app = build_app(roster, activity=activity or Activity(), **options)
    if key is not None:

        @web.middleware
        async def give_key(request: web.Request, handler: Any) -> web.StreamResponse:
            request[KEY] = key
            response: web.StreamResponse = await handler(request)
            return response

        app.middlewares.append(give_key)
    opened = Gateway(app)
    await opened.start(port=0)
    assert opened.url is not None
    try:
        yield opened.url
    finally:
        await opened.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Returns once a condition holds that must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


def chunk(content: str | None, index: int = 0, finish: str | None = None, **more: Any) -> Json:
    """A chat chunk as llama-server sends it."""
    delta = {} if content is None else {"content": content}
    choice = {"finish_reason": finish, "index": index, "delta": delta}
    return {
        "choices": [choice],
        "created": 1,
        "id": "chatcmpl-1",
        "model": "m",
        "system_fingerprint": "b1",
        "object": "chat.completion.chunk",
        **more,
    }


def progress(processed: int, total: int = 1024) -> Json:
    """A progress event as llama-server sends it."""
    found = chunk(None, prompt_progress={"total": total, "cache": 0, "processed": processed})
    found["choices"][0]["delta"] = {"role": "assistant", "content": None}
    return found
