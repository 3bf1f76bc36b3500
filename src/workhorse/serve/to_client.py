"""A client's event stream: begun when there is something to say, ended in a stream's words."""

from collections.abc import Mapping

from aiohttp import web

from workhorse.errors import AppError
from workhorse.serve.dialect import Dialect
from workhorse.serve.queue import Place
from workhorse.serve.refusal import stream_refusal

# How long a client that waits for a slot hears nothing: reverse proxies give up after 60 s
# (nginx `proxy_read_timeout`, 2026-11), and an early refusal of the engine still has its status.
SIGN_S = 10.0

_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold the signs back
}


class _Stream(web.StreamResponse):
    # aiohttp's own setting: the head waits for the first event and shares its packet.
    _send_headers_immediately = False


class ClientStream:
    """One stream to a client; `response` is None until it has begun."""

    def __init__(self, request: web.Request, dialect: Dialect) -> None:
        self.response: web.StreamResponse | None = None
        self._request = request
        self._dialect = dialect

    async def begin(
        self, status: int, headers: Mapping[str, str], *, alone: bool = False
    ) -> web.StreamResponse:
        """The response, begun now unless it has been before.

        `alone`: its head goes out at once, and not with what is written next.
        """
        if self.response is None:
            kind = web.StreamResponse if alone else _Stream
            self.response = kind(status=status, headers=headers)
            await self.response.prepare(self._request)
        return self.response

    async def sign(self, place: Place) -> None:
        """Tell the client that it waits, in a comment, which its library leaves out."""
        response = await self.begin(200, _HEADERS | place.headers())
        await response.write(f": waiting for a slot, number {place.position}\n\n".encode())

    async def end_with(self, event: bytes) -> web.StreamResponse:
        """End a stream that has begun with a last event."""
        if self.response is None:
            raise RuntimeError("the stream has not begun")
        await self.response.write(event)
        await self.response.write_eof()
        return self.response

    async def end_in(self, error: AppError, status: int | None = None) -> web.StreamResponse:
        """End a stream that has begun with an error of ours."""
        return await self.end_with(self._dialect.error_event(stream_refusal(error, status)))
