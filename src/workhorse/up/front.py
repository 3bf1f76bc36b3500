"""An open port and what answers there, whoever owns the engines behind it.

What any service has: the gateway with its keys, limits, line and usage, the files and batches, the
service's own file, and what runs beside all that. Whose the engines are says the class on top.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from aiohttp import web

from workhorse.config import Places
from workhorse.records import Alarm, Reading
from workhorse.run.live_processes import LiveProcess
from workhorse.run.notify import Notify
from workhorse.serve.activity import Activity
from workhorse.serve.app import QUEUE, Gateway, build_app
from workhorse.serve.auth import Access, known_as
from workhorse.serve.backend import Roster
from workhorse.serve.door import Limits
from workhorse.serve.gate import Gate
from workhorse.serve.key_store import KeyStore
from workhorse.serve.live import Live
from workhorse.serve.prefixes import Prefixes
from workhorse.serve.proxy import Tap
from workhorse.serve.queue import Queue
from workhorse.serve.tls import certificate_files
from workhorse.serve.usage import Usage
from workhorse.settings import Settings, read_settings
from workhorse.text import Text
from workhorse.units import MIB
from workhorse.up.batches import Batches
from workhorse.up.written_down import WrittenDown

log = logging.getLogger(__name__)


class Tells(Protocol):
    """Who tells the user what is being done."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""


class Front:
    """One open port and its gateway; `close` ends everything in order.

    A class on top fills `roster` and calls `mount` once, at the end of its `__init__`.
    """

    gateway: Gateway
    batches: Batches
    queue: Queue

    def __init__(
        self, where: Places, tell: Tells, *, config: Path | None, host: str | None
    ) -> None:
        self.where, self.tell = where, tell
        self.settings = read_settings(config) if config else Settings()
        self.notify = Notify()
        self.written = WrittenDown(where.run, self.processes, config)
        self.started_unix_s = time.time()
        self.activity, self.roster, self.gate = Activity(), Roster(), Gate()
        self.live = Live(self.roster)
        self.host = host or self.settings.serve.host  # the address that it listens on
        self.port: int | None = None  # once it is open
        serve = self.settings.serve
        self.access = Access(KeyStore(where.service), token=self.written.token, names=serve.names)
        self._beside: dict[str, asyncio.Task[None]] = {}

    def mount(
        self,
        *,
        reading: Callable[[], Reading | None],
        prefixes: Prefixes | None = None,
        tap: Tap | None = None,
    ) -> None:
        """Make the gateway: what answers requests."""
        serve, limits, queue = self.settings.serve, self.settings.limits, self.settings.queue
        app = build_app(
            self.roster,
            activity=self.activity,
            access=self.access,
            limits=Limits(
                limits.body_mib * MIB,
                limits.body_s,
                limits.idle_s,
                limits.stalled_s,
                limits.connections,
            ),
            live=self.live,
            usage=Usage(self.where.service),
            queue_length=queue.length,
            longest_wait_s=queue.longest_wait_s,
            prefixes=prefixes,
            reading=reading,
            alarms=self.alarms,
            tap=tap,
        )
        app.middlewares.append(self.gate.middleware)
        app.add_routes(self.routes())
        self.queue = app[QUEUE]
        self.batches = Batches(self)
        self.batches.mount(app)
        self.gateway = Gateway(app, certificate_files(serve.certificate, serve.private_key))

    @property
    def url(self) -> str:
        """Where clients reach it, without a slash at the end."""
        name = known_as(self.host, (*self.settings.serve.names, socket.gethostname()))
        host = f"[{name}]" if ":" in name else name
        return f"{self.gateway.scheme}://{host}:{self.port}"

    # what the class on top says

    def routes(self) -> Iterable[web.RouteDef]:
        """The service's own routes."""
        return ()

    def alarms(self) -> Sequence[Alarm]:
        """The alarms that are on, then those that are over."""
        return ()

    def processes(self) -> tuple[LiveProcess, ...]:
        """The processes to be ended should this service die; none: others see to them."""
        return ()

    def lives(self) -> bool:
        """Whether everything has an owner that does its work: what a watchdog watches."""
        return True

    def cut(self) -> None:
        """End at once what answers: the user waits no longer."""

    async def stop_beside_engines(self) -> None:
        """End what works on the engines, before they end."""

    async def stop_engines(self) -> Sequence[BaseException | None]:
        """End the engines, or take leave of them; what went wrong with each."""
        return ()

    # its life

    async def listen(self, port: int | None) -> None:
        """Open the port, and end what a dead service left.

        AppError: somebody else holds the port.
        """
        asked = self.settings.serve.port if port is None else port
        self.port = await self.gateway.start(self.host, asked)
        self.beside("notify", self.notify.feed(self.lives))
        tls = self.gateway.scheme == "https"
        for ended in await self.written.open(self.host, self.port, self.started_unix_s, tls=tls):
            self.tell.stage(ended.told)

    def beside(self, name: str, work: Coroutine[object, object, None]) -> None:
        """Run something beside the service until it closes; what fails there ends only itself."""
        self._beside[name] = task = asyncio.create_task(work, name=name)
        task.add_done_callback(tell_failure)

    async def end_beside(self, name: str) -> None:
        """End what `beside` began under this name."""
        task = self._beside.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def drain(self) -> None:
        """Take no new request, and let the running answers end, as long as the settings say."""
        self.gate.close(Text("This service is stopping.", "服务正在停止。"))
        wait_s = self.settings.supervision.drain_s
        if self.activity.in_flight:
            count = self.activity.in_flight
            self.tell.stage(
                Text(
                    f"{count} running {'answer' if count == 1 else 'answers'} may end first "
                    f"(at most {wait_s:.0f} s)",
                    f"等待 {count} 个正在进行的回答结束（最多 {wait_s:.0f} 秒）",
                )
            )
        try:
            async with asyncio.timeout(wait_s):
                await self.activity.wait_idle(0.0)
        except TimeoutError:
            return

    async def close(self) -> None:
        """End everything in order: running answers first, then the engines, then the port.

        Cancelled while answers may still end, it ends the engines at once.
        """
        self.notify.stopping()
        try:
            await self.end_beside("batches")  # they go on in the next service
            if self.port is not None:
                await self.drain()
        except asyncio.CancelledError:
            self.cut()
            raise
        finally:
            try:
                await self._end_all()
            finally:
                self.written.remove()

    async def _end_all(self) -> None:
        await self.stop_beside_engines()
        for name in self._beside.keys() - {"notify"}:
            await self.end_beside(name)
        # The port is the last to close: an answer that is cut ends in an error that says why.
        ends = await self.stop_engines()
        await self.gateway.stop()
        await self.end_beside("notify")
        for error in ends:
            if error is not None:  # such as one that a driver holds: told once all else has ended
                raise error


def tell_failure(task: asyncio.Task[None]) -> None:
    """What runs beside a service fails alone, but not in silence."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s has ended: the service goes on without it.", task.get_name(), exc_info=error)
