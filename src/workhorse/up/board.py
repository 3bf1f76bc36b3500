"""The dashboard of a service: what its parts know, and the history that it keeps of them."""

import time
from typing import TYPE_CHECKING

from aiohttp import web

from workhorse.bench.stats import Summary
from workhorse.config import Places
from workhorse.records import Plan, Reading
from workhorse.serve.backend import READY
from workhorse.serve.dashboard.routes import Dashboard
from workhorse.serve.history import History
from workhorse.serve.points import DAY_S, Event
from workhorse.serve.state import KeyUsage, Known, Measured, UsageTold
from workhorse.serve.usage import read_usage

if TYPE_CHECKING:
    from workhorse.up.engine import Engine
    from workhorse.up.service import Service

# What an engine goes through on its way: that it is ready then says it all.
UNEVENTFUL = ("planning", "starting")


class Board:
    """What the dashboard of one service shows; `run` keeps its history while it runs."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self.history = History(service.where.service)
        self._measured: dict[str, tuple[Plan, Measured]] = {}
        self._states: dict[Engine, str] = {}
        self._page = Dashboard(
            self.known,
            reading=self.reading,
            alarms=service.alarms,
            templates=service.warmth.prefixes.tallies,
            usage=self.usage,
            history=self.history,
        )

    def table(self) -> list[web.RouteDef]:
        """Its routes."""
        return self._page.table()

    def reading(self) -> Reading:
        """The guard's latest reading; before the first one, what the gateway knows itself."""
        latest = self._service.latest()
        return latest or Reading(time.time(), self._service.live.engine_readings())

    def known(self) -> list[Known]:
        """What the service knows of each of its engines."""
        return [self._known(engine) for engine in self._service.engines]

    def _known(self, engine: "Engine") -> Known:
        decision = engine.decision
        if decision is None:
            return Known(engine.served, reason=engine.reason)
        plan, measured = self._measured.get(engine.served.name, (None, None))
        return Known(
            engine.served,
            decision.plan,
            decision.machine,
            measured if plan == decision.plan else None,  # of another plan it says nothing
            engine.reason,
        )

    def measured(self, engine: "Engine", summary: Summary) -> None:
        """Take over what the engine was measured at."""
        decode, prefill, ttft = (
            summary.decode_tokens_per_s,
            summary.prefill_tokens_per_s,
            summary.ttft_s,
        )
        if decode is not None and engine.decision is not None:
            self._measured[engine.served.name] = (
                engine.decision.plan,
                Measured(
                    time.time(),
                    decode.median,
                    decode.low,
                    decode.high,
                    None if prefill is None else prefill.median,
                    None if ttft is None else ttft.median,
                ),
            )

    def changed(self) -> None:
        """An engine may have another state: note it as an event."""
        for engine in self._service.engines:
            before, now = self._states.get(engine), engine.state
            self._states[engine] = now
            if now == before or now in UNEVENTFUL:
                continue
            reason = None if now == READY else engine.reason
            self.history.note(Event(time.time(), engine.served.name, now, reason))
        self._states = {one: self._states[one] for one in self._service.engines}

    def usage(self) -> UsageTold:
        """What each key used since yesterday at this hour. Blocks; AppError when unreadable."""
        return used_since_yesterday(self._service.where)

    async def run(self) -> None:
        """Write the history until cancelled, and what is left then."""
        await self.history.keep()


def used_since_yesterday(where: Places) -> UsageTold:
    """What each key used since yesterday at this hour. Blocks; AppError when unreadable."""
    since = time.time() - DAY_S
    rows = read_usage(where.service, by=("key",), since_unix_s=since)
    keys = [
        KeyUsage(
            row.key or "",
            row.totals.requests,
            row.totals.prompt_tokens,
            row.totals.cached_tokens,
            row.totals.generated_tokens,
            row.totals.served_s,
        )
        for row in rows
    ]
    return UsageTold(since, tuple(sorted(keys, key=lambda key: -key.seconds)))
