"""What a running `fleet up` answers to the commands of the user who runs it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from aiohttp import web

from workhorse.errors import AppError
from workhorse.fleet.replicas import Replicas
from workhorse.serve.refusal import json_response, refusal
from workhorse.text import Text

FLEET_PATH = "/workhorse/fleet"
DRAIN_PATH = "/workhorse/fleet/drain"


class Commands:
    """The routes; `replicas` is set once there are any."""

    def __init__(self) -> None:
        self.replicas: Replicas | None = None

    def table(self) -> list[web.RouteDef]:
        """Its routes."""
        return [web.get(FLEET_PATH, self._status), web.post(DRAIN_PATH, self._drain)]

    async def _status(self, _: web.Request) -> web.Response:
        if self.replicas is None:
            return json_response(refusal(503, NOT_YET.en), status=503)
        return json_response(self.replicas.status())

    async def _drain(self, request: web.Request) -> web.StreamResponse:
        """One JSON document a line: what is being done, then `done` or `error`."""
        replicas, name = self.replicas, request.query.get("node", "")
        if replicas is None:
            return json_response(refusal(503, NOT_YET.en), status=503)
        undo = request.query.get("undo") == "1"
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        work = replicas.undo if undo else replicas.drain
        await tell_on(response, lambda say: work(name, say))
        await response.write_eof()
        return response


async def tell_on(
    response: web.StreamResponse,
    work: Callable[[Callable[[Text], None]], Coroutine[Any, Any, None]],
) -> None:
    """Do the work and tell the client of it, line by line; it is cancelled when the client goes."""
    said: asyncio.Queue[Text] = asyncio.Queue()
    task = asyncio.create_task(work(said.put_nowait))
    try:
        while not task.done() or not said.empty():
            words = asyncio.create_task(said.get())
            await asyncio.wait({words, task}, return_when=asyncio.FIRST_COMPLETED)
            if words.done():
                await response.write(_line({"stage": words.result()}))
            else:
                words.cancel()
        error = task.exception()
        if isinstance(error, AppError):
            told = {"what": error.what, "next_step": error.next_step}
            await response.write(_line({"error": told}))
        elif error is not None:
            raise error
        else:
            await response.write(_line({"done": True}))
    finally:
        task.cancel()


def _line(document: object) -> bytes:
    return msgspec.json.encode(document) + b"\n"


NOT_YET = Text("The fleet is still being planned.", "集群仍在制定方案。")
