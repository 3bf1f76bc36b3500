"""Which variables make sense on this machine with this plan, with which values, and why. Pure.

Each value carries what the forecast says of it, reckoned by the constants alone for both plans. In
order of what they promise; where the forecast is blind, by what such a change was seen to give.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workhorse.plan.memory import device_bytes
from workhorse.records import Estimate, Plan, Rejected
from workhorse.tune import pooled
from workhorse.tune.apply import apply, reckon
from workhorse.tune.card_choices import expert_layers, gpu_layers, sampling, split
from workhorse.tune.cpu_choices import cpus, load, numa, spin, threads
from workhorse.tune.engine_choices import (
    batch,
    drafts,
    engine,
    flash_attention,
    kv,
    micro_batch,
    quant,
    slots,
)
from workhorse.tune.given import Given, Refusal
from workhorse.tune.offer import Around, NotHere, Offer
from workhorse.tune.trial import Change, Goal
from workhorse.tune.variables import Choice, Space, Variable

RULES: tuple[Callable[[Around], Offer | NotHere], ...] = (
    engine, quant, slots, gpu_layers, expert_layers, split, sampling, cpus, threads, numa, load,
    flash_attention, kv, drafts, batch, micro_batch, spin,
)  # fmt: skip
POOLED_RULES: tuple[Callable[[Around], Offer | NotHere], ...] = (
    pooled.environment, slots, pooled.threads, spin, pooled.batch, pooled.kv, pooled.prefix_cache,
)  # fmt: skip
# Of the most that a change was seen to give, the part that is expected of it where the forecast is
# blind: most gains that are told of do not come again.
USUAL_SHARE = 0.3
# A ceiling by guesses rules nothing out.
SURE = ("measured", "datasheet")


@dataclass(frozen=True, slots=True)
class Promised:
    """A variable and what it promises at best."""

    variable: Variable
    ratio: float


def space_of(given: Given, kept: Sequence[Change]) -> Space:
    """The variables around the incumbent of `kept`, in order of what they promise.

    Raises ValueError where `kept` cannot be applied: what was accepted could be.
    """
    plan = apply(given, kept)
    if isinstance(plan, Refusal):
        raise ValueError(plan.because.en)
    rejected: list[Rejected] = []
    promised: list[Promised] = []
    base = reckon(given.by_constants, kept)
    for rule in RULES if given.stored is None else POOLED_RULES:
        offer = rule(Around(given, plan))
        if isinstance(offer, NotHere):
            rejected.append(Rejected(offer.name, offer.because))
            continue
        start = rule(Around(given, given.plan))
        variable, refused = looked_at(given, kept, offer, start, base)
        rejected += refused
        if any(choice.fits and choice.value != variable.now for choice in variable.choices):
            promised.append(Promised(variable, promise(variable, offer)))
    promised.sort(key=lambda one: -one.ratio)  # stable: equal promises stay in order of `RULES`
    return Space(tuple(one.variable for one in promised), tuple(rejected))


def looked_at(
    given: Given,
    kept: Sequence[Change],
    offer: Offer,
    start: Offer | NotHere,
    base: Plan | Refusal,
) -> tuple[Variable, list[Rejected]]:
    """The variable with what the forecast says of each value; values that cannot be, and why."""
    choices: list[Choice] = []
    refused: list[Rejected] = []
    for value in offer.values:
        if value == offer.now:
            choices.append(Choice(value, 1.0, n_bytes=fullest(base)))
            continue
        plan = reckon(given.by_constants, (*kept, Change(offer.name, value)))
        if isinstance(plan, Refusal):
            refused.append(Rejected(f"{offer.name} {value}", plan.because))
            if plan.memory:
                choices.append(Choice(value, fits=False))
            continue
        ratio = None
        if offer.told and not isinstance(base, Refusal):
            ratio = ratio_of(speed_of(plan, given.goal), speed_of(base, given.goal))
        choices.append(Choice(value, ratio, ceiling_of(plan, given.goal), fullest(plan)))
    first = start.now if isinstance(start, Offer) else offer.now
    return Variable(
        offer.name, first, offer.now, tuple(choices), offer.ordered, offer.because
    ), refused


def fullest(plan: Plan | Refusal) -> int | None:
    """What the plan takes of the device that reads its weights; of several, of the fullest."""
    if isinstance(plan, Refusal):
        return None
    devices = [f"GPU {index}" for index in plan.gpu_indexes] or ["RAM"]
    return max(device_bytes(plan.budget, device) for device in devices)


def promise(variable: Variable, offer: Offer) -> float:
    """The best ratio that any value promises."""
    blind = 1 + (offer.seen - 1) * USUAL_SHARE
    return max(
        blind if choice.expected is None else choice.expected
        for choice in variable.choices
        if choice.fits and choice.value != variable.now
    )


def speed_of(plan: Plan, goal: Goal) -> Estimate | None:
    """What the forecast says of a plan; None where it cannot tell."""
    forecast = plan.forecast
    if plan.drafts is not None:
        return forecast.drafted_tokens_per_s if plan.drafts.kind == "draft-mtp" else None
    if goal == "prefill":
        return forecast.prefill_tokens_per_s
    if goal == "decode":
        return forecast.decode_tokens_per_s
    of_slots = (s.total_tokens_per_s for s in forecast.streams if s.streams == plan.slots)
    return next(of_slots, None)


def ratio_of(candidate: Estimate | None, incumbent: Estimate | None) -> float | None:
    """How much faster one forecast is than the other; None where one is not known."""
    if candidate is None or incumbent is None or not incumbent.value:
        return None
    return candidate.value / incumbent.value


def ceiling_of(plan: Plan, goal: Goal) -> float | None:
    """What the memories' bandwidth allows one stream without drafts; None where it is a guess."""
    ceiling = plan.forecast.ceiling_tokens_per_s
    if goal != "decode" or plan.drafts is not None or ceiling is None:
        return None
    return ceiling.value if ceiling.basis in SURE else None
