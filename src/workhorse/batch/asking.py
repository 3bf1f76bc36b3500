"""Asks the service for one job until there is an answer, whatever becomes of engine and gateway.

What is not a request's own fault costs it nothing: a full line, an engine that is started again,
a service that is down are waited for. What may be its own fault uses up one of its tries.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import msgspec

from workhorse.batch.client import AwayError, Client, LostError, SlowError
from workhorse.batch.item import Reason
from workhorse.batch.retry import Fate, Patience, Reply, away_pause_s, back_off_s, fate_of
from workhorse.batch.task import ItemFailed
from workhorse.bench.service import key_refused
from workhorse.errors import AppError
from workhorse.text import Text
from workhorse.units import show_duration

# A service that says nothing for so long does not come back by itself: the job stops, to be
# gone on with. An engine of 100 GB on a slow disk loads in less.
AWAY_LIMIT_S = 30 * 60.0
# Nobody asked for so long (outside the hours of the job): the absence begins anew.
UNASKED_S = 300.0
# The supervisor learns of an engine's death from the system at once; this is plenty.
LOOKS, LOOK_PAUSE_S = 4, 0.5
DEATHS_KEPT = 8
# What any model answers if anything is answered at all.
PROBE_PATH, PROBE_TOKENS = "/v1/chat/completions", 1
LOST: Fate = "lost"


class Pace(Protocol):
    """Who says when a request may go."""

    def turn(self) -> AbstractAsyncContextManager[object]:
        """The block is one request."""
        ...

    def took(self, seconds: float, prompt_tokens: int, output_tokens: int) -> None:
        """A request was answered."""
        ...

    def refused(self, retry_after_s: float | None) -> None:
        """The service has no room."""
        ...


@dataclass(frozen=True, slots=True)
class Got:
    """What has become of a request, and how long it took from its turn on."""

    fate: Fate
    reply: Reply
    seconds: float


class EngineDied(Exception):
    """The engine ended while it had a request of the item: of this one, or of another."""


@dataclass(slots=True)
class Tries:
    """How often one step of an item may still end in an error that may be its own."""

    most: int
    used: int = 0
    slow: int = 0  # of them, those that were too slow

    def spend(self, reason: Reason) -> None:
        """One more error; raises `ItemFailed` after the last."""
        self.used += 1
        if self.used >= self.most:
            raise ItemFailed(reason)


class Asker:
    """The one who asks for a job. Raises `AppError` where the whole job cannot go on."""

    def __init__(
        self,
        client: Client,
        pace: Pace,
        *,
        patience: Patience | None = None,
        chance: random.Random | None = None,
        note: Callable[[Text], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.waiting = 0  # requests that wait for their turn
        self.under_way = 0
        self.embeds = True  # until the service says that its model cannot
        self.deaths_s: deque[float] = deque(maxlen=DEATHS_KEPT)  # of engines, the latest
        self.refused = 0  # that the service had no room for and that wait to ask again
        self._pace = pace
        self._patience = patience or Patience()
        self._chance = chance or random.Random()  # noqa: S311 (pauses, no secret)
        self._note, self._changed = note, changed
        self._restarts: float | None = None  # of the engines, as last seen
        self._latest_sent_s = 0.0  # of all that were answered, when the youngest was sent
        self._away_since_s: float | None = None
        self._away_seen_s = 0.0

    async def well(self) -> None:
        """Wait until the service answers and its engine is ready."""
        waits = 0
        while True:
            began_s = asyncio.get_running_loop().time()
            seen = await self.client.look()
            if seen is not None and seen.ready is not False:
                self._saw(seen.restarts)
                self._away_since_s = None
                return
            waits += 1
            words = "no answer" if seen is None else "the engine is not ready"
            took_s = asyncio.get_running_loop().time() - began_s
            await self._wait_away(waits, Got("away", _unsaid(words), took_s))

    @property
    def is_away(self) -> bool:
        """The service did not answer what was asked last."""
        return self._away_since_s is not None

    async def reply(
        self, path: str, body: bytes, output_tokens: int, tries: Tries, *, beside: bool = False
    ) -> Got:
        """An answer with status 200, or a refusal that will not change.

        `beside`: it takes no slot, so it needs no turn. Raises `ItemFailed` when the tries are used
        up, `EngineDied` when it is to be asked again, alone.
        """
        waits = 0
        refused_since_s: float | None = None
        while True:
            got = await self._once(path, body, output_tokens, tries, beside=beside)
            if got.fate == "key":
                raise key_refused(self.client.service.url)
            if got.fate == "away":
                waits += 1
                await self._wait_away(waits, got)
            elif got.fate == "busy":
                waits += 1
                now_s = asyncio.get_running_loop().time()
                refused_since_s = refused_since_s or now_s
                if now_s - refused_since_s > AWAY_LIMIT_S:  # such as one above a key's limit
                    refused_since_s = None
                    tries.spend(said(got.reply))
                self.refused += 1
                try:
                    await self._pause(away_pause_s(waits, got.reply.retry_after_s, self._chance))
                finally:
                    self.refused -= 1
            elif got.fate == "own":
                tries.spend(said(got.reply))
                await self._pause(back_off_s(tries.used, self._chance))
            else:
                return got

    def learn(self, got: Got, prompt_tokens: int, output_tokens: int) -> None:
        """What an answer took teaches patience and pace."""
        self._patience.took(got.seconds, prompt_tokens, output_tokens)
        self._pace.took(got.seconds, prompt_tokens, output_tokens)

    async def _once(
        self, path: str, body: bytes, output_tokens: int, tries: Tries, *, beside: bool
    ) -> Got:
        """One request, and what has become of it; raises `EngineDied`."""
        loop = asyncio.get_running_loop()
        limit_s = self._patience.limit_s(len(body), output_tokens, tries.slow)
        restarts, sent_s = self._restarts, loop.time()
        turn: AbstractAsyncContextManager[None] = nullcontext() if beside else self._turn()
        try:
            async with turn:
                restarts, sent_s = self._restarts, loop.time()
                reply = await self.client.post(path, body, limit_s)
        except AwayError as error:
            return Got("away", _unsaid(str(error)), 0.0)
        except LostError as error:
            reply, fate = _unsaid(str(error)), LOST
        except SlowError:
            tries.slow += 1
            fate = await self._why_slow(sent_s)
            words = f"no answer within {show_duration(limit_s)}"
            return Got(fate, _unsaid(words), loop.time() - sent_s)
        else:
            fate = fate_of(reply)
        if fate == "lost":
            if await self._engine_died(restarts):
                raise EngineDied
            fate = "own"
        if fate == "busy":
            self._pace.refused(reply.retry_after_s)
        if fate != "away":
            self._away_since_s = None
        if fate == "answered" and not beside:
            self._latest_sent_s = max(self._latest_sent_s, sent_s)
        return Got(fate, reply, loop.time() - sent_s)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self.waiting += 1
        waits = True
        try:
            async with self._pace.turn():
                self.waiting -= 1
                waits = False
                self.under_way += 1
                self._changed()
                try:
                    yield
                finally:
                    self.under_way -= 1
        finally:
            self.waiting -= waits

    async def _wait_away(self, waits: int, got: Got) -> None:
        """Wait for a service that is not there; raises `AppError` when it stays away."""
        now_s = asyncio.get_running_loop().time()
        sent_s = now_s - got.seconds
        words, url = got.reply.words, self.client.service.url
        if self._away_since_s is None or sent_s - self._away_seen_s > UNASKED_S:
            self._away_since_s = sent_s
            self._note(_is_away(url, words))
        self._away_seen_s = now_s
        if now_s - self._away_since_s > AWAY_LIMIT_S:
            raise _stays_away(url, words)
        await self._pause(away_pause_s(waits, got.reply.retry_after_s, self._chance))

    async def _pause(self, seconds: float) -> None:
        self._changed()  # its turn is free for another
        await asyncio.sleep(seconds)

    async def _why_slow(self, sent_s: float) -> Fate:
        """What it means that a request got no answer in its time.

        It is the request's own when one that was sent later was answered, or a small one is now;
        else the service is busy with others, or as good as away.
        """
        if self._latest_sent_s > sent_s:
            return "own"
        body: dict[str, object] = {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": PROBE_TOKENS,
        }
        if self.client.service.model is not None:
            body["model"] = self.client.service.model
        data = msgspec.json.encode(body)
        limit_s = self._patience.limit_s(len(data), PROBE_TOKENS)
        try:
            async with self._turn():
                fate = fate_of(await self.client.post(PROBE_PATH, data, limit_s))
        except (AwayError, LostError):
            return "away"
        except SlowError:
            fate = "busy"
        if fate in ("busy", "away", "lost"):
            seen = await self.client.look()
            return "busy" if seen is not None and seen.ready else "away"
        return "own"

    async def _engine_died(self, restarts: float | None) -> bool:
        """Has the engine ended since `restarts` was seen? Else the request was lost alone."""
        for look in range(LOOKS):
            if look:
                await asyncio.sleep(LOOK_PAUSE_S)
            seen = await self.client.look()
            if seen is None or seen.restarts is None:
                return True  # the service itself has gone, or cannot be asked how it is
            self._saw(seen.restarts)
            if restarts is None or seen.restarts != restarts or not seen.whole:
                return True
        return False

    def _saw(self, restarts: float | None) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._restarts is not None and restarts is not None:
            more = min(DEATHS_KEPT, max(0, round(restarts - self._restarts)))
            self.deaths_s.extend([now_s] * more)
        self._restarts = restarts


def said(reply: Reply) -> Reason:
    """The reason of an item whose tries ended with this answer."""
    if reply.status == 0:
        return Reason(
            cause="no answer", seen=f"{reply.words}.".capitalize(), seen_zh=f"{reply.words}。"
        )
    seen = f"HTTP {reply.status}: {reply.words}"
    return Reason(cause="no answer", seen=seen, seen_zh=seen)


def _unsaid(words: str) -> Reply:
    return Reply(0, words.encode())


def _is_away(url: str, words: str) -> Text:
    return Text(f"{url} is away ({words}); waiting.", f"{url} 暂不可用（{words}），正在等待。")


def _stays_away(url: str, words: str) -> AppError:
    limit = show_duration(AWAY_LIMIT_S)
    return AppError(
        Text(
            f"{url} has answered nothing for {limit}: {words}.",
            f"{url} 已有 {limit} 没有应答：{words}。",
        ),
        Text(
            "Start the service again, then `workhorse batch resume`: nothing is lost.",
            "请重新启动服务，然后运行 `workhorse batch resume`：数据不会丢失。",
        ),
    )
