"""Is a client being served right now?

Measuring gives way to clients: it starts when nobody asks and stops the moment someone does.
Only requests through the gateway count, so our own measurements, which go to the engine, do not.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Counts the client requests in flight that make the engine work."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._idle_since_s: float | None = None  # the loop's clock; None: never been busy
        self._busy = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts one request for as long as the block runs."""
        self.in_flight += 1
        self._busy.set()
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._busy.clear()
                self._idle.set()
                self._idle_since_s = asyncio.get_running_loop().time()

    async def arrived(self) -> None:
        """Returns as soon as a client is being served: at once when one is."""
        await self._busy.wait()

    async def wait_idle(self, quiet_s: float) -> None:
        """Returns once nobody has been served for `quiet_s` seconds, counted from the past too."""
        loop = asyncio.get_running_loop()
        while True:
            await self._idle.wait()
            rest_s = 0.0
            if self._idle_since_s is not None:
                rest_s = self._idle_since_s + quiet_s - loop.time()
            if rest_s <= 0:
                return
            try:
                await asyncio.wait_for(self._busy.wait(), rest_s)
            except TimeoutError:
                return
