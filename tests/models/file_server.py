"""A file server on loopback that misbehaves as a test tells it to."""

import base64
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Answer"], None]


@dataclass
class FileServer:
    """What it serves, what it was asked, and how it behaves for the next requests."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"v1"'
    ranges: bool = True
    password: str | None = None  # basic auth as user:password
    redirects: dict[str, str] = field(default_factory=dict)  # path -> address
    more_headers: dict[str, dict[str, str]] = field(default_factory=dict)  # by path
    refusals: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    script: list[Behaviour] = field(default_factory=list)  # one a request, then served whole
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent_bytes: int = 0
    port: int = 0
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        """The address of a file."""
        return f"http://127.0.0.1:{self.port}{path}"


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server_state: FileServer

    def do_GET(self) -> None:
        state = self.server_state
        state.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        if state.password is not None:
            expected = "Basic " + base64.b64encode(state.password.encode()).decode()
            if self.headers.get("Authorization") != expected:
                return self.status(401, {"WWW-Authenticate": 'Basic realm="test"'})
        if self.path in state.refusals:
            return self.status(*state.refusals[self.path])
        if self.path in state.redirects:
            more = state.more_headers.get(self.path, {})
            return self.status(302, {"Location": state.redirects[self.path], **more})
        behave = state.script.pop(0) if state.script else Answer.whole
        return behave(self)

    def do_HEAD(self) -> None:
        self.do_GET()

    def status(self, code: int, headers: dict[str, str] | None = None) -> None:
        """An answer without a body."""
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def begin(self) -> bytes | None:
        """Send the head of the right answer; returns the body that belongs to it."""
        state = self.server_state
        body = state.files.get(self.path)
        if body is None:
            self.status(404)
            return None
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        wanted = match is not None and state.ranges
        if wanted and self.headers.get("If-Range") not in (None, state.etag):
            wanted = False
        total, start = len(body), 0
        if wanted and match is not None:
            first, last = match.groups()
            start = int(first) if first else max(0, total - int(last))
            end = int(last) + 1 if first and last else total
            if start >= total:
                self.status(416, {"Content-Range": f"bytes */{total}"})
                return None
            body = body[start:end]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{total}")
        else:
            self.send_response(200)
        if state.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if state.etag:
            self.send_header("ETag", state.etag)
        for name, value in state.more_headers.get(self.path, {}).items():
            self.send_header(name, value)
        kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return b"" if self.command == "HEAD" else body

    def send(self, body: bytes) -> None:
        self.wfile.write(body)
        self.wfile.flush()
        self.server_state.sent_bytes += len(body)

    def whole(self) -> None:
        """The right answer."""
        body = self.begin()
        if body is not None:
            self.send(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: pytest shows what a failing test needs."""


def breaks_after(n_bytes: int) -> Behaviour:
    """Close the connection in the middle of the body."""

    def behave(answer: Answer) -> None:
        body = answer.begin()
        if body is not None:
            answer.send(body[:n_bytes])
        answer.connection.shutdown(socket.SHUT_RDWR)

    return behave


def stalls_after(n_bytes: int) -> Behaviour:
    """Say nothing more, with the connection open, until the test ends."""

    def behave(answer: Answer) -> None:
        body = answer.begin()
        if body is not None:
            answer.send(body[:n_bytes])
        answer.server_state.closing.wait(600)

    return behave


def without_length(answer: Answer) -> None:
    """The whole file, its end marked by the end of the connection."""
    answer.send_response(200)
    answer.end_headers()
    answer.send(answer.server_state.files[answer.path])


def answers(code: int, headers: dict[str, str] | None = None) -> Behaviour:
    """A status and nothing else."""
    return lambda answer: answer.status(code, headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many of these tests do."""


@contextmanager
def file_server(tls: ssl.SSLContext | None = None, **state: Any) -> Iterator[FileServer]:
    """A running server; its threads are gone when the block ends."""
    served = FileServer(**state)
    handler = type("BoundAnswer", (Answer,), {"server_state": served})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        served.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
