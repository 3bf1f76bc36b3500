"""The machine while it is measured: samples from before the first request to the end.

Taken in a thread of its own, so that a driver that is slow to answer does not hold up the load.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from workhorse.machine.cpu import online_cpus
from workhorse.machine.cpu_moment import (
    PackageEnergy,
    read_core_throttles,
    read_cpu_mhz,
    read_withheld_s,
)
from workhorse.machine.files import DirectoryFiles, HostFiles
from workhorse.machine.gpu import make_gpus
from workhorse.machine.load import Ticks, others_cpus, read_ticks
from workhorse.machine.nvml import OpenDriver
from workhorse.machine.nvml_values import whole
from workhorse.machine.port_holder import find_port_holder
from workhorse.machine.process_facts import read_process
from workhorse.records import CardSample, Sample, ServedBy

EVERY_S = 2.0
# A long measurement is sampled less often, so that its document stays small.
SAMPLES_MAX = 240
# A driver that takes longer is stuck.
CARDS_WITHIN_S = 5.0
LASTING = ("name", "uuid", "pci")
CHANGING = (
    "sm_clock", "pcie_generation", "pcie_width", "temperature", "power_draw", "utilization",
    "clocks_event_reasons", "energy",
)  # fmt: skip
# The loop is asked ten times a second how late it is woken; that costs it some 20 µs each time.
LOOK_S = 0.1
FAMILY_MAX = 4096


class LoopWatch:
    """How late the event loop is woken, and the CPU time of its thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._worst_s = 0.0
        self._cpu = (clock(), time.thread_time())
        self._taken = self._cpu

    async def look(self) -> None:
        """Look for ever; run it as a task beside the load."""
        while True:
            due_s = self._clock() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now_s = self._clock()
            self._worst_s = max(self._worst_s, now_s - due_s)
            self._cpu = (now_s, time.thread_time())

    def take(self) -> tuple[float | None, float | None]:
        """The worst lateness and the CPUs' worth of work since it was last taken."""
        (before_s, before_cpu_s), (now_s, cpu_s) = self._taken, self._cpu
        worst_s, self._worst_s, self._taken = self._worst_s, 0.0, self._cpu
        if now_s <= before_s:
            return None, None
        return worst_s, (cpu_s - before_cpu_s) / (now_s - before_s)


class Sampler:
    """Samples of the machine between `start` and `stop`.

    Of a service on another machine only the client's own is sampled, without cards. `also`: the
    addresses of services that are measured beside it, whose work is no other work.
    """

    def __init__(
        self,
        url: str,
        served_by: ServedBy,
        watch: LoopWatch,
        *,
        also: Sequence[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        files: HostFiles | None = None,
        nvml: Any = None,
    ) -> None:
        self._clock, self._watch = clock, watch
        self._files = DirectoryFiles(Path("/")) if files is None else files
        self._cpus = online_cpus(self._files)
        self._here = is_loopback(url)
        self._ours = engine_family(url, served_by.pids, self._files) if self._here else ()
        for other in filter(is_loopback, also if self._ours else ()):
            self._ours += engine_family(other, (), self._files)
        self._driver = OpenDriver(LASTING, CHANGING, nvml) if self._here else None
        self._energy = PackageEnergy()
        self._ticks: Ticks | None = None
        self._taken: list[Sample] = []
        self._every_s = EVERY_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench samples", daemon=True)

    def start(self) -> Self:
        """Take the first sample and go on taking them."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take the last sample; blocks until it is there."""
        self._stop.set()
        self._thread.join(2 * CARDS_WITHIN_S)
        if self._driver is not None:
            self._driver.close()

    def samples(self, began_s: float) -> tuple[Sample, ...]:
        """The samples since `began_s` and the one before it, in seconds from there."""
        moved = [replace(one, at_s=round(one.at_s - began_s, 3)) for one in list(self._taken)]
        before = [one for one in moved if one.at_s < 0]
        return (*before[-1:], *(one for one in moved if one.at_s >= 0))

    def _run(self) -> None:
        self._taken.append(self._sample())
        while not self._stop.wait(self._every_s):
            self._taken.append(self._sample())
            if len(self._taken) >= SAMPLES_MAX:
                self._taken = self._taken[::2]
                self._every_s *= 2
        self._taken.append(self._sample())

    def _sample(self) -> Sample:
        files, at_s = self._files, self._clock()
        ticks = read_ticks(files, self._ours)
        others = others_cpus(self._ticks, ticks, self._cpus)
        self._ticks = ticks
        late_s, client_cpus = self._watch.take()
        return Sample(
            at_s=at_s,
            cards=self._cards(),
            cpu_mhz=read_cpu_mhz(files, self._cpus),
            cpu_energy_j=self._energy.read(files) if self._here else None,
            # Whose the work is cannot be told when the service's processes cannot be seen.
            other_cpus=others if self._ours or not self._here else None,
            client_cpus=client_cpus,
            late_s=late_s,
            quota_waited_s=read_withheld_s(files),
            cpu_throttles=read_core_throttles(files, self._cpus),
        )

    def _cards(self) -> tuple[CardSample, ...]:
        answers = self._driver.ask(CARDS_WITHIN_S) if self._driver is not None else None
        if answers is None or answers.error is not None:
            return ()
        gpus, _ = make_gpus(answers, ())
        energies_mj = {
            index: whole(facts.get("energy")) for index, facts in enumerate(answers.gpus)
        }
        return tuple(
            CardSample(
                index=gpu.index,
                sm_clock_mhz=gpu.sm_clock_now_mhz,
                temperature_c=gpu.temperature_c,
                memory_temperature_c=gpu.memory_temperature_c,
                power_w=gpu.power_draw_w,
                busy_share=None if gpu.busy_percent is None else gpu.busy_percent / 100,
                throttled_by=gpu.throttle_reasons,
                link_generation=gpu.pcie_generation_now,
                link_width=gpu.pcie_width_now,
                energy_j=None if (mj := energies_mj.get(gpu.index)) is None else mj / 1000,
            )
            for gpu in gpus
        )


@asynccontextmanager
async def sampling(
    url: str,
    served_by: ServedBy,
    *,
    also: Sequence[str] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[Sampler]:
    """A sampler for the length of a block; its last sample is there when the block is left."""
    watch = LoopWatch(clock)
    looking = asyncio.create_task(watch.look())
    sampler = await asyncio.to_thread(Sampler, url, served_by, watch, also=also, clock=clock)
    try:
        yield sampler.start()
    finally:
        looking.cancel()
        sampler.stop()


def is_loopback(url: str) -> bool:
    """True when the service runs on this machine, as far as its address tells."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def engine_family(url: str, engines: Sequence[int], files: HostFiles) -> tuple[int, ...]:
    """The processes of a service on this machine: who listens, its engines, and all they started.

    Empty when they cannot be seen: another user's, or in another container.
    """
    parts = urlsplit(url)
    holder = find_port_holder(parts.port or (443 if parts.scheme == "https" else 80))
    found = set(engines) | ({holder.pid} if holder else set())
    if not found:
        return ()
    parents = {
        pid: parent
        for name in files.names("proc")
        if name.isascii() and name.isdigit() and (parent := parent_of(files, pid := int(name)))
    }
    for pid in list(parents):
        line = [pid]
        while line[-1] in parents and parents[line[-1]] not in line and len(line) < FAMILY_MAX:
            line.append(parents[line[-1]])
        if found & set(line):
            found.add(pid)
    living = (pid for pid in found if read_process(files, pid) is not None)
    return tuple(sorted(pid for pid in living if pid != os.getpid()))


def parent_of(files: HostFiles, pid: int) -> int | None:
    """The process that started this one."""
    columns = (files.text(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(columns[1]) if len(columns) > 1 and columns[1].isdigit() else None
