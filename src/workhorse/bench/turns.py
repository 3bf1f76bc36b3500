"""Two services measured in turns, A B B A …, so that a machine that drifts moves both alike."""

import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import aiohttp

from workhorse.bench.conditions import Sampler, sampling
from workhorse.bench.job import Found
from workhorse.bench.load import Prepared, Tally, measure_requests, prepare, warm_up
from workhorse.bench.scenario import Scenario
from workhorse.records import Measurement

# Two pairs more than the least that can be told: one of them may fail.
PAIRS = 8


@dataclass(slots=True)
class Side:
    """One of the two services, what is sent to it, and what came."""

    found: Found
    seed: int
    prepared: Prepared
    tally: Tally
    sampler: Sampler


async def take_turns(
    client: aiohttp.ClientSession,
    a: Found,
    b: Found,
    scenario: Scenario,
    done: list[tuple[Measurement, Measurement]],
    told: Callable[[int], None],
) -> None:
    """Both sides' measurements into `done`, as far as it gets.

    The i-th round of one was measured beside the i-th of the other. Each side is warmed up first.
    `told` gets the tokens that both have generated so far.
    """
    when = datetime.now(UTC).isoformat(timespec="seconds")
    sides: list[Side] = []
    whole = [0, 0]  # runs of each side in the rounds that both have ended
    began_s = time.perf_counter()
    try:
        async with AsyncExitStack() as stack:
            for one, other in ((a, b), (b, a)):
                sides.append(await side_of(client, one, other, scenario, stack))
            began_s = time.perf_counter()
            for side in sides:
                side.tally.began_s = began_s
            for number in range(len(scenario.rounds)):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    requests = side.prepared.rounds[number]
                    side.tally.runs += await measure_requests(
                        side.found.service, requests, time.perf_counter, side.tally
                    )
                    told(sum(one.tally.pieces for one in sides))
                whole = [len(side.tally.runs) for side in sides]
    finally:
        if all(whole):
            first, second = (
                scenario.measurement(
                    side.tally.runs[:count],
                    replace(side.found.conditions(when), samples=side.sampler.samples(began_s)),
                    side.seed,
                )
                for side, count in zip(sides, whole, strict=True)
            )
            done.append((first, second))


async def side_of(
    client: aiohttp.ClientSession,
    found: Found,
    beside: Found,
    scenario: Scenario,
    stack: AsyncExitStack,
) -> Side:
    """A side that is warm; its prompts are its own, as both may be one service."""
    seed = secrets.randbits(32)
    prepared = await prepare(client, found.service, scenario, seed)
    sampler = await stack.enter_async_context(
        sampling(found.service.url, found.served_by, also=(beside.service.url,))
    )
    await warm_up(found.service, prepared.warm_up, scenario, time.perf_counter)
    return Side(found, seed, prepared, Tally(), sampler)
