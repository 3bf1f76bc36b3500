"""Whether the gateway takes new requests: no more once the service is on its way to its end."""

from typing import Any

from aiohttp import web

from workhorse.serve.refusal import json_response, refusal
from workhorse.text import Text

DRAINING = "draining"
# A service that stops is most often started again at once; this is about what that takes.
RETRY_AFTER_S = 10
# What may be asked to the end: it tells who watches how far the end is.
ALWAYS = ("/metrics", "/workhorse/")


class Gate:
    """Open at first; once closed, it stays so."""

    def __init__(self) -> None:
        self.closed: Text | None = None  # why

    def close(self, why: Text) -> None:
        """Take no new request from now on; those that are running go on."""
        self.closed = why

    @property
    def middleware(self) -> Any:
        """Answers for a closed gate, and has every connection end with its answer."""

        @web.middleware
        async def pass_or_refuse(request: web.Request, handler: Any) -> web.StreamResponse:
            response: web.StreamResponse
            if self.closed is not None and not request.path.startswith(ALWAYS):
                response = refused(request.path, self.closed)
            else:
                response = await handler(request)
            if self.closed is not None and not response.prepared:
                # A kept connection would bring the client's next request here as well.
                response.force_close()
            return response

        return pass_or_refuse


def refused(path: str, why: Text) -> web.Response:
    """The answer of a closed gate: ask again later; for a health check the state in one word."""
    if path == "/healthz":
        health = {"status": "unavailable", "state": DRAINING, "reason": why.en}
        return json_response(health, status=503)
    response = json_response(refusal(503, why.en), status=503)
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
