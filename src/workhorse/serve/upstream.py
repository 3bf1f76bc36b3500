"""Asks the engines, over every restart and death of one."""

import asyncio

from aiohttp import web

from workhorse.errors import AppError
from workhorse.run.address import Address
from workhorse.serve.backend import READY, Roster, Served
from workhorse.serve.engine_socket import EngineAnswer, RefusesError, ask
from workhorse.serve.queue import Place
from workhorse.serve.refusal import DIED_SILENT, REFUSES, EngineLost
from workhorse.serve.wire import BrokenAnswerError

# How long to leave an engine alone that refuses connections: its owner learns of its death
# from the operating system within that time.
RECONNECT_PAUSE_S = 0.1
UNAUTHORIZED, NOT_FOUND = 401, 404
# With several engines of a model, how often one that waits for the one looks at the others.
LOOK_S = 0.5


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
        request may be what has killed it, and is not; over a link it is, once, since most often
        the link was cut or the other machine has gone.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._restart_wait_s
        path = at.ask.path if isinstance(at, Place) else None
        # What an engine says of a HEAD is a body's length without the body.
        method, sent_again = "GET" if request.method == "HEAD" else request.method, False
        while True:
            served = at.served if isinstance(at, Place) else at
            if isinstance(at, Place) and self._should_move(served):
                await at.again()
                served, deadline_s = at.served, loop.time() + self._restart_wait_s
            address = await self._address(at, max(0.0, deadline_s - loop.time()))
            if address is None:
                continue
            try:
                return await ask_the_engine(address, method, path or request.path_qs, body)
            except RefusesError as error:
                if loop.time() + RECONNECT_PAUSE_S >= deadline_s:
                    raise EngineLost(REFUSES) from error
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except BrokenAnswerError as error:
                if sent_again or not (resend or address.link is not None):
                    raise EngineLost(DIED_SILENT) from error
                sent_again = True
                deadline_s = loop.time() + self._restart_wait_s

    async def _address(self, at: Place | Served, wait_s: float) -> Address | None:
        """Where the engine answers; None when it is time to look at the others of its model."""
        served = at.served if isinstance(at, Place) else at
        alone = not isinstance(at, Place) or not self._others(served)
        if alone or wait_s <= LOOK_S:
            return await served.backend.address(wait_s)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            return await served.backend.address(LOOK_S)
        except AppError:
            if loop.time() - began_s < LOOK_S / 2:  # it does not come back
                raise
            return None

    def _others(self, served: Served) -> bool:
        return any(
            one.model_name == served.model_name and one.backend is not served.backend
            for one in self._roster.served
        )

    def _should_move(self, served: Served) -> bool:
        """Is the engine away, and another one of the same model there?"""
        return served.backend.state != READY and any(
            one.model_name == served.model_name and one.backend.state == READY
            for one in self._roster.served
        )


async def ask_the_engine(address: Address, method: str, path_qs: str, body: bytes) -> EngineAnswer:
    """The engine's own answer; raises as `ask` does, also when a stranger answers in its place."""
    link = address.link
    try:
        answer = await ask(address, method, path_qs, body)
        try:
            _refuse_stranger(address, answer)
        except BaseException:
            answer.close()
            raise
    except (RefusesError, BrokenAnswerError) as error:
        if link is not None:
            link.failed(str(error))
        raise
    return answer


def _refuse_stranger(address: Address, answer: EngineAnswer) -> None:
    status, link = answer.head.status, address.link
    if status == UNAUTHORIZED and address.key is not None:
        # The engine has gone, and another program has its port.
        raise RefusesError("another key")
    if link is not None and not link.is_its_own(answer.head.headers):
        if status == NOT_FOUND:  # the proxy knows no such engine: nothing was sent to it
            raise RefusesError("a proxy knows of no such engine")
        raise BrokenAnswerError(f"HTTP {status} of a proxy")
