"""One replica from what it was told to its end, with the fake engine as a real child."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "engines"))

from asgi_driver import Exchange
from fake_client import until
from fake_replica import NODE

import builders
from workhorse.codec import from_json, to_json
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet.replica_life import EXIT_ENGINE_ENDED, ReplicaLife
from workhorse.fleet.replica_record import read_record
from workhorse.fleet.spec import FACTS_PATH, ReplicaFacts, ReplicaSpec
from workhorse.fleet.weights_files import shared_files, sources_of
from workhorse.fleet.weights_share import WeightsShare
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild
from workhorse.run.live_processes import read_process
from workhorse.run.run_file import service_files

FAKE = EngineBuild(
    engine="fake",
    kind="fake",
    command=(sys.executable, "-m", "workhorse.engines.fake"),
    version="fake",
    needs_flags=(),
    gpu_architectures=(),
    openmp=None,
    library_dir=None,
    knows=("--model",),
    source="test",
)
BUDGET_S = 0.01  # by the forecast: the shortest measurement there is
PLAN = make_plan(builders.machine(), builders.model(), FAKE, Wish(context_tokens=1024, slots=2))


def spec(*options: str, **told: Any) -> ReplicaSpec:
    """A replica whose engine is told these options."""
    build = replace(FAKE, command=(*FAKE.command, *options))
    one = ReplicaSpec("a-1", "m", replace(PLAN, engine=build), None, {}, "box-kind")
    return replace(one, **told)


@asynccontextmanager
async def living(home: Path, told: ReplicaSpec, **more: Any) -> AsyncIterator[ReplicaLife]:
    life = ReplicaLife(told, Places(home), NODE, budget_s=BUDGET_S, **more)
    try:
        await life.start()
        yield life
    finally:
        await life.stop()


async def refusal(home: Path, told: ReplicaSpec, **more: Any) -> AppError:
    with pytest.raises(AppError) as raised:
        async with living(home, told, **more):
            pass
    return raised.value


def environment_of(pid: int | None) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def gone(pid: int | None) -> Callable[[], bool]:
    assert pid is not None
    return lambda: read_process(pid) is None


async def test_it_serves_and_says_what_it_can_take(tmp_path: Path) -> None:
    async with living(tmp_path, spec("--gap-ms", "5")) as life:
        assert life.is_well
        one = await Exchange(life.app, f"/r/a-1{FACTS_PATH}", method="GET").run()
        facts = from_json(ReplicaFacts, one.text, what="facts")
        assert (facts.name, facts.node, facts.state) == ("a-1", "box", "ready")
        assert (facts.slots, facts.context_tokens) == (2, 1024)
        assert facts.measured
        assert facts.decode_tokens_per_s
        assert facts.total_tokens_per_s
        answer = await Exchange(life.app, "/r/a-1/completion", body=b'{"prompt":"a"}').run()
        assert answer.status == 200
        pid = facts.engine_pid
    assert gone(pid)()
    assert life.facts().state == "draining"
    assert service_files(tmp_path / "run" / "replicas") == []


async def test_it_ends_with_its_engine_and_remembers_that(tmp_path: Path) -> None:
    left: list[int] = []
    told = spec("--gap-ms", "5")
    async with living(tmp_path, told, leave=left.append) as life:
        before = life.facts()
        assert before.engine_pid is not None
        os.kill(before.engine_pid, signal.SIGKILL)
        await until(lambda: left)
        assert left == [EXIT_ENGINE_ENDED]
        assert not life.is_well
    folder = tmp_path / "run" / "replicas"
    record = read_record(folder, "a-1", told.plan)
    assert len(record.deaths_unix_s) == 1
    assert record.reason is not None
    assert "SIGKILL" in record.reason.en
    async with living(tmp_path, told) as life:  # who waits for it is not kept waiting by measuring
        after = life.facts()
        assert after.boot != before.boot
        assert after.decode_tokens_per_s == before.decode_tokens_per_s
    assert read_record(folder, "a-1", told.plan).deaths_unix_s == ()


async def test_it_is_not_left_for_an_engine_that_was_stopped(tmp_path: Path) -> None:
    left: list[int] = []
    async with living(tmp_path, spec(), leave=left.append):
        pass
    assert left == []


async def test_an_engine_that_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    left: list[int] = []
    error = await refusal(tmp_path, spec("--die-at-start"), leave=left.append)
    assert "failed to open GGUF file" in error.what.en
    assert error.speaker == "engine"
    assert left == []


async def test_an_engine_that_answers_garbage_does_not_serve(tmp_path: Path) -> None:
    error = await refusal(tmp_path, spec("--garbage"))
    assert error.what.zh
    skipped = spec("--garbage", skip_golden=True)
    async with living(tmp_path, skipped) as life:
        assert life.is_well


async def test_an_engine_that_keeps_ending_is_not_started_for_ever(tmp_path: Path) -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    told = spec("--die-at-start")
    errors = [await refusal(tmp_path, told, sleep=sleep) for _ in range(9)]
    assert "not started any more" in errors[-1].what.en
    assert "failed to open GGUF file" in errors[-1].what.en
    assert "not started any more" not in errors[6].what.en
    assert waits[0] == 0.0
    assert all(wait_s > 0 for wait_s in waits[2:])


async def test_weights_are_fetched_from_the_head_and_the_plan_follows(tmp_path: Path) -> None:
    file = tmp_path / "head" / "small.gguf"
    file.parent.mkdir()
    file.write_bytes(b"weights" * 1000)
    head = WeightsShare(NODE.key, head=True)
    head.start("127.0.0.1", (0,))
    try:
        hashed = shared_files([file], tmp_path / "hashes")
        head.add(hashed)
        (source,) = sources_of(hashed, head.url)
        async with living(tmp_path / "node", spec(weights=source)) as life:
            assert life.is_well
    finally:
        head.stop()
    (there,) = (tmp_path / "node" / "models" / "fleet").rglob("small.gguf")
    assert there.read_bytes() == file.read_bytes()


async def test_a_node_without_the_weights_says_so(tmp_path: Path) -> None:
    plan = replace(PLAN, engine=builders.EMBEDDED, model_path="/nowhere/m.gguf")
    error = await refusal(tmp_path, spec(plan=plan))
    assert "/nowhere/m.gguf" in error.what.en


async def test_another_version_is_refused_before_anything_starts(tmp_path: Path) -> None:
    error = await refusal(tmp_path, spec(version="0.0.1"))
    assert "0.0.1" in error.what.en
    assert not (tmp_path / "logs").exists()


async def test_ray_does_not_set_the_threads_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    async with living(tmp_path, spec()) as life:
        environ = environment_of(life.facts().engine_pid)
    assert b"OMP_NUM_THREADS" not in environ


def test_it_lives_on_the_event_loop_that_ray_gives_it(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="it comes with Ray Serve")

    async def measured_and_asked() -> None:
        async with living(tmp_path, spec("--gap-ms", "5")) as life:
            assert life.facts().measured
            answer = await Exchange(life.app, "/r/a-1/completion", body=b'{"prompt":"a"}').run()
            assert answer.is_whole

    uvloop.run(measured_and_asked())


async def test_the_engine_dies_with_a_killed_replica(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(to_json(spec()))
    pid = await asyncio.to_thread(started_and_killed, tmp_path, path)
    await until(gone(pid))
    # What it wrote down goes with the next replica's start.
    async with living(tmp_path, spec()) as life:
        ((_, file),) = service_files(tmp_path / "run" / "replicas")
        assert file.service.pid == os.getpid()
        assert life.is_well


def started_and_killed(home: Path, path: Path) -> int:
    """The engine of a replica in a process of its own, which was killed when it was ready."""
    program = str(Path(__file__).with_name("fake_replica.py"))
    command = [sys.executable, program, str(home), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            pid = int(process.stdout.readline())
            assert not gone(pid)()
        finally:
            process.kill()
    return pid
