"""The fake engine's HTTP endpoints, with llama-server's paths, bodies and refusals."""

import asyncio
import base64
import random
import secrets
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from workhorse.engines.fake import wire
from workhorse.engines.fake.ask import Ask, Kind, Refused, read_ask, read_json, read_prompts
from workhorse.engines.fake.decode import Behaviour, Decoder, Emit, Words
from workhorse.engines.fake.tokens import GARBAGE, cut_at_stop, embedding, say, to_text, to_tokens

EMBEDDING_SIZE = 64
# What llama-server answers without the key that it was started with.
PUBLIC = ("/health", "/v1/health", "/models", "/v1/models")
ANSWERS: dict[Kind, type[wire.Answer]] = {
    "native": wire.NativeAnswer,
    "text": wire.TextAnswer,
    "chat": wire.ChatAnswer,
}

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Work:
    """One answer still to be made."""

    answer: wire.Answer
    words: Words


class Server:
    """The fake engine behind its endpoints."""

    def __init__(self, behaviour: Behaviour, *, model: str, key: str | None = None) -> None:
        self.behaviour = behaviour
        self.model = model
        self.key = key
        self.decoder = Decoder(behaviour)
        self.loaded_s = time.monotonic() + behaviour.load_s
        self.chance = random.Random(behaviour.seed)  # noqa: S311  (repeatable faults, no secret)

    def app(self) -> web.Application:
        """The engine as an application; its runner must have `handler_cancellation=True`."""
        app = web.Application(client_max_size=1 << 30, middlewares=[self._gate])
        get: dict[str, Endpoint] = {
            "/health": self._health,
            "/v1/health": self._health,
            "/props": self._props,
            "/slots": self._slots,
            "/metrics": self._metrics,
            "/models": self._models,
            "/v1/models": self._models,
        }
        post: dict[str, Endpoint] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/completion": self._completions("native"),
            "/completions": self._completions("native"),
            "/v1/completions": self._completions("text"),
            "/chat/completions": self._completions("chat"),
            "/v1/chat/completions": self._completions("chat"),
            "/v1/embeddings": self._embeddings,
        }
        for path, endpoint in get.items():
            app.router.add_get(path, endpoint)
        for path, endpoint in post.items():
            app.router.add_post(path, endpoint)
        return app

    @web.middleware
    async def _gate(self, request: web.Request, handler: Endpoint) -> web.StreamResponse:
        sent = request.headers.get("Authorization", request.headers.get("X-Api-Key", ""))
        if self.key and request.path not in PUBLIC and sent.removeprefix("Bearer ") != self.key:
            return _refusal(wire.error("Invalid API Key", "authentication_error"))
        if time.monotonic() < self.loaded_s:
            return _refusal(wire.error("Loading model", "unavailable_error"))
        try:
            return await handler(request)
        except Refused as refused:
            return _refusal(refused.body)
        except web.HTTPException:
            return _refusal(wire.error("File Not Found", "not_found_error"))

    async def _health(self, _: web.Request) -> web.Response:
        if self.behaviour.hang:
            await asyncio.get_running_loop().create_future()
        return web.json_response({"status": "ok"})

    async def _props(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "default_generation_settings": {"n_ctx": self.behaviour.context_tokens},
                "total_slots": self.behaviour.slots,
                "model_alias": self.model,
                "model_path": self.model,
                "modalities": {"vision": False, "video": False, "audio": False},
                "endpoint_slots": True,
                "build_info": wire.FINGERPRINT,
                "is_sleeping": False,
            }
        )

    async def _slots(self, _: web.Request) -> web.Response:
        common = {"n_ctx": self.behaviour.context_tokens, "speculative": False}
        busy = self.decoder.slots.busy
        return web.json_response(
            [{"id": slot, **common, "is_processing": busy[slot]} for slot in range(len(busy))]
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        raise Refused(
            "This server does not support metrics endpoint. Start it with `--metrics`",
            "not_supported_error",
        )

    async def _models(self, _: web.Request) -> web.Response:
        context_tokens = self.behaviour.context_tokens
        model = {
            "id": self.model,
            "aliases": [self.model],
            "object": "model",
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": {"n_ctx": context_tokens, "n_ctx_train": context_tokens},
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = read_json(await request.read())
        tokens = to_tokens(str(body.get("content", "")))
        if body.get("with_pieces") is True:
            pieces = [{"id": token, "piece": to_text([token])} for token in tokens]
            return web.json_response({"tokens": pieces})
        return web.json_response({"tokens": tokens})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = read_json(await request.read())
        (tokens,) = read_prompts(body.get("tokens") or "")
        return web.json_response({"content": to_text(tokens)})

    async def _embeddings(self, request: web.Request) -> web.Response:
        if not self.behaviour.embeddings:
            raise Refused(
                "This server does not support embeddings. Start it with `--embeddings`",
                "not_supported_error",
            )
        body = read_json(await request.read())
        if body.get("input") is None:
            raise Refused('"input" or "content" must be provided', "invalid_request_error")
        prompts = read_prompts(body["input"])
        data: list[wire.Json] = []
        for prompt in prompts:
            vector = embedding(prompt, size=EMBEDDING_SIZE)
            one = {"embedding": vector, "index": len(data), "object": "embedding"}
            if body.get("encoding_format") == "base64":
                packed = struct.pack(f"<{EMBEDDING_SIZE}f", *vector)
                one["embedding"] = base64.b64encode(packed).decode()
                one["encoding_format"] = "base64"
            data.append(one)
        tokens = sum(len(prompt) for prompt in prompts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return web.json_response(
            {"model": self.model, "object": "list", "usage": usage, "data": data}
        )

    def _completions(self, kind: Kind) -> Endpoint:
        async def completions(request: web.Request) -> web.StreamResponse:
            arrived_s = asyncio.get_running_loop().time()
            ask = read_ask(kind, read_json(await request.read()))
            works = self._works(ask, garbage=await self._misfortune())
            if ask.stream:
                return await self._stream(request, ask, works, arrived_s)
            ends = await self._run(ask, works, arrived_s, _unsent)
            wholes = [work.answer.whole(end) for work, end in zip(works, ends, strict=True)]
            if kind == "native":
                return web.json_response(wholes if len(wholes) > 1 else wholes[0])
            for whole in wholes[1:]:
                wholes[0]["choices"] += whole["choices"]
            return web.json_response(wholes[0])

        return completions

    async def _misfortune(self) -> bool:
        """Whatever this request is told to meet: an error, silence; True: it answers garbage."""
        told, drawn = self.behaviour, self.chance.random()
        if drawn < told.error_rate:
            raise Refused("told to fail", "server_error")
        drawn -= told.error_rate
        if drawn < told.hang_rate:
            await asyncio.get_running_loop().create_future()  # until its client leaves
        return told.garbage or 0 <= drawn - told.hang_rate < told.garbage_rate

    async def _stream(
        self, request: web.Request, ask: Ask, works: Sequence[Work], arrived_s: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        # llama-server's own oddity: each further prompt opens with an event that says null.
        for _ in ask.prompts[1:]:
            await response.write(wire.event(None))

        async def finish(work: Work, end: wire.End) -> None:
            await response.write(work.answer.end(end))

        try:
            await self._run(ask, works, arrived_s, response.write, finish)
        except Refused as refused:
            await response.write(wire.event(refused.body))
            return response
        if ask.kind != "native":
            await response.write(wire.DONE)
        return response

    async def _run(
        self,
        ask: Ask,
        works: Sequence[Work],
        arrived_s: float,
        emit: Emit,
        finish: Callable[[Work, wire.End], Awaitable[None]] | None = None,
    ) -> list[wire.End]:
        async def one(work: Work) -> wire.End:
            end = await self.decoder.run(ask, work.answer, work.words, arrived_s, emit)
            if finish:
                await finish(work, end)
            return end

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(work)) for work in works]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def _works(self, ask: Ask, *, garbage: bool) -> list[Work]:
        answer_id, created = f"chatcmpl-{secrets.token_urlsafe(24)}", int(time.time())
        works: list[Work] = []
        for prompt in ask.prompts:
            room_tokens = self.behaviour.context_tokens - len(prompt)
            if room_tokens <= 0:
                raise Refused(
                    f"request ({len(prompt)} tokens) exceeds the available context size "
                    f"({self.behaviour.context_tokens} tokens), try increasing it",
                    "exceed_context_size_error",
                    n_prompt_tokens=len(prompt),
                    n_ctx=self.behaviour.context_tokens,
                )
            for choice in range(ask.choices):
                answer = ANSWERS[ask.kind](
                    model=self.model,
                    answer_id=answer_id,
                    created=created,
                    index=len(works),
                    prompt=to_text(prompt),
                    prompt_tokens=len(prompt),
                    logprobs=ask.logprobs,
                    return_tokens=ask.return_tokens,
                    include_usage=ask.include_usage,
                )
                words = self._words(ask, prompt, choice, room_tokens, garbage=garbage)
                works.append(Work(answer, words))
        return works

    def _words(
        self, ask: Ask, prompt: Sequence[int], choice: int, room_tokens: int, *, garbage: bool
    ) -> Words:
        limit = room_tokens if ask.limit_tokens is None else min(ask.limit_tokens, room_tokens)
        pieces, ended = say(
            prompt,
            seed=self.behaviour.seed + ask.seed + choice,
            limit=limit,
            natural=not ask.ignore_eos,
            length=self.behaviour.answer_tokens,
        )
        if garbage:
            pieces = [GARBAGE] * len(pieces)
        pieces, stop_word = cut_at_stop(pieces, ask.stops)
        return Words(pieces, "word" if stop_word else "eos" if ended else "limit", stop_word)


async def _unsent(_: bytes) -> None:
    """Where the events of an answer go that is not streamed."""


def _refusal(body: wire.Json) -> web.Response:
    return web.json_response(body, status=body["error"]["code"])
