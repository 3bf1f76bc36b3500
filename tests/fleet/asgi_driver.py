"""A client of an ASGI application, without a server between them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from workhorse.fleet.pass_through import Message, PassThrough

PATIENCE_S = 120.0


@dataclass
class Exchange:
    """One request, and what has come of its answer."""

    app: PassThrough
    path: str
    method: str = "POST"
    body: bytes = b"{}"
    key: str | None = "the key"
    query: str = ""
    sent: list[Message] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: bool = False

    @property
    def status(self) -> int:
        found: int = self.sent[0]["status"]
        return found

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def text(self) -> str:
        return b"".join(one.get("body", b"") for one in self.sent[1:]).decode()

    @property
    def is_whole(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", True)

    async def run(self) -> "Exchange":
        sent = f"Bearer {self.key}".encode("latin-1")
        scope: dict[str, Any] = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query.encode(),
            "headers": [] if self.key is None else [(b"authorization", sent)],
        }
        async with asyncio.timeout(PATIENCE_S):
            await self.app(scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        self.came.set()
