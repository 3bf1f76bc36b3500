"""One request on a connection of its own, its bytes noted with their times and nothing else."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 10.0
LAST_CHUNK = b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """An open connection: `send` once, then `ended` comes true. Close it in any case.

    It is never used twice: a service could close a kept one just as it is used again, which
    would read as a failed request, and kept ones block llama-server's few threads.
    """

    def __init__(self, clock: Callable[[], float], on_read: Callable[[], None]) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.sent_s: float | None = None
        self.ended_s: float | None = None
        self.problem: Exception | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clock, self._on_read = clock, on_read
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's word that the connection stands."""
        # What a stream's protocol gets; other event loops have transports of a class of their own.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Send the whole request; the clock of the answer runs from here."""
        self.sent_s = self._clock()
        if self._transport is not None and self.ended_s is None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Note what came, when."""
        self.reads.append((self._clock(), data))
        self._on_read()
        # A service that keeps the connection open although it was told to close it.
        if data.endswith(LAST_CHUNK) and (data == LAST_CHUNK or data[-7:-5] == b"\r\n"):
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The end, whoever made it."""
        if self.ended_s is None:
            self.ended_s, self.problem = self._clock(), error
            if not self.ended.done():
                self.ended.set_result(None)

    def close(self) -> None:
        """End the connection: the service stops working on the request."""
        self.connection_lost(None)
        if self._transport is not None:
            self._transport.abort()


async def open_connection(
    url: str,
    tls: ssl.SSLContext | None,
    clock: Callable[[], float],
    on_read: Callable[[], None],
) -> Connection:
    """A connection to the service; OSError or TimeoutError when it cannot be had."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    context = (tls or ssl.create_default_context()) if secure else None
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(clock, on_read),
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            ssl=context,
        )
    return connection


def request_bytes(url: str, route: str, headers: dict[str, str], body: bytes) -> bytes:
    """A POST, encoded before the clock runs."""
    parts = urlsplit(url)
    lines = [
        f"POST {parts.path}{route} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Accept: */*",
        "Accept-Encoding: identity",  # a compressor would hold tokens back
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
