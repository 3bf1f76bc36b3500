"""One owner of one engine process: it starts, answers, ends, and leaves nothing behind."""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from launches import PATIENCE_S, command, fake, is_reaped, lives, one_cpu, status_of, until

from workhorse.errors import AppError, Cause
from workhorse.run.process import EngineProcess, PortTaken
from workhorse.text import Text


async def answer_of(engine: EngineProcess, path: str = "/health") -> int:
    async with aiohttp.ClientSession() as http, http.get(engine.base_url + path) as answer:
        return answer.status


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "engine.log"


# ------------------------------------------------------------ start and readiness


async def test_it_is_ready_when_its_health_says_so_and_gone_when_stopped(log: Path) -> None:
    engine = EngineProcess(fake("--load-s", "0.5"), log)
    assert engine.pid is None
    await engine.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await engine.wait_ready(PATIENCE_S)
        assert await answer_of(engine) == 200
        assert engine.returncode is None
        assert os.getsid(engine.pid or 0) == engine.pid, "a Ctrl-C in our terminal would hit it"
    finally:
        await engine.stop()
    assert engine.returncode == 0
    assert engine.exited.is_set()
    assert is_reaped(engine.pid)
    await engine.stop()
    with pytest.raises(RuntimeError, match="starts once"):
        await engine.start()


async def test_a_failed_start_shows_the_cause_from_the_log_at_once(log: Path) -> None:
    engine = EngineProcess(fake("--die-at-start", "-m", "seven.gguf"), log)
    await engine.start()
    with pytest.raises(AppError) as caught:
        await engine.wait_ready(3600)
    assert caught.value.speaker == "engine"
    assert "failed to load model, 'seven.gguf' (exit code 1)" in caught.value.what.en
    assert "退出码 1" in caught.value.what.zh
    assert str(log) in caught.value.next_step.en
    assert is_reaped(engine.pid)


async def test_the_cause_comes_from_who_knows_this_engines_log(log: Path) -> None:
    def explain(lines: object) -> Cause:
        assert "missing model" in str(lines)
        return Cause(Text("no such model", "没有这个模型"), Text("Fetch it.", "请下载。"))

    engine = EngineProcess(command("sh", "-c", "echo missing model >&2"), log, explain=explain)
    await engine.start()
    with pytest.raises(AppError, match=r"ended: no such model \(exit code 0\)") as caught:
        await engine.wait_ready(3600)
    assert caught.value.next_step.en == "Fetch it."


async def test_a_log_without_an_error_still_tells_how_it_ended(log: Path) -> None:
    engine = EngineProcess(command("sh", "-c", "kill -ILL $$"), log)
    await engine.start()
    with pytest.raises(AppError, match="SIGILL: the build uses instructions that this CPU"):
        await engine.wait_ready(3600)


async def test_an_engine_that_is_not_there(log: Path) -> None:
    engine = EngineProcess(command("/no/such/llama-server"), log)
    await engine.start()
    with pytest.raises(AppError, match=r"/no/such/llama-server: No such file.*exit code 127"):
        await engine.wait_ready(3600)


@pytest.mark.parametrize(
    ("fault", "said"), [(("--hang",), "no answer"), (("--load-s", "3600"), "HTTP 503")]
)
async def test_an_engine_that_is_never_ready_says_what_it_said_last_and_is_gone(
    log: Path, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("workhorse.run.process.PROBE_S", 0.5)
    engine = EngineProcess(fake(*fault), log)
    await engine.start()
    # What it says is known before the time is over, however slowly it starts.
    looking = asyncio.create_task(engine._poll_health())
    await until(lambda: engine._last_answer.en == said)
    looking.cancel()
    await asyncio.wait({looking})
    with pytest.raises(AppError, match=f"not ready after 10.0 ms .* said last: {said}"):
        await engine.wait_ready(0.01)
    assert is_reaped(engine.pid)


async def test_a_taken_port_is_its_own_error(log: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engine = EngineProcess(fake(port=taken.getsockname()[1]), log)
        await engine.start()
        with pytest.raises(PortTaken, match=f"has port {engine.launch.port}"):
            await engine.wait_ready(PATIENCE_S)


async def test_a_log_that_cannot_be_written_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    engine = EngineProcess(command("true"), tmp_path / "file" / "engine.log")
    with pytest.raises(AppError) as caught:
        await engine.start()
    assert str(tmp_path / "file") in caught.value.next_step.en
    await engine.stop()


async def test_cpus_and_environment_are_those_of_the_launch(log: Path) -> None:
    launch = command("sh", "-c", 'echo "told $TOLD"; sleep 3600')
    launch = replace(launch, cpus=(one_cpu(),), env={"TOLD": "this"})
    engine = EngineProcess(launch, log)
    await engine.start()
    try:
        await until(lambda: "told this" in engine.log_tail(5))
        assert status_of(engine.pid, "Cpus_allowed_list") == str(one_cpu())
    finally:
        await engine.stop()


@pytest.mark.parametrize("middle", [0, 10, 30_000])
def test_the_ends_of_a_log_hold_its_first_and_last_lines_once(log: Path, middle: int) -> None:
    engine = EngineProcess(command("true"), log)
    assert engine.log_ends(2) == []
    log.parent.mkdir(exist_ok=True)
    lines = ["settings", "more", *(f"tensor {n}" for n in range(middle)), "room", "ready"]
    log.write_text("\n".join(lines) + "\n")
    assert engine.log_ends(2) == ["settings", "more", "room", "ready"]
    whole = engine.log_ends(50_000)
    assert whole[:2] + whole[-2:] == ["settings", "more", "room", "ready"]
    assert len(whole) == len(set(whole))


# ------------------------------------------------------------ the end


async def started(engine: EngineProcess) -> EngineProcess:
    await engine.start()
    await engine.wait_ready(PATIENCE_S)
    return engine


async def test_an_engine_that_ignores_sigterm_is_killed(log: Path) -> None:
    engine = await started(EngineProcess(fake("--ignore-sigterm", stop_grace_s=0.5), log))
    await engine.stop()
    assert engine.returncode == -signal.SIGKILL
    assert is_reaped(engine.pid)


async def test_an_engine_that_needs_two_sigterms_gets_them(log: Path) -> None:
    launch = fake("--ignore-sigterm", "1", stop_grace_s=PATIENCE_S)
    engine = await started(EngineProcess(launch, log))
    await engine.stop()
    assert engine.returncode == 0


async def test_stopping_twice_at_once_and_before_the_start(log: Path) -> None:
    engine = EngineProcess(command("sleep", "3600"), log)
    await engine.stop()
    await engine.start()
    await asyncio.gather(engine.stop(), engine.stop())
    assert is_reaped(engine.pid)


async def test_a_stop_that_is_cancelled_kills(log: Path) -> None:
    launch = fake("--ignore-sigterm", stop_grace_s=3600)
    engine = await started(EngineProcess(launch, log))
    stop = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    stop.cancel()
    await asyncio.wait({stop})
    async with asyncio.timeout(PATIENCE_S):
        await engine.exited.wait()
    assert engine.returncode == -signal.SIGKILL


@pytest.mark.parametrize("end", ["stopped", "dead"])
async def test_what_the_engine_started_ends_with_it(log: Path, end: str) -> None:
    # The child ignores SIGTERM, as a worker in the middle of something may.
    script = "sh -c 'trap \"\" TERM; echo child $$; sleep 3600' & wait"
    engine = EngineProcess(command("sh", "-c", script), log)
    await engine.start()
    try:
        await until(lambda: engine.log_tail(1)[:1] and engine.log_tail(1)[0].startswith("child"))
        child = int(engine.log_tail(1)[0].split()[1])
        assert lives(child)
        if end == "dead":
            os.kill(engine.pid or 0, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                await engine.exited.wait()
    finally:
        await engine.stop()
    await until(lambda: not lives(child))


async def test_starting_and_stopping_leaves_no_zombie_no_thread_and_no_file_open(
    log: Path,
) -> None:
    def held() -> tuple[int, int]:
        return len(set(Path("/proc/self/fd").iterdir())), threading.active_count()

    async def cycle() -> None:
        engine = EngineProcess(command("sleep", "3600"), log)
        await engine.start()
        await engine.stop()
        assert is_reaped(engine.pid)

    await cycle()
    gc.collect()
    before = held()
    for _ in range(20):
        await cycle()
    gc.collect()
    await until(lambda: held() <= before)


PARENT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from launches import PATIENCE_S, fake
from workhorse.run.process import EngineProcess

async def main():
    engine = EngineProcess(fake("--ignore-sigterm"), Path(sys.argv[1]))
    await engine.start()
    await engine.wait_ready(PATIENCE_S)
    print(engine.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_an_engine_does_not_outlive_an_owner_that_is_killed(log: Path) -> None:
    argv = [sys.executable, "-c", PARENT, str(log), str(Path(__file__).parent)]
    parent = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert lives(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not lives(pid))


# ------------------------------------------------------------ the log


async def test_the_log_of_the_run_before_is_kept(log: Path) -> None:
    for word in ("first", "second", "third"):
        engine = EngineProcess(command("echo", word), log)
        await engine.start()
        async with asyncio.timeout(PATIENCE_S):
            await engine.exited.wait()
    assert [path.read_text() for path in (log, log.with_name("engine.log.1"))] == [
        "third\n",
        "second\n",
    ]


async def test_a_log_that_grows_too_long_is_begun_again_while_the_engine_writes(
    log: Path,
) -> None:
    engine = EngineProcess(command("sh", "-c", "while :; do echo line; sleep 0.01; done"), log)
    await engine.start()
    try:
        await until(lambda: len(engine.log_tail(99)) > 5)
        engine.limit_log(limit_bytes=10**6)
        assert not log.with_name("engine.log.1").exists()
        engine.limit_log(limit_bytes=20)
        assert log.with_name("engine.log.1").read_text().startswith("line\nline\n")
        await until(lambda: log.read_bytes()[:5] == b"line\n")
    finally:
        await engine.stop()


def test_the_tail_of_a_log(log: Path) -> None:
    engine = EngineProcess(command("true"), log)
    assert engine.log_tail(3) == []
    log.parent.mkdir()
    log.write_bytes(b"one\ntwo \xff\nthree")
    assert engine.log_tail(2) == ["two \N{REPLACEMENT CHARACTER}", "three"]


def test_where_an_engine_on_ipv6_answers(log: Path) -> None:
    launch = replace(command("true"), host="::1", port=7)
    assert EngineProcess(launch, log).base_url == "http://[::1]:7"
