"""A running service: the open port, the engines behind it, and what runs beside them.

Each part is wired here in a few lines: what answers requests in `Service.__init__`, what runs on
its own once an engine is ready in `Service.run`.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from aiohttp import web

from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.guard.lost import OUT_OF_SERVICE
from workhorse.records import Alarm, Reading
from workhorse.run.live_processes import LiveProcess
from workhorse.serve.backend import Served
from workhorse.settings import Settings
from workhorse.text import Text
from workhorse.tune.resume import refuse_beside_tuning
from workhorse.up.asks import asks_of, checked
from workhorse.up.board import Board
from workhorse.up.control import Control
from workhorse.up.decide import Ask
from workhorse.up.engine import Engine, Supervision, served_as_planned
from workhorse.up.front import Front
from workhorse.up.guarding import Guarding
from workhorse.up.measuring import measure_when_quiet
from workhorse.up.several import Starting, decided
from workhorse.up.teller import Teller
from workhorse.up.warmth import Warmth


class Service(Front):
    """Everything that lives while one port is open; `close` ends it in order."""

    tell: Teller

    def __init__(self, ask: Ask, where: Places, tell: Teller) -> None:
        super().__init__(where, tell, config=ask.config, host=ask.host)
        self.ask = ask
        asks = tuple(checked(one, where.models) for one in asks_of(ask, self.settings))
        self.warmth = Warmth(self.settings, ask.config, where, self.activity)
        self.engines: list[Engine] = []
        self.leaving: list[Engine] = []  # being replaced or removed, or not yet in their place
        self._starting: Starting | None = None  # of the model whose engines were started last
        for one in asks:
            self.put(self.make_engine(one))
        self.guarding = Guarding(lambda: self.engines, self.live, self.roster, where, self.settings)
        self.control, self.board = Control(self), Board(self)
        self.guarding.watch.on_reading(self.board.history.take)
        self.mount(reading=self.board.reading, prefixes=self.warmth.prefixes, tap=self.guarding.tap)
        # Told of new ones after a reload.
        self.on_settings: list[Callable[[Settings], None]] = [
            self.warmth.apply,
            self.guarding.apply,
        ]

    # engines

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
            engine.served = self._served(engine, instead_of)
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
        engine.served = self._served(engine)
        self.roster.put(engine.served, instead_of=before)

    def _served(self, engine: Engine, instead_of: Engine | None = None) -> Served:
        """What the gateway has to know of it, under a name that no other engine has."""
        served = served_as_planned(engine)
        others = {one.served.name for one in self.engines if one not in (engine, instead_of)}
        number = 2
        while served.name in others:
            served, number = replace(served, on=f"{engine.on} {number}".strip()), number + 1
        return served

    def changed(self) -> None:
        """An engine has started, died or ended."""
        self.written.renew()
        self.board.changed()
        self._set_lost_aside()

    def _set_lost_aside(self) -> None:
        """No request goes to an engine that is lost, while another serves its model."""
        for engine in self.engines:
            asked = [one for one in self.roster.served if one is not engine.served]
            if engine.state in OUT_OF_SERVICE and any(
                one.model_name == engine.served.model_name for one in asked
            ):
                self.roster.set_aside(engine.served)

    def drop(self, engine: Engine) -> None:
        """Take an engine's place away; the answers that it gives go on."""
        self.engines.remove(engine)
        self.roster.drop(engine.served)
        self.warmth.left(engine)

    def running(self, engine: Engine) -> int:
        """How many requests an engine is working on; those that wait for its address are not."""
        return max(0, self.live.flow(engine.served).generating - engine.waiting)

    def pids(self) -> dict[str, int]:
        """The process of each engine by its name, where there is one."""
        return {one.served.name: one.pid for one in self.engines if one.pid is not None}

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

    def routes(self) -> Iterable[web.RouteDef]:
        """What its own commands and the dashboard ask for."""
        return (*self.control.table(), *self.board.table())

    # its life

    async def open(self) -> None:
        """Open the port, and end what a dead service left.

        AppError: somebody else holds the port, or a tuning would have to share this machine.
        """
        await self.listen(self.ask.port)
        refuse_beside_tuning(self.where.tuning_lock)
        self.beside("service file", self.written.keep())
        self.beside("history", self.board.run())
        self.beside("batches", self.batches.run())

    async def decide(self, engine: Engine) -> list[Engine]:
        """Decide on a model's engines: the one that has its place already, and further ones."""
        parts = await decided(engine.ask, self.where, self.tell)
        engines = [engine, *(self.make_engine(engine.ask) for _ in parts[1:])]
        for one, part in zip(engines, parts, strict=True):
            one.leader = engine
            await one.take(part.decision, part.on)
            if one is not engine:
                self.put(one)
        return engines

    async def start_first(self, engines: Sequence[Engine]) -> Engine:
        """Start a model's engines; returns the first that is ready, the others follow beside.

        AppError: none of them starts.
        """
        if self._starting is not None:  # its weights take room that the next plan must see
            await self._starting.settled()
        self._starting = Starting(engines, self.start, self._lose)
        ready = await self._starting.first()
        self.beside("starting", self._starting.rest())
        return ready

    async def _lose(self, engine: Engine, error: AppError) -> None:
        """One of several engines did not start: the others serve."""
        name = engine.served.name
        self.tell.stage(
            Text(f"{name} is left out: {error.what.en}", f"{name} 未启用：{error.what.zh}")
        )
        await engine.lose(error.what)

    async def start(self, engine: Engine) -> None:
        """Start an engine that was decided on; raises what fails at this first start."""
        self.planned(engine)
        await engine.start(self.log_name())

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
        if self._starting is not None:  # nobody loads meanwhile
            await self._starting.settled()
        for engine in tuple(self.engines):
            if engine.decision is not None and engine.supervisor is not None and not engine.lost:
                if engine.on:
                    name = engine.served.name
                    self.tell.stage(Text(f"measuring {name} alone", f"单独测速 {name}"))
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
        states = ", ".join(f"{one.served.name}: {one.state}" for one in self.engines)
        return f"{self.url}/v1 {states}"

    def lives(self) -> bool:
        """Whether every engine has an owner that does its work: what a watchdog watches."""
        return all(engine.supervisor is None or engine.supervisor.owned for engine in self.engines)

    def processes(self) -> tuple[LiveProcess, ...]:
        """The engines' processes, as they are written down."""
        found = (one.live_process() for one in (*self.engines, *self.leaving))
        return tuple(one for one in found if one is not None)

    def cut(self) -> None:
        """End the engines at once."""
        for engine in (*self.engines, *self.leaving):
            engine.kill()

    async def stop_beside_engines(self) -> None:
        """End a reload, and the work on templates."""
        await self.control.stop()
        await self.warmth.stop()

    async def stop_engines(self) -> Sequence[BaseException | None]:
        """End every engine; what went wrong with each."""
        stops = [one.stop() for one in (*self.engines, *self.leaving)]
        return await asyncio.gather(*stops, return_exceptions=True)
