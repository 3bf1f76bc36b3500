"""A small OpenAI-compatible service inside the test: no `/tokenize`, and it notes what it gets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class PlainService:
    """Answers `/v1/completions` like an engine that counts four characters as a token."""

    key: str | None = None
    models: web.Response | None = None  # answered once to /v1/models, in place of a list
    cached_tokens: int = 0
    counts_tokens: bool = True
    on_stream: Callable[[int], None] = lambda _number: None
    hold: asyncio.Event | None = None  # nothing more is answered until it is set
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def streamed(self) -> list[dict[str, Any]]:
        return [body for body in self.asked if body.get("stream")]

    async def list_models(self, request: web.Request) -> web.Response:
        if refused := self.refusal(request):
            return refused
        if self.hold is not None:
            await self.hold.wait()
        return self.models or web.json_response({"data": [{"id": "plain"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if refused := self.refusal(request):
            return refused
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        usage = {
            "prompt_tokens": max(1, len(body["prompt"]) // 4),
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": "a"}], "usage": usage})
        self.on_stream(len(self.streamed))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(body["max_tokens"]):
            await write(answer, {"choices": [{"text": f" {number}"}]})
            if self.hold is not None:
                await self.hold.wait()
        last: dict[str, Any] = {"choices": [{"text": "", "finish_reason": "length"}]}
        await write(answer, {**last, "usage": usage} if self.counts_tokens else last)
        await answer.write(b"data: [DONE]\n\n")
        return answer

    def refusal(self, request: web.Request) -> web.Response | None:
        if self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        return web.json_response({"error": {"message": "Invalid API Key"}}, status=401)


async def write(answer: web.StreamResponse, event: dict[str, Any]) -> None:
    await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


@asynccontextmanager
async def serving(service: PlainService) -> AsyncIterator[str]:
    """The service on a free port of loopback; its base URL."""
    app = web.Application()
    app.router.add_get("/v1/models", service.list_models)
    app.router.add_post("/v1/completions", service.complete)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()
