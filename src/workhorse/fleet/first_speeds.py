"""How fast a replica is, measured for some seconds before anybody is served.

The gateway chooses between replicas by these figures: a forecast is off by another share on each
kind of machine, and would send everybody to the one that it flatters.
"""

import asyncio
from dataclasses import dataclass, replace
from statistics import median

from workhorse.bench.load import measure
from workhorse.bench.scenario import Scenario
from workhorse.bench.stats import (
    decode_tokens_per_s,
    known,
    prefill_tokens_per_s,
    total_tokens_per_s,
)
from workhorse.errors import AppError
from workhorse.records import Plan, Run
from workhorse.run.address import Address
from workhorse.serve.backend import capacity_of

BUDGET_S = 20.0  # by the plan's own forecast, for all of it
PATIENCE_S = 120.0  # a forecast may be off; after this the plan's figures have to do
LEAST_TOKENS = 16

ONE_STREAM = Scenario("first speeds", prompt_tokens=512, output_tokens=64, repeats=1)
ALL_SLOTS = Scenario("first speeds", prompt_tokens=32, output_tokens=48, repeats=1)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens a second; None where not known."""

    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None  # of one stream alone
    total_tokens_per_s: float | None  # of all slots together


def forecast_of(plan: Plan) -> Speeds:
    """What the plan promises."""
    promised = capacity_of(plan)
    return Speeds(
        promised.prefill_tokens_per_s, promised.decode_tokens_per_s, promised.total_tokens_per_s
    )


def scenarios(plan: Plan, budget_s: float = BUDGET_S) -> tuple[Scenario, ...]:
    """One stream, then all slots, as long as the budget and a slot's context allow. Pure."""
    told = forecast_of(plan)
    decode = told.decode_tokens_per_s or 1.0
    total = told.total_tokens_per_s or decode
    prefill = told.prefill_tokens_per_s or 1.0
    several = replace(ALL_SLOTS, streams=plan.slots)
    both = (ONE_STREAM, several) if plan.slots > 1 else (ONE_STREAM,)
    # Each begins with one request to warm up.
    needed_s = sum(
        (one.streams + 1) * one.prompt_tokens / prefill
        + one.streams * one.output_tokens / (total if one.streams > 1 else decode)
        + LEAST_TOKENS / decode
        for one in both
    )
    share = min(1.0, budget_s / needed_s)
    return tuple(_shortened(one, share, plan.context_tokens) for one in both)


def _shortened(one: Scenario, share: float, context_tokens: int) -> Scenario:
    def shortened(tokens: int, most: int) -> int:
        return max(1, min(most, max(LEAST_TOKENS, round(tokens * share))))

    return replace(
        one,
        prompt_tokens=shortened(one.prompt_tokens, context_tokens // 2),
        output_tokens=shortened(one.output_tokens, context_tokens // 4),
    )


def speeds_in(plan: Plan, alone: tuple[Run, ...], together: tuple[Run, ...]) -> Speeds | None:
    """What the runs of one stream and of all slots say; None when they say nothing. Pure."""
    decodes = known(map(decode_tokens_per_s, alone))
    prefills = known(map(prefill_tokens_per_s, alone))
    if not decodes:
        return None
    each = known(map(decode_tokens_per_s, together))
    # Where an answer came in one piece only the whole round tells, prefill included.
    total = sum(each) if len(each) == plan.slots else total_tokens_per_s(together)
    decode = median(decodes)
    return Speeds(
        median(prefills) if prefills else None, decode, decode if plan.slots == 1 else total
    )


async def first_speeds(plan: Plan, address: Address, budget_s: float = BUDGET_S) -> Speeds | None:
    """The speeds of an engine that nobody else asks; None when they cannot be measured in time."""
    if plan.embeddings:
        return None
    runs: list[tuple[Run, ...]] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            for one in scenarios(plan, budget_s):
                runs.append(
                    await measure(address.url, one, on_progress=lambda _: None, api_key=address.key)
                )
    except (AppError, TimeoutError):
        if not runs:
            return None
    return speeds_in(plan, runs[0], runs[1] if len(runs) > 1 else ())
