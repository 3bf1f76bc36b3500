"""One engine on several cards, or several engines: every way that is possible, and the best. Pure.

The smallest set of cards that serves the purpose is taken: a slot for each user at once and a
readable speed. Where more is asked (many users, named cards, a number of engines), the way with
the best total is. A CPU's memory nodes count like cards.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from workhorse.plan.checks import usable_gpus
from workhorse.plan.cpus import allowed_cores, allowed_memory
from workhorse.plan.part import part_of, parts_of
from workhorse.plan.several_groups import best_joined, groups_of
from workhorse.plan.several_lost import lost_copies, trusted
from workhorse.plan.several_spread import Within, spread
from workhorse.plan.several_tried import (
    Tried,
    bandwidth_of,
    best_of,
    reads_ram,
    same_room,
    speed_of,
    way_of,
    whole_on_cards,
    within_of,
    worth_of,
)
from workhorse.plan.several_words import (
    chosen_words,
    forced_impossible,
    losing_words,
    nodes_too_small,
    not_as_asked,
    one_card_each,
    too_small,
)
from workhorse.plan.speed import Experience
from workhorse.plan.wish import Wish, slots_for
from workhorse.records import (
    EngineBuild,
    Gpu,
    Machine,
    Model,
    Plan,
    Reason,
    Rejected,
    Several,
    Split,
    Verdict,
)

PlanFor = Callable[[Machine, Wish], Plan]

# From so many users on what all get together counts, and a second engine is worth its cards.
MANY_USERS = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user said of cards and engines; None: we decide."""

    gpus: tuple[int, ...] | None = None  # indexes of the cards to use
    engines: int | None = None
    split: Split | None = None

    @property
    def anything(self) -> bool:
        """Whether the user said anything."""
        return self != Asked()


def several_plans(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    plan_for: PlanFor,
    *,
    history: Sequence[Experience] = (),
    asked: Asked | None = None,
) -> Several:
    """The plans to start for this model here, and every way that was looked at.

    `plan_for` makes the plan of one engine on a part of the machine. With one card, or none and
    one node, it is the plan that `plan_for` makes of the whole machine.
    """
    search = _Search(machine, model, build, wish, plan_for, history, asked or Asked())
    tried = search.every()
    best = search.choose(tried)
    users = search.users
    others = [one for one in tried if one is not best]
    because = chosen_words(best, users, asked=search.got_what_was_asked(best))
    found = Several(
        plans=tuple(sorted(best.plans, key=lambda plan: -speed_of(plan))),
        split=best.split,
        gpus=(),
        ways=(
            way_of(best, None),
            *(way_of(one, losing_words(one, best, users)) for one in others),
        ),
        reasons=(Reason("engines", str(len(best.plans)), because),) if tried[1:] else (),
        rejected=tuple(search.rejected),
    )
    plans = found.plans
    if search.names_a_way and not search.got_what_was_asked(best):
        said = search.asked
        warning = not_as_asked(said.split, said.engines, len(plans))
        first = plans[0]
        verdict = Verdict((*first.verdict.findings, warning))
        plans = (replace(first, verdict=verdict), *plans[1:])
    return replace(found, plans=plans, gpus=tuple(plan.gpu_indexes for plan in plans))


@dataclass(slots=True)
class _Search:
    """One model on one machine; what cannot be is noted in `rejected`."""

    machine: Machine
    model: Model
    build: EngineBuild
    wish: Wish
    plan_for: PlanFor
    history: Sequence[Experience]
    asked: Asked
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def users(self) -> int:
        """How many are to be served at a time; who names cards or engines wants all of them."""
        named = len(self.asked.gpus or ()) if self.asked.gpus is not None else 0
        return max(slots_for(self.wish), named, self.asked.engines or 0)

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """The cards that may be used."""
        wanted = self.asked.gpus
        return tuple(
            gpu
            for gpu in usable_gpus(self.machine, self.build)
            if wanted is None or gpu.index in wanted
        )

    def every(self) -> list[Tried]:
        """Every way, the one engine that is taken unless more is wanted first."""
        found = self.single()
        plan = found[0].plans[0]
        if plan.gpu_indexes and not reads_ram(plan):
            found += self.replicas(plan)
            found += self.together(plan, [way.plans[0].gpu_indexes for way in found])
        elif not plan.gpu_indexes:
            found += self.nodes(plan)
        return found

    def single(self) -> list[Tried]:
        """One engine: as the planner says; with cards of several kinds also on the fastest ones.

        The planner takes the fewest and the roomiest cards, which can be the slowest.
        """
        all_nodes = tuple(node.index for node in self.machine.nodes)
        whole = tuple(gpu.index for gpu in self.cards)
        usual = self.plan_for(self.part(whole, all_nodes), self.wish)
        lost = lost_copies(self.machine, usual.gpu_indexes, direct=False)
        if lost is not None:
            named = ", ".join(map(str, usual.gpu_indexes))
            self.rejected.append(Rejected(f"layer split over GPU {named}", lost))
            usual = self.plan_for(
                self.part(trusted(self.machine, self.cards), all_nodes), self.wish
            )
        usual = self.better_joined(usual)
        found = {usual.gpu_indexes: usual}
        kinds = {(gpu.name, gpu.memory_total_bytes) for gpu in self.cards}
        if usual.gpu_indexes and not reads_ram(usual) and len(kinds) > 1:
            fastest = sorted(self.cards, key=lambda gpu: (-bandwidth_of(gpu), gpu.index))
            for count in range(1, len(fastest) + 1):
                some = tuple(gpu.index for gpu in fastest[:count])
                plan = self.plan_for(self.part(some, all_nodes), self.wish)
                arrives = lost_copies(self.machine, plan.gpu_indexes, direct=False) is None
                if whole_on_cards(plan) and same_room(plan, usual) and arrives:
                    found.setdefault(plan.gpu_indexes, plan)
                    break
        ways = [Tried(within, within, (plan,)) for plan in found.values()
                for within in (within_of(plan),)]  # fmt: skip
        return sorted(ways, key=lambda way: -worth_of(way))

    def better_joined(self, usual: Plan) -> Plan:
        """The same over as many cards of the same kind that are joined better, where they are."""
        kinds = {(gpu.name, gpu.memory_total_bytes) for gpu in self.cards}
        count = len(usual.gpu_indexes)
        if len(kinds) != 1 or count < 2 or reads_ram(usual):
            return usual
        best = best_joined(self.machine, self.cards, usual.gpu_indexes)
        if best == usual.gpu_indexes:
            return usual
        plan = self.plan_for(
            self.part(best, tuple(node.index for node in self.machine.nodes)), self.wish
        )
        alike = whole_on_cards(plan) and same_room(plan, usual) and plan.gpu_indexes == best
        return plan if alike and plan.kv_type_k == usual.kv_type_k else usual

    def part(self, gpus: Sequence[int], nodes: tuple[int, ...]) -> Machine:
        """The machine with these cards alone, all of its CPUs and memory left."""
        if self.asked.gpus is None and len(gpus) == len(self.cards):
            return self.machine
        return part_of(self.machine, gpus, nodes)

    def replicas(self, one: Plan) -> list[Tried]:
        """One engine on each group of cards, as small as holds the model: on all of them, and on
        the fewest that serve."""
        full = None
        for each in range(1, len(one.gpu_indexes) + 1):
            groups = groups_of(self.machine, self.cards, each)[: self.asked.engines]
            full = self.engines_on(groups, one) if len(groups) > 1 else None
            if full is not None:
                break
        if full is None:
            return []
        if self.asked.anything or slots_for(self.wish) >= MANY_USERS:
            return [full]
        fewer = next(
            (
                n
                for n in range(2, len(full.plans))
                if replace(full, plans=full.plans[:n]).serves(self.users)
            ),
            None,
        )
        if fewer is None:
            return [full]
        smaller = self.engines_on([plan.gpu_indexes for plan in full.plans[:fewer]], one)
        return [full] if smaller is None else [full, smaller]

    def engines_on(self, groups: Sequence[Sequence[int]], one: Plan) -> Tried | None:
        """An engine on each of these groups of cards that holds the model with as much context as
        one engine; None when it is not at least two."""
        fitting = []
        for group in groups:
            lost = lost_copies(self.machine, group, direct=False)
            if lost is None:
                fitting.append(group)
            else:
                named = ", ".join(f"GPU {index}" for index in group)
                self.rejected.append(Rejected(f"an engine on {named}", lost))
        while len(fitting) > 1:
            wish = self.wish_of_each(len(fitting))
            plans = [self.plan_for(part, wish) for part in parts_of(self.machine, fitting)]
            good = [
                whole_on_cards(plan) and plan.context_tokens >= one.context_tokens for plan in plans
            ]
            if all(good):
                return Tried("replicas", within_of(plans[0]), tuple(plans))
            self.rejected += [
                too_small(group, self.machine)
                for group, fits in zip(fitting, good, strict=True)
                if not fits
            ]
            fitting = [group for group, fits in zip(fitting, good, strict=True) if fits]
        return None

    def wish_of_each(self, engines: int) -> Wish:
        """What one of several engines is asked: its part of the slots that were asked for."""
        if self.wish.slots is None:
            return self.wish
        return replace(self.wish, slots=math.ceil(self.wish.slots / engines))

    def together(self, plan: Plan, known: Sequence[tuple[int, ...]]) -> list[Tried]:
        """Cards that share the model although it needs fewer, and other ways to share it."""
        if len(self.cards) < 2:
            return []
        if self.build.engine != "llama.cpp":
            self.rejected.append(one_card_each(self.build))
            return []
        chosen = plan.gpu_indexes
        if len(chosen) < 2:
            chosen = tuple(gpu.index for gpu in self.cards)
        found = []
        modes: tuple[Within, ...] = ("layer", "row", "tensor")
        for mode in modes:
            if mode == "layer" and chosen in known:
                continue
            made = spread(
                self.machine, self.model, self.build, self.wish, self.history, chosen, mode
            )
            if isinstance(made, Rejected):
                self.rejected.append(made)
            else:
                found.append(Tried(mode, mode, (made.plan,), made.experimental))
        return found

    def nodes(self, plan: Plan) -> list[Tried]:
        """One engine on each memory node, for a machine that computes without cards."""
        usable = [
            node
            for node in sorted(allowed_cores(self.machine))
            if allowed_memory(self.machine, (node,)) is not None
        ]
        engines = self.asked.engines or len(usable)
        if not usable or engines < 2 or plan.verdict.blocked:
            return []
        wish = self.wish_of_each(engines)
        # More engines than nodes, which only a user wants, divide the nodes' cores.
        homes = [usable[place % len(usable)] for place in range(engines)]
        plans = tuple(
            self.plan_for(
                part_of(
                    self.machine,
                    (),
                    (home,),
                    place=homes[:place].count(home),
                    sharers=homes.count(home),
                ),
                wish,
            )
            for place, home in enumerate(homes)
        )
        found = Tried("replicas", "one", plans)
        if not found.works or any(len(plan.memory_nodes or (0,)) != 1 for plan in plans):
            self.rejected.append(nodes_too_small(self.model))
            return []
        return [found]

    def choose(self, tried: Sequence[Tried]) -> Tried:
        """The way to take, as the module says."""
        one, users = tried[0], self.users
        works = [way for way in tried if way.works] or [one]
        forced = self.forced(works)
        if forced is not None:
            return forced
        free = [way for way in works if way.experimental is None]
        if not self.asked.anything and users < MANY_USERS and one.works and one.serves(users):
            better = [way for way in free if len(way.plans) == 1 and way.cards <= one.cards]
            return best_of(better, users, one)
        if not self.asked.anything:
            serving = sorted((w for w in free if w.serves(users)), key=lambda way: way.cards)
            if users < MANY_USERS and serving:
                return serving[0]
        return best_of(free, users, one)

    @property
    def names_a_way(self) -> bool:
        """Whether the user named a split or a number of engines."""
        return self.asked.split is not None or self.asked.engines is not None

    def got_what_was_asked(self, way: Tried) -> bool:
        """Whether the user named a split or a number of engines, and this way has it."""
        split, engines = self.asked.split, self.asked.engines
        if not self.names_a_way:
            return False
        shared = split is None or split == way.split or (split != "one" and split == way.within)
        return shared and (engines is None or len(way.plans) == engines)

    def forced(self, works: Sequence[Tried]) -> Tried | None:
        """What the user named; None when nothing was, or nothing of it works."""
        split, engines = self.asked.split, self.asked.engines
        if not self.names_a_way:
            return None
        fitting = [way for way in works if self.got_what_was_asked(way)]
        if not fitting:
            self.rejected.append(forced_impossible(split, engines))
            return None
        return max(fitting, key=lambda way: way.total(self.users))
