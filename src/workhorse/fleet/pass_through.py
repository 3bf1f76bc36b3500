"""A replica's way from its HTTP port to its engine, as an ASGI application.

What comes goes to the engine as it is, and back in the pieces in which the engine sends it: who
may ask what, who waits, how it is asked, all that is the gateway's. Only who brings the fleet's
replica key is heard. Where the engine gives no answer, none is given: Ray and HAProxy say 500
without the header that marks a replica's answers, and the gateway takes that as a lost engine.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from workhorse.codec import to_line
from workhorse.fleet.spec import FACTS_PATH, REPLICA_HEADER, ReplicaFacts
from workhorse.run.address import Address
from workhorse.serve.engine_socket import EngineAnswer, RefusesError, ask

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

LARGEST_BODY_BYTES = 1024 * 1024 * 1024  # the gateway's own limit is below it
# What of the engine's headers the gateway reads.
PASSED = ("content-type", "content-length", "retry-after")


class ClientLeft(Exception):
    """Whoever asked has gone."""


class PassThrough:
    """The application of one replica.

    `address` and `facts` are asked at each request; `address` is None while there is no engine.
    """

    def __init__(
        self,
        key: str,
        boot: str,
        *,
        route: str,
        address: Callable[[], Address | None],
        facts: Callable[[], ReplicaFacts],
    ) -> None:
        self._key = f"Bearer {key}".encode()
        self._route = route.encode()
        self._address, self._facts = address, facts
        # Without `close` HAProxy would keep the connection for the next request, and send it
        # there in the moment in which this process ends.
        self._own = [(REPLICA_HEADER.lower().encode(), boot.encode()), (b"connection", b"close")]
        self.asked = 0  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; there are no web sockets."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_allowed(scope):
            await self._say(send, 401, b'{"error":{"message":"The replica key is needed."}}')
            return
        path = self._path(scope)
        if path is None:
            await self._say(send, 404, b'{"error":{"message":"This is another replica."}}')
            return
        if path == FACTS_PATH:
            await self._say(send, 200, to_line(self._facts()).encode())
            return
        query: bytes = scope.get("query_string", b"")
        path_qs = path + (f"?{query.decode('latin-1')}" if query else "")
        self.asked += 1
        try:
            body = await _body(receive)
            if body is None:
                await self._say(send, 413, b'{"error":{"message":"The request is too large."}}')
                return
            await self._until_left(receive, self._forward(scope["method"], path_qs, body, send))
        except ClientLeft:
            return
        finally:
            self.asked -= 1

    def _is_allowed(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(sent[0], self._key)

    def _path(self, scope: Scope) -> str | None:
        """The path behind the replica's route; None: it is another's."""
        raw = scope.get("raw_path")
        whole: bytes = scope["path"].encode() if raw is None else raw.partition(b"?")[0]
        rest = whole.removeprefix(self._route)
        return rest.decode("latin-1") if rest != whole and rest.startswith(b"/") else None

    async def _until_left(self, receive: Receive, work: Awaitable[None]) -> None:
        """Do the work; cancelled, it closes the connection to the engine, which stops computing."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _forward(self, method: str, path_qs: str, body: bytes, send: Send) -> None:
        address = self._address()
        if address is None:
            raise RefusesError("there is no engine")
        answer = await ask(address, method, path_qs, body)
        try:
            await self._pass(answer, send)
        finally:
            answer.close()

    async def _pass(self, answer: EngineAnswer, send: Send) -> None:
        headers = _passed(answer.head.headers)
        await send(self._start(answer.head.status, headers))
        while part := await answer.read_some():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _start(self, status: int, headers: Headers) -> Message:
        return {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, *self._own],
        }

    async def _say(self, send: Send, status: int, body: bytes) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send(self._start(status, headers))
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _passed(headers: Mapping[str, str]) -> Headers:
    return [(name.encode(), headers[name].encode("latin-1")) for name in PASSED if name in headers]


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None when it is too large. Raises `ClientLeft`."""
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > LARGEST_BODY_BYTES:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
