"""The gateway's door: how many connections, how long each may dawdle, what a request may weigh.

A client that is slow costs memory and a connection, never a slot: its body is read whole before
it waits for a slot, and one that does not read its answer is cut.
"""

import asyncio
import logging
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aiohttp import web
from aiohttp.http import HttpProcessingError

from workhorse.units import MIB

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Method = TypeVar("Method", bound=Callable[..., Awaitable[web.StreamResponse]])

BACKLOG = 1024  # clients that may connect in the same moment
HEADER_LINE_BYTES, HEADER_COUNT = 8190, 128  # aiohttp's; Apache has 8190 and 100 (2026-11)
# The answer of one whose body is not read reaches it only if the rest of it is taken in.
LINGER_S = 2.0
HANDSHAKE_S = 10
# Handshakes under way; a real one takes some round trips, so the oldest gives way to a new one.
HANDSHAKES = 256
# A peer that is gone without a word: probed after 30 s, given up after another 30 (tcp(7)).
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_UNACKNOWLEDGED_MS = 60_000
# Each answer takes a connection to the engine as well; some files stay open beside them.
_DESCRIPTORS_EACH, _DESCRIPTORS_BESIDE = 2, 200 + HANDSHAKES

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
_FULL_BODY = (
    b'{"error":{"message":"The gateway has as many connections as it may.",'
    b'"type":"unavailable_error","param":null,"code":503,"speaker":"gateway"}}'
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take of the gateway."""

    body_bytes: int = 64 * MIB
    body_s: float = 120.0  # for a whole body to arrive
    idle_s: float = 75.0  # nginx's default; within it the whole header of a request must come
    stalled_s: float = 30.0  # an answer that is not read for so long is cut
    connections: int = 2000


LIMITS = web.AppKey("limits", Limits)

_log = logging.getLogger("workhorse.serve.http")


def _is_ours(record: logging.LogRecord) -> bool:
    """False for broken HTTP: it is answered with 400 and is its sender's affair."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log.addFilter(_is_ours)


class Door(web.TCPSite):
    """The listening socket of a gateway."""

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        *,
        limits: Limits,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, host, port, ssl_context=ssl_context, backlog=BACKLOG)
        self._limits = limits
        self._most = limits.connections
        self._open = 0
        self._greeting: dict[asyncio.Future[None], asyncio.Transport] = {}  # the oldest first

    async def start(self) -> None:
        """Open the port; OSError when it cannot be had."""
        await web.BaseSite.start(self)
        self._most = most_connections(self._limits.connections)
        self._server = await asyncio.get_running_loop().create_server(
            self._receive if self._ssl_context is None else partial(Greeting, self),
            self._host,
            self._port,
            backlog=self._backlog,
        )

    async def stop(self) -> None:
        """Close the port."""
        for transport in tuple(self._greeting.values()):
            transport.abort()
        await super().stop()

    def _receive(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or self._open >= self._most:
            return Full()
        return Connection(server, self, self._limits)

    def greet(self, transport: asyncio.Transport) -> None:
        """Begin TLS on a connection; who does not come to the end of it is cut."""
        while len(self._greeting) >= HANDSHAKES:
            # Forgotten here: its end is news a turn of the loop later, after others have come.
            self._greeting.pop(next(iter(self._greeting))).abort()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._greeting[done] = transport
        done.add_done_callback(self._greeted)
        context = self._ssl_context
        if context is None:
            raise RuntimeError("this door speaks no TLS")
        # What `create_server(ssl=…)` does, which tells nobody of a handshake that fails.
        speaking = SSLProtocol(
            loop,
            self._receive(),
            context,
            done,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
        )
        transport.set_protocol(speaking)
        speaking.connection_made(transport)

    def _greeted(self, done: "asyncio.Future[None]") -> None:
        self._greeting.pop(done, None)
        if not done.cancelled():
            done.exception()  # a failure is its client's affair

    def came(self) -> None:
        """A connection was made."""
        self._open += 1

    def left(self) -> None:
        """A connection is over."""
        self._open -= 1


class Greeting(asyncio.Protocol):
    """A connection that has not spoken TLS yet."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is read before this returns: TLS sees all that comes."""
        if isinstance(transport, asyncio.Transport):
            self._door.greet(transport)


class Full(asyncio.Protocol):
    """The connection that is one too many: told so, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say it and hang up."""
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(FULL % (len(_FULL_BODY), _FULL_BODY))
        transport.close()


class Connection(web.RequestHandler):
    """One client's connection, cut when the client does not read what it asked for."""

    __slots__ = ("_door", "_stalled", "_stalled_s")

    def __init__(self, server: web.Server, door: Door, limits: Limits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_s,
            max_line_size=HEADER_LINE_BYTES,
            max_field_size=HEADER_LINE_BYTES,
            max_headers=HEADER_COUNT,
            lingering_time=LINGER_S,
            access_log=None,  # type: ignore[arg-type]
            logger=_log,
        )
        self._door = door
        self._stalled_s = limits.stalled_s
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and have the system probe a peer that says nothing."""
        self._door.came()
        opened = transport.get_extra_info("socket")
        for option, value in _KEEPALIVE:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End, and with it whatever was done for this client."""
        self._door.left()
        self._forget_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More is waiting than the client has read: from now on it has `stalled_s`."""
        super().pause_writing()
        if self.transport is not None:
            self._stalled = self._loop.call_later(self._stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads on."""
        super().resume_writing()
        self._forget_stall()

    def _forget_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def most_connections(wanted: int) -> int:
    """How many connections the open files of this process allow; raises its own limit first."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * _DESCRIPTORS_EACH + _DESCRIPTORS_BESIDE
    soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    soft = max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, (soft - _DESCRIPTORS_BESIDE) // _DESCRIPTORS_EACH))


def reads_its_body(handler: Method) -> Method:
    """Mark a route's method that takes the body in as it comes, within limits of its own."""
    vars(handler)["reads_its_body"] = True
    return handler


@web.middleware
async def take_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read a request's body whole, before it waits for anything; slow and large ones are refused.

    What `request.read` gives later is this body.
    """
    own_way = getattr(request.match_info.handler, "reads_its_body", False)
    if request.body_exists and not own_way:
        limits = request.app[LIMITS]
        size_bytes = request.content_length or 0
        if size_bytes > limits.body_bytes:
            raise web.HTTPRequestEntityTooLarge(limits.body_bytes, size_bytes)
        try:
            async with asyncio.timeout(limits.body_s):
                await request.read()
        except TimeoutError as error:
            what = f"The body did not arrive within {limits.body_s:g} s."
            raise web.HTTPRequestTimeout(text=what) from error
    return await handler(request)
