"""Several engines of one model behind one gateway: decided, started, told apart, lost, reloaded."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from service_inside import Load, serving, until

from builders import CUDA, EMBEDDED, gpu, machine, model
from workhorse.engines.supply.pick import Picked
from workhorse.errors import AppError
from workhorse.machine.probe import probe
from workhorse.plan.wish import Wish
from workhorse.records import Machine
from workhorse.text import Text, same
from workhorse.up.decide import Ask, Decision, Ground, Question
from workhorse.up.projector import Seen
from workhorse.up.reload import Change, paired
from workhorse.up.service import Service
from workhorse.up.several import Part, Starting, cards_asked, places_of, several_of

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more


def nothing(_: Text) -> None:
    """Whoever asked does not listen."""


# --- what is decided ------------------------------------------------------------------------------


def question(ask: Ask, here: Machine, build: Any = CUDA) -> Question:
    return Question(ask, Ground(here, Picked(build), ()), Seen(model()), None)


TWO_CARDS = machine(gpus=(gpu(0), gpu(1)))


@pytest.mark.parametrize(
    ("ask", "cards"),
    [
        (Ask(), [(0,)]),  # one card serves four users
        (Ask(engines=2), [(0,), (1,)]),
        (Ask(gpus=(1,)), [(1,)]),
        (Ask(gpus="all", engines=2), [(0,), (1,)]),
        (Ask(gpus=2, engines=1), [(0,)]),
        (Ask(gpus=1), [(0,)]),
    ],
)
def test_the_cards_and_engines_that_are_asked_for(ask: Ask, cards: list[tuple[int, ...]]) -> None:
    plans = several_of(question(ask, TWO_CARDS)).plans
    assert [plan.gpu_indexes for plan in plans] == cards
    cpus = [cpu for plan in plans for cpu in plan.cpus]
    assert len(cpus) == len(set(cpus)), "no two engines compute on one CPU"


@pytest.mark.parametrize("gpus", [(0, 2), 3, (7,)])
def test_cards_that_are_not_here_are_refused(gpus: Any) -> None:
    with pytest.raises(AppError, match="GPU 0, GPU 1") as refused:
        cards_asked(Ask(gpus=gpus), TWO_CARDS, CUDA)
    assert refused.value.exit_code == 3
    with pytest.raises(AppError, match="none"):
        cards_asked(Ask(gpus="all"), machine(), EMBEDDED)


def test_engines_are_named_by_where_they_run() -> None:
    on_cards = several_of(question(Ask(engines=2), TWO_CARDS)).plans
    assert places_of(on_cards) == ("GPU 0", "GPU 1")
    over_both = [replace(on_cards[0], gpu_indexes=(3, 1)), replace(on_cards[1], gpu_indexes=(0, 2))]
    assert places_of(over_both) == ("GPU 1+3", "GPU 0+2")
    halves = several_of(question(Ask(engines=2), machine(), EMBEDDED)).plans
    assert places_of(halves) == ("CPU 0-1", "CPU 2-3")
    on_nodes = [replace(plan, memory_nodes=(node,)) for node, plan in enumerate(halves)]
    assert places_of(on_nodes) == ("NUMA 0", "NUMA 1")
    assert places_of([halves[0], halves[0]]) == ("1", "2")


# --- how they start -------------------------------------------------------------------------------


class Stage:
    """Engines by number; those of `broken` do not start, the others when they may."""

    def __init__(self, count: int, *broken: int) -> None:
        self.broken, self.begun, self.lost = broken, list[int](), list[int]()
        self.may = [asyncio.Event() for _ in range(count)]
        self.starting = Starting(range(count), self.start, self.lose)  # type: ignore[arg-type]

    async def start(self, engine: Any) -> None:
        self.begun.append(engine)
        await self.may[engine].wait()
        if engine in self.broken:
            raise AppError(same(f"engine {engine} broke"), same("mend it"))

    async def lose(self, engine: Any, error: AppError) -> None:
        self.lost.append(engine)


async def test_the_service_is_ready_with_the_first_and_the_others_follow() -> None:
    stage = Stage(3)
    first = asyncio.create_task(stage.starting.first())
    await asyncio.sleep(0)
    assert stage.begun == [0]
    stage.may[0].set()
    assert await first == 0
    rest = asyncio.create_task(stage.starting.rest())
    await asyncio.sleep(0)
    assert stage.begun == [0, 1, 2] and not rest.done()
    for event in stage.may:
        event.set()
    await rest
    await stage.starting.settled()
    assert stage.lost == []


async def test_an_engine_that_does_not_start_leaves_the_others() -> None:
    stage = Stage(3, 0, 2)
    for event in stage.may:
        event.set()
    assert await stage.starting.first() == 1
    await stage.starting.rest()
    assert sorted(stage.lost) == [0, 2]


async def test_none_that_starts_is_an_error_of_the_first() -> None:
    stage = Stage(2, 0, 1)
    for event in stage.may:
        event.set()
    with pytest.raises(AppError, match="engine 0 broke"):
        await stage.starting.first()
    alone = Stage(1, 0)
    alone.may[0].set()
    with pytest.raises(AppError, match="engine 0 broke"):
        await alone.starting.first()
    assert alone.lost == []


async def test_a_stop_ends_the_starts_that_are_under_way() -> None:
    stage = Stage(2)
    stage.may[0].set()
    await stage.starting.first()
    waits = asyncio.create_task(stage.starting.settled())
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.wait({waits})
    assert not any(task.done() for task in stage.starting._late), "who waits ends nothing"
    rest = asyncio.create_task(stage.starting.rest())
    await asyncio.sleep(0)
    rest.cancel()
    await asyncio.wait({rest})
    assert all(task.cancelled() for task in stage.starting._late)


# --- pairing at a reload --------------------------------------------------------------------------


def parts(*places: str) -> list[Part]:
    return [Part(None, on) for on in places]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("running", "planned", "pairs", "left"),
    [
        (["GPU 0", "GPU 1"], ["GPU 1", "GPU 0"], [(1, "GPU 1"), (0, "GPU 0")], []),
        ([""], ["GPU 0", "GPU 1"], [(0, "GPU 0"), (None, "GPU 1")], []),
        (["GPU 0", "GPU 1"], [""], [(0, "")], [1]),
        (["GPU 1"], ["GPU 0", "GPU 1"], [(0, "GPU 1"), (None, "GPU 0")], []),
        ([], [""], [(None, "")], []),
    ],
)
def test_a_part_goes_to_the_engine_that_runs_there(
    running: list[str], planned: list[str], pairs: list[Any], left: list[int]
) -> None:
    engines: Any = [SimpleNamespace(on=on) for on in running]
    found, over = paired(engines, parts(*planned))
    assert [(None if e is None else engines.index(e), part.on) for e, part in found] == pairs
    assert [engines.index(one) for one in over] == left


# --- a service ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def this_machine() -> Machine:
    return probe(measure_s=0)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch, this_machine: Machine) -> Iterator[None]:
    monkeypatch.setattr("workhorse.up.decide.probe", lambda *_, **__: this_machine)
    return


def config_of(model_path: Path, engines: int) -> str:
    return f'[[model]]\nmodel = "{model_path}"\nengines = {engines}\n'


@asynccontextmanager
async def two_engines(
    home: Path, model_path: Path, *options: str, **more: Any
) -> AsyncIterator[Service]:
    config = config_of(model_path, 2)
    async with serving(home, None, *options, config=config, **more) as service:
        first, second = service.engines
        assert first.served.name != second.served.name
        assert service.roster.models() == (first.served.model_name,)
        yield service


def generated(service: Service) -> list[int]:
    return [service.live.flow(engine.served).tokens for engine in service.engines]


async def streamed(service: Service, prompt: str = "go on") -> str:
    body = {"prompt": prompt, "max_tokens": 8, "stream": True, "ignore_eos": True, "seed": 1}
    async with (
        aiohttp.ClientSession(service.url) as http,
        http.post("/v1/completions", json={**body, "temperature": 0}) as answer,
    ):
        assert answer.status == 200
        events = [line.removeprefix(b"data: ") async for line in answer.content]
    chunks = [json.loads(event) for event in events if event.startswith(b"{")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@pytest.mark.usefixtures("probed")
async def test_both_engines_answer_and_are_told_apart(tmp_path: Path, small_model: Path) -> None:
    async with two_engines(tmp_path, small_model, "--gap-ms", "5") as service:
        for _ in range(20):
            await asyncio.gather(*(streamed(service) for _ in range(4)))
            if all(generated(service)):
                break
        assert all(generated(service))
        status = service.control.status()
        assert status.state == "ready"
        names = [engine.name for engine in status.engines]
        assert len(set(names)) == 2
        assert [engine.pid for engine in status.engines] == list(service.pids().values())
        assert [one.reading and one.reading.on for one in status.engines] == [
            one.on for one in status.engines
        ]
        async with aiohttp.ClientSession(service.url) as http:
            async with http.get("/v1/models") as answer:
                assert [one["id"] for one in (await answer.json())["data"]] == ["small"]
            async with http.get("/metrics") as answer:
                assert 'workhorse_engine_state{model="small",state="ready"} 2.0' in (
                    await answer.text()
                )
            async with http.get("/workhorse/state") as answer:
                state = await answer.json()
        assert [engine["on"] for engine in state["engines"]] == [e.on for e in status.engines]
        reading = await service.guarding.watch.look()
        assert {one.pid for one in reading.engines} == set(service.pids().values())
        assert service.batches.slots("small") == sum(e.plan.slots for e in service.engines)


@pytest.mark.usefixtures("probed")
async def test_one_engine_that_keeps_dying_is_lost_and_the_other_serves_on(
    tmp_path: Path, small_model: Path
) -> None:
    async with two_engines(tmp_path, small_model) as service:
        lost, left = service.engines
        assert lost.supervisor is not None
        lost.supervisor._next_delay = lambda *_: None
        lost.kill()
        await until(lambda: service.roster.served == (left.served,))
        status = service.control.status()
        assert (status.state, status.exit_code) == ("degraded", 3)
        async with Load(service, clients=4) as load:
            await load.more(8)
        assert load.troubles == []
        reading = await service.guarding.watch.look()
        assert [one.state for one in reading.engines] == ["given_up", "ready"]
        assert reading.engines[1].pid == left.pid, "what is lost is not mixed up with the other"
        (alarm,) = service.guarding.watch.alarms
        assert (alarm.finding.code, alarm.subject) == ("live.engine-lost", lost.served.name)
        assert "1 other engine serves on" in alarm.finding.seen.en
        assert alarm.finding.level == "warning"
        changes = await service.control.reload(nothing, restart=False)
        assert {change.how for change in changes} == {"restarted", "kept"}
        assert set(service.roster.served) == {lost.served, left.served}
        assert service.control.status().state == "ready"
        await service.guarding.watch.look()


@pytest.mark.usefixtures("probed")
async def test_the_engine_on_a_lost_card_is_ended_and_stays_so(
    tmp_path: Path, small_model: Path
) -> None:
    async with two_engines(tmp_path, small_model) as service:
        first, second = service.engines
        assert first.decision is not None
        plan = replace(first.plan, gpu_index=0, gpu_indexes=(0,))
        first.decision = replace(first.decision, plan=plan)
        service.guarding._drop_engines_on(frozenset({0}))
        await until(lambda: first.pid is None)
        assert (first.state, second.state) == ("out_of_service", "ready")
        assert first.reason is not None and "GPU 0" in first.reason.en
        assert service.roster.served == (second.served,)
        assert service.lives(), "a watchdog does not end the service for it"
        async with Load(service, clients=2) as load:
            await load.more(4)
        assert load.troubles == []


@pytest.mark.usefixtures("probed")
async def test_the_number_of_engines_follows_the_settings(
    tmp_path: Path, small_model: Path
) -> None:
    async with two_engines(tmp_path, small_model, "--gap-ms", "5") as service:
        assert service.ask.config is not None
        before = service.pids()
        changes = await service.control.reload(nothing, restart=False)
        assert [change.how for change in changes] == ["kept", "kept"]
        assert service.pids() == before
        async with Load(service, clients=4, model="small") as load:
            service.ask.config.write_text(config_of(small_model, 1))
            await service.control.reload(nothing, restart=False)
            assert [engine.served.name for engine in service.engines] == ["small"]
            service.ask.config.write_text(config_of(small_model, 2))
            changes = await service.control.reload(nothing, restart=False)
            assert "added" in {change.how for change in changes}
            assert len({engine.served.name for engine in service.engines}) == 2
            await load.more(8)
        assert load.troubles == []
        assert set(service.roster.served) == {engine.served for engine in service.engines}


@pytest.mark.usefixtures("probed")
async def test_one_after_the_other_is_restarted_while_the_other_serves(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.up.reload.fits_beside", lambda *_: False)
    async with two_engines(tmp_path, small_model, "--gap-ms", "5") as service:
        names = [engine.served.name for engine in service.engines]
        before = service.pids()
        async with Load(service, clients=4) as load:
            changes = await service.control.reload(nothing, restart=True)
            await load.more(4)
        assert load.troubles == []
        assert changes == tuple(Change(name, "restarted") for name in names)
        assert service.pids().keys() == before.keys()
        assert not set(service.pids().values()) & set(before.values())


@pytest.mark.usefixtures("probed")
async def test_they_are_measured_one_after_the_other(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Decision] = []

    async def measure(decision: Decision, *_: Any) -> None:
        measured.append(decision)

    monkeypatch.setattr("workhorse.up.service.measure_when_quiet", measure)
    async with two_engines(tmp_path, small_model) as service:
        await service._measure()
        assert measured == [engine.decided for engine in service.engines]


@pytest.mark.real
@pytest.mark.usefixtures("probed")
async def test_two_real_engines_give_the_same_answers(tmp_path: Path, real_model: Path) -> None:
    async with two_engines(tmp_path, real_model, real=True) as service:
        texts = set()
        for _ in range(10):
            texts |= set(await asyncio.gather(*(streamed(service) for _ in range(2))))
            if all(generated(service)):
                break
        assert all(generated(service))
        assert len(texts) == 1 and texts != {""}
        for engine in service.engines:
            assert engine.pid is not None


def test_wishes_are_shared_out() -> None:
    plans = several_of(question(Ask(engines=2, wish=Wish(slots=6)), TWO_CARDS)).plans
    assert [plan.slots for plan in plans] == [3, 3]
