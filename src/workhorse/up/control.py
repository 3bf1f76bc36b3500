"""What the service answers to its own commands: its status, its plans, and a reload."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from workhorse import __version__
from workhorse.bench.own_service import PLANS_PATH, Decided
from workhorse.errors import AppError
from workhorse.records import EngineReading
from workhorse.serve.refusal import json_response
from workhorse.text import Text
from workhorse.up.engine import Engine
from workhorse.up.reload import Change, Reload
from workhorse.up.status import (
    NOT_YET,
    EngineStatus,
    ServiceStatus,
    service_state,
    waiting_in_all,
)

if TYPE_CHECKING:
    from workhorse.up.service import Service

log = logging.getLogger(__name__)

STATUS_PATH = "/workhorse/status"
RELOAD_PATH = "/workhorse/reload"


class Control:
    """The commands of one service, and the one reload that may be under way."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._reload: asyncio.Task[tuple[Change, ...]] | None = None

    def table(self) -> list[web.RouteDef]:
        """Its routes."""
        return [
            web.get(STATUS_PATH, self._status_page),
            web.get(PLANS_PATH, self._plans_page),
            web.post(RELOAD_PATH, self._reload_page),
        ]

    @property
    def reloading(self) -> bool:
        """Is a reload under way?"""
        return self._reload is not None and not self._reload.done()

    def status(self) -> ServiceStatus:
        """How the service is now."""
        service = self._service
        readings = {one.name: one for one in service.live.engine_readings()}
        states = [one.state for one in service.engines]
        return ServiceStatus(
            state=service_state(
                states, draining=service.gate.closed is not None, reloading=self.reloading
            ),
            url=service.url,
            pid=os.getpid(),
            version=__version__,
            started_unix_s=service.started_unix_s,
            engines=tuple(
                engine_status(one, readings.get(one.served.name)) for one in service.engines
            ),
            in_flight=service.activity.in_flight,
            waiting=waiting_in_all(readings.values()),
            alarms=tuple(service.alarms()),
            config=None if service.ask.config is None else str(service.ask.config.absolute()),
            batches=service.batches.running,
        )

    def decided(self) -> tuple[Decided, ...]:
        """What each engine was started with; those that are still being planned are left out."""
        return tuple(
            Decided(engine.served.model_name, engine.decision.plan, engine.decision.machine)
            for engine in self._service.engines
            if engine.decision is not None
        )

    async def reload(self, say: Callable[[Text], None], *, restart: bool) -> tuple[Change, ...]:
        """Begin a reload and wait for its end; it goes on when the one who waits leaves."""
        service = self._service
        if self.reloading:
            raise AppError(
                Text("A reload is under way already.", "已有一次重载正在进行。"),
                Text("Wait for its end.", "请等待其结束。"),
            )
        if any(one.state in NOT_YET for one in service.engines) or service.gate.closed is not None:
            raise AppError(
                Text(
                    "The service is still starting, or stopping already.", "服务正在启动或停止中。"
                ),
                Text("Ask again when it is ready.", "请在就绪后重试。"),
            )
        self._reload = asyncio.create_task(self._run(say, restart), name="reload")
        return await asyncio.shield(self._reload)

    async def _run(self, say: Callable[[Text], None], restart: bool) -> tuple[Change, ...]:
        service = self._service

        def both(words: Text) -> None:
            service.tell.stage(words)
            say(words)

        service.notify.reloading()
        await service.end_beside("measuring")
        try:
            changes = await Reload(service, both, restart=restart).run()
        except AppError as error:
            service.tell.stage(error.what)
            raise
        except Exception:
            log.exception("The reload failed.")
            raise
        finally:
            service.notify.ready(service.headline)
            service.measure()
        both(Text("reload done", "重载完成"))
        return changes

    async def stop(self) -> None:
        """End a reload that is under way."""
        if self._reload is not None:
            self._reload.cancel()
            await asyncio.wait({self._reload})

    async def _status_page(self, _: web.Request) -> web.Response:
        return json_response(self.status())

    async def _plans_page(self, _: web.Request) -> web.Response:
        """What each engine was started with, whole: for the user who runs the service alone."""
        return json_response(self.decided())

    async def _reload_page(self, request: web.Request) -> web.StreamResponse:
        """One JSON document a line: what is being done, then what came of it.

        Who may ask is `serve/auth.py`'s affair: whoever can read the service's own file.
        """
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        said: asyncio.Queue[Text] = asyncio.Queue()
        work = asyncio.create_task(
            self.reload(said.put_nowait, restart=request.query.get("restart") == "1")
        )
        try:
            while not work.done() or not said.empty():
                words = asyncio.create_task(said.get())
                await asyncio.wait({words, work}, return_when=asyncio.FIRST_COMPLETED)
                if words.done():
                    await response.write(line({"stage": words.result()}))
                else:
                    words.cancel()
            await response.write(line(outcome(work)))
        finally:
            work.cancel()  # who asked has left: the reload itself goes on
        await response.write_eof()
        return response


def engine_status(engine: Engine, reading: EngineReading | None) -> EngineStatus:
    """One engine of the service at this moment."""
    plan = engine.decision.plan if engine.decision else None
    forecast = plan.forecast.decode_tokens_per_s if plan else None
    return EngineStatus(
        model_name=engine.served.model_name,
        state=engine.state,
        reason=engine.reason,
        restarts=engine.restarts,
        pid=engine.pid,
        device=plan.device if plan else None,
        context_tokens=plan.context_tokens if plan else None,
        expected_tokens_per_s=forecast.value if forecast else None,
        reading=reading,
        on=engine.served.on,
    )


def outcome(work: "asyncio.Task[tuple[Change, ...]]") -> dict[str, Any]:
    """The last line: what was changed, or why nothing was."""
    error = None if work.cancelled() else work.exception()
    if isinstance(error, AppError):
        return {"error": {"what": error.what, "next_step": error.next_step}}
    if error is not None or work.cancelled():
        stopped = Text("The reload was ended.", "重载已中止。")
        return {"error": {"what": stopped, "next_step": Text("Ask again.", "请重试。")}}
    return {"changes": work.result()}


def line(document: object) -> bytes:
    """One document on one line."""
    return msgspec.json.encode(document) + b"\n"
