"""The ways into the fleet: each node's HAProxy knows the way to every replica.

The head's own is the shortest way; while it does not answer, another node's is taken.
"""

import asyncio
from collections.abc import Sequence

from workhorse.fleet.matching import Entry
from workhorse.run.address import Address
from workhorse.serve.engine_socket import RefusesError, ask
from workhorse.serve.wire import BrokenAnswerError

HEALTH_PATH = "/-/healthz"  # HAProxy answers it itself (Ray 2.60.0, `haproxy_templates.py`)
PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0


class Entries:
    """Which of them is used; `watch` looks whether a better one has come back."""

    def __init__(self) -> None:
        self._all: tuple[Entry, ...] = ()
        self._down: set[str] = set()

    def put(self, entries: Sequence[Entry]) -> None:
        """These are there now, the best first."""
        self._all = tuple(entries)
        self._down &= {one.url for one in entries}

    @property
    def best(self) -> Entry | None:
        """The way to take; None: there is none at all."""
        up = (one for one in self._all if one.url not in self._down)
        return next(up, next(iter(self._all), None))

    def failed(self, url: str) -> None:
        """Nobody takes connections there: take another one from now on."""
        self._down.add(url)

    async def answers(self, url: str) -> bool:
        """Whether its HAProxy answers now; noted."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                answer = await ask(Address(url), "GET", HEALTH_PATH, b"")
        except (RefusesError, BrokenAnswerError, TimeoutError):
            self._down.add(url)
            return False
        answer.close()
        self._down.discard(url)
        return True

    async def watch(self) -> None:
        """Look at those that were down, until cancelled."""
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            await asyncio.gather(*(self.answers(url) for url in tuple(self._down)))
