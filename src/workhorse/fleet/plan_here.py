"""Runs on a node: what its engines would be for each weights file that is offered.

The files need not be here: a model is planned from its header, which the head has read. What was
probed, installed and learned on this node decides, as it does for `up`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from workhorse.config import Places, places
from workhorse.errors import AppError
from workhorse.fleet.fleet_plan import (
    READING_TOKENS_PER_S,
    Candidate,
    NodePlans,
    Option,
    Place,
    sum_known,
)
from workhorse.fleet.node_facts import gpu_resource, numa_resource
from workhorse.fleet.spec import WeightsSource
from workhorse.plan.checks import usable_gpus
from workhorse.plan.compare import Fit, compared
from workhorse.plan.cpus import allowed_cores
from workhorse.plan.part import part_of, parts_of
from workhorse.plan.wish import Wish
from workhorse.records import Gpu, Machine, Model, Plan, Stored
from workhorse.text import Text
from workhorse.up.decide import Ask, Decision, Ground, as_tuned, look_around, wanted_of

# Numbers of slots, the most first. More than sixteen share one KV pool so thinly that a few long
# prompts fill it; our own judgement.
SLOTS_TRIED = (16, 12, 8, 6, 4, 3, 2, 1)
_WORST_FIRST: tuple[Fit, ...] = ("no", "memory", "partly", "cards")

Planning = Callable[[Machine], Decision]


@dataclass(frozen=True, slots=True)
class WantedModel:
    """One weights file, or checkpoint, in which the model is offered; read on the head."""

    model: Model
    stored: Stored | None = None  # a checkpoint, for the engines that compute with one
    # What a node fetches, the file that names the model first; (): the path is there on each node.
    weights: tuple[WeightsSource, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a node is asked to plan."""

    models: tuple[WantedModel, ...]
    wish: Wish = field(default_factory=Wish)
    engine: str | None = None  # as `up --engine` takes it
    machine_root: Path | None = None  # a captured machine instead of this one
    tuned: bool = True  # as `tune` has found it best on this node


def plan_here(request: PlanRequest, where: Places | None = None) -> NodePlans:
    """The engines of this node for each file. Probes, starts nothing; blocks for some seconds.

    What cannot be planned is told in words: one file among several takes no other away.
    """
    where = where or places()
    ask = Ask(
        engine=None if request.engine is None else Path(request.engine),
        wish=request.wish,
        machine_root=request.machine_root,
        tuned=request.tuned,
    )
    options: list[Option] = []
    refused: list[Text] = []
    grounds: dict[bool, Ground] = {}
    for number, wanted in enumerate(request.models):
        pooled = wanted.stored is not None
        try:
            refuse_absent(wanted, request)
            if pooled not in grounds:
                asked = wanted_of(ask, wanted.model, wanted.stored)
                grounds[pooled] = look_around(ask, where, wanted=asked)
            engines = engines_for(grounds[pooled], wanted, ask, where)
        except AppError as error:
            refused.append(error.what)
        else:
            options.append(option_of(number, wanted.model, engines))
    return NodePlans(tuple(options), tuple(refused))


def refuse_absent(wanted: WantedModel, request: PlanRequest) -> None:
    """AppError for a path that nobody sends to this node and that is not here."""
    path = Path(wanted.model.path)
    if wanted.weights or request.machine_root is not None or path.exists():
        return
    raise AppError(
        Text(f"{path} is not on this node.", f"本节点上没有 {path}。"),
        Text("Put it there under the same path.", "请将其放到相同路径下。"),
    )


def engines_for(
    ground: Ground, wanted: WantedModel, ask: Ask, where: Places
) -> tuple[Candidate, ...]:
    """The engines to start together on this machine for one file, with slots that suit its speed.

    In a fleet a quick card takes more requests at a time than a slow one: the most at which each
    stream is as fast as people read, with the context and in the devices that the usual number
    would have.
    """
    usual = engines_as_wished(ground, wanted, ask, where)
    if ask.wish.slots is not None or ask.wish.purpose in ("long", "batch"):
        return usual
    for slots in SLOTS_TRIED:
        asked = replace(ask, wish=replace(ask.wish, slots=slots))
        found = engines_as_wished(ground, wanted, asked, where)
        if suits(found, usual, wanted.model):
            return tuple(replace(one, plan=with_slots_reason(one.plan)) for one in found)
    return usual


def suits(found: Sequence[Candidate], usual: Sequence[Candidate], model: Model) -> bool:
    """Whether these engines give up nothing for their number of slots."""
    fit, before = worst_fit(model, found), worst_fit(model, usual)
    shortest = min(one.plan.context_tokens for one in usual)
    return (
        fit != "no"
        and _WORST_FIRST.index(fit) >= _WORST_FIRST.index(before)
        and all(one.plan.context_tokens >= shortest for one in found)
        and all((one.stream_tokens_per_s or 0.0) >= READING_TOKENS_PER_S for one in found)
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


def engines_as_wished(
    ground: Ground, wanted: WantedModel, ask: Ask, where: Places
) -> tuple[Candidate, ...]:
    """The engines for one file with the wished number of slots.

    One for each of the smallest sets of cards that hold the whole model. Where no set does, one
    engine with everything; in main memory one a node, or one over all of them, whichever writes
    more in all.
    """
    machine = ground.machine

    def planned(part: Machine) -> Decision:
        return replace(ground, machine=part).decide(wanted.model, ask.wish, wanted.stored)

    for sets in card_sets(usable_gpus(machine, ground.picked.build)):
        fitting = sets
        while fitting:  # who shares a node's CPUs and memory depends on who is left out
            plans = [planned(part).plan for part in parts_of(machine, fitting)]
            fits = [compared(wanted.model, plan).fit == "cards" for plan in plans]
            if all(fits):
                return tuple(candidate(machine, plan) for plan in plans)
            fitting = tuple(one for one, good in zip(fitting, fits, strict=True) if good)
    whole = planned(machine)
    with suppress(AppError):  # a build or a file that was tuned with may have gone
        whole = as_tuned(whole, replace(ask, model=wanted.model.path), where, wanted.stored)
    one = (candidate(machine, whole.plan),)
    nodes = sorted(allowed_cores(machine))
    if whole.plan.gpu_indexes or len(nodes) < 2:
        return one
    each = [planned(part_of(machine, (), (node,))).plan for node in nodes]
    return more_in_all(one, tuple(candidate(machine, plan) for plan in each))


def card_sets(cards: Sequence[Gpu]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The cards in ever larger equal sets: neighbours of one memory node stay together."""
    order = sorted(cards, key=lambda gpu: (gpu.numa_node or 0, gpu.index))
    indexes = tuple(gpu.index for gpu in order)
    for size in (n for n in range(1, len(indexes) + 1) if len(indexes) % n == 0):
        yield tuple(indexes[start : start + size] for start in range(0, len(indexes), size))


def more_in_all(
    first: tuple[Candidate, ...], second: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """Whichever can run and writes more in all; the first when that is not known."""
    if any(one.plan.verdict.blocked for one in second):
        return first
    if any(one.plan.verdict.blocked for one in first):
        return second
    one, other = (sum_known(each.total_tokens_per_s for each in way) for way in (first, second))
    return second if other is not None and other > (one or 0.0) else first


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
    place = Place(plan.gpu_indexes, nodes if nodes or plan.gpu_indexes else None)
    return Candidate(place, plan, needs)


def reads_memory(plan: Plan) -> bool:
    """Whether weights that each token reads lie in main memory."""
    return any(
        placed.device == "RAM" and placed.group in ("layers", "experts", "output")
        for placed in plan.placement
    )


def worst_fit(model: Model, engines: Sequence[Candidate]) -> Fit:
    """How the engine fits that fits worst."""
    return min((compared(model, one.plan).fit for one in engines), key=_WORST_FIRST.index)


def option_of(number: int, model: Model, engines: tuple[Candidate, ...]) -> Option:
    """What a node does with one file."""
    row, fit = compared(model, engines[0].plan), worst_fit(model, engines)
    return Option(
        number, row.name, row.quantisation, row.bits_a_weight, row.weight_bytes, fit, engines
    )
