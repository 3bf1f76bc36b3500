"""Another engine, another plan or other settings under a service that goes on serving.

Where memory allows, the new engine is loaded beside the old one and takes over; the old one's
answers end. Otherwise new requests wait while it is started in the old one's place. No request is
refused in either case, and what does not start leaves what was there.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from workhorse.errors import EXIT_NO, AppError
from workhorse.records import Plan
from workhorse.records.reading import engine_name
from workhorse.run.vitals import read_vitals
from workhorse.serve.backend import READY
from workhorse.settings import Settings, read_settings
from workhorse.text import Text
from workhorse.units import show_duration
from workhorse.up.asks import asks_of, checked
from workhorse.up.decide import Ask, Running
from workhorse.up.engine import Engine, loaded_by
from workhorse.up.room import Held, fits_beside, held_by, together
from workhorse.up.several import Part, decided

if TYPE_CHECKING:
    from workhorse.up.service import Service

LOOK_S = 0.05  # how often it is looked whether the old engine's answers have ended

How = Literal["kept", "replaced", "restarted", "added", "removed"]
Say = Callable[[Text], None]


@dataclass(frozen=True, slots=True)
class Change:
    """What a reload did about one model."""

    model_name: str
    how: How


@dataclass(frozen=True, slots=True)
class Step:
    """What is planned for one model, before anything is changed."""

    old: Engine | None  # None: the model is new
    new: Engine
    same: bool  # what would be loaded is what runs
    beside: bool  # memory holds it beside what is there


class Reload:
    """One reload of a service, from the settings to the last old answer."""

    def __init__(self, service: "Service", say: Say, *, restart: bool = False) -> None:
        self._service = service
        self._say = say
        self._restart = restart

    async def run(self) -> tuple[Change, ...]:
        """Do it; an AppError says what could not be done, and what was there goes on.

        Everything is planned before anything is changed.
        """
        service = self._service
        settings = read_settings(service.ask.config) if service.ask.config else Settings()
        asks = tuple(checked(one, service.where.models) for one in asks_of(service.ask, settings))
        service.warmth.plan_with(settings)
        self._tell_what_stays(settings)
        groups, gone = grouped(service.engines, asks, service.make_engine)
        held_by_gone = await memory_of(gone)
        steps: list[Step] = []
        for ask, engines in groups:
            planned, left = await self._plan(ask, engines, held_by_gone)
            steps, gone = [*steps, *planned], [*gone, *left]
        changes = [await self._take(step, gone) for step in steps]
        changes += [await self._remove(one) for one in gone if one in service.engines]
        service.apply(settings)
        return tuple(changes)

    async def _plan(
        self, ask: Ask, engines: list[Engine], held_by_gone: Held
    ) -> tuple[list[Step], list[Engine]]:
        """What to do about one model, and which of its engines are too many by the new plan."""
        service, name = self._service, service_name(ask, self._service.make_engine)
        self._say(Text(f"planning {name} anew", f"正在为 {name} 重新制定方案"))
        held = await memory_of(engines) if engines else held_by_gone
        known = next(iter(engines or service.engines), None)
        before = known.decision.machine if known and known.decision else None
        running = None if before is None else Running(held, before)
        parts = await decided(ask, service.where, service.tell, running)
        for part in parts:
            refuse_blocked(part.decision.plan)
        pairs, left = paired(engines, parts)
        steps, leader = [], engines[0].leader if engines else None
        for old, part in pairs:
            new = service.make_engine(ask)
            new.leader = leader = leader or new
            await new.take(part.decision, part.on)
            fits = before is not None and fits_beside(new.plan, new.decided.machine, held)
            steps.append(Step(old, new, same=await is_same(old, new), beside=fits))
        return steps, left

    async def _take(self, step: Step, gone: list[Engine]) -> Change:
        old, new = step.old, step.new
        name = engine_name(new.served.model_name, new.on)
        in_the_way = [one for one in gone if one in self._service.engines]
        if old is None:
            if in_the_way and not step.beside:
                await self._add_in_place(new, in_the_way)
            else:
                await self._add(new)
            return Change(name, "added")
        ready = old.state == READY
        if ready and step.same and not self._restart:
            old.ask = new.ask
            return Change(name, "kept")
        if ready and step.beside:
            await self._start_beside(old, new)
            return Change(name, "replaced")
        same_model = old.served.model_name
        in_the_way = [one for one in in_the_way if one.served.model_name == same_model]
        await self._start_in_place(old, new, [] if step.beside else in_the_way)
        return Change(name, "restarted")

    def _tell_what_stays(self, settings: Settings) -> None:
        before = self._service.settings
        pairs = {
            "[serve]": settings.serve == before.serve,
            "[limits]": settings.limits == before.limits,
            "[queue]": settings.queue == before.queue,
        }
        changed = [table for table, same in pairs.items() if not same]
        if changed:
            self._say(
                Text(
                    f"what {', '.join(changed)} now says holds from the next start on",
                    f"{'、'.join(changed)} 中的更改将在下次启动时生效",
                )
            )

    async def _start_beside(self, old: Engine, new: Engine) -> None:
        service = self._service
        self._say(
            Text(
                f"starting the new engine beside the old one{self._takes(new.plan).en}",
                f"在旧引擎旁启动新引擎{self._takes(new.plan).zh}",
            )
        )
        service.leaving.append(new)  # until it is the one that serves
        try:
            await new.start(service.log_name(old, other=True))
            service.put(new, instead_of=old)
            service.leaving.append(old)
        finally:
            service.leaving.remove(new)
        old.successor = new
        await self._until_quiet(old)
        await old.stop()
        service.leaving.remove(old)

    async def _start_in_place(self, old: Engine, new: Engine, in_the_way: list[Engine]) -> None:
        service = self._service
        self._say(
            Text(
                "memory holds one engine at a time: new requests wait while it is restarted"
                f"{self._takes(new.plan).en}",
                f"内存只能容纳一个引擎：重启期间新请求将排队等待{self._takes(new.plan).zh}",
            )
        )
        old.hold()
        try:
            for one in in_the_way:  # it has a part of what the new one needs
                await self._remove(one)
            await self._until_quiet(old)
            await old.stop()
            on, old.on = old.on, new.on
            try:
                await old.start_anew(new.decided, service.log_name(old))
            except Exception:
                old.on = on
                await self._bring_back(in_the_way)
                raise
            old.ask = new.ask
            service.planned(old)
        finally:
            old.release()

    async def _add(self, engine: Engine) -> None:
        """Start a further engine."""
        service, name = self._service, engine_name(engine.served.model_name, engine.on)
        self._say(Text(f"adding {name}", f"正在添加 {name}"))
        service.leaving.append(engine)
        try:
            await engine.start(service.log_name())
        finally:
            service.leaving.remove(engine)
        service.put(engine)

    async def _add_in_place(self, engine: Engine, gone: list[Engine]) -> None:
        """Start an engine in the memory of those that are gone; meanwhile its requests wait."""
        service, name = self._service, engine_name(engine.served.model_name, engine.on)
        engine.hold()
        service.put(engine)
        try:
            for one in gone:
                await self._remove(one)
            self._say(
                Text(
                    f"adding {name}: its requests wait{self._takes(engine.plan).en}",
                    f"正在添加 {name}，其请求将排队等待{self._takes(engine.plan).zh}",
                )
            )
            await engine.start(service.log_name())
        except Exception:
            service.drop(engine)
            await self._bring_back([one for one in gone if one not in service.engines])
            raise
        finally:
            engine.release()

    async def _bring_back(self, engines: list[Engine]) -> None:
        """Start once more what was removed for an engine that did not start."""
        for one in engines:
            one.hold()
            self._service.put(one)
        try:
            for one in engines:
                if one.supervisor is not None:
                    await one.supervisor.start()
        finally:
            for one in engines:
                one.release()

    async def _remove(self, engine: Engine) -> Change:
        service, name = self._service, engine.served.name
        self._say(Text(f"removing {name}", f"正在移除 {name}"))
        service.drop(engine)
        service.leaving.append(engine)
        await self._until_quiet(engine)
        await engine.stop()
        service.leaving.remove(engine)
        return Change(name, "removed")

    async def _until_quiet(self, engine: Engine) -> None:
        """Until the engine's running answers have ended, or the settings' patience has."""
        wait_s = self._service.settings.supervision.reload_wait_s
        if self._service.running(engine):
            self._say(
                Text(
                    f"running answers end first (at most {show_duration(wait_s)})",
                    f"等待正在进行的回答结束（最多 {show_duration(wait_s)}）",
                )
            )
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while self._service.running(engine) and loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    @staticmethod
    def _takes(plan: Plan) -> Text:
        load_s = plan.forecast.load_s
        if load_s is None:
            return Text("", "")
        shown = show_duration(load_s.value)
        return Text(f" (loading takes about {shown})", f"（加载约需 {shown}）")


def grouped(
    engines: Iterable[Engine], asks: Sequence[Ask], make: Callable[[Ask], Engine]
) -> tuple[list[tuple[Ask, list[Engine]]], list[Engine]]:
    """Each ask with the engines that serve its model, none for a new one; and who is left over."""
    left = list(engines)
    groups: list[tuple[Ask, list[Engine]]] = []
    for ask in asks:
        name = service_name(ask, make)
        first = next((one for one in left if one.served.model_name == name), None)
        mine = [one for one in left if first is not None and one.leader is first.leader]
        left = [one for one in left if one not in mine]
        groups.append((ask, mine))
    return groups, left


def service_name(ask: Ask, make: Callable[[Ask], Engine]) -> str:
    """The name under which clients see the model of an ask."""
    return make(ask).served.model_name


def paired(
    engines: Sequence[Engine], parts: Sequence[Part]
) -> tuple[list[tuple[Engine | None, Part]], list[Engine]]:
    """Each part of a model with the engine that runs there, else with one that runs nowhere else.

    None: a further engine. And the engines for which there is no part any more.
    """
    left = list(engines)
    found: dict[int, Engine] = {}
    for exact in (True, False):
        for place, part in enumerate(parts):
            old = next((one for one in left if one.on == part.on or not exact), None)
            if place not in found and old is not None:
                found[place] = old
                left.remove(old)
    order = sorted(range(len(parts)), key=lambda place: place not in found)
    return [(found.get(place), parts[place]) for place in order], left


async def is_same(old: Engine | None, new: Engine) -> bool:
    """Whether what would be loaded is what runs."""
    if old is None:
        return False
    plan = new.plan
    if old.decision is not None:
        plan = with_cache_of(old.decision.plan, plan)
    return await asyncio.to_thread(loaded_by, plan) == old.loaded


async def memory_of(engines: Sequence[Engine]) -> Held:
    """What these engines hold in all."""
    held = [await asyncio.to_thread(memory_held, one) for one in engines]
    return held[0] if len(held) == 1 else together(held)


def memory_held(engine: Engine) -> Held:
    """What the engine's processes hold now; what was planned where that cannot be seen. Blocks."""
    if engine.decision is None:
        return Held()
    process = engine.supervisor.process if engine.supervisor else None
    if process is None or process.pid is None or process.exited.is_set():
        return Held()
    vitals = read_vitals(process.pid, process.launch.port)
    return held_by(engine.plan, vitals.held_bytes if vitals else None)


def with_cache_of(before: Plan, plan: Plan) -> Plan:
    """The plan with the prompt cache of the one before, unless it is of another order.

    Its size follows the memory that is free at the moment: without this no two plans are equal.
    """
    old_bytes, new_bytes = before.prompt_cache_bytes, plan.prompt_cache_bytes
    near = new_bytes / 2 <= old_bytes <= new_bytes * 2
    return replace(plan, prompt_cache_bytes=old_bytes) if near else plan


def refuse_blocked(plan: Plan) -> None:
    """Raise what speaks against a plan; what serves now goes on."""
    worst = next((f for f in plan.verdict.findings if f.level == "blocker"), None)
    if worst is not None:
        raise AppError(worst.seen, worst.remedy, exit_code=EXIT_NO)
