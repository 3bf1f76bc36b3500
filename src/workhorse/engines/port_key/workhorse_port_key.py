"""A layer that vLLM puts around its whole API: without the key of this start, health alone.

Its own check looks at routes that begin with /v1 and few others, and older forms (/invocations,
/pooling, /score) compute beside it. Loaded by `--middleware`, in vLLM's Python, whichever that is:
it imports the standard library alone.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
OPEN = "/health"
REFUSED = b'{"error":{"message":"Unauthorized","type":"authentication_error","code":401}}'

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class PortKey:
    """An ASGI application around another one; it lets all through where no key was given."""

    def __init__(self, app: App) -> None:
        self._app = app
        key = os.environ.get(KEY_VARIABLE)
        self._wanted = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one connection of a socket."""
        if scope["type"] == "lifespan" or scope["path"] == OPEN or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(REFUSED)).encode()),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_key(self, scope: Scope) -> bool:
        if self._wanted is None:
            return True
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(sent[0], self._wanted)
