"""The gateway: an application in front of the engines, and the port it is reached at."""

import errno
import os
from collections.abc import Callable, Iterable

from aiohttp import web

from workhorse.records import Alarm, Reading
from workhorse.serve.activity import Activity
from workhorse.serve.admission import LONGEST_WAIT_S, QUEUE_LENGTH
from workhorse.serve.auth import ACCESS, Access
from workhorse.serve.backend import Roster
from workhorse.serve.door import LIMITS, Door, Limits, take_body
from workhorse.serve.live import Live
from workhorse.serve.metrics import Metrics
from workhorse.serve.port import cannot_listen, find_port_holder, port_taken
from workhorse.serve.prefixes import Prefixes
from workhorse.serve.proxy import Proxy, Tap
from workhorse.serve.queue import Queue
from workhorse.serve.routes import Routes, answer_errors
from workhorse.serve.tls import CertificateFiles, following, tls_context
from workhorse.serve.upstream import Upstream
from workhorse.serve.usage import Usage

RESTART_WAIT_S = 30.0
DRAIN_S = 5.0

# Where the parts beside the gateway find its line: who waits for which engine.
QUEUE = web.AppKey("queue", Queue)


def build_app(
    roster: Roster,
    *,
    activity: Activity,
    access: Access | None = None,
    limits: Limits | None = None,
    restart_wait_s: float = RESTART_WAIT_S,
    queue_length: int = QUEUE_LENGTH,
    longest_wait_s: float = LONGEST_WAIT_S,
    live: Live | None = None,
    usage: Usage | None = None,
    tap: Tap | None = None,
    prefixes: Prefixes | None = None,
    reading: Callable[[], Reading | None] = lambda: None,
    alarms: Callable[[], Iterable[Alarm]] = tuple,
) -> web.Application:
    """The gateway's application in front of the engines of `roster`, as they come and go.

    `access` says who may ask; left out, every program of this machine. `activity` learns of
    every request that makes the engine work, `live` of how fast it was
    answered, `usage` of what it took; `tap` sees each block of an answer,
    `prefixes` what each prompt began with; `reading` and `alarms` give what the guard saw last,
    for the metrics. A request that finds
    the engine down waits for it up to `restart_wait_s` seconds. When no slot is free, up to
    `queue_length` requests of a model wait, none longer than `longest_wait_s` by what is known
    when it comes.
    """
    live, usage = live or Live(roster), usage or Usage()
    metrics = Metrics(
        in_flight=lambda: activity.in_flight,
        served=lambda: roster.known,
        reading=reading,
        alarms=alarms,
    )
    queue = Queue(roster, live, metrics, usage, length=queue_length, longest_wait_s=longest_wait_s)
    prefixes = prefixes or Prefixes()
    metrics.add(prefixes)
    queue.answered.append(
        lambda place: prefixes.answered(
            place.bid.key, place.bid.model, place.ask.prompt, place.counts
        )
    )
    upstream = Upstream(roster, restart_wait_s=restart_wait_s)
    proxy = Proxy(roster, activity, queue, upstream, tap)
    access, limits = access or Access(), limits or Limits()
    app = web.Application(
        client_max_size=limits.body_bytes,
        middlewares=[answer_errors(metrics), access.middleware, take_body],
    )
    app[QUEUE], app[ACCESS], app[LIMITS] = queue, access, limits
    app.cleanup_ctx.append(access.running)
    app.cleanup_ctx.append(usage.running)
    app.add_routes(Routes(roster, proxy, metrics).table())
    return app


class Gateway:
    """The one owner of the listening socket: open from `start` to `stop`, come what may."""

    def __init__(self, app: web.Application, files: CertificateFiles | None = None) -> None:
        self.url: str | None = None  # once it is open
        self._tls = None if files is None else tls_context(files)
        if files is not None and self._tls is not None:
            app.cleanup_ctx.append(following(self._tls, files))
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that leaves ends its request
            shutdown_timeout=DRAIN_S,
        )

    @property
    def scheme(self) -> str:
        """How clients speak to it."""
        return "http" if self._tls is None else "https"

    async def start(self, host: str = "127.0.0.1", port: int = 8080) -> int:
        """Opens the port and returns it; port 0 takes a free one.

        Raises an `AppError` that names the port and who holds it, or says that another address
        than loopback needs a key.
        """
        app = self._runner.app
        app[ACCESS].expose(host)
        await self._runner.setup()
        site = Door(self._runner, host, port, limits=app[LIMITS], ssl_context=self._tls)
        try:
            await site.start()
        except (OSError, OverflowError) as error:  # overflow: a port above 65535
            await self._runner.cleanup()
            code = error.errno if isinstance(error, OSError) else None
            if code == errno.EADDRINUSE:
                raise port_taken(host, port, find_port_holder(port)) from error
            reason = os.strerror(code) if code and code > 0 else str(error)
            raise cannot_listen(host, port, reason) from error
        opened: int = self._runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{self.scheme}://{shown}:{opened}"
        return opened

    async def stop(self) -> None:
        """Closes the port, gives running answers `DRAIN_S` seconds to end, then cuts them.

        Safe before `start` and more than once.
        """
        if self._runner.server is not None:
            await self._runner.cleanup()
