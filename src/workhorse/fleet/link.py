"""How fast two machines reach each other: bytes a second and round trip, by a small TCP probe.

The one that is asked opens a port for one probe, and only to who brings the word that it made.
"""

import hmac
import secrets
import socket
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from workhorse.errors import AppError
from workhorse.fleet.spread import Link
from workhorse.text import Text
from workhorse.units import MIB

PINGS = 50
PING_BYTES = 64
CHUNK_BYTES = 256 * 1024
# Long enough to leave TCP's slow start behind on a 10 GbE, short enough for 100 Mbit.
SENT_S = 1.5
SENT_BYTES_MAX = 4096 * MIB
WAIT_S = 60.0
WORD_BYTES = 32  # in hexadecimal twice as many
_DONE = b"d"


@dataclass(frozen=True, slots=True)
class Answering:
    """Where a probe is waited for, and the word that it brings."""

    host: str
    port: int
    word: str


class LinkAnswerer:
    """Waits for one probe at an address of this machine; `close` ends it earlier."""

    def __init__(self, host: str, *, wait_s: float = WAIT_S) -> None:
        self._socket = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._socket.settimeout(wait_s)
        self._wait_s = wait_s
        self._word = secrets.token_hex(WORD_BYTES)
        self.place = Answering(host, self._socket.getsockname()[1], self._word)
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for no probe any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _answer(self) -> None:
        with suppress(OSError, _GoneError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(TimeoutError, _GoneError):
                    connection.settimeout(self._wait_s)
                    brought = _exactly(connection, len(self._word))
                    if not hmac.compare_digest(brought, self._word.encode()):
                        continue
                    serve_probe(connection)
                    return


class _GoneError(Exception):
    """The other side has closed."""


def serve_probe(connection: socket.socket) -> None:
    """Send pings back, then count bytes until the sender says that it has done."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(PINGS):
        connection.sendall(_exactly(connection, PING_BYTES))
    total = int.from_bytes(_exactly(connection, 8), "big")
    while total:
        left = min(total, SENT_BYTES_MAX)
        while left:
            received = len(connection.recv(min(left, CHUNK_BYTES)) or _gone())
            left -= received
        connection.sendall(_DONE)
        total = int.from_bytes(_exactly(connection, 8), "big")


def measure(place: Answering, *, sent_s: float = SENT_S, own: str | None = None) -> Link:
    """What a probe to an answerer finds: the median round trip, the fastest of some transfers.

    Blocks for some seconds. `own`: the address of this machine to come from. Raises AppError.
    """
    source = (own, 0) if own else None
    try:
        with socket.create_connection(
            (place.host, place.port), timeout=WAIT_S, source_address=source
        ) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(place.word.encode())
            round_trip_s = _round_trip(connection)
            return Link(_bytes_per_s(connection, sent_s), round_trip_s)
    except (OSError, _GoneError) as error:
        raise AppError(
            Text(
                f"The link to {place.host} could not be measured: {error or 'it was closed'}.",
                f"无法测量到 {place.host} 的链路：{error or '连接被关闭'}。",
            ),
            Text(
                "Let the nodes reach each other on any port (docs/fleet.md), then try again.",
                "请放行节点之间的端口（见 docs/fleet.zh.md）后重试。",
            ),
        ) from error


def _round_trip(connection: socket.socket) -> float:
    times = []
    for _ in range(PINGS):
        began_s = time.perf_counter()
        connection.sendall(bytes(PING_BYTES))
        _exactly(connection, PING_BYTES)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


def _bytes_per_s(connection: socket.socket, sent_s: float) -> float:
    """The fastest of transfers that double until one takes long enough."""
    n_bytes, fastest = MIB, 0.0
    while True:
        began_s = time.perf_counter()
        connection.sendall(n_bytes.to_bytes(8, "big"))
        left, chunk = n_bytes, bytes(CHUNK_BYTES)
        while left:
            connection.sendall(chunk[: min(left, CHUNK_BYTES)])
            left -= min(left, CHUNK_BYTES)
        _exactly(connection, 1)
        took_s = time.perf_counter() - began_s
        fastest = max(fastest, n_bytes / took_s)
        if took_s > sent_s / 2 or n_bytes * 2 > SENT_BYTES_MAX:
            connection.sendall(bytes(8))
            return fastest
        n_bytes *= 2


def _exactly(connection: socket.socket, n_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < n_bytes:
        found += connection.recv(n_bytes - len(found)) or _gone()
    return bytes(found)


def _gone() -> bytes:
    raise _GoneError("the other side closed the connection")
