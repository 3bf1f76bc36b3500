"""The fake engine's slots and times: who is served when, and when each token leaves.

Times are kept on an absolute schedule: token k of an answer is due at
`start + prefill + ttft + (k - 1) * gap`, so a late token does not make the next one late.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from workhorse.engines.fake.ask import Ask, Refused
from workhorse.engines.fake.wire import Answer, End, Ending, Timings

BATCH_TOKENS = 512  # how often prefill reports progress and can be given up, as with `-b 512`

Emit = Callable[[bytes], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the fake engine is told to be: sizes, times and faults."""

    slots: int = 4
    context_tokens: int = 4096  # of one slot
    ttft_s: float = 0.0  # from a free slot to the first token, prefill apart
    gap_s: float = 0.0  # between two tokens of one answer
    prefill_s_per_token: float = 0.0
    load_s: float = 0.0
    batch_slowdown: float = 0.0  # each further busy slot lengthens the gap by this share
    error_rate: float = 0.0  # share of requests that get a 500
    hang_rate: float = 0.0  # share that never get an answer
    garbage_rate: float = 0.0  # share that are answered with one token over and over
    seed: int = 0
    answer_tokens: int | None = None  # length of an answer that ends by itself
    embeddings: bool = False
    die_after_tokens: int | None = None  # of all answers together
    die_of: str | None = None  # killed by a prompt that holds these words
    fail_after_tokens: int | None = None  # of one answer, which then ends with an error event
    stall_after_tokens: int | None = None  # of all answers together; nothing is said any more
    hang: bool = False  # /health gets no answer
    garbage: bool = False
    deaf: bool = False  # learns that a client left only where llama-server does


@dataclass(frozen=True, slots=True)
class Words:
    """What an answer will say: its pieces, one a token, and how it will end."""

    pieces: Sequence[str]
    ending: Ending
    stop_word: str | None


class Slots:
    """The engine's slots; who comes when none is free waits in line."""

    def __init__(self, count: int) -> None:
        self.busy = [False] * count
        self._line: deque[asyncio.Future[int]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return sum(not place.done() for place in self._line)

    async def take(self) -> int:
        """The index of a slot that is now the caller's own."""
        if False in self.busy:
            slot = self.busy.index(False)
            self.busy[slot] = True
            return slot
        place: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            # The slot may have been handed over in the moment in which the client left.
            if place.done() and not place.cancelled():
                self.give(place.result())
            raise

    def give(self, slot: int) -> None:
        """Free a slot, for the first in line that still waits."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(slot)
                return
        self.busy[slot] = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the events of one answer are due, by the loop's clock in seconds."""

    start_s: float
    first_s: float  # the first token
    last_s: float  # the last token, as long as the number of busy slots stays what it is
    prompt_tokens: int

    def processed_s(self, tokens: int) -> float:
        """When so many tokens of the prompt are done."""
        share = tokens / max(1, self.prompt_tokens)
        return self.start_s + (self.first_s - self.start_s) * share

    def heard_s(self, left_s: float, *, stream: bool, progress: bool) -> float:
        """When llama-server notices that a client left at `left_s`.

        It looks only when it writes (tried with 0.5.0, 2026-11): an answer that is not streamed
        is made to its end, a streamed one keeps its slot until the prompt is done, or until the
        next batch when it reports progress.
        """
        if not stream:
            return self.last_s
        if left_s >= self.first_s:
            return left_s
        if not progress:
            return self.first_s
        return min(
            due_s
            for done in batches(self.prompt_tokens)
            if (due_s := self.processed_s(done)) > left_s
        )


def batches(prompt_tokens: int) -> Sequence[int]:
    """How many tokens of the prompt are done at each report, from none to all."""
    return [*range(0, prompt_tokens, BATCH_TOKENS), prompt_tokens]


class Decoder:
    """Runs answers through the slots, each token at its time."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.slots = Slots(behaviour.slots)
        self._tokens_made = 0

    async def run(
        self, ask: Ask, answer: Answer, words: Words, arrived_s: float, emit: Emit
    ) -> End:
        """Emit an answer's events up to its last token; return what the last events tell.

        `arrived_s` is when the request came, by the loop's clock: the time to the first token
        counts from there, or from the moment in which a slot became free.
        """
        loop = asyncio.get_running_loop()
        waits = all(self.slots.busy)
        slot = await self.slots.take()
        if self.behaviour.die_of is not None and self.behaviour.die_of in answer.prompt:
            _die()
        schedule = self._schedule(answer, words, loop.time() if waits else arrived_s)
        free_s = loop.time()
        try:
            last_s = await self._send(ask, answer, words, schedule, emit)
        except asyncio.CancelledError:
            if self.behaviour.deaf:
                free_s = schedule.heard_s(loop.time(), stream=ask.stream, progress=ask.progress)
            raise
        finally:
            if free_s > loop.time():
                loop.call_at(free_s, self.slots.give, slot)
            else:
                self.slots.give(slot)
        timings = Timings(
            prompt_tokens=answer.prompt_tokens,
            prompt_ms=(schedule.first_s - schedule.start_s) * 1000,
            predicted_tokens=len(words.pieces),
            predicted_ms=(last_s - schedule.first_s) * 1000,
        )
        return End(words.ending, words.stop_word, slot, words.pieces, timings)

    def _schedule(self, answer: Answer, words: Words, start_s: float) -> Schedule:
        prefill_s = answer.prompt_tokens * self.behaviour.prefill_s_per_token
        first_s = start_s + prefill_s + self.behaviour.ttft_s
        last_s = first_s + self._gap_s() * max(0, len(words.pieces) - 1)
        return Schedule(start_s, first_s, last_s, answer.prompt_tokens)

    async def _send(
        self, ask: Ask, answer: Answer, words: Words, schedule: Schedule, emit: Emit
    ) -> float:
        for done in batches(answer.prompt_tokens):
            due_s = schedule.processed_s(done)
            await _until(due_s)
            if ask.progress:
                await emit(answer.progress(done, round((due_s - schedule.start_s) * 1000)))
        due_s = schedule.first_s
        for number, piece in enumerate(words.pieces, 1):
            if number > 1:
                due_s += self._gap_s()
                await _until(due_s)
            await emit(answer.piece(number, piece))
            self._count(number)
            if self._tokens_made == self.behaviour.stall_after_tokens:
                await asyncio.get_running_loop().create_future()
        return due_s

    def _gap_s(self) -> float:
        others = max(0, sum(self.slots.busy) - 1)
        return self.behaviour.gap_s * (1 + self.behaviour.batch_slowdown * others)

    def _count(self, number: int) -> None:
        self._tokens_made += 1
        if self._tokens_made == self.behaviour.die_after_tokens:
            _die()
        if number == self.behaviour.fail_after_tokens:
            raise Refused("told to fail in the middle", "server_error")


def _die() -> None:
    """As the kernel ends a process that took too much memory: no word, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


async def _until(due_s: float) -> None:
    # A sleep of no length lets the other answers go on, also where the told gap is nothing.
    await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
