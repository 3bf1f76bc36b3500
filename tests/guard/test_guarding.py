"""The guard of a service in front of engines: what passes the gateway is what it judges."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from guard_scenes import Play, card, cpu_plan, forecast, gpu_plan

from running_fake import FakeEngine
from workhorse.bench.stats import Spread, Summary
from workhorse.config import Places
from workhorse.records import Plan
from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Roster, Served
from workhorse.serve.live import Live
from workhorse.settings import GuardSettings, Settings
from workhorse.text import Text
from workhorse.up.guarding import Guarding

LOOKS = 40  # each after an answer; more than it takes
QUICK = Settings(guard=GuardSettings(raise_after=3, of_latest=4, clear_after=4))


@dataclass(eq=False)
class StandIn:
    """An engine's place: its plan, and an address that a test changes."""

    url: str
    plan: Plan
    served: Any = None
    state: str = "ready"
    restarts: int = 0
    pid: int | None = None
    supervisor: None = None
    decision: Any = True
    lost: Text | None = None

    async def address(self, wait_s: float) -> Address:
        return Address(self.url)

    async def lose(self, why: Text) -> None:
        self.lost = why


class Front:
    """A gateway with a guard, and a client of it."""

    def __init__(self, tmp_path: Path, *engines: StandIn) -> None:
        self.roster = Roster()
        for engine in engines:
            engine.served = Served(engine.plan.model_name, engine)
            self.roster.put(engine.served)
        self.live = Live(self.roster)
        self.guarding = Guarding(
            lambda: engines,  # type: ignore[arg-type,return-value]
            self.live,
            self.roster,
            Places(tmp_path),
            QUICK,
        )
        self.watch = self.guarding.watch
        self.url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Front"]:
        app = build_app(
            self.roster,
            activity=Activity(),
            live=self.live,
            tap=self.guarding.tap,
            reading=lambda: self.watch.latest,
            alarms=self.guarding.alarms,
        )
        gateway = Gateway(app)
        await gateway.start(port=0)
        self.url = gateway.url or ""
        try:
            yield self
        finally:
            await gateway.stop()

    async def ask(self, index: int, tokens: int) -> None:
        body = {
            "messages": [{"role": "user", "content": f"say {index}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status == 200
            await answer.read()

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/metrics") as answer:
            return await answer.text()

    async def until(self, code: str, *, there: bool, tokens: int = 12) -> None:
        """Asks and looks until an alarm is there, or is not."""
        for index in range(LOOKS):
            await self.ask(index, tokens)
            await self.watch.look()
            if (code in {a.finding.code for a in self.watch.alarms}) == there:
                return
        raise AssertionError(f"{code} is {'not ' if there else ''}there after {LOOKS} looks")


def measured(speed: float) -> Summary:
    spread = Spread(speed, speed, speed, 5)
    return Summary(1, 5, 0, None, spread, None, None, None)


async def test_a_collapse_behind_the_gateway_is_an_alarm_until_it_is_well_again(
    tmp_path: Path, fake_engine: FakeEngine
) -> None:
    quick, slow = fake_engine("--gap-ms", "4"), fake_engine("--gap-ms", "100")
    # Speeds are those of the engine's clock, which tells what it was told, whatever else runs.
    engine = StandIn(quick, cpu_plan(forecast=forecast(30.0), context_tokens=4096))
    front = Front(tmp_path, engine)
    front.guarding.measured(engine, measured(30.0))  # type: ignore[arg-type]
    async with front.open():
        for index in range(6):
            await front.ask(index, 12)
            await front.watch.look()
            assert "live.decode-collapsed" not in {a.finding.code for a in front.watch.alarms}
        engine.url = slow
        await front.until("live.decode-collapsed", there=True)
        (alarm,) = front.watch.alarms
        assert alarm.subject == "horse" and "30.0 tok/s is expected" in alarm.finding.seen.en
        assert front.guarding.alarms() == (alarm,)
        assert 'code="live.decode-collapsed"' in await front.metrics()
        engine.url = quick
        await front.until("live.decode-collapsed", there=False)
        assert 'code="live.decode-collapsed"' not in await front.metrics()
    (past,) = front.guarding.alarms()
    assert past.over_unix_s is not None and past.finding == alarm.finding


async def test_garbage_behind_the_gateway_is_an_alarm(
    tmp_path: Path, fake_engine: FakeEngine
) -> None:
    front = Front(tmp_path, StandIn(fake_engine("--garbage"), cpu_plan(forecast=forecast(1e-3))))
    async with front.open():
        await front.until("live.garbage", there=True, tokens=80)
    (alarm,) = front.watch.alarms
    assert "GGGG" in alarm.finding.seen.en


async def test_of_two_engines_of_one_model_the_slow_one_is_named(
    tmp_path: Path, fake_engine: FakeEngine
) -> None:
    plan = cpu_plan(forecast=forecast(30.0), context_tokens=4096)
    engines = [StandIn(fake_engine("--gap-ms", gap), plan) for gap in ("4", "100")]
    front = Front(tmp_path, *engines)
    async with front.open():
        for index in range(LOOKS):
            # Two at once: the gateway gives one to each.
            await asyncio.gather(front.ask(2 * index, 12), front.ask(2 * index + 1, 12))
            await front.watch.look()
            if front.watch.alarms:
                break
    (alarm,) = front.watch.alarms
    assert alarm.subject == "horse (2)"
    assert front.watch.latest is not None
    assert [one.model_name for one in front.watch.latest.engines] == ["horse", "horse"]


@pytest.mark.parametrize("lost", [0, 1])
async def test_engines_on_a_lost_card_get_no_more_requests(tmp_path: Path, lost: int) -> None:
    on_first = StandIn("", gpu_plan(gpu_indexes=(0,), model_name="first"))
    on_both = StandIn("", gpu_plan(gpu_indexes=(0, 1), model_name="both"))
    on_cpu = StandIn("", cpu_plan(model_name="cpu"))
    front = Front(tmp_path, on_first, on_both, on_cpu)
    front.guarding._drop_engines_on(frozenset({lost}))
    front.guarding._drop_engines_on(frozenset({lost, 7}))
    assert front.roster.models() == (("cpu",) if lost == 0 else ("first", "cpu"))


async def test_a_shortened_protocol_teaches_nothing(tmp_path: Path) -> None:
    engine = StandIn("", cpu_plan(context_tokens=256))
    front = Front(tmp_path, engine)
    front.guarding.measured(engine, measured(1.0))  # type: ignore[arg-type]
    expected = front.watch._judge.baseline("horse", engine.plan).expect(868, 1)
    assert expected is not None and expected.tokens_per_s == 100.0


def test_a_service_without_readings_of_cards_is_judged_all_the_same() -> None:
    """A driver that stops answering for one look is no lost card."""
    play = Play(gpu_plan()).run(5).run(3, cards=()).run(5, cards=(card(),))
    assert play.raised == []


def test_restarted_engines_are_other_processes() -> None:
    play = Play(cpu_plan()).run(5)
    first = play.reading().engines[0]
    play.run(10, engines=(replace(first, pid=9, major_faults=10**6),))
    assert play.raised == []


async def test_a_reading_leaves_the_event_loop_alone(tmp_path: Path) -> None:
    """The sensors block in a thread: this one ends only because the loop goes on meanwhile."""
    front = Front(tmp_path, StandIn("", cpu_plan()))
    went_on = threading.Event()

    def waits() -> float:
        assert went_on.wait(120)
        return 1.0

    front.watch._sensors._clock = waits
    looking = asyncio.create_task(front.watch.look())
    await asyncio.sleep(0)
    went_on.set()
    assert (await looking).at_unix_s > 0
