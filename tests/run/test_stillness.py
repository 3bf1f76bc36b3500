"""An engine that hangs is told from one that computes for half an hour without a word."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from launches import PATIENCE_S, fake, is_reaped, until

from workhorse.run.process import EngineProcess
from workhorse.run.stillness import Stillness, Vitals, says_at_rest
from workhorse.run.supervisor import Supervisor, vitals_of
from workhorse.run.vitals import open_connections, read_vitals

MINUTE_S = 60.0
HUNG_AFTER_S = 5 * MINUTE_S
AT_REST = Vitals(cpu_s=10.0, major_faults=5, read_bytes=100, held_bytes=0, waiting=1)


def seen(*vitals: Vitals | None) -> list[float]:
    """The stillness after each look, a minute apart."""
    stillness = Stillness()
    return [stillness.see(one, minute * MINUTE_S) for minute, one in enumerate(vitals)]


def test_nobody_waits_so_nothing_hangs() -> None:
    assert seen(*[replace(AT_REST, waiting=0)] * 3) == [0, 0, 0]
    assert seen(AT_REST, AT_REST, replace(AT_REST, waiting=0), AT_REST) == [0, 60, 0, 0]
    assert seen(AT_REST, None, AT_REST) == [0, 0, 0]


@pytest.mark.parametrize(
    "sign",
    [
        {"cpu_s": 10.2},
        {"major_faults": 6},
        {"read_bytes": 101},
    ],
    ids=["computes", "reads pages", "reads"],
)
def test_any_sign_of_life_counts(sign: dict[str, float]) -> None:
    assert seen(AT_REST, AT_REST, replace(AT_REST, **sign)) == [0, 60, 0]  # type: ignore[arg-type]


def test_waking_now_and_then_is_no_life() -> None:
    wakes = [replace(AT_REST, cpu_s=10.0 + 0.03 * minute) for minute in range(4)]
    assert seen(*wakes) == [0, 60, 120, 180]


def test_an_engine_at_rest_is_known_by_its_slots() -> None:
    at_rest, at_work = {"is_processing": False}, {"is_processing": True}
    assert says_at_rest([at_rest, at_rest])
    assert not says_at_rest([at_rest, at_work])
    assert not says_at_rest(None)
    assert says_at_rest({"error": {"code": 404}})
    assert says_at_rest(["odd"])


def test_the_reason_says_what_was_seen() -> None:
    stillness = Stillness()
    for minute in range(6):
        stillness.see(replace(AT_REST, waiting=3), minute * MINUTE_S)
    assert "5 min" in stillness.reason.en
    assert "3 requests waited" in stillness.reason.en
    assert "3 个请求" in stillness.reason.zh


async def test_what_the_kernel_says_of_a_real_engine(tmp_path: Path) -> None:
    process = EngineProcess(fake("--gap-ms", "10000"), tmp_path / "engine.log")
    await process.start()
    try:
        await process.wait_ready(PATIENCE_S)
        assert process.pid is not None
        # The engine may need its turn to see that who asked for its health has gone.
        await until(lambda: open_connections(process.launch.port) == 0)
        before = read_vitals(process.pid, process.launch.port)
        assert before is not None
        assert before.waiting == 0
        assert before.cpu_s > 0
        assert before.held_bytes > 2**20
        async with aiohttp.ClientSession() as http:
            ask = {"prompt": "go", "n_predict": 3, "ignore_eos": True, "stream": True}
            async with http.post(process.base_url + "/completion", json=ask):
                during = read_vitals(process.pid, process.launch.port)
                assert during is not None
                assert during.waiting == 1
                assert during.cpu_s >= before.cpu_s
        await until(lambda: open_connections(process.launch.port) == 0)
    finally:
        await process.stop()
    assert read_vitals(process.pid, process.launch.port) is None


class Clock:
    """A clock that a minute passes on at each look at the engine."""

    def __init__(self, what: Callable[[int], Vitals | None]) -> None:
        self.minutes = 0
        self._what = what

    def __call__(self) -> float:
        return self.minutes * MINUTE_S

    def look(self, _: EngineProcess) -> Vitals | None:
        self.minutes += 1
        return self._what(self.minutes)


def watched(folder: Path, clock: Clock) -> Supervisor:
    return Supervisor(
        lambda port: fake(port=port),
        folder / "engine.log",
        ready_timeout_s=PATIENCE_S,
        clock=clock,
        hung_after_s=HUNG_AFTER_S,
        look_every_s=0.001,
        vitals=clock.look,
    )


async def test_half_an_hour_of_prefill_is_survived_and_a_hang_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine answers nothing at all: once it computes, then it does not."""
    monkeypatch.setattr("workhorse.run.supervisor.PROBE_S", 0.05)
    clock = Clock(lambda minute: replace(AT_REST, cpu_s=60.0 * min(minute, 45)))
    supervisor = watched(tmp_path, clock)
    reasons: list[tuple[float, str]] = []
    supervisor.on_change(
        lambda status: status.reason and reasons.append((clock.minutes, status.reason.en))
    )
    await supervisor.start()
    try:
        assert supervisor.process is not None
        pid = supervisor.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: clock.minutes > 45)
        assert not is_reaped(pid)
        await until(lambda: reasons)
        ((minute, reason),) = reasons
        assert minute >= 50
        assert reason.startswith("It hung: for 5 min 0 s")
        assert await supervisor.address(PATIENCE_S)
        assert is_reaped(pid)
    finally:
        await supervisor.stop()


async def test_a_look_that_fails_costs_neither_the_engine_nor_the_watch(tmp_path: Path) -> None:
    def fails(minute: int) -> Vitals:
        raise RuntimeError("can't start new thread")

    clock = Clock(fails)
    supervisor = watched(tmp_path, clock)
    await supervisor.start()
    try:
        await until(lambda: clock.minutes > 3)
        assert supervisor.owned and supervisor.process is not None
        supervisor.process.kill()
        await until(lambda: supervisor.status.restarts == 1 and supervisor.status.state == "ready")
    finally:
        await supervisor.stop()


async def test_an_engine_at_rest_with_an_open_connection_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.run.supervisor.PROBE_S", PATIENCE_S)
    clock = Clock(lambda _: AT_REST)
    supervisor = watched(tmp_path, clock)
    await supervisor.start()
    try:
        await until(lambda: clock.minutes > 30)
        assert supervisor.status.restarts == 0
    finally:
        await supervisor.stop()


async def test_a_real_hang_under_a_real_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.run.supervisor.PROBE_S", 0.1)
    hangs: list[int] = []  # looked at from here on: until then it has all the time that it needs

    def look(process: EngineProcess) -> Vitals | None:
        return vitals_of(process) if process.pid in hangs else None

    supervisor = Supervisor(
        lambda port: fake("--gap-ms", "50", port=port),
        tmp_path / "engine.log",
        ready_timeout_s=PATIENCE_S,
        hung_after_s=0.3,
        look_every_s=0.05,
        vitals=look,
    )
    await supervisor.start()
    try:
        assert supervisor.process is not None
        pid = supervisor.process.pid
        assert pid is not None
        ask = {"prompt": "go", "n_predict": 3000, "ignore_eos": True, "stream": True}
        url = (await supervisor.address(0)).url
        async with (
            aiohttp.ClientSession() as http,
            http.post(url + "/completion", json=ask) as answer,
        ):
            await answer.content.readany()
            os.kill(pid, signal.SIGSTOP)
            hangs.append(pid)
            with pytest.raises(aiohttp.ClientPayloadError):
                while await answer.content.readany():
                    pass
        await until(lambda: supervisor.status.restarts == 1)
        assert await supervisor.address(PATIENCE_S)
        assert is_reaped(pid)
    finally:
        await supervisor.stop()
