"""One request to an engine and its answer, over a connection of its own.

Written for this one use because it is what the gateway spends most of its time on: a request is
on its way before the event loop turns once, where a client library needs four turns, each of them
behind everybody else's; and a block of a stream costs a third.

A connection is never used twice: llama-server closes it after a stream without saying so (tried
with 0.5.0, 2026-11), so a request on a kept one would meet a closed door.
"""

import asyncio
import errno
import ipaddress
import re
import socket
from collections import deque
from contextlib import suppress
from functools import lru_cache
from urllib.parse import quote, urlsplit

from workhorse.run.address import Address, Link
from workhorse.serve.wire import Answer, BrokenAnswerError, Head

CONNECT_TIMEOUT_S = 5.0
READ_BYTES = 256 * 1024
# An engine that is faster than its client waits once so much lies here.
MOST_UNREAD_BYTES = 256 * 1024

_PLAIN = re.compile(r"[!-~]+")
_RESERVED = "/?%:@!$&'()*+,;=~"

Endpoint = tuple[str, int]


class RefusesError(Exception):
    """Nobody takes connections there: nothing was sent."""


class EngineAnswer:
    """An engine's answer: its head once `ask` returns it, its body as it comes."""

    def __init__(
        self, opened: socket.socket, loop: asyncio.AbstractEventLoop, link: Link | None = None
    ) -> None:
        self.head: Head
        self.received_bytes = 0
        self.lost = False  # by the engine's owner, who has not heard of it for a while
        self._link = link
        if link is not None:
            link.asking.add(self)
        self._socket = opened
        # The loop's book of descriptors describes a socket in words for each miss: 40 µs.
        self._descriptor = opened.fileno()
        self._loop = loop
        self._answer = Answer()
        self._blocks: deque[bytes] = deque()
        self._unread_bytes = 0
        self._broken: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reading = False
        self._closed = False

    @property
    def far(self) -> bool:
        """Whether the engine is on another machine."""
        return self._link is not None

    async def read_some(self) -> bytes:
        """The next part of the body; empty at its end. Raises `BrokenAnswerError`."""
        while not self._blocks:
            if self._answer.done:
                return b""
            if self._broken is not None:
                raise BrokenAnswerError(str(self._broken)) from self._broken
            await self._news()
        block = self._blocks.popleft()
        self._unread_bytes -= len(block)
        if not self._reading and self._unread_bytes < MOST_UNREAD_BYTES // 2:
            self._watch()
        return block

    async def read(self) -> bytes:
        """The whole body. Raises `BrokenAnswerError`."""
        parts: list[bytes] = []
        while part := await self.read_some():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """End the connection: the engine stops working on the request."""
        if not self._closed:
            self._closed = True
            self._unwatch()
            self._socket.close()
            if self._link is not None:
                self._link.asking.discard(self)

    def lose(self, why: str) -> None:
        """Nothing more will come: whoever reads or sends ends with a `BrokenAnswerError`."""
        if self._closed or self._answer.done or self._broken is not None:
            return
        self.lost, self._broken = True, ConnectionError(why)
        self._unwatch()
        # A request that does not fit into the socket is still being sent.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def send(self, request: bytes) -> None:
        """Send the request, and wait for the head of the answer. Raises `BrokenAnswerError`."""
        # An engine may refuse a request, and hang up, before it has taken all of it: what it said
        # is read in any case.
        with suppress(OSError):
            sent = self._socket.send(request)
            if sent < len(request):
                self._watch()
                await self._loop.sock_sendall(self._socket, memoryview(request)[sent:])
        self._watch()
        while self._answer.head is None:
            if self._broken is not None:
                raise BrokenAnswerError(str(self._broken)) from self._broken
            await self._news()
        self.head = self._answer.head

    async def _news(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _watch(self) -> None:
        if not (self._reading or self._closed or self._answer.done or self.lost):
            self._reading = True
            self._loop.add_reader(self._descriptor, self._read_ready)

    def _unwatch(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def _read_ready(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
            if data:
                self.received_bytes += len(data)
                if part := self._answer.feed(data):
                    self._blocks.append(part)
                    self._unread_bytes += len(part)
            else:
                self._answer.end()
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, BrokenAnswerError) as error:
            self._broken = error
        if self._broken is not None or self._answer.done or self._unread_bytes > MOST_UNREAD_BYTES:
            self._unwatch()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def ask(address: Address, method: str, path_qs: str, body: bytes) -> EngineAnswer:
    """The answer of the engine at `address` once its head is here; close it in any case.

    Raises `RefusesError` when nobody takes connections there, `BrokenAnswerError` when the
    connection ends before there is a head.
    """
    endpoint, prefix, opening = _opening(address)
    if _PLAIN.fullmatch(path_qs) is None:
        path_qs = quote(path_qs, safe=_RESERVED)
    answer = EngineAnswer(await _connect(endpoint), asyncio.get_running_loop(), address.link)
    head = (
        f"{method} {prefix}{path_qs} HTTP/1.1\r\n{opening}Accept: */*\r\n"
        # Whatever the client called it: curl says that it is a form. The client's own headers
        # stay in the gateway, X-Conversation-Id above all: it makes llama-server compute on
        # after the connection has closed (`server-stream.cpp`).
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    )
    try:
        await answer.send(head.encode("ascii") + body)
    except BaseException:
        answer.close()
        raise
    return answer


@lru_cache(maxsize=1024)
def _opening(address: Address) -> tuple[Endpoint, str, str]:
    """Where to connect to, what comes before each path, and the headers that say so.

    Engines are called by their IP address.
    """
    parts = urlsplit(address.url)
    host = ipaddress.ip_address(parts.hostname or "").compressed
    headers = {"Host": parts.netloc, **address.headers}
    said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (host, parts.port or 80), parts.path, said


async def _connect(address: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:  # no descriptor is left: clients that leave give theirs back
        raise RefusesError(error.strerror) from error
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = opened.connect_ex(address)
        if code == errno.EINPROGRESS:
            # On loopback both ends are in one kernel: the connection stands by now.
            code = opened.connect_ex(address)
        if code == errno.EALREADY:  # the engine's line of new connections is full
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await _writable(opened)
            code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code not in (0, errno.EISCONN):
            raise RefusesError(errno.errorcode.get(code, str(code)))
    except TimeoutError as error:
        opened.close()
        raise RefusesError("no answer") from error
    except BaseException:
        opened.close()
        raise
    return opened


async def _writable(opened: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not waiter.done():
            waiter.set_result(None)

    loop.add_writer(opened, tell)
    try:
        await waiter
    finally:
        loop.remove_writer(opened)
