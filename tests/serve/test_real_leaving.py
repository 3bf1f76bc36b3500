"""A client leaves the real engine: it stops at its next step but one.

A slot is freed between two steps of the engine, which hears of the client one step late. A step
is one token in decode and 512 in prefill: milliseconds, and a second or less where prefill makes
1,000 tokens a second. Other work on the cores stretches every step, so what the engine computed
after the client had left is counted in tokens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import openai
import pytest
import pytest_asyncio
from real_engine import SLOTS, RealEngine, real_engine
from stand_ins import StandInBackend, gateway

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

BATCH_TOKENS = 512
SECOND_OF_DECODE_TOKENS = 110  # this model, two quiet cores
SHORT_TOKENS = 40  # the short prompts with their template
PROMPT_TOKENS = 4800
LONG = "tell me about the river and the old house near the tree " * 400  # 12 tokens each
Slot = dict[str, Any]
MOST_TOKENS = 4000  # of an answer: the better part of a minute
ATTEMPTS = 6
NEVER_ENDING: Any = {
    "model": "horse",
    "max_tokens": MOST_TOKENS,
    "extra_body": {"ignore_eos": True},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    real_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealEngine]:
    async with real_engine(real_model, tmp_path_factory.mktemp("engine") / "log") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(engine: RealEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        gateway(StandInBackend(engine.url)) as front,
        openai.AsyncOpenAI(base_url=f"{front}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


class Guest:
    """A client that can leave, streaming or not."""

    def __init__(self, client: openai.AsyncOpenAI, words: str, *, stream: bool) -> None:
        asked: Any = {"messages": [{"role": "user", "content": words}], **NEVER_ENDING}
        self._task = asyncio.create_task(self._ask(client, asked, stream))

    async def _ask(self, client: openai.AsyncOpenAI, asked: Any, stream: bool) -> None:
        if not stream:
            await client.chat.completions.create(**asked)
            return
        async with await client.chat.completions.create(stream=True, **asked) as parts:
            async for _ in parts:
                pass

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def leave(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


class Leaves(Protocol):
    """A client that can leave."""

    @property
    def ended(self) -> bool:
        """Whether it has its whole answer."""

    async def leave(self) -> None:
        """Be gone."""


async def progressed(
    engine: RealEngine, guest: Leaves, count: Callable[[Slot], int], most: int, steps: int = 2
) -> int:
    """Waits for some steps of the one busy slot; how many tokens it has done by then.

    Steps that nobody saw are not waited for: it has done `most` then, or all.
    """
    seen = {0}

    def enough(busy: list[Slot], queued: int) -> bool:
        seen.update(count(slot) for slot in busy)
        return len(seen) > steps or max(seen) >= most or guest.ended

    await engine.until(enough)
    return max(seen)


async def stopped(engine: RealEngine, before: int) -> None:
    """Waits until the engine computes nothing and has said so once more than before."""
    await engine.until(lambda busy, _: not busy and len(engine.stops()) > before)


async def frees_its_slot(
    engine: RealEngine,
    comes: Callable[[int], Leaves],
    count: Callable[[Slot], int],
    *,
    most_done: int,
    more: int,
) -> None:
    """A client that leaves after some steps, of at most so many tokens, stops the engine soon.

    Soon: before it has computed so many `more`. This process may have to wait for its turn between
    its look and its leave, so it is tried again; an engine that goes on does so each time.
    """
    seen = []
    for attempt in range(ATTEMPTS):
        before = len(engine.stops())
        guest = comes(attempt)
        done = await progressed(engine, guest, count, most_done)
        await guest.leave()
        await stopped(engine, before)
        seen.append((done, engine.stops()[-1]))
        if done < most_done and seen[-1][1] <= done + more:
            return
    raise AssertionError(f"tokens when it left, and in the end: {seen}")


def prefilled(slot: Slot) -> int:
    tokens: int = slot["n_prompt_tokens_processed"]
    return tokens


def decoded(slot: Slot) -> int:
    tokens: int = slot["next_token"][0]["n_decoded"]
    return tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_in_prefill(engine: RealEngine, client: openai.AsyncOpenAI, stream: bool) -> None:
    def comes(attempt: int) -> Guest:  # nothing of it is in the cache
        return Guest(client, f"{stream} {attempt} {LONG}", stream=stream)

    most = PROMPT_TOKENS - 3 * BATCH_TOKENS
    await frees_its_slot(engine, comes, prefilled, most_done=most, more=3 * BATCH_TOKENS)


@pytest.mark.parametrize("stream", [True, False])
async def test_in_decode(engine: RealEngine, client: openai.AsyncOpenAI, stream: bool) -> None:
    def comes(_: int) -> Guest:
        return Guest(client, "Tell a story.", stream=stream)

    more = SHORT_TOKENS + SECOND_OF_DECODE_TOKENS
    await frees_its_slot(engine, comes, decoded, most_done=MOST_TOKENS, more=more)


async def test_in_the_queue(engine: RealEngine, client: openai.AsyncOpenAI) -> None:
    """Who has left is not computed for when a slot becomes free."""
    stops_before = len(engine.stops())
    others = [Guest(client, f"Tell story {n}.", stream=True) for n in range(SLOTS)]
    await engine.until(lambda busy, _: len(busy) == SLOTS)
    waiting = Guest(client, f"queued {LONG}", stream=False)
    await engine.until(lambda _, queued: queued == 1)
    await waiting.leave()
    for other in others:
        await other.leave()
    await engine.until(lambda busy, queued: not busy and not queued)
    # Not even the longest answer of the others is as long as its prompt.
    assert max(engine.stops()[stops_before:]) < PROMPT_TOKENS
