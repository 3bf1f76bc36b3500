"""The watch over a service: readings, alarms, callbacks, what is kept, what is told where."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from fake_cards import FakeCard, FakeDriver
from guard_scenes import answered, cpu_plan, engine, gpu_plan

from workhorse.errors import AppError
from workhorse.guard.card_sensor import CardSensor
from workhorse.guard.garbage import Counts, GarbageTap
from workhorse.guard.journal import KEPT, Journal
from workhorse.guard.judge import News
from workhorse.guard.sensors import Sensors
from workhorse.guard.watch import Watch
from workhorse.guard.webhook import TRIES, Webhook
from workhorse.machine.files import DirectoryFiles
from workhorse.machine.kernel_messages import KernelMessages
from workhorse.records import EngineReading, Plan
from workhorse.settings import GuardSettings, read_settings

PATIENCE_S = 120.0
QUICK = GuardSettings(raise_after=2, of_latest=2, clear_after=2, period_s=0.05, repeat_s=0)


class Stage:
    """A watch on engines and cards that a test changes."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        plan: Plan | None = None,
        cards: tuple[FakeCard, ...] = (),
        settings: GuardSettings = QUICK,
        **more: Any,
    ) -> None:
        self.log = tmp_path / "kmsg"
        self.log.touch()
        self.engines: tuple[EngineReading, ...] = (engine(pid=None),)
        self.plan = plan or cpu_plan()
        self.driver = FakeDriver(*cards, absent=not cards)
        self.journal = Journal(tmp_path / "service.sqlite")
        self.count = 0
        self.watch = Watch(
            self.readings,
            dict,
            lambda: {"horse": self.plan},
            settings=settings,
            sensors=Sensors(
                tmp_path,
                cards=CardSensor(DirectoryFiles(Path("/")), self.driver),
                kernel=KernelMessages(self.log),
            ),
            journal=self.journal,
            **more,
        )

    def readings(self) -> tuple[EngineReading, ...]:
        self.count += 1
        return tuple(answered(e, self.count) for e in self.engines)

    async def looks(self, times: int) -> None:
        for _ in range(times):
            await self.watch.look()

    @property
    def codes(self) -> list[str]:
        return [alarm.finding.code for alarm in self.watch.alarms]


SLOW = (engine(pid=None, decode_tokens_per_s=9.0),)


async def test_an_alarm_goes_to_log_callbacks_and_journal_and_its_end_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage, news, readings = Stage(tmp_path), list[News](), list[float]()
    stage.watch.on_alarm(news.append)
    stage.watch.on_reading(lambda reading: readings.append(reading.at_unix_s))
    await stage.looks(3)
    stage.engines = SLOW
    with caplog.at_level(logging.WARNING, "workhorse.guard"):
        await stage.looks(3)
    assert stage.codes == ["live.decode-collapsed"] and len(readings) == 6
    assert "9.00 tok/s" in caplog.text and len(caplog.records) == 1
    (kept,) = stage.journal.latest(10)
    assert kept == stage.watch.alarms[0] and kept.over_unix_s is None
    stage.engines = (engine(pid=None),)
    await stage.looks(4)
    assert [n.kind for n in news] == ["raised", "over"] and stage.codes == []
    (kept,) = stage.journal.latest(10)
    assert kept.over_unix_s is not None and stage.watch.past[0].finding == kept.finding


async def test_listeners_that_fail_do_not_end_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage, heard = Stage(tmp_path), list[object]()

    def fails(_: object) -> None:
        raise ValueError("a listener's fault")

    stage.watch.on_reading(fails)
    stage.watch.on_alarm(fails)
    stage.watch.on_alarm(heard.append)
    stage.engines = SLOW
    await stage.looks(3)
    assert len(heard) == 1 and "a listener's fault" in caplog.text


async def test_it_runs_until_cancelled_whatever_goes_wrong_in_a_reading(tmp_path: Path) -> None:
    stage, three = Stage(tmp_path), asyncio.Event()
    count = 0

    def sometimes() -> tuple[EngineReading, ...]:
        nonlocal count
        count += 1
        if count > 4:
            three.set()
        if count % 2:
            raise RuntimeError("no reading now")
        return (engine(pid=None),)

    stage.watch._engine_readings = sometimes
    running = asyncio.create_task(stage.watch.run())
    async with asyncio.timeout(PATIENCE_S):
        await three.wait()
    assert stage.watch.latest is not None
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_card_with_a_fatal_xid_is_given_to_who_drops_its_engines(tmp_path: Path) -> None:
    stage = Stage(tmp_path, plan=gpu_plan(), cards=(FakeCard(), FakeCard()))
    lost: list[frozenset[int]] = []
    stage.watch.on_lost_cards(lost.append)
    await stage.looks(2)
    with stage.log.open("a") as log:
        log.write("4,1,1,-;NVRM: Xid (PCI:0000:18:00): 48, pid=1, DBE\n")
    stage.driver.cards[0].lost = True
    await stage.looks(3)
    assert set(lost) == {frozenset({0})}
    assert {"xid.48", "live.card-silent"} == set(stage.codes)


async def test_cards_that_an_engine_does_not_use_are_read_and_not_judged(tmp_path: Path) -> None:
    stage = Stage(tmp_path, cards=(FakeCard(used=16 << 30),))
    await stage.looks(4)
    assert stage.watch.latest is not None and stage.watch.latest.cards and stage.codes == []


async def test_garbage_that_the_tap_saw_is_an_alarm(tmp_path: Path) -> None:
    tap = GarbageTap()
    stage = Stage(tmp_path, tap=tap)
    await stage.looks(1)
    tap.counts["horse"] = Counts(garbage=5, sane=1, sample="GGGGGG")
    await stage.looks(1)
    assert stage.codes == ["live.garbage"]


async def test_a_measurement_changes_what_is_expected(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.watch.accept("horse", stage.plan, 400.0)
    await stage.looks(3)
    assert stage.codes == ["live.decode-collapsed"]


async def test_a_measurement_beside_other_programs_is_none(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.looks(1)
    assert stage.watch.latest is not None
    stage.watch.latest = replace(stage.watch.latest, other_cpus_busy=1.9, cpus=2)
    stage.watch.accept("horse", stage.plan, 400.0)
    await stage.looks(3)
    assert stage.codes == []


async def test_a_measurement_beside_a_suspicion_is_none(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.engines = (engine(pid=None, waiting=99, decode_tokens_per_s=20.0),)
    await stage.looks(2)
    assert set(stage.codes) == {"live.decode-collapsed", "live.queue-full"}

    def measured() -> None:
        assert stage.watch.latest is not None  # this machine may be at work, the service's is not
        stage.watch.latest = replace(stage.watch.latest, other_cpus_busy=0.0)
        stage.watch.accept("horse", stage.plan, 20.0)

    measured()
    await stage.looks(3)
    assert "live.decode-collapsed" in stage.codes
    stage.engines = (engine(pid=None, decode_tokens_per_s=20.0),)
    await stage.looks(3)
    measured()  # slow, and nothing else: that is its speed
    await stage.looks(3)
    assert stage.codes == []


async def test_new_settings_hold_from_then_on(tmp_path: Path) -> None:
    webhook = Webhook(None)
    stage = Stage(tmp_path, plan=gpu_plan(), cards=(FakeCard(used=12 << 30),), webhook=webhook)
    await stage.looks(4)
    assert stage.codes == []
    url = "http://127.0.0.1:9/hook"
    stage.watch.apply(msgspec.structs.replace(QUICK, vram_share=0.5, webhook=url))
    await stage.looks(4)
    assert stage.codes == ["live.vram-full"] and webhook.url == url
    stage.watch.apply(msgspec.structs.replace(QUICK, on=False))
    assert stage.codes == [] and stage.watch.latest is None


async def test_a_guard_that_is_off_does_not_look(tmp_path: Path) -> None:
    stage = Stage(tmp_path, settings=msgspec.structs.replace(QUICK, on=False))
    await stage.watch._look_once()
    assert stage.watch.latest is None


async def test_what_was_open_when_the_service_ended_is_over_at_the_next_start(
    tmp_path: Path,
) -> None:
    before = Stage(tmp_path)
    before.engines = SLOW
    await before.looks(3)
    after = Stage(tmp_path)
    started = asyncio.create_task(after.watch.run())
    async with asyncio.timeout(PATIENCE_S):
        while after.watch.latest is None:  # noqa: ASYNC110 - bounded, and it has no event
            await asyncio.sleep(0.01)
    started.cancel()
    assert [a.finding.code for a in after.watch.past] == ["live.decode-collapsed"]
    assert after.journal.latest(1)[0].over_unix_s is not None and after.codes == []


async def test_a_journal_that_cannot_be_written_costs_the_past_and_nothing_else(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.journal.path.mkdir()
    stage.engines = SLOW
    await stage.looks(4)
    assert stage.codes == ["live.decode-collapsed"]


async def test_the_journal_is_bounded_and_reads_over_what_it_does_not_know(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.engines = SLOW
    await stage.looks(3)
    (one,) = stage.watch.alarms
    stage.journal.save(replace(one, since_unix_s=float(n)) for n in range(KEPT + 50))
    assert len(stage.journal.latest(2 * KEPT)) == KEPT
    with stage.journal._open() as connection, connection:
        connection.execute("UPDATE guard_alarm SET document = '{}' WHERE since_unix_s > 1000")
    assert len(stage.journal.latest(2 * KEPT)) < KEPT


# --- the webhook ----------------------------------------------------------------------------------

Answer = Callable[[int], int]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that waits for its turn is one that answers."""
    monkeypatch.setattr("workhorse.guard.webhook.ANSWER_WITHIN_S", PATIENCE_S)


@asynccontextmanager
async def receiver(status: Answer) -> AsyncIterator[tuple[str, list[Any], asyncio.Event]]:
    """A server that answers the n-th request with a status; its address and what it got."""
    got: list[Any] = []
    came = asyncio.Event()

    async def take(request: web.Request) -> web.Response:
        got.append(await request.json())
        came.set()
        return web.Response(status=status(len(got)))

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook", got, came
    finally:
        await runner.cleanup()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what another task does has no event
            await asyncio.sleep(0.01)


async def raised(tmp_path: Path, webhook: Webhook) -> Stage:
    stage = Stage(tmp_path, webhook=webhook)
    stage.engines = SLOW
    await stage.looks(3)
    return stage


async def test_the_webhook_gets_each_alarm_as_json_again_until_it_is_taken(tmp_path: Path) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with receiver(lambda n: 503 if n < 3 else 204) as (url, got, _):
        webhook = Webhook(url, "http://127.0.0.1:8080", sleep=pause)
        sending = asyncio.create_task(webhook.run())
        stage = await raised(tmp_path, webhook)
        await until(lambda: len(got) == 3)
        stage.engines = (engine(pid=None),)
        await stage.looks(3)
        await until(lambda: len(got) == 4)
        sending.cancel()
    assert pauses == [1.0, 2.0] and got[0] == got[1] == got[2]
    assert got[0]["event"] == "raised" and got[3]["event"] == "over"
    alarm = got[0]["alarm"]
    assert alarm["finding"]["code"] == "live.decode-collapsed" and alarm["subject"] == "horse"
    assert alarm["finding"]["remedy"]["zh"] and got[0]["service"] == "http://127.0.0.1:8080"


NO_NAME = f"http://{'a' * 64}.example/hook"  # too long a label: Python's resolver has ValueError


@pytest.mark.parametrize("status", [500, 302, "http://127.0.0.1:9/hook", NO_NAME])
async def test_a_webhook_that_does_not_answer_is_given_up_after_a_bounded_time(
    tmp_path: Path, status: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    answers = isinstance(status, int)
    async with receiver(lambda _: int(status)) as (url, got, _):
        webhook = Webhook(url if answers else str(status), sleep=pause)
        sending = asyncio.create_task(webhook.run())
        await raised(tmp_path, webhook)
        await until(lambda: "the webhook did not take" in caplog.text)
        sending.cancel()
    assert len(pauses) == TRIES - 1 and sum(pauses) < 120
    assert len(got) == (TRIES if answers else 0)


# --- settings -------------------------------------------------------------------------------------


def test_the_settings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "workhorse.toml"
    file.write_text('[guard]\nperiod_s = 2\nwebhook = "http://127.0.0.1:9/x"\nvram_share = 0.8\n')
    guard = read_settings(file).guard
    assert (guard.period_s, guard.webhook, guard.vram_share) == (2, "http://127.0.0.1:9/x", 0.8)


@pytest.mark.parametrize(
    "line",
    ["period_s = 0", "vram_share = 90", "webhook = 'ftp://x'", "decode = 1", "raise_after = 0"],
)
def test_a_wrong_setting_is_one_clear_error(tmp_path: Path, line: str) -> None:
    file = tmp_path / "workhorse.toml"
    file.write_text(f"[guard]\n{line}\n")
    with pytest.raises(AppError) as caught:
        read_settings(file)
    assert str(file) in caught.value.what.en and json.dumps(caught.value.what.zh)
