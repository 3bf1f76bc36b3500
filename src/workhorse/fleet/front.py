"""The gateway in front of replicas on any nodes: keys, line, usage and pages as `up` has them.

It owns no engine: replicas are added and taken away by `fleet/replicas.py`, which also has them
started and ended.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from workhorse import __version__
from workhorse.config import Places
from workhorse.fleet.entries import Entries
from workhorse.fleet.pulse import Patience
from workhorse.fleet.remote_replica import RemoteReplica
from workhorse.fleet.spec import ReplicaSpec
from workhorse.records import Reading
from workhorse.serve.backend import READY, Served
from workhorse.serve.dashboard.routes import Dashboard
from workhorse.serve.history import History
from workhorse.serve.points import Event
from workhorse.serve.prefixes import Prefixes
from workhorse.serve.refusal import json_response
from workhorse.serve.state import Known, Measured
from workhorse.up.board import used_since_yesterday
from workhorse.up.control import STATUS_PATH
from workhorse.up.front import Front, Tells
from workhorse.up.status import EngineStatus, ServiceStatus, service_state, waiting_in_all

READ_EVERY_S = 5.0
EMPTY_LOOK_S = 0.2


class FleetFront(Front):
    """One open port in front of all replicas of a fleet."""

    def __init__(
        self,
        where: Places,
        tell: Tells,
        *,
        key: str,
        config: Path | None = None,
        host: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(where, tell, config=config, host=host)
        self.entries = Entries()
        self.replicas: dict[str, RemoteReplica] = {}  # draining ones too
        self.ready = asyncio.Event()  # a replica was ready
        self.commands: list[web.RouteDef] = []  # added before `mount_all`
        self.at_end: Callable[[], Awaitable[None]] | None = None  # removes the replicas
        self._key, self.patience = key, patience or Patience()
        self._config = config
        self._states: dict[str, str] = {}
        self._shown: dict[str, Served] = {}  # as the roster has them
        self._prefixes = Prefixes()
        self.history = History(where.service)
        self._page = Dashboard(
            self.known,
            reading=self.reading,
            alarms=self.alarms,
            templates=self._prefixes.tallies,
            usage=lambda: used_since_yesterday(where),
            history=self.history,
        )

    def mount_all(self) -> None:
        """Make the gateway, once every route is known."""
        self.mount(reading=self.reading, prefixes=self._prefixes)

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages of `up`, and the fleet's own."""
        return (web.get(STATUS_PATH, self._status_page), *self._page.table(), *self.commands)

    # replicas

    def add(self, spec: ReplicaSpec) -> RemoteReplica:
        """Ask this replica from now on, once it is ready."""
        replica = RemoteReplica(spec, self._key, self.entries, self._changed, self.patience)
        self.replicas[spec.name] = replica
        self._shown[spec.name] = replica.served
        self.roster.put(replica.served)
        self.beside(_watching(spec.name), replica.watch())
        return replica

    def ask_no_more(self, replica: RemoteReplica) -> None:
        """No new request; the answers that it gives go on."""
        replica.draining = True
        shown = self._shown.pop(replica.spec.name, None)
        if shown is not None:
            self.roster.drop(shown)

    async def emptied(self, replica: RemoteReplica) -> None:
        """Wait until no request holds a slot of it."""
        while self.running(replica) > 0:  # noqa: ASYNC110 - the count sets no event
            await asyncio.sleep(EMPTY_LOOK_S)

    def running(self, replica: RemoteReplica) -> int:
        """Requests that hold a slot of it."""
        return self.live.flow(replica.served).generating

    async def forget(self, replica: RemoteReplica) -> None:
        """It is there no more."""
        self.ask_no_more(replica)
        self.replicas.pop(replica.spec.name, None)
        self._states.pop(replica.spec.name, None)
        await self.end_beside(_watching(replica.spec.name))

    def _changed(self, replica: RemoteReplica) -> None:
        name = replica.spec.name
        shown = self._shown.get(name)
        if shown is not None and shown != replica.served:
            self._shown[name] = replica.served
            self.roster.put(replica.served, instead_of=shown)
        before, now = self._states.get(name), replica.state
        if now == READY:
            self.ready.set()
        self._states[name] = now
        if now != before and (now == READY or before is not None):
            reason = None if now == READY else replica.reason
            self.history.note(Event(time.time(), replica.served.name, now, reason))

    # what it tells of itself

    def reading(self) -> Reading:
        """Every replica at this moment."""
        return Reading(time.time(), self.live.engine_readings())

    def known(self) -> list[Known]:
        """What is known of each replica."""
        return [_known(one) for one in self.replicas.values() if not one.draining]

    def status(self) -> ServiceStatus:
        """How the service is now, as `workhorse status` shows it."""
        readings = {one.name: one for one in self.live.engine_readings()}
        engines = tuple(
            EngineStatus(
                model_name=one.served.model_name,
                state=one.state,
                reason=one.reason,
                restarts=one.restarts,
                pid=None,
                device=one.spec.plan.device,
                context_tokens=one.spec.plan.context_tokens,
                expected_tokens_per_s=one.capacity.decode_tokens_per_s,
                reading=readings.get(one.served.name),
                on=one.served.on,
            )
            for one in self.replicas.values()
        )
        return ServiceStatus(
            state=service_state(
                [one.state for one in engines], draining=self.gate.closed is not None
            ),
            url=self.url,
            pid=os.getpid(),
            version=__version__,
            started_unix_s=self.started_unix_s,
            engines=engines,
            in_flight=self.activity.in_flight,
            waiting=waiting_in_all(readings.values()),
            alarms=tuple(self.alarms()),
            config=None if self._config is None else str(self._config.absolute()),
            batches=self.batches.running,
        )

    @property
    def headline(self) -> str:
        """The service in one line, for `systemctl status`."""
        ready = sum(one.state == READY for one in self.replicas.values())
        return f"{self.url}/v1 {ready} of {len(self.replicas)} replicas ready"

    async def _status_page(self, _: web.Request) -> web.Response:
        return json_response(self.status())

    # its life

    async def open(self, port: int | None) -> None:
        """Open the port. AppError: somebody else holds it."""
        await self.listen(port)
        self.beside("service file", self.written.keep())
        self.beside("history", self.history.keep())
        self.beside("readings", self._read())
        self.beside("batches", self.batches.run())
        self.beside("entries", self.entries.watch())

    async def stop_engines(self) -> Sequence[BaseException | None]:
        """Have every replica removed."""
        if self.at_end is None:
            return ()
        return await asyncio.gather(self.at_end(), return_exceptions=True)

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            with suppress(OSError):
                self.history.take(self.reading())


def _watching(name: str) -> str:
    return f"replica {name}"


def _known(replica: RemoteReplica) -> Known:
    facts = replica.facts
    measured = None
    if facts is not None and facts.measured and facts.decode_tokens_per_s:
        speed = facts.decode_tokens_per_s
        measured = Measured(
            facts.since_unix_s, speed, speed, speed, facts.prefill_tokens_per_s, None
        )
    return Known(replica.served, replica.spec.plan, None, measured, replica.reason)
