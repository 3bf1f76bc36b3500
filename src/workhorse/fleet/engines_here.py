"""The engines that one machine would start for one weights file, with slots that suit its speed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet.fleet_plan import (
    READING_TOKENS_PER_S,
    Candidate,
    Option,
    Place,
    stream_speed,
)
from workhorse.fleet.node_facts import gpu_resource, numa_resource
from workhorse.plan.checks import usable_gpus
from workhorse.plan.compare import Fit, compared
from workhorse.plan.cpus import allowed_cores
from workhorse.plan.part import part_of, parts_of
from workhorse.plan.several import Asked, several_plans
from workhorse.plan.wish import Wish
from workhorse.records import Machine, Model, Plan, Several, Stored
from workhorse.text import Text
from workhorse.up.decide import Ask, Ground, as_tuned

# Numbers of slots, the most first. More than sixteen share one KV pool so thinly that a few long
# prompts fill it; our own judgement.
SLOTS_TRIED = (16, 12, 8, 6, 4, 3, 2, 1)
_WORST_FIRST: tuple[Fit, ...] = ("no", "memory", "partly", "cards")

PlanFor = Callable[[Machine, Wish], Plan]


def engines_for(
    ground: Ground, model: Model, stored: Stored | None, ask: Ask, where: Places
) -> tuple[Candidate, ...]:
    """The engines to start together on this machine for one file.

    The cards and nodes are shared out as for many users. Then a quick card takes more requests at
    a time than a slow one: the most at which each stream is as fast as people read, with the
    context and in the devices that the usual number would have.
    """
    machine = ground.machine

    def plan_for(part: Machine, wish: Wish) -> Plan:
        return replace(ground, machine=part).decide(model, wish, stored).plan

    cards = tuple(gpu.index for gpu in usable_gpus(machine, ground.picked.build))
    several = several_plans(
        machine,
        model,
        ground.picked.build,
        ask.wish,
        plan_for,
        history=ground.history,
        asked=Asked(gpus=cards),
    )
    usual = several.plans
    if len(usual) == 1:
        whole = ground.decide(model, ask.wish, stored)
        with suppress(AppError):  # a build or a file that was tuned with may have gone
            tuned = as_tuned(whole, replace(ask, model=model.path), where, stored)
            usual = (tuned.plan,) if tuned != whole else usual
    if ask.wish.slots is None and ask.wish.purpose not in ("long", "batch"):
        usual = with_suitable_slots(machine, model, several, usual, ask.wish, plan_for)
    return tuple(candidate(machine, plan) for plan in usual)


def with_suitable_slots(
    machine: Machine,
    model: Model,
    several: Several,
    usual: tuple[Plan, ...],
    wish: Wish,
    plan_for: PlanFor,
) -> tuple[Plan, ...]:
    """The same engines with the most slots at which each stream is as fast as people read."""
    if several.split in ("row", "tensor"):  # planned by other means than one engine's plan
        return usual
    parts = engine_parts(machine, usual)
    for slots in SLOTS_TRIED:
        found = tuple(plan_for(part, replace(wish, slots=slots)) for part in parts)
        if suits(found, usual, model):
            return tuple(map(with_slots_reason, found))
    return usual


def engine_parts(machine: Machine, plans: Sequence[Plan]) -> tuple[Machine, ...]:
    """What each engine sees of the machine."""
    if len(plans) == 1:
        return (machine,)
    if all(plan.gpu_indexes for plan in plans):
        return parts_of(machine, [plan.gpu_indexes for plan in plans])
    return tuple(part_of(machine, (), plan.memory_nodes) for plan in plans)


def suits(found: Sequence[Plan], usual: Sequence[Plan], model: Model) -> bool:
    """Whether these engines give up nothing for their number of slots."""
    fit, before = worst_fit(model, found), worst_fit(model, usual)
    shortest = min(plan.context_tokens for plan in usual)
    return (
        fit != "no"
        and _WORST_FIRST.index(fit) >= _WORST_FIRST.index(before)
        and all(plan.context_tokens >= shortest for plan in found)
        and all((stream_speed(plan) or 0.0) >= READING_TOKENS_PER_S for plan in found)
    )


def with_slots_reason(plan: Plan) -> Plan:
    """The plan with what decided on its slots, which nobody asked for."""
    because = Text(
        "The most at which each stream is still as fast as people read.",
        "在每路仍达到阅读速度的前提下取最多。",
    )
    reasons = (
        replace(one, because=because) if one.setting == "slots" else one for one in plan.reasons
    )
    return replace(plan, reasons=tuple(reasons))


def candidate(machine: Machine, plan: Plan) -> Candidate:
    """The engine of a plan, with what it claims of the node.

    Cards that hold everything leave the memory's bandwidth to others; weights in main memory
    take all of it.
    """
    needs = {gpu_resource(index): 1.0 for index in plan.gpu_indexes}
    nodes = plan.memory_nodes
    if not plan.gpu_indexes or reads_memory(plan):
        every = tuple(sorted(allowed_cores(machine))) or (0,)
        needs |= {numa_resource(node): 1.0 for node in nodes or every}
    return Candidate(Place(plan.gpu_indexes, nodes), plan, needs)


def reads_memory(plan: Plan) -> bool:
    """Whether weights that each token reads lie in main memory."""
    return any(
        placed.device == "RAM" and placed.group in ("layers", "experts", "output")
        for placed in plan.placement
    )


def worst_fit(model: Model, plans: Sequence[Plan]) -> Fit:
    """How the engine fits that fits worst."""
    return min((compared(model, plan).fit for plan in plans), key=_WORST_FIRST.index)


def option_of(number: int, model: Model, engines: tuple[Candidate, ...]) -> Option:
    """What a node does with one file."""
    plans = [one.plan for one in engines]
    row, fit = compared(model, plans[0]), worst_fit(model, plans)
    return Option(
        number, row.name, row.quantisation, row.bits_a_weight, row.weight_bytes, fit, engines
    )
