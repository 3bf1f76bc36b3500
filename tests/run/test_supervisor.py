"""One engine kept alive: restarted, given up, and always with an answer to who asks for it."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from launches import PATIENCE_S, command, fake, is_reaped, lives, until

from workhorse.errors import AppError
from workhorse.records import Launch
from workhorse.run.policy import DELAYS_S, STEADY_S
from workhorse.run.process import EngineProcess
from workhorse.run.supervisor import EngineUnavailable, Status, Supervisor


async def no_sleep(_: float) -> None:
    await asyncio.sleep(0)


def boom(port: int) -> Launch:
    """An engine that fails at once, with a cause in its log."""
    return command("sh", "-c", "echo error: boom >&2; exit 3", port=port)


def healthy(*options: str) -> Callable[[int], Launch]:
    return lambda port: fake(*options, port=port)


def one_after_the_other(*launches: Callable[[int], Launch]) -> Callable[[int], Launch]:
    """Each start takes the next launch, the last one for ever."""
    left = list(launches)
    return lambda port: (left.pop(0) if len(left) > 1 else left[0])(port)


def supervise(launch_for: Callable[[int], Launch], folder: Path, **told: Any) -> Supervisor:
    told = {"ready_timeout_s": PATIENCE_S, "sleep": no_sleep, **told}
    return Supervisor(launch_for, folder / "engine.log", **told)


def kill(supervisor: Supervisor) -> int:
    assert supervisor.process is not None
    assert supervisor.process.pid is not None
    os.kill(supervisor.process.pid, signal.SIGKILL)
    return supervisor.process.pid


async def until_state(supervisor: Supervisor, *states: str) -> None:
    await until(lambda: supervisor.status.state in states)


async def test_an_engine_that_is_killed_comes_back(tmp_path: Path) -> None:
    supervisor = supervise(healthy(), tmp_path)
    seen: list[Status] = []
    supervisor.on_change(seen.append)
    with pytest.raises(EngineUnavailable, match="stopped"):
        await supervisor.address(0)
    await supervisor.start()
    try:
        first = supervisor.status
        assert (first.state, first.restarts) == ("ready", 0)
        assert await supervisor.address(0) == first.address
        with pytest.raises(RuntimeError, match="owner"):
            await supervisor.start()
        pid = kill(supervisor)
        await until_state(supervisor, "restarting")
        assert supervisor.status.reason is not None
        assert "SIGKILL" in supervisor.status.reason.en
        url = (await supervisor.address(PATIENCE_S)).url
        assert is_reaped(pid)
        second = supervisor.status
        assert (second.state, second.restarts, second.reason) == ("ready", 1, None)
        assert second.generation != first.generation
        assert second.address is not None
        assert url == second.address.url
        async with aiohttp.ClientSession() as http, http.get(url + "/health") as answer:
            assert answer.status == 200
    finally:
        await supervisor.stop()
    await asyncio.sleep(0)
    assert [status.state for status in seen] == [
        "starting",
        "ready",
        "restarting",
        "ready",
        "stopped",
    ]


async def test_a_stream_is_cut_by_the_death_and_the_next_request_served(tmp_path: Path) -> None:
    ask = {"prompt": "go on", "n_predict": 20, "ignore_eos": True}
    supervisor = supervise(
        one_after_the_other(healthy("--die-after-tokens", "5"), healthy()), tmp_path
    )
    await supervisor.start()
    try:
        async with aiohttp.ClientSession() as http:
            heard = b""
            url = (await supervisor.address(0)).url
            with pytest.raises(aiohttp.ClientPayloadError):
                async with http.post(url + "/completion", json={**ask, "stream": True}) as answer:
                    async for line in answer.content:
                        heard += line
            await until(lambda: supervisor.status.generation > 1)
            url = (await supervisor.address(PATIENCE_S)).url
            async with http.post(url + "/completion", json=ask) as answer:
                whole = (await answer.json())["content"]
    finally:
        await supervisor.stop()
    assert heard.count(b"data: ") == 5
    assert all(word.encode() in heard for word in whole.split()[:5])


async def test_a_first_start_that_fails_is_the_callers_and_can_be_tried_again(
    tmp_path: Path,
) -> None:
    supervisor = supervise(one_after_the_other(boom, healthy()), tmp_path)
    with pytest.raises(AppError, match=r"error: boom \(exit code 3\)") as caught:
        await supervisor.start()
    assert caught.value.speaker == "engine"
    assert supervisor.status.state == "stopped"
    assert "boom" in (supervisor.status.reason or caught.value.what).en
    await supervisor.start()
    assert supervisor.status.state == "ready"
    await supervisor.stop()


async def test_a_crash_loop_is_given_up_and_says_so_to_who_waits(tmp_path: Path) -> None:
    slept: list[float] = []

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)

    launches = one_after_the_other(healthy(), boom)
    supervisor = supervise(launches, tmp_path, sleep=sleep, clock=lambda: 0.0)
    await supervisor.start()
    kill(supervisor)
    await until_state(supervisor, "restarting", "given_up")
    with pytest.raises(EngineUnavailable, match=r"kept ending.*boom") as caught:
        await supervisor.address(3600)
    assert caught.value.speaker == "gateway"
    assert supervisor.status.state == "given_up"
    assert slept == list(DELAYS_S)
    await supervisor.stop()
    assert supervisor.status.state == "stopped"


async def test_an_engine_that_ran_steadily_has_a_clean_record(tmp_path: Path) -> None:
    now = [0.0]
    records: list[Sequence[float]] = []

    def next_delay(deaths: Sequence[float], _: float) -> float:
        records.append(list(deaths))
        return 0.0

    supervisor = supervise(healthy(), tmp_path, next_delay=next_delay, clock=lambda: now[0])
    await supervisor.start()
    try:
        for lived_s in (1.0, STEADY_S, STEADY_S - 1):
            generation = supervisor.status.generation
            now[0] += lived_s
            kill(supervisor)
            await until(lambda seen=generation: supervisor.status.generation > seen)
            await until_state(supervisor, "ready")
    finally:
        await supervisor.stop()
    assert records == [[1], [1 + STEADY_S], [1 + STEADY_S, 2 * STEADY_S]]


async def test_who_asks_while_it_loads_waits_only_as_long_as_told(tmp_path: Path) -> None:
    launches = one_after_the_other(healthy(), healthy("--load-s", "3600"))
    supervisor = supervise(launches, tmp_path)
    await supervisor.start()
    try:
        kill(supervisor)
        await until(lambda: supervisor.status.generation > 1)
        with pytest.raises(EngineUnavailable, match=r"being restarted.*SIGKILL") as caught:
            await supervisor.address(0.05)
        assert "重启" in caught.value.what.zh
        assert supervisor.process is not None
        pid = supervisor.process.pid
    finally:
        await supervisor.stop()
    assert is_reaped(pid), "a stop while it loads ends the engine that loads"
    assert supervisor.status.state == "stopped"


async def test_a_stop_while_it_waits_to_restart(tmp_path: Path) -> None:
    async def sleep(_: float) -> None:
        await asyncio.sleep(3600)

    supervisor = supervise(healthy(), tmp_path, sleep=sleep)
    await supervisor.start()
    kill(supervisor)
    await until_state(supervisor, "restarting")
    waiter = asyncio.create_task(supervisor.address(3600))
    await asyncio.sleep(0)
    await asyncio.gather(supervisor.stop(), supervisor.stop())
    with pytest.raises(EngineUnavailable, match="stopped"):
        await waiter
    await supervisor.stop()


@pytest.mark.parametrize("by", ["stop", "cancel"])
async def test_a_stop_during_the_first_start(tmp_path: Path, by: str) -> None:
    supervisor = supervise(healthy("--load-s", "3600"), tmp_path)
    start = asyncio.create_task(supervisor.start())
    await until(lambda: supervisor.process is not None and supervisor.process.pid)
    assert supervisor.process is not None
    pid = supervisor.process.pid
    with pytest.raises(EngineUnavailable, match="still loading"):
        await supervisor.address(0)
    if by == "stop":
        await supervisor.stop()
        with pytest.raises(EngineUnavailable):
            await start
    else:
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    assert is_reaped(pid)
    assert supervisor.status.state == "stopped"


async def test_stopping_what_was_never_started(tmp_path: Path) -> None:
    supervisor = supervise(healthy(), tmp_path)
    await supervisor.stop()
    assert supervisor.status.state == "stopped"


# ------------------------------------------------------------ the check after the start


async def test_it_is_not_ready_before_the_check_has_passed(tmp_path: Path) -> None:
    states: list[str] = []

    async def check(engine: EngineProcess) -> None:
        states.append(supervisor.status.state)
        async with aiohttp.ClientSession() as http, http.get(engine.base_url + "/props") as answer:
            assert answer.status == 200

    supervisor = supervise(healthy(), tmp_path, after_ready=check)
    await supervisor.start()
    kill(supervisor)
    await until_state(supervisor, "restarting")
    await supervisor.address(PATIENCE_S)
    await supervisor.stop()
    assert states == ["starting", "restarting"]


async def test_a_check_that_refuses_at_the_first_start_is_the_callers(tmp_path: Path) -> None:
    pids: list[int | None] = []

    async def check(engine: EngineProcess) -> None:
        pids.append(engine.pid)
        raise ValueError("not good")

    supervisor = supervise(healthy(), tmp_path, after_ready=check)
    with pytest.raises(ValueError, match="not good"):
        await supervisor.start()
    assert is_reaped(pids[0])
    assert supervisor.status.state == "stopped"
    await supervisor.stop()


async def test_an_engine_that_dies_under_the_check_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.run.supervisor.DEATH_NEWS_S", PATIENCE_S)

    async def check(engine: EngineProcess) -> None:
        ask = {"prompt": "x", "n_predict": 9, "ignore_eos": True}
        async with aiohttp.ClientSession() as http:
            await http.post(engine.base_url + "/completion", json=ask)

    supervisor = supervise(healthy("--die-after-tokens", "3"), tmp_path, after_ready=check)
    with pytest.raises(AppError, match="SIGKILL"):
        await supervisor.start()
    await supervisor.stop()


async def test_a_taken_port_is_tried_again_with_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        supervisor = supervise(one_after_the_other(lambda _: fake(port=port), healthy()), tmp_path)
        await supervisor.start()
        assert supervisor.status.state == "ready"
        assert supervisor.status.generation == 2
        assert supervisor.process is not None
        assert lives(supervisor.process.pid)
        await supervisor.stop()
        supervisor = supervise(lambda _: fake(port=port), tmp_path)
        with pytest.raises(AppError, match=f"has port {port}"):
            await supervisor.start()


async def test_an_observer_that_fails_does_not_take_the_engine_with_it(tmp_path: Path) -> None:
    troubles: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: troubles.append(str(context["exception"]))
    )

    def observer(status: Status) -> None:
        raise ValueError(status.state)

    supervisor = supervise(healthy(), tmp_path)
    supervisor.on_change(observer)
    await supervisor.start()
    assert supervisor.status.state == "ready"
    await supervisor.stop()
    await asyncio.sleep(0)
    assert troubles == ["starting", "ready", "stopped"]
