"""Many streams at a time against one URL, with as little work of our own as can be."""

import asyncio
import json
from dataclasses import dataclass
from time import perf_counter

from workhorse.run.address import Address
from workhorse.serve.engine_socket import ask

PROMPT = "Tell me what this machine is good for. " * 8
# Of a stream that does not go on.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams, one request each; `spread_s`: over which time they begin, evenly.

    Random weights write halves of letters, which an engine keeps back: `whole_letters` False then.
    """

    streams: int
    tokens: int
    spread_s: float = 0.0
    whole_letters: bool = True


@dataclass(frozen=True, slots=True)
class Stream:
    """One request; seconds since it began, the connection included."""

    first_token_s: float
    end_s: float
    chunks: int  # events with text


@dataclass(frozen=True, slots=True)
class Round:
    """One load, done once."""

    streams: tuple[Stream, ...]
    took_s: float

    @property
    def chunks(self) -> int:
        """Of all streams."""
        return sum(one.chunks for one in self.streams)


async def run(url: str, model: str, load: Load, key: str | None = None) -> Round:
    """One round; every stream must give all its tokens."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": load.tokens,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    began_s, place = perf_counter(), Address(url, key)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(stream(place, body, load, load.spread_s * number / load.streams))
            for number in range(load.streams)
        ]
    return Round(tuple(task.result() for task in tasks), round(perf_counter() - began_s, 6))


async def stream(place: Address, body: bytes, load: Load, wait_s: float) -> Stream:
    """One request to its end."""
    if wait_s:
        await asyncio.sleep(wait_s)
    began_s, first_s, chunks, tail = perf_counter(), None, 0, b""
    answer = await ask(place, "POST", "/v1/chat/completions", body)
    try:
        while block := await answer.read_some():
            texts = block.count(b'"content":"') + block.count(b'"content": "')
            if texts and first_s is None:
                first_s = perf_counter()
            chunks += texts
            tail = (tail + block)[-200:]
    finally:
        answer.close()
    if answer.head.status != 200 or first_s is None or b"[DONE]" not in tail:
        raise RuntimeError(f"{place.url}: {answer.head.status} {tail!r}")
    if load.whole_letters and chunks < load.tokens:
        raise RuntimeError(f"{place.url}: {chunks} of {load.tokens} tokens")
    return Stream(round(first_s - began_s, 6), round(perf_counter() - began_s, 6), chunks)
