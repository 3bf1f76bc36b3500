"""The guard over the real engine with the real model: what is done to it is seen and named."""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from guard_scenes import cpu_plan, forecast

from workhorse.engines import embedded
from workhorse.engines.openmp import ensure_openmp
from workhorse.guard.card_sensor import CardSensor
from workhorse.guard.judge import Judge
from workhorse.guard.limits import Limits
from workhorse.guard.sensors import Sensors
from workhorse.machine.files import DirectoryFiles
from workhorse.machine.kernel_messages import KernelMessages
from workhorse.machine.kernel_text import fields, size_bytes
from workhorse.records import Alarm, AnswerSpeed, EngineReading, Launch, Plan
from workhorse.run.process import EngineProcess, free_port
from workhorse.units import MIB

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

START_S = 300.0
LOOKS = 40  # more than it takes; a machine with other work is slow
CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
SETTINGS = (
    "--alias horse --ctx-size 2048 --parallel 1 --threads 2 --threads-batch 2 --batch-size 512 "
    "--ubatch-size 512 --flash-attn on --cache-type-k f16 --cache-type-v f16 --n-gpu-layers 0 "
    "--fit off --cache-ram 0 --verbosity 3"
)
# Half of the usual counts: a look here waits for an answer.
QUICK = Limits(raise_after=3, of_latest=4, clear_after=6)


@dataclass
class Guarded:
    """A real engine, and a guard that looks at it after each answer."""

    process: EngineProcess
    http: aiohttp.ClientSession
    plan: Plan
    sensors: Sensors
    judge: Judge = field(default_factory=lambda: Judge(QUICK))
    looks: int = 0

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    async def answer(self) -> EngineReading:
        """One answer of the engine and what it says of its speed."""
        body = {"prompt": "The town lies", "n_predict": 4, "ignore_eos": True, "temperature": 0}
        async with self.http.post(f"{self.process.base_url}/completion", json=body) as got:
            times = (await got.json())["timings"]
        self.looks += 1
        speed = AnswerSpeed(float(self.looks), times["predicted_per_second"], 16, 1.0)
        return EngineReading(
            "horse", "ready", 0, 1, 0, 1, times["predicted_per_second"], None, None,
            times["prompt_ms"] / 1000, 16, 1, answers=(speed,),
        )  # fmt: skip

    async def learn(self) -> None:
        """Measure it, as the service does after its start."""
        speeds = [(await self.answer()).decode_tokens_per_s or 0.0 for _ in range(7)]
        self.judge.baseline("horse", self.plan).accept(statistics.median(speeds))

    async def look(self) -> dict[str, Alarm]:
        """One answer and one reading; what is wrong now, by code."""
        engine = await self.answer()
        reading = await asyncio.to_thread(
            self.sensors.read, 1000.0 + self.looks, (engine,), {"horse": self.pid},
            {"horse": self.plan},
        )  # fmt: skip
        self.judge.add(reading, {"horse": self.plan})
        return {alarm.finding.code: alarm for alarm in self.judge.alarms}

    async def until(self, holds: Callable[[dict[str, Alarm]], bool]) -> dict[str, Alarm]:
        """Looks until something holds of the alarms, a bounded number of times."""
        for _ in range(LOOKS):
            if holds(alarms := await self.look()):
                return alarms
        raise AssertionError(f"not within {LOOKS} looks; alarms: {sorted(alarms)}")


@asynccontextmanager
async def guarded(
    model: Path, tmp_path: Path, load_mode: Any = "none", *, first: tuple[str, ...] = ()
) -> AsyncIterator[Guarded]:
    """Starts a real engine with a guard; `first`: a command line that starts it."""
    port = free_port("127.0.0.1")
    engine = (sys.executable, embedded.__file__, "--model", str(model), "--port", str(port))
    launch = Launch(
        argv=(*first, *engine, "--load-mode", load_mode, *SETTINGS.split()),
        env={"GOMP_SPINCOUNT": "1000", "LD_LIBRARY_PATH": str(ensure_openmp() or "")},
        cpus=CPUS,
        memory_nodes=None,
        host="127.0.0.1",
        port=port,
        health_path="/health",
        stop_grace_s=60.0,
    )
    process = EngineProcess(launch, tmp_path / "engine.log")
    plan = cpu_plan(
        cpus=CPUS, threads=len(CPUS), load_mode=load_mode, model_path=str(model),
        forecast=forecast(100.0, "estimated"),
    )  # fmt: skip
    files = DirectoryFiles(Path("/"))
    # A reading follows the other at once here, so nothing is too rare to be asked again.
    clock = iter(range(0, 10**6, 20))
    sensors = Sensors(
        tmp_path,
        cards=CardSensor(files),
        kernel=KernelMessages(tmp_path / "none"),
        clock=lambda: float(next(clock)),
    )
    await process.start()
    try:
        await process.wait_ready(START_S)
        with closing(sensors):
            async with aiohttp.ClientSession() as http:
                yield Guarded(process, http, plan, sensors)
    finally:
        await process.stop()


@contextmanager
def hogs(cpus: tuple[int, ...], each: int) -> Iterator[None]:
    """Programs that keep CPUs busy."""
    code = "import os,sys; os.sched_setaffinity(0,{int(sys.argv[1])})\n"
    code += "while os.getppid()==int(sys.argv[2]): pass"
    own = str(os.getpid())
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(cpu), own], start_new_session=True)
        for cpu in cpus
        for _ in range(each)
    ]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@contextmanager
def behind_others(pid: int) -> Iterator[None]:
    """A process that gets a third of the CPU time that each of the others gets."""
    tasks = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    before = os.getpriority(os.PRIO_PROCESS, pid)
    group = Path(f"/proc/{pid}/autogroup")  # where sessions share the CPUs, not processes
    for task in tasks:
        os.setpriority(os.PRIO_PROCESS, task, min(19, before + 5))
    with suppress(OSError):
        group.write_text("5")
    try:
        yield
    finally:
        with suppress(OSError):
            group.write_text("0")
        for task in tasks:
            with suppress(PermissionError):  # only root may raise it again
                os.setpriority(os.PRIO_PROCESS, task, before)


async def test_a_hog_on_its_cpus_is_named_as_the_cause(real_model: Path, tmp_path: Path) -> None:
    async with guarded(real_model, tmp_path) as engine:
        await engine.learn()
        # However busy this machine is anyway: beside the hogs little is left.
        with hogs(CPUS, 2), behind_others(engine.pid):
            alarms = await engine.until(lambda now: "live.decode-collapsed" in now)
        finding = alarms["live.decode-collapsed"].finding
        assert "other programs" in finding.seen.en and "其他程序" in finding.seen.zh
        assert finding.command and finding.command.startswith("top ")
        assert any(line.startswith("others: ") for line in finding.evidence)
        assert finding.share_lost is not None and finding.share_lost > 0.3


def bind(pid: int, cpus: tuple[int, ...]) -> None:
    """What `taskset -ap` does."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU cannot be taken from one")
async def test_cpus_that_are_taken_away_from_outside_are_named(
    real_model: Path, tmp_path: Path
) -> None:
    async with guarded(real_model, tmp_path) as engine:
        await engine.learn()
        assert "live.wrong-cpus" not in await engine.look()
        bind(engine.pid, CPUS[:1])
        alarms = await engine.until(lambda now: "live.wrong-cpus" in now)
        finding = alarms["live.wrong-cpus"].finding
        assert f"CPU {CPUS[0]}, planned {CPUS[0]}-{CPUS[1]}" in finding.seen.en
        assert finding.command == f"taskset -apc {CPUS[0]}-{CPUS[1]} {engine.pid}"
        bind(engine.pid, CPUS)
        await engine.until(lambda now: "live.wrong-cpus" not in now)


@contextmanager
def memory_group() -> Iterator[tuple[Path, str]]:
    """A control group of our own for memory, and the name of its limit; skips without the right."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"workhorse-guard-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                yield group, limit
                return
        finally:
            with suppress(OSError):
                group.rmdir()
    pytest.skip("control groups cannot be made here")


async def test_weights_that_the_kernel_takes_out_of_memory_are_named(
    real_model: Path, tmp_path: Path
) -> None:
    """A control group that holds less than the engine needs takes the mapped weights first."""
    model = tmp_path / "model.gguf"
    shutil.copyfile(real_model, model)
    with model.open("rb") as copy:
        # The pages belong to the group that reads them first.
        os.fsync(copy.fileno())
        os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with memory_group() as (group, limit):
        into = ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"))
        async with guarded(model, tmp_path, "mmap", first=into) as engine:
            await engine.learn()
            status = fields(DirectoryFiles(Path("/")).text(f"proc/{engine.pid}/status"))
            own = size_bytes(status["RssAnon"]) or 0
            # Enough to go on, too little for the weights.
            room = own + int(0.4 * model.stat().st_size) + 24 * MIB
            with suppress(OSError):  # EBUSY: it has reclaimed what it could in the time it takes
                (group / limit).write_text(str(room))
            alarms = await engine.until(lambda now: "live.weights-evicted" in now)
            finding = alarms["live.weights-evicted"].finding
            assert "taken out of memory" in finding.seen.en and "移出内存" in finding.seen.zh
            assert any("major faults" in line or "mincore" in line for line in finding.evidence)
            (group / limit).write_text("-1" if limit == "memory.limit_in_bytes" else "max")
            await engine.until(lambda now: "live.weights-evicted" not in now)
