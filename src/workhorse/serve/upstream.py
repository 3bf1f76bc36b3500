"""Asks the engines: one session, no limit on streams or on how long a prefill takes."""

import asyncio
import io
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from workhorse.serve.backend import READY, Roster, Served
from workhorse.serve.queue import Place
from workhorse.serve.refusal import DIED_SILENT, REFUSES, EngineLost
from workhorse.units import MIB

CONNECT_TIMEOUT_S = 5.0
# How long to leave an engine alone that refuses connections: its owner learns of its death
# from the operating system within that time.
RECONNECT_PAUSE_S = 0.1


class Upstream:
    """The connections to the engines; works while `running` does."""

    def __init__(self, roster: Roster, *, restart_wait_s: float) -> None:
        self._roster = roster
        self._restart_wait_s = restart_wait_s
        self._session: aiohttp.ClientSession

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Holds the one client session."""
        async with aiohttp.ClientSession(
            # llama-server closes the connection after a stream without saying so (tried with
            # 0.5.0, 2026-11): a request on a kept one would meet a closed door.
            connector=aiohttp.TCPConnector(limit=0, force_close=True, happy_eyeballs_delay=None),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # The client's own headers stay here. X-Conversation-Id above all: it makes
            # llama-server compute on after the connection has closed (`server-stream.cpp`).
            headers={"Accept-Encoding": "identity"},
        ) as self._session:
            yield

    async def reach(
        self, request: web.Request, at: Place | Served, body: bytes, *, resend: bool = False
    ) -> aiohttp.ClientResponse:
        """The response of the engine `at` once its headers are here; waits for a restart.

        `resend`: the headers come before the engine computes, so a request that was still
        without them when the engine died was queued, and is sent once more, to the next one.
        Any other request may be what has killed it, and is not.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._restart_wait_s
        while True:
            served = at.served if isinstance(at, Place) else at
            if isinstance(at, Place) and self._should_move(served):
                await at.again()
                served = at.served
            base = await served.backend.address(max(0.0, deadline_s - loop.time()))
            try:
                return await self._ask(request, base, body)
            except aiohttp.ClientConnectorError as error:
                if loop.time() + RECONNECT_PAUSE_S >= deadline_s:
                    raise EngineLost(REFUSES) from error
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except (aiohttp.ClientError, TimeoutError) as error:
                if not resend:
                    raise EngineLost(DIED_SILENT) from error
                resend = False
                deadline_s = loop.time() + self._restart_wait_s

    def _should_move(self, served: Served) -> bool:
        """Is the engine away, and another one of the same model there?"""
        return served.backend.state != READY and any(
            one.model_name == served.model_name and one.backend.state == READY
            for one in self._roster.served
        )

    async def _ask(self, request: web.Request, base: str, body: bytes) -> aiohttp.ClientResponse:
        return await self._session.request(
            request.method,
            base + request.path_qs,
            # aiohttp sends bytes at once, and wants a large body as a file.
            data=body if len(body) < MIB else io.BytesIO(body),
            # Whatever the client called it: curl says that it is a form.
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
        )
