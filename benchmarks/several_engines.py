"""Two engines of one model behind one gateway: `several_engines.py OUT.json`.

Fake engines give tokens by the clock, so that what is measured is the gateway: do two of them give
twice what one gives, and does a conversation stay with the engine that has its beginning?
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import aiohttp

from gateway_alone import RunningEngine
from servers import running
from workhorse.run.process import free_port
from workhorse.serve.activity import Activity
from workhorse.serve.app import QUEUE, Gateway, build_app
from workhorse.serve.backend import Capacity, Roster, Served
from workhorse.serve.queue import Place

SLOTS = 4
GAP_MS = 20
TTFT_MS = 40
TOKENS = 24
CLIENTS = 16
ANSWERS = 6  # of each client in one round
PREFILL_MS = 1  # a token
CONVERSATIONS = 8
TURNS = 6
PREFIX_BYTES = 4200


@dataclass(frozen=True, slots=True)
class Round:
    """One load on so many engines."""

    engines: int
    tokens_per_s: float
    answers_of_each: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """How often a turn went to the engine that had the turn before; by chance it is a half."""

    clients: int
    slots: int
    turns: int
    same_engine: int


@contextmanager
def engines(count: int) -> Iterator[tuple[str, ...]]:
    """The addresses of fake engines."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(running(command(port), port, "/health")).url
                    for port in (free_port("127.0.0.1") for _ in range(count)))  # fmt: skip


def command(port: int) -> tuple[str, ...]:
    """How one is started."""
    options = {"--port": port, "--slots": SLOTS, "--gap-ms": GAP_MS, "--ttft-ms": TTFT_MS}
    options["--prefill-ms-per-token"] = PREFILL_MS
    words = (str(word) for pair in options.items() for word in pair)
    return (sys.executable, "-m", "workhorse.engines.fake", *words)


class Front:
    """A gateway before engines; notes which of them gave each answer."""

    def __init__(self, urls: Sequence[str]) -> None:
        capacity = Capacity(SLOTS, 4096, 1000 / PREFILL_MS, 1000 / GAP_MS, SLOTS * 1000 / GAP_MS)
        self.served = tuple(
            Served("m", RunningEngine(url), capacity, on=f"GPU {index}")
            for index, url in enumerate(urls)
        )
        app = build_app(Roster(self.served), activity=Activity())
        app[QUEUE].answered.append(self._answered)
        self.gave: list[tuple[str, int]] = []  # the end of the prompt, the engine's place
        self.gateway = Gateway(app)

    def _answered(self, place: Place) -> None:
        at = next(i for i, one in enumerate(self.served) if one.name == place.served.name)
        self.gave.append((place.ask.prompt[:40].decode(), at))

    async def __aenter__(self) -> "Front":
        await self.gateway.start(port=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gateway.stop()


async def ask(http: aiohttp.ClientSession, prompt: str) -> int:
    """One streamed answer; its tokens."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    async with http.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        return sum([b'"text"' in line async for line in answer.content])


async def load(urls: Sequence[str]) -> Round:
    """Many clients at once, each with prompts of its own."""
    async with Front(urls) as front, aiohttp.ClientSession(front.gateway.url) as http:

        async def client(number: int) -> int:
            return sum([await ask(http, f"{number} {turn} go on") for turn in range(ANSWERS)])

        began_s = time.perf_counter()
        tokens = sum(await asyncio.gather(*(client(number) for number in range(CLIENTS))))
        took_s = time.perf_counter() - began_s
    of_each = tuple(sum(at == place for _, at in front.gave) for place in range(len(urls)))
    return Round(len(urls), tokens / took_s, of_each)


async def conversations(urls: Sequence[str], clients: int) -> Kept:
    """Conversations that go on in any order, so many of them at the same time."""
    order = [number for number in range(CONVERSATIONS) for _ in range(TURNS)]
    random.Random(1).shuffle(order)
    locks = [asyncio.Lock() for _ in range(CONVERSATIONS)]
    said = [f"conversation {n}: ".ljust(PREFIX_BYTES, chr(97 + n)) for n in range(CONVERSATIONS)]
    async with Front(urls) as front, aiohttp.ClientSession(front.gateway.url) as http:

        async def client() -> None:
            while order:
                number = order.pop()
                async with locks[number]:  # the next turn comes after the answer
                    await ask(http, said[number])
                    said[number] += f" turn of {number}."

        await asyncio.gather(*(client() for _ in range(clients)))
    last: dict[str, int] = {}
    same = turns = 0
    for beginning, at in front.gave:
        if beginning in last:
            turns, same = turns + 1, same + (last[beginning] == at)
        last[beginning] = at
    return Kept(clients, SLOTS * len(urls), turns, same)


async def measure(rounds: int) -> dict[str, object]:
    """Both questions, one and two engines in turns."""
    found: list[Round] = []
    with engines(2) as urls:
        for number in range(rounds):
            pair = (urls[:1], urls) if number % 2 == 0 else (urls, urls[:1])
            found += [await load(some) for some in pair]
        kept = [await conversations(urls, clients) for clients in (2, 4, 8)]
    speeds = {n: median(r.tokens_per_s for r in found if r.engines == n) for n in (1, 2)}
    return {
        "tokens_per_s": speeds,
        "ratio": speeds[2] / speeds[1],
        "rounds": [asdict(one) for one in found],
        "affinity": [asdict(one) for one in kept],
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    result = asyncio.run(measure(asked.rounds))
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}, indent=1))


if __name__ == "__main__":
    main()
