"""Lets a job's requests through, as many at a time as the service has room for, when it may."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from workhorse.batch.concurrency import Concurrency
from workhorse.batch.job import Window
from workhorse.batch.windows import LocalMinute, changes_in_s, is_open

# The clock on the wall may be put forward or back, and a machine may sleep: look again.
LOOK_S = 30.0


def local_minute(unix_s: float) -> int:
    """The minute of this machine's local day."""
    local = time.localtime(unix_s)
    return local.tm_hour * 60 + local.tm_min


class PaceKeeper:
    """One job's pace: `async with pace.turn():` around each request, in the order they come.

    `clock` only goes on; `wall` is Unix time, which the windows of the day follow.
    """

    def __init__(
        self,
        rule: Concurrency,
        *,
        windows: Sequence[Window] = (),
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        minute: LocalMinute = local_minute,
    ) -> None:
        self._rule, self._windows = rule, windows
        self._clock, self._wall, self._minute = clock, wall, minute
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._under_way = 0
        self._held_s = 0.0
        self._held_since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def most(self) -> int:
        """Never more requests at once: so many items at a time are worth having in hand."""
        return self._rule.room.most

    @property
    def under_way(self) -> int:
        """Requests that have their turn now."""
        return self._under_way

    @property
    def held_s(self) -> float:
        """How long nothing was asked because windows, chats or the service forbade it."""
        since_s = self._held_since_s
        return self._held_s + (0.0 if since_s is None else self._clock() - since_s)

    @property
    def opens_in_s(self) -> float | None:
        """Seconds until the next window; 0: it may run now, None: no minute of it ever comes."""
        return changes_in_s(self._windows, self._wall(), self._minute, to_open=True)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until one more request may be under way; the block is that request."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        self._let_through()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._under_way -= 1  # the turn came in the very moment in which nobody wanted it
                self._let_through()
            raise
        try:
            yield
        finally:
            self._under_way -= 1
            self._let_through()

    def took(self, seconds: float, prompt_tokens: int, output_tokens: int) -> None:  # noqa: ARG002
        """A request was answered."""
        self._rule.answered()
        self._let_through()

    def refused(self, retry_after_s: float | None) -> None:
        """The service has no room: it said when to ask again, or did not (None)."""
        self._rule.refused(retry_after_s, self._clock())

    def chat_seen(self, chats: int) -> None:
        """So many requests of people are under way at the service."""
        self._rule.chat_seen(chats, self._clock())
        self._let_through()

    def _let_through(self) -> None:
        """Give turns to those who have waited longest, and come back when time brings more."""
        now_s, limit, wait_s = self._clock(), 0, None
        if is_open(self._windows, self._minute(self._wall())):
            limit, wait_s = self._rule.limit(now_s), self._rule.changes_in_s(now_s)
        else:
            wait_s = self.opens_in_s
        while self._waiting and self._under_way < limit:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                self._under_way += 1
        self._note_held(now_s, held=limit == 0 and not self._under_way and bool(self._waiting))
        if self._waiting and (wait_s is not None or self._windows):
            self._look_in(LOOK_S if wait_s is None else min(LOOK_S, wait_s))

    def _note_held(self, now_s: float, *, held: bool) -> None:
        if held and self._held_since_s is None:
            self._held_since_s = now_s
        elif not held and self._held_since_s is not None:
            self._held_s += now_s - self._held_since_s
            self._held_since_s = None

    def _look_in(self, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + after_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(after_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._let_through()
