"""A small OpenAI-compatible service inside the test, of several kinds; it notes what it gets."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from aiohttp.test_utils import TestServer

from workhorse.engines.fake.tokens import to_tokens


@dataclass
class PlainService:
    """Answers `/v1/completions` like an engine that counts four characters as a token."""

    key: str | None = None
    models: web.Response | None = None  # answered once to /v1/models, in place of a list
    cached_tokens: int = 0
    counts_tokens: bool = True
    on_stream: Callable[[int], None] = lambda _number: None
    hold: asyncio.Event | None = None  # nothing more is answered until it is set
    chat_only: bool = False
    strict: bool = False  # refuses what OpenAI's own service does not know
    tokenizer: Literal["vllm", "lmdeploy"] | None = None
    template_tokens: int = 0  # what every chat costs besides
    owner: str | None = None
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
        return self.models or web.json_response({"data": [{"id": "plain", "owned_by": self.owner}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.tokenizer == "vllm" and request.path == "/tokenize":
            bos = [1] if body.get("add_special_tokens", True) else []
            tokens = [*bos, *to_tokens(body["prompt"])]
            return web.json_response(
                {"count": len(tokens), "max_model_len": 4096, "tokens": tokens}
            )
        if self.tokenizer == "lmdeploy" and request.path == "/v1/encode":
            tokens = to_tokens(body["input"])
            return web.json_response({"input_ids": tokens, "length": len(tokens)})
        raise web.HTTPNotFound

    async def version(self, _: web.Request) -> web.Response:
        if self.tokenizer != "vllm":
            raise web.HTTPNotFound
        return web.json_response({"version": "0.32.0"})

    def prompt_tokens(self, body: dict[str, Any]) -> int:
        if "messages" in body:
            text = "".join(message["content"] for message in body["messages"])
            return len(text) // 4 + self.template_tokens
        prompt = body["prompt"]
        if self.tokenizer is not None:
            return len(prompt if isinstance(prompt, list) else to_tokens(prompt))
        return max(1, len(prompt) // 4)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if refused := self.refusal(request):
            return refused
        chat = request.path == "/v1/chat/completions"
        if self.chat_only and not chat:
            raise web.HTTPNotFound
        body = await request.json()
        unknown = {"cache_prompt", "ignore_eos"} | ({"max_tokens"} if self.chat_only else set())
        if self.strict and unknown & set(body):
            said = {"error": {"message": f"Unrecognized request argument: {min(unknown)}"}}
            return web.json_response(said, status=400)
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        usage = {
            "prompt_tokens": self.prompt_tokens(body),
            "completion_tokens": limit,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": "a"}], "usage": usage})
        self.on_stream(len(self.streamed))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(limit):
            said = {"delta": {"content": f" {number}"}} if chat else {"text": f" {number}"}
            await write(answer, {"choices": [said]})
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
async def serving(service: PlainService, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The service on a free port of loopback; its base URL."""
    app = web.Application()
    app.router.add_get("/v1/models", service.list_models)
    app.router.add_post("/v1/completions", service.complete)
    app.router.add_post("/v1/chat/completions", service.complete)
    app.router.add_post("/tokenize", service.tokenize)
    app.router.add_post("/v1/encode", service.tokenize)
    app.router.add_get("/version", service.version)
    server = TestServer(app, host="127.0.0.1", scheme="https" if tls else "http")
    await server.start_server(ssl=tls)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()
