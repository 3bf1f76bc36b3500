"""The guard of a service: what it looks at, whom it tells, what it may take out of service."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from workhorse.bench.scenario import STANDARD
from workhorse.bench.stats import Summary
from workhorse.config import Places
from workhorse.engines.llamacpp_log import read_report
from workhorse.guard.garbage import GarbageTap
from workhorse.guard.journal import Journal
from workhorse.guard.sensors import Sensors
from workhorse.guard.sign import one_name_each, planned_cards
from workhorse.guard.watch import Watch
from workhorse.guard.webhook import Webhook
from workhorse.records import Alarm, Plan
from workhorse.serve.backend import Roster
from workhorse.serve.live import Live
from workhorse.settings import Settings
from workhorse.text import Text
from workhorse.up.engine import LOG_LINES, Engine
from workhorse.up.measuring import scenario_within

log = logging.getLogger("workhorse.guard")


class Guarding:
    """Watches the engines of a service as they come and go."""

    def __init__(
        self,
        engines: Callable[[], Sequence[Engine]],
        live: Live,
        roster: Roster,
        where: Places,
        settings: Settings,
    ) -> None:
        self.tap = GarbageTap()
        self._engines, self._roster = engines, roster
        self._webhook = Webhook(settings.guard.webhook)
        self._losing: set[asyncio.Task[None]] = set()
        self.watch = Watch(
            live.engine_readings,
            lambda: {name: one.pid for name, one in self._named() if one.pid is not None},
            lambda: dict(self._plans()),
            settings=settings.guard,
            sensors=Sensors(where.data, loaded_layers=self._loaded_layers),
            journal=Journal(where.service),
            webhook=self._webhook,
            tap=self.tap,
        )
        self.watch.on_lost_cards(self._drop_engines_on)

    def apply(self, settings: Settings) -> None:
        """Go on by other settings."""
        self.watch.apply(settings.guard)

    async def run(self, url: str) -> None:
        """Watch the service at `url` until cancelled."""
        self._webhook.service = url
        await self.watch.run()

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong, then what was."""
        return (*self.watch.alarms, *self.watch.past)

    def measured(self, engine: Engine, summary: Summary) -> None:
        """The engine was measured: hold the live service against that from now on."""
        # What a shortened protocol shows at another depth is no measure of the usual one.
        speed, scenario = summary.decode_tokens_per_s, scenario_within(engine.plan)
        if speed is None or scenario != STANDARD or summary.streams != 1:
            return
        for name, one in self._named():
            if one is engine:
                self.watch.accept(name, engine.plan, speed.median)

    def _plans(self) -> Iterator[tuple[str, Plan]]:
        for name, engine in self._named():
            if engine.decision is not None:
                yield name, engine.plan

    def _named(self) -> Iterator[tuple[str, Engine]]:
        engines = self._engines()
        names = one_name_each(engine.served.name for engine in engines)
        return zip(names, engines, strict=True)

    def _loaded_layers(self, engine_name: str) -> int | None:
        """How many layers are on GPUs, as the engine's own log says."""
        for name, engine in self._named():
            process = engine.supervisor.process if engine.supervisor else None
            if name == engine_name and process is not None:
                return read_report(process.log_tail(LOG_LINES)).offloaded_layers
        return None

    def _drop_engines_on(self, cards: frozenset[int]) -> None:
        """No request goes to an engine on a card that computes nonsense or is gone."""
        for engine in self._engines():
            used = planned_cards(engine.plan) if engine.decision is not None else ()
            lost = sorted(cards & set(used))
            if lost and engine.served in self._roster.served:
                self._roster.set_aside(engine.served)
                log.warning("%s is taken out of service", engine.served.name)
                listed = ", ".join(f"GPU {index}" for index in lost)
                why = Text(f"{listed} is lost.", f"{listed} 已失效。")
                self._losing.add(task := asyncio.create_task(engine.lose(why)))
                task.add_done_callback(self._lost)

    def _lost(self, task: "asyncio.Task[None]") -> None:
        self._losing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an engine on a lost card does not end", exc_info=error)
