"""A llama-server whose slots can be looked into: prefills at once, or when it is let; saves."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

BOS = 1


@dataclass
class StandInSlot:
    tokens: list[int] = field(default_factory=list)
    task: int | None = None
    busy: bool = False


class SlotsEngine:
    """One character is one token; the chat template writes `role:content|` for each message."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.slots = [StandInSlot() for _ in range(slots)]
        self.prompt_cache: list[list[int]] = []
        self.prefills: list[tuple[int, int]] = []  # slot and tokens computed
        self.restores: list[str] = []
        self.may_compute = asyncio.Event()
        self.may_compute.set()
        self.left = asyncio.Event()  # a client closed during a prefill
        self.can_save = True
        self.restores_nothing = False
        self.today = ""  # what the chat template writes before all messages
        self.looks = 0  # how often somebody asked what the slots do while one of them computed
        self.saves_instead: list[int] | None = None
        self._folder = folder
        self._tasks = 0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/slots", self._list),
                web.post("/slots/{slot}", self._act),
                web.post("/apply-template", self._render),
                web.post("/tokenize", self._tokenize),
                web.post("/completion", self._complete),
            ]
        )
        return app

    def text(self, slot: int) -> str:
        return "".join(map(chr, self.slots[slot].tokens[1:]))

    def client_used(self, slot: int, words: str) -> None:
        self._tasks += 1
        self.slots[slot].tokens, self.slots[slot].task = tokens_of(words), self._tasks

    async def _list(self, _: web.Request) -> web.Response:
        self.looks += any(slot.busy for slot in self.slots)
        told = [
            {"id": number, "is_processing": slot.busy}
            | ({} if slot.task is None else {"id_task": slot.task})
            | {"n_prompt_tokens": len(slot.tokens)}
            for number, slot in enumerate(self.slots)
        ]
        return web.json_response(told)

    async def _render(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        if any(said["role"] == "developer" for said in messages):
            return web.json_response({"error": {"message": "no such role"}}, status=500)
        text = self.today + "".join(f"{said['role']}:{said['content']}|" for said in messages)
        return web.json_response({"prompt": text})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": tokens_of((await request.json())["content"])})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked: dict[str, Any] = await request.json()
        assert asked["n_predict"] == 0
        number, tokens = asked["id_slot"], asked["prompt"]
        slot = self.slots[number]
        self._tasks += 1
        slot.busy, slot.task = True, self._tasks
        shared = sum(1 for _ in iter_shared(slot.tokens, tokens))
        if shared * 2 < len(slot.tokens):
            self.prompt_cache.append(slot.tokens)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        total = len(tokens)
        try:
            for done in (0, total // 2):
                event = {"prompt_progress": {"total": total, "processed": done}}
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await self.may_compute.wait()
        except (ConnectionError, asyncio.CancelledError):
            slot.tokens, slot.busy = tokens[: total // 2], False
            self.left.set()
            raise
        slot.tokens, slot.busy = tokens, False
        self.prefills.append((number, total - shared))
        timings = {"cache_n": shared, "prompt_n": total - shared, "prompt_ms": 10.0}
        await response.write(b"data: " + json.dumps({"timings": timings}).encode() + b"\n\n")
        return response

    async def _act(self, request: web.Request) -> web.Response:
        slot = self.slots[int(request.match_info["slot"])]
        path = self._folder / (await request.json())["filename"]
        if request.query["action"] == "restore":
            self.restores.append(path.name)
            words = path.read_bytes()[12:]
            count = struct.unpack_from("<3i", words)[2]
            slot.tokens = (
                [] if self.restores_nothing else list(struct.unpack_from(f"<{count}i", words, 12))
            )
            return web.json_response({"n_restored": count})
        while slot.busy:  # noqa: ASYNC110 - as the engine: when the slot is free
            await asyncio.sleep(0.001)
        if not self.can_save:
            return web.json_response({"error": {"message": "not supported"}}, status=501)
        tokens = slot.tokens if self.saves_instead is None else self.saves_instead
        packed = (-1, 1, len(tokens), *tokens, 0)
        head = struct.pack("<3I", 0x67677371, 4, len(packed))
        path.write_bytes(head + struct.pack(f"<{len(packed)}i", *packed) + b"kv" * 50)
        return web.json_response({"n_saved": len(slot.tokens)})


def tokens_of(text: str) -> list[int]:
    return [BOS, *map(ord, text)]


def iter_shared(one: list[int], other: list[int]) -> Any:
    for a, b in zip(one, other, strict=False):
        if a != b:
            return
        yield a


@asynccontextmanager
async def slots_engine(folder: Path, slots: int = 4) -> AsyncIterator[SlotsEngine]:
    """One that answers, with its base URL."""
    engine = SlotsEngine(folder, slots)
    runner = web.AppRunner(engine.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield engine
    finally:
        await runner.cleanup()
