"""`workhorse bench` as one job: find the service, say how long it takes, measure it."""

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

import aiohttp

from workhorse import __version__
from workhorse.bench.conditions import is_loopback, sampling
from workhorse.bench.identify import who_serves
from workhorse.bench.load import Progress, load_session, measure_service, warm_up
from workhorse.bench.own_service import decided_by, with_speeds
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import Service, find_service
from workhorse.bench.stats import decode_tokens_per_s, ttft_s
from workhorse.bench.suites import Sizes, Speeds, What, expected_s, scenarios_for
from workhorse.bench.tokenizer import make_prompts
from workhorse.config import places
from workhorse.machine.probe import probe
from workhorse.records import Conditions, Machine, Measurement, Plan, ServedBy

# Long enough to tell prefill from decode, short enough for a slow machine.
FIRST = Scenario("first", prompt_tokens=64, output_tokens=16, repeats=1)


@dataclass(frozen=True, slots=True)
class Where:
    """A service as the user names it."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured."""

    where: Where
    what: tuple[What, ...] = ("standard",)
    sizes: Sizes = field(default_factory=Sizes)


class Teller(Protocol):
    """Who tells the user how it goes."""

    def expected(self, scenarios: Sequence[Scenario], seconds: tuple[float, float]) -> None:
        """What will be measured, and the least and most time that it takes."""

    def step(self, scenario: Scenario, done: int, total: int) -> None:
        """So many of all tokens were generated."""


@dataclass(frozen=True, slots=True)
class Found:
    """A service that answered, and what is known of it."""

    service: Service
    served_by: ServedBy
    machine: Machine | None  # None: it runs elsewhere
    plan: Plan | None = None  # None: not surely known

    def conditions(self, when: str) -> Conditions:
        """The conditions without samples."""
        return Conditions(
            when, self.machine, self.plan, self.service.url, __version__, served_by=self.served_by
        )


async def bench(asked: Asked, done: list[Measurement], tell: Teller) -> None:
    """Measure into `done`; what is complete gets there also when an error or Ctrl-C ends it.

    Raises `AppError` when nobody answers, or when a first request fails.
    """
    async with load_session() as client:
        found = await find(client, asked.where)
        served = found.served_by
        scenarios = scenarios_for(
            asked.what, asked.sizes, slots=served.slots, context_tokens=served.context_tokens
        )
        tell.expected(scenarios, expected_s(scenarios, await first_speeds(client, found.service)))
        total = sum(scenario.generated_tokens for scenario in scenarios)
        before = 0
        for scenario in scenarios:

            def told(pieces: int, now: Scenario = scenario, earlier: int = before) -> None:
                tell.step(now, min(total, earlier + pieces), total)

            await take(client, found, scenario, done, told)
            before += scenario.generated_tokens


async def find(client: aiohttp.ClientSession, where: Where) -> Found:
    """The service and what it tells of itself; of one that `up` runs here, its plan as well."""
    service = await find_service(client, where.url, where.api_key, model=where.model, tls=where.tls)
    served_by = await who_serves(client, service)
    here = is_loopback(service.url)
    if not here:
        return Found(service, served_by, None)
    machine = await asyncio.to_thread(probe, measure_s=0)
    decided = await decided_by(client, service, places())
    if decided is None:
        return Found(service, served_by, machine)
    # What one of several engines was planned to do is no measure of all of them together.
    plan = decided.plan if decided.engines == 1 else None
    return Found(service, served_by, with_speeds(machine, decided.machine), plan)


async def first_speeds(client: aiohttp.ClientSession, service: Service) -> Speeds:
    """What one short request shows; it is not counted."""
    prompts = await make_prompts(client, service, FIRST, secrets.randbits(32))
    run = await warm_up(service, prompts[-1], FIRST, time.perf_counter)
    first_s = ttft_s(run) or run.end_s
    return Speeds(
        prefill_tokens_per_s=FIRST.prompt_tokens / max(first_s, 1e-6),
        decode_tokens_per_s=decode_tokens_per_s(run)
        or max(1, run.output_tokens) / max(run.end_s, 1e-6),
    )


async def take(
    client: aiohttp.ClientSession,
    found: Found,
    scenario: Scenario,
    done: list[Measurement],
    told: Callable[[int], None],
) -> None:
    """One scenario into `done`, as far as it gets."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    seed = secrets.randbits(32)
    last = Progress((), 0)

    def keep(progress: Progress) -> None:
        nonlocal last
        last = progress
        told(progress.pieces)

    conditions = found.conditions(when)
    try:
        async with sampling(found.service.url, found.served_by) as sampler:
            await measure_service(client, found.service, scenario, on_progress=keep, seed=seed)
    finally:
        if last.runs:
            samples = () if last.began_s is None else sampler.samples(last.began_s)
            done.append(scenario.measurement(last.runs, replace(conditions, samples=samples), seed))
