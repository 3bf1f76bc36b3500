"""The engines of one model: how many, on which part of this machine each, and how they start."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.guard.engine_place import listed
from workhorse.machine.p2p import measure_peers
from workhorse.plan.checks import usable_gpus
from workhorse.plan.several import Asked, several_plans
from workhorse.plan.several_groups import groups_of
from workhorse.records import EngineBuild, Gpu, GpuLink, Machine, Plan, Several
from workhorse.text import Text
from workhorse.up.decide import ALL, Ask, Decision, Fetching, Question, Running, ask_around
from workhorse.up.teller import Teller

if TYPE_CHECKING:
    from workhorse.up.engine import Engine


Measure = Callable[[Sequence[Gpu], Sequence[GpuLink]], tuple[tuple[GpuLink, ...], tuple[Text, ...]]]


@dataclass(frozen=True, slots=True)
class Part:
    """What was decided for one engine of a model, and where it runs: "" when it is the only one."""

    decision: Decision
    on: str


async def decided(
    ask: Ask, where: Places, tell: Teller, instead_of: Running | None = None
) -> tuple[Part, ...]:
    """Probe, fetch and plan, off the event loop; a download ends when it is cancelled."""
    leaving = threading.Event()

    def fetching(done_bytes: int, total_bytes: int | None) -> None:
        if leaving.is_set():  # the thread has no other way to learn that nobody waits for it
            raise asyncio.CancelledError
        tell.fetching(done_bytes, total_bytes)

    try:
        return await asyncio.to_thread(decide_parts, ask, where, fetching, instead_of)
    finally:
        leaving.set()


def decide_parts(
    ask: Ask, where: Places, fetching: Fetching, instead_of: Running | None = None
) -> tuple[Part, ...]:
    """The engines to start for a model, the one that is expected to be fastest first; blocks."""
    return decide_ways(ask, where, fetching, instead_of)[1]


def decide_ways(
    ask: Ask, where: Places, fetching: Fetching, instead_of: Running | None = None
) -> tuple[Several, tuple[Part, ...]]:
    """Every way to use this machine for a model, and the engines of the one that is taken; blocks.

    The plans of the first are those of the engines.
    """
    question = ask_around(ask, where, fetching, instead_of)
    found = several_of(question)
    if not instead_of:  # nothing is measured while an engine works
        question, found = with_all_tried(question, found)
    machine, model = question.ground.machine, question.seen.model
    decisions = [Decision(machine, model, told(plan, found)) for plan in found.plans]
    names = places_of(found.plans)
    if len(decisions) == 1:
        names = ("",)
        if ask.gpus is None and ask.split is None:
            decisions = [question.tuned(decisions[0], where)]
    parts = tuple(Part(question.noted(one), on) for one, on in zip(decisions, names, strict=True))
    return replace(found, plans=tuple(part.decision.plan for part in parts)), parts


def with_all_tried(
    question: Question, found: Several, measure: Measure = measure_peers
) -> tuple[Question, Several]:
    """The plans once all copies that they rest on were tried.

    Cards that lose copies are left apart, and those taken instead are tried in their turn.
    """
    while (tried := with_tried_copies(question, found, measure)) is not question:
        question, found = tried, several_of(tried)
    return question, found


def with_tried_copies(
    question: Question, found: Several, measure: Measure = measure_peers
) -> Question:
    """The same question once copies between the cards that would share the model were tried.

    Only where one engine takes several cards of this machine: on some boards such copies are lost
    without an error, and the model would answer with garbage.
    """
    ask, machine = question.ask, question.ground.machine
    shared = [set(plan.gpu_indexes) for plan in found.plans if len(plan.gpu_indexes) > 1]
    fresh = [
        link
        for link in machine.gpu_links
        if any({link.first, link.second} <= cards for cards in shared)
        and not link.copies
        and (link.first, link.second) not in question.tried
    ]
    if not fresh or ask.parts is not None or ask.machine_root is not None:
        return question
    used = {card for link in fresh for card in (link.first, link.second)}
    links, doubts = measure([gpu for gpu in machine.gpus if gpu.index in used], fresh)
    seen = {(link.first, link.second): link for link in links}
    machine = replace(
        machine,
        gpu_links=tuple(seen.get((link.first, link.second), link) for link in machine.gpu_links),
        doubts=(*machine.doubts, *doubts),
    )
    question = replace(question, tried=question.tried | seen.keys())
    return replace(question, ground=replace(question.ground, machine=machine))


def several_of(question: Question) -> Several:
    """Every way to use this machine's cards and nodes for the model, the best one taken."""
    ask, ground = question.ask, question.ground
    build = ground.picked.build
    return several_plans(
        ground.machine,
        question.seen.model,
        build,
        ask.wish,
        lambda machine, wish: question.on(machine, wish).plan,
        history=ground.history,
        asked=Asked(cards_asked(ask, ground.machine, build), ask.engines, ask.split),
    )


def told(plan: Plan, found: Several) -> Plan:
    """The plan of one engine, with why there are so many of them."""
    return replace(
        plan,
        reasons=(*found.reasons, *plan.reasons),
        rejected=(*plan.rejected, *found.rejected),
    )


def cards_asked(ask: Ask, machine: Machine, build: EngineBuild) -> tuple[int, ...] | None:
    """The indexes of the cards that the user wants; None: we decide. AppError: not to be had."""
    if ask.gpus is None:
        return None
    usable = usable_gpus(machine, build)
    here = tuple(gpu.index for gpu in usable)
    if ask.gpus == ALL:
        wanted: Sequence[int] = here
    elif isinstance(ask.gpus, int):
        group = groups_of(machine, usable, ask.gpus)
        wanted = group[0] if group else range(ask.gpus)
    else:
        wanted = ask.gpus
    if not here or not set(wanted) <= set(here):
        raise no_such_cards(ask, here, build)
    return tuple(wanted)


def no_such_cards(ask: Ask, here: Sequence[int], build: EngineBuild) -> AppError:
    """The user wants cards that are not here, or that the engine has no code for."""
    listed = ", ".join(f"GPU {index}" for index in here)
    asked = ask.gpus if isinstance(ask.gpus, (int, str)) else ",".join(map(str, ask.gpus or ()))
    are = Text(listed, listed) if here else Text("none", "没有")
    return AppError(
        Text(
            f"--gpus {asked}: the cards that {build.version} can use here are: {are.en}.",
            f"--gpus {asked}：{build.version} 在本机可用的显卡：{are.zh}。",
        ),
        Text(
            "Name those, or leave out --gpus. `workhorse probe` shows the cards, "
            "`workhorse engine list` what each build has code for.",
            "请指定这些显卡或去掉 --gpus。用 `workhorse probe` 查看显卡，"
            "用 `workhorse engine list` 查看各构建支持的显卡。",
        ),
        exit_code=EXIT_NO,
    )


def places_of(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Where each engine runs, in the fewest words that tell them apart."""
    for named in (on_cards, on_nodes, on_cpus):
        names = [named(plan) for plan in plans]
        if all(names) and len(set(names)) == len(names):
            return tuple(names)
    return tuple(map(str, range(1, len(plans) + 1)))


def on_cards(plan: Plan) -> str:
    """The cards, or nothing."""
    indexes = plan.gpu_indexes or (() if plan.gpu_index is None else (plan.gpu_index,))
    return f"GPU {'+'.join(map(str, sorted(indexes)))}" if indexes else ""


def on_nodes(plan: Plan) -> str:
    """The cards, else the memory nodes, or nothing."""
    nodes = "+".join(map(str, plan.memory_nodes or ()))
    return on_cards(plan) or (f"NUMA {nodes}" if nodes else "")


def on_cpus(plan: Plan) -> str:
    """The cards, else the CPUs, or nothing."""
    return on_cards(plan) or (f"CPU {listed(plan.cpus)}" if plan.cpus else "")


class Starting:
    """The engines of one model on their way: the service is ready when the first of them is.

    The others start when the first has read the file: it lies in the page cache then. `start`
    starts one; `lose` takes one that did not start out of service, while others may.
    """

    def __init__(
        self,
        engines: Sequence["Engine"],
        start: Callable[["Engine"], Awaitable[None]],
        lose: Callable[["Engine", AppError], Awaitable[None]],
    ) -> None:
        self._engines, self._start, self._lose = engines, start, lose
        self._late: list[asyncio.Task[AppError | None]] = []

    async def first(self) -> "Engine":
        """One that is ready; the others are under way. AppError: none of them starts."""
        first, *others = self._engines
        if not others:
            await self._start(first)
            return first
        error = await self._try(first)
        self._late = [asyncio.create_task(self._try(one), name="engine start") for one in others]
        if error is None:
            return first
        try:
            for started in asyncio.as_completed(self._late):
                if await started is None:
                    return next(
                        one
                        for one, task in zip(others, self._late, strict=True)
                        if task.done() and task.result() is None
                    )
        except BaseException:
            await self.stop()
            raise
        raise error

    async def rest(self) -> None:
        """Until the others are ready or lost; cancelled, it ends their start."""
        try:
            await asyncio.gather(*self._late)
        except BaseException:
            await self.stop()
            raise

    async def settled(self) -> None:
        """Until they are ready or lost, for whoever waits for it beside `rest`."""
        if self._late:
            await asyncio.wait(self._late)

    async def stop(self) -> None:
        """End what is still under way."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _try(self, engine: "Engine") -> AppError | None:
        try:
            await self._start(engine)
        except AppError as error:
            await self._lose(engine, error)
            return error
        return None
