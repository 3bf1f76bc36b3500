"""Asks the engines, over every restart and death of one."""

import asyncio

from aiohttp import web

from workhorse.serve.backend import READY, Roster, Served
from workhorse.serve.engine_socket import EngineAnswer, RefusesError, ask
from workhorse.serve.queue import Place
from workhorse.serve.refusal import DIED_SILENT, REFUSES, EngineLost
from workhorse.serve.wire import BrokenAnswerError

# How long to leave an engine alone that refuses connections: its owner learns of its death
# from the operating system within that time.
RECONNECT_PAUSE_S = 0.1
UNAUTHORIZED = 401


class Upstream:
    """The way to the engines."""

    def __init__(self, roster: Roster, *, restart_wait_s: float) -> None:
        self._roster = roster
        self._restart_wait_s = restart_wait_s

    async def reach(
        self, request: web.Request, at: Place | Served, body: bytes, *, resend: bool = False
    ) -> EngineAnswer:
        """The answer of the engine `at` once its head is here; waits for a restart.

        `resend`: the head comes before the engine computes, so a request that was still without
        one when the engine died was queued, and is sent once more, to the next one. Any other
        request may be what has killed it, and is not.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._restart_wait_s
        path = at.ask.path if isinstance(at, Place) else None
        # What an engine says of a HEAD is a body's length without the body.
        method = "GET" if request.method == "HEAD" else request.method
        while True:
            served = at.served if isinstance(at, Place) else at
            if isinstance(at, Place) and self._should_move(served):
                await at.again()
                served = at.served
            address = await served.backend.address(max(0.0, deadline_s - loop.time()))
            try:
                answer = await ask(address, method, path or request.path_qs, body)
                if answer.head.status == UNAUTHORIZED and address.key is not None:
                    # The engine has gone, and another program has its port.
                    answer.close()
                    raise RefusesError("another key")
                return answer
            except RefusesError as error:
                if loop.time() + RECONNECT_PAUSE_S >= deadline_s:
                    raise EngineLost(REFUSES) from error
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except BrokenAnswerError as error:
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
