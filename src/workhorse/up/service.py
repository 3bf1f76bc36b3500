"""A running service: the open port, the engines behind it, and what runs beside them.

Each part is wired here in a few lines: what answers requests in `Service.__init__`, what runs on
its own once an engine is ready in `Service.run`.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Sequence

from workhorse.config import Places
from workhorse.records import Alarm, Reading
from workhorse.run.live_processes import LiveProcess
from workhorse.run.notify import Notify
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access, known_as
from workhorse.serve.backend import Roster
from workhorse.serve.door import Limits
from workhorse.serve.gate import Gate
from workhorse.serve.key_store import KeyStore
from workhorse.serve.live import Live
from workhorse.serve.tls import certificate_files
from workhorse.serve.usage import Usage
from workhorse.settings import Settings, read_settings
from workhorse.text import Text
from workhorse.tune.resume import refuse_beside_tuning
from workhorse.units import MIB
from workhorse.up.asks import asks_of, checked
from workhorse.up.batches import Batches
from workhorse.up.board import Board
from workhorse.up.control import Control
from workhorse.up.decide import Ask
from workhorse.up.engine import Engine, Supervision, served_as_planned
from workhorse.up.guarding import Guarding
from workhorse.up.measuring import measure_when_quiet
from workhorse.up.teller import Teller
from workhorse.up.warmth import Warmth
from workhorse.up.written_down import WrittenDown

log = logging.getLogger(__name__)


class Service:
    """Everything that lives while one port is open; `close` ends it in order."""

    def __init__(self, ask: Ask, where: Places, tell: Teller) -> None:
        self.ask, self.where, self.tell = ask, where, tell
        self.settings = read_settings(ask.config) if ask.config else Settings()
        self.notify = Notify()
        self.written = WrittenDown(where.run, self.processes, ask.config)
        self.started_unix_s = time.time()
        asks = tuple(checked(one, where.models) for one in asks_of(ask, self.settings))
        self.activity, self.roster, self.gate = Activity(), Roster(), Gate()
        self.live = Live(self.roster)
        self.warmth = Warmth(self.settings, ask.config, where, self.activity)
        self.engines: list[Engine] = []
        self.leaving: list[Engine] = []  # being replaced or removed, or not yet in their place
        for one in asks:
            self.put(self.make_engine(one))
        self.guarding = Guarding(lambda: self.engines, self.live, self.roster, where, self.settings)
        self.control, self.board = Control(self), Board(self)
        self.guarding.watch.on_reading(self.board.history.take)
        serve, limits = self.settings.serve, self.settings.limits
        self.access = Access(KeyStore(where.service), token=self.written.token, names=serve.names)
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
            usage=Usage(where.service),
            queue_length=self.settings.queue.length,
            longest_wait_s=self.settings.queue.longest_wait_s,
            prefixes=self.warmth.prefixes,
            reading=self.board.reading,
            alarms=self.alarms,
            tap=self.guarding.tap,
        )
        app.middlewares.append(self.gate.middleware)
        app.add_routes((*self.control.table(), *self.board.table()))
        self.batches = Batches(self)
        self.batches.mount(app)
        self.gateway = Gateway(app, certificate_files(serve.certificate, serve.private_key))
        self.port: int | None = None  # once it is open
        # Told of new ones after a reload.
        self.on_settings: list[Callable[[Settings], None]] = [
            self.warmth.apply,
            self.guarding.apply,
        ]
        self._beside: dict[str, asyncio.Task[None]] = {}

    # address, engines

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self.ask.host or self.settings.serve.host

    @property
    def url(self) -> str:
        """Where clients reach it, without a slash at the end."""
        name = known_as(self.host, (*self.settings.serve.names, socket.gethostname()))
        host = f"[{name}]" if ":" in name else name
        return f"{self.gateway.scheme}://{host}:{self.port}"

    def make_engine(self, ask: Ask) -> Engine:
        """A new engine of this service; it has no place yet."""
        supervision = Supervision(
            self.written.marker,
            self.settings.supervision.hung_after_s,
            self.changed,
            self.warmth.prepare,
            self.warmth.started,
        )
        return Engine(ask, self.where, self.tell, supervision)

    def put(self, engine: Engine, *, instead_of: Engine | None = None) -> None:
        """Give an engine its place behind the gateway, that of another when there is one."""
        if engine.decision is not None:
            engine.served = served_as_planned(engine)
        if instead_of in self.engines:
            self.engines[self.engines.index(instead_of)] = engine
            self.warmth.left(instead_of)
        else:
            self.engines.append(engine)
        self.roster.put(engine.served, instead_of=instead_of.served if instead_of else None)
        self.written.renew()

    def planned(self, engine: Engine) -> None:
        """The engine has another plan: the gateway learns what it can take."""
        before = engine.served
        engine.served = served_as_planned(engine)
        self.roster.put(engine.served, instead_of=before)

    def changed(self) -> None:
        """An engine has started, died or ended."""
        self.written.renew()
        self.board.changed()

    def drop(self, engine: Engine) -> None:
        """Take an engine's place away; the answers that it gives go on."""
        self.engines.remove(engine)
        self.roster.drop(engine.served)
        self.warmth.left(engine)

    def running(self, engine: Engine) -> int:
        """How many requests an engine is working on; those that wait for its address are not."""
        return max(0, self.live.flow(engine.served).generating - engine.waiting)

    def pids(self) -> dict[str, int]:
        """The process of each engine by the model that it serves, where there is one."""
        return {one.served.model_name: one.pid for one in self.engines if one.pid is not None}

    def log_name(self, engine: Engine | None = None, *, other: bool = False) -> str:
        """A log's file name that no engine writes to, or the one that `engine` has.

        `other`: the one that it does not have, for a second engine in its place.
        """
        if engine is not None and engine.log_name is not None and not other:
            return engine.log_name
        taken = {one.log_name for one in (*self.engines, *self.leaving)}
        names = (f"engine-{self.port}{f'-{n}' if n else ''}.log" for n in range(len(taken) + 1))
        return next(name for name in names if name not in taken)

    # what the parts know of the service

    def latest(self) -> Reading | None:
        """The latest reading of the guard; None: there is none yet."""
        return self.guarding.watch.latest

    def alarms(self) -> Sequence[Alarm]:
        """The alarms that are on, then those that are over."""
        return (*self.warmth.prefixes.alarms(), *self.guarding.alarms())

    # its life

    async def open(self) -> None:
        """Open the port, and end what a dead service left.

        AppError: somebody else holds the port, or a tuning would have to share this machine.
        """
        port = self.settings.serve.port if self.ask.port is None else self.ask.port
        self.port = await self.gateway.start(self.host, port)
        self.beside("notify", self.notify.feed(self.lives))
        tls = self.gateway.scheme == "https"
        for ended in await self.written.open(self.host, self.port, self.started_unix_s, tls=tls):
            self.tell.stage(ended.told)
        refuse_beside_tuning(self.where.tuning_lock)
        self.beside("service file", self.written.keep())
        self.beside("history", self.board.run())
        self.beside("batches", self.batches.run())

    async def start(self, engine: Engine) -> None:
        """Start an engine that was decided on; raises what fails at this first start."""
        self.planned(engine)
        await engine.start(self.log_name())

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

    async def run(self) -> None:
        """Serve until cancelled, with everything that runs on its own."""
        self.notify.ready(self.headline)
        self.beside("guard", self.guarding.run(self.url))
        self.measure()
        await asyncio.Event().wait()

    def measure(self) -> None:
        """Measure the engines once nobody asks, unless the user wants none of it."""
        if self.ask.measure:
            self.beside("measuring", self._measure())

    async def _measure(self) -> None:
        for engine in tuple(self.engines):
            if engine.decision is not None and engine.supervisor is not None:
                async with self.warmth.own_use(engine):
                    summary = await measure_when_quiet(
                        engine.decision, engine.supervisor, self.activity, self.where, self.tell
                    )
                if summary is not None:
                    self.board.measured(engine, summary)
                    self.guarding.measured(engine, summary)

    def apply(self, settings: Settings) -> None:
        """Take new settings over; whoever asked for it is told."""
        self.settings = settings
        for told in self.on_settings:
            told(settings)

    @property
    def headline(self) -> str:
        """The service in one line, for `systemctl status`."""
        states = ", ".join(f"{one.served.model_name}: {one.state}" for one in self.engines)
        return f"{self.url}/v1 {states}"

    def lives(self) -> bool:
        """Whether every engine has an owner that does its work: what a watchdog watches."""
        return all(engine.supervisor is None or engine.supervisor.owned for engine in self.engines)

    def processes(self) -> tuple[LiveProcess, ...]:
        """The engines' processes, as they are written down."""
        found = (one.live_process() for one in (*self.engines, *self.leaving))
        return tuple(one for one in found if one is not None)

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
            for engine in (*self.engines, *self.leaving):
                engine.kill()
            raise
        finally:
            try:
                await self._end_all()
            finally:
                self.written.remove()

    async def _end_all(self) -> None:
        await self.control.stop()
        await self.warmth.stop()
        for name in self._beside.keys() - {"notify"}:
            await self.end_beside(name)
        # The port is the last to close: an answer that is cut ends in an error that says why.
        stops = [one.stop() for one in (*self.engines, *self.leaving)]
        ends = await asyncio.gather(*stops, return_exceptions=True)
        await self.gateway.stop()
        await self.end_beside("notify")
        for error in ends:
            if error is not None:  # such as one that a driver holds: told once all else has ended
                raise error


def tell_failure(task: asyncio.Task[None]) -> None:
    """What runs beside a service fails alone, but not in silence."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s has ended: the service goes on without it.", task.get_name(), exc_info=error)
