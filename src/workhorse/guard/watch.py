"""The guard: takes a reading every few seconds, judges it, and tells what is wrong.

It never ends the service: what fails in it is logged and tried again at the next reading.
"""

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from workhorse.guard.causes import crowded
from workhorse.guard.garbage import GarbageTap
from workhorse.guard.journal import Journal
from workhorse.guard.judge import Judge, News
from workhorse.guard.limits import Limits
from workhorse.guard.sensors import Sensors
from workhorse.guard.sign import one_name_each
from workhorse.guard.webhook import Webhook
from workhorse.records import Alarm, EngineReading, Plan, Reading
from workhorse.settings import GuardSettings

log = logging.getLogger("workhorse.guard")

PAST_MAX = 50

T = TypeVar("T")
OnReading = Callable[[Reading], None]
OnNews = Callable[[News], None]
OnLostCards = Callable[[frozenset[int]], None]


class Watch:
    """Watches a running service from `run` on; `alarms`, `past` and `latest` say what it saw.

    `engine_readings` tells how fast the engines answer, `pids` their processes and `plans` what
    was decided, each by the engine's name (`one_name_each`). The callables are called on the
    event loop.
    """

    def __init__(
        self,
        engine_readings: Callable[[], tuple[EngineReading, ...]],
        pids: Callable[[], Mapping[str, int]],
        plans: Callable[[], Mapping[str, Plan]],
        *,
        settings: GuardSettings,
        sensors: Sensors,
        journal: Journal | None = None,
        webhook: Webhook | None = None,
        tap: GarbageTap | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.latest: Reading | None = None
        self._judge = Judge(limits_of(settings))
        self._engine_readings, self._pids, self._plans = engine_readings, pids, plans
        self._settings, self._sensors = settings, sensors
        self._journal, self._webhook, self._tap = journal, webhook, tap
        self._clock = clock
        self._past: deque[Alarm] = deque(maxlen=PAST_MAX)
        self._kept: tuple[Alarm, ...] = ()
        self._readers: list[OnReading] = []
        self._listeners: list[OnNews] = []
        self._card_losers: list[OnLostCards] = []

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong now, oldest first."""
        return self._judge.alarms

    @property
    def past(self) -> tuple[Alarm, ...]:
        """What was wrong and is over, newest first, also of earlier runs; bounded."""
        return tuple(self._past)

    def on_reading(self, call: OnReading) -> None:
        """Call it with each reading."""
        self._readers.append(call)

    def on_alarm(self, call: OnNews) -> None:
        """Call it with each alarm that is raised or over; each once."""
        self._listeners.append(call)

    def on_lost_cards(self, call: OnLostCards) -> None:
        """Call it with the indexes of cards that must serve no more, when that happens."""
        self._card_losers.append(call)

    def accept(self, name: str, plan: Plan, tokens_per_s: float) -> None:
        """Take over the service's own measurement as what is expected of it from now on.

        Not one that was taken while other programs had most of the CPUs, or while something else
        was wrong that makes it slow: that would be what is usual from then on.
        """
        latest = self.latest
        if latest is not None and any(crowded(latest, engine) for engine in latest.engines):
            return
        if not self._judge.suspects(name, plan, but="live.decode-collapsed"):
            self._judge.baseline(name, plan).accept(tokens_per_s)

    def apply(self, settings: GuardSettings) -> None:
        """Go on by other settings; alarms that there are keep their counts.

        A guard that is turned off knows nothing any more, neither figures nor alarms.
        """
        self._settings = settings
        self._judge.limits = limits_of(settings)
        if not settings.on:
            self.latest, self._judge = None, Judge(self._judge.limits)
        if self._webhook is not None:
            self._webhook.url = settings.webhook

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._webhook is not None:
                    tasks.create_task(self._webhook.run(), name="webhook")
                await self._take_up_the_past()
                while True:
                    await self._look_once()
                    await asyncio.sleep(self._settings.period_s)
        finally:
            self._sensors.close()

    async def look(self) -> Reading:
        """Take one reading and judge it; what is news is told."""
        engines = self._with_garbage(self._engine_readings())
        pids, plans = dict(self._pids()), dict(self._plans())
        names = one_name_each(engine.name for engine in engines)
        named = tuple(replace(e, model_name=n) for e, n in zip(engines, names, strict=True))
        seen = await asyncio.to_thread(self._sensors.read, self._clock(), named, pids, plans)
        news = self._judge.add(seen, plans)
        # To others an engine goes by its model.
        pairs = zip(seen.engines, engines, strict=True)
        own = tuple(replace(one, model_name=e.model_name) for one, e in pairs)
        reading = self.latest = replace(seen, engines=own)
        self._call(self._readers, reading)
        for one in news:
            self._tell(one)
        if self._judge.condemned:
            self._call(self._card_losers, self._judge.condemned)
        await self._keep()
        return reading

    async def _look_once(self) -> None:
        if not self._settings.on:
            return
        try:
            await self.look()
        except Exception:
            # A fault of the guard must not be the end of watching.
            log.exception("the guard could not take a reading")

    def _with_garbage(self, engines: tuple[EngineReading, ...]) -> tuple[EngineReading, ...]:
        counts = {} if self._tap is None else self._tap.counts
        return tuple(
            replace(
                engine,
                garbage_streams=seen.garbage,
                sane_streams=seen.sane,
                garbage_sample=seen.sample,
            )
            if (seen := counts.get(engine.name)) is not None
            else engine
            for engine in engines
        )

    def _tell(self, news: News) -> None:
        finding = news.alarm.finding
        if news.kind == "raised":
            log.warning("%s: %s %s", finding.code, finding.seen.en, finding.remedy.en)
        else:
            log.warning("%s: over. It was: %s", finding.code, finding.seen.en)
        if self._webhook is not None:
            self._webhook.tell(news)
        self._call(self._listeners, news)

    def _call(self, calls: Iterable[Callable[[T], None]], with_what: T) -> None:
        for call in calls:
            try:
                call(with_what)
            except Exception:
                log.exception("the guard could not tell %s", call)

    async def _keep(self) -> None:
        """Write down what changed."""
        now = self._judge.alarms
        ended = tuple(
            replace(one, over_unix_s=self._clock())
            for one in self._kept
            if not any(_same(one, other) for other in now)
        )
        changed = (*(one for one in now if one not in self._kept), *ended)
        self._kept = now
        back = [one for one in self._past if not any(_same(one, other) for other in now)]
        self._past = deque((*ended, *back), maxlen=PAST_MAX)
        if changed and self._journal is not None:
            with suppress(sqlite3.Error, OSError):
                await asyncio.to_thread(self._journal.save, changed)

    async def _take_up_the_past(self) -> None:
        """Alarms that were open when the service ended are over: what is still so comes again."""
        if self._journal is None:
            return
        with suppress(sqlite3.Error, OSError):
            found = await asyncio.to_thread(self._journal.latest, PAST_MAX)
            at_s = self._clock()
            ended = [one if one.over_unix_s else replace(one, over_unix_s=at_s) for one in found]
            self._past.extend(ended)
            await asyncio.to_thread(
                self._journal.save, [one for one in ended if one.over_unix_s == at_s]
            )


def _same(one: Alarm, other: Alarm) -> bool:
    return (one.finding.code, one.subject, one.since_unix_s) == (
        other.finding.code,
        other.subject,
        other.since_unix_s,
    )


def limits_of(settings: GuardSettings) -> Limits:
    """The settings as the pure judge uses them."""
    return Limits(
        decode_share=settings.decode_share,
        vram_share=settings.vram_share,
        disk_free_bytes=settings.disk_free_bytes,
        raise_after=min(settings.raise_after, settings.of_latest),
        of_latest=settings.of_latest,
        clear_after=settings.clear_after,
        repeat_s=settings.repeat_s,
    )
