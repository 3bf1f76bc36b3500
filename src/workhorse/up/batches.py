"""OpenAI's files and batches of one service: its routes, and the work on them beside the gateway.

One service has the files and batches of a data folder; a second one says so until that one ends.
"""

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import web
from msgspec.structs import replace

from workhorse.batch.api_lines import Resolve
from workhorse.batch.api_openapi import paths
from workhorse.batch.api_record import Batch, RequestCounts
from workhorse.batch.api_refusal import kept_elsewhere
from workhorse.batch.api_routes import ApiRoutes
from workhorse.batch.api_store import ApiStore
from workhorse.batch.api_work import ApiWork
from workhorse.batch.hold import holder, holding
from workhorse.batch.ledger import Ledger
from workhorse.bench.service import Service as Asked
from workhorse.errors import EXIT_NO, AppError
from workhorse.serve.auth import FOR_HEADER
from workhorse.serve.keys import Key
from workhorse.serve.queue import serving
from workhorse.serve.refusal import NotFound
from workhorse.serve.routes import BESIDE
from workhorse.settings import BatchSettings
from workhorse.units import MIB

if TYPE_CHECKING:
    from workhorse.up.front import Front

LOCK = "lock"
TAKE_AGAIN_S = 2.0  # how soon a second service notices that the first has ended

log = logging.getLogger(__name__)


class Batches:
    """The files and batches of one service; `run` works on them while it lives."""

    def __init__(self, service: "Front") -> None:
        self._service = service
        self._store = ApiStore(service.where.files)
        self._ledger = Ledger(service.where.batch)
        self._work = ApiWork(self._store, self._ledger, self)
        self._routes = ApiRoutes(self._store, self)
        self._closed: AppError | None = kept_elsewhere(None)  # until they are ours

    def mount(self, app: web.Application) -> None:
        """Add the routes to the gateway, and what its document says of them."""
        app.add_routes(self._routes.table())
        app[BESIDE] = paths()

    async def run(self) -> None:
        """Have the files and batches as soon as nobody else does, and work until cancelled."""
        lock = self._service.where.files / LOCK
        try:
            while True:
                try:
                    await asyncio.to_thread(self._store.open_folder)
                    with holding(lock, "files"):
                        await self._ours()
                except AppError as error:
                    taken = error.exit_code == EXIT_NO
                    self._closed = kept_elsewhere(holder(lock)) if taken else error
                    await asyncio.sleep(TAKE_AGAIN_S)
        finally:
            await asyncio.to_thread(self._ledger.close)

    async def _ours(self) -> None:
        try:
            await self._work.prepare()
            self._closed = None
            await self._work.run()
        finally:
            self._closed = kept_elsewhere(None)

    @property
    def running(self) -> int:
        """Batches that are being answered."""
        return self._work.running

    # what the routes ask

    @property
    def settings(self) -> BatchSettings:
        """The limits as they are now."""
        return self._service.settings.batch

    @property
    def closed(self) -> AppError | None:
        """Why files and batches cannot be had here; None: they can."""
        return self._closed

    def changed(self) -> None:
        """A batch was ordered or cancelled."""
        self._work.wake()

    def as_it_is(self, batch: Batch) -> Batch:
        """The batch with the counts of this moment. Blocks."""
        if batch.job_id is None or batch.over:
            return batch
        try:
            counts = self._ledger.job(batch.job_id).counts
        except AppError:  # it has ended in this very moment
            return batch
        told = RequestCounts(total=counts.all, completed=counts.done, failed=counts.failed)
        return replace(batch, counts=told)

    # what the work asks

    @property
    def largest_request_bytes(self) -> int:
        """What the gateway takes of one request."""
        return self._service.settings.limits.body_mib * MIB

    def service(self, owner: str, model: str) -> Asked:
        """How the gateway is asked in the name of an owner: by its own token, from inside."""
        service = self._service
        scheme, port = service.gateway.scheme, service.port
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(service.host, service.host)  # noqa: S104
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        headers = {
            "Authorization": f"Bearer {service.written.token}",
            "Host": f"localhost:{port}",
            FOR_HEADER: quote(owner, safe=""),
        }
        return Asked(url, model, headers, tls=own_tls() if scheme == "https" else None)

    def resolve(self, owner: str) -> Resolve:
        """Which served model a name stands for, among those that an owner may ask for."""

        def found(name: str | None) -> str | None:
            try:
                key = self._key(owner)
                return serving(self._service.roster, name, key)[0].model_name
            except NotFound:
                return None

        return found

    def in_force(self, owner: str) -> bool:
        """May the owner still ask? What was ordered without a key goes on when there are some."""
        asks = self._service.access.asks_for_key
        return not owner or not asks or self._service.access.key_named(owner) is not None

    def slots(self, model: str) -> int | None:
        """Of all engines of a model; None: not known."""
        capacities = [one.capacity for one in self._service.roster.serving(model)]
        known = [one.slots for one in capacities if one is not None]
        return sum(known) or None

    def serves(self, model: str) -> bool:
        """Is the model served now, by an engine that was planned?"""
        served = self._service.roster.served
        return any(one.model_name == model and one.capacity is not None for one in served)

    def chats(self, model: str) -> int:
        """Requests of people for a model that are under way."""
        readings = [one for one in self._service.live.engine_readings() if one.model_name == model]
        in_slots = sum(
            one.generating - (one.giving_way or 0) + (one.giving_way_in_line or 0)
            for one in readings
        )
        # Engines of one model share one line: each of them tells the whole of it.
        in_line = max((one.waiting - (one.giving_way_in_line or 0) for one in readings), default=0)
        return in_slots + in_line

    def _key(self, owner: str) -> Key | None:
        access = self._service.access
        return access.key_named(owner) if owner and access.asks_for_key else None


def own_tls() -> ssl.SSLContext:
    """For our own port: the certificate names the service as others reach it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
