"""One reading of the whole service: engines' processes, cards, memory, disk, the kernel's log.

What is dear is asked rarely and repeated in between. Everything here blocks: call it in a thread.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse.guard.card_sensor import CardSensor
from workhorse.guard.sign import READY
from workhorse.machine.cpu import online_cpus
from workhorse.machine.cpu_moment import read_core_throttles
from workhorse.machine.disk import existing
from workhorse.machine.files import DirectoryFiles, HostFiles
from workhorse.machine.kernel_messages import KernelMessages
from workhorse.machine.kernel_text import fields, size_bytes
from workhorse.machine.limits import read_limits
from workhorse.machine.load import Ticks, others_cpus, read_ticks
from workhorse.machine.numa import NODE_ROOT
from workhorse.machine.nvml_xids import NvmlXids
from workhorse.machine.page_cache import cached_share
from workhorse.machine.process_facts import (
    ProcessFacts,
    ProcessFiles,
    read_node_pages,
    read_process,
    read_waits,
)
from workhorse.records import CardReading, EngineReading, Plan, Reading

RARE_S = 15.0  # who is on the cards, limits of control groups, the page cache
# Walks all page tables: half a second for a large model, so no more than a thousandth of the time.
NODES_S = 600.0


@dataclass(slots=True)
class Known:
    """What is known of one engine's process until it is asked again."""

    pid: int
    facts: ProcessFacts | None = None
    waits: tuple[int, int] | None = None  # nanoseconds that its threads ran, and waited
    at_s: float | None = None
    quota_cpus: float | None = None
    cached_share: float | None = None
    node_pages: tuple[int, ...] | None = None
    rare_at_s: float | None = None
    nodes_at_s: float | None = None
    loaded_layers: int | None = None


class Sensors:
    """Reads the service and the machine under it; never raises on what it reads."""

    def __init__(
        self,
        data: Path,
        *,
        loaded_layers: Callable[[str], int | None] = lambda _: None,
        files: HostFiles | None = None,
        cards: CardSensor | None = None,
        kernel: KernelMessages | None = None,
        xids: NvmlXids | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data = data
        self._loaded_layers = loaded_layers
        self._files = DirectoryFiles(Path("/")) if files is None else files
        self._cards = CardSensor(self._files) if cards is None else cards
        self._kernel = KernelMessages() if kernel is None else kernel
        self._xids = NvmlXids() if xids is None else xids
        self._clock = clock
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._online = online_cpus(self._files)
        self._several_nodes = len(self._files.names(NODE_ROOT)) and any(
            name == "node1" for name in self._files.names(NODE_ROOT)
        )
        self._known: dict[str, Known] = {}
        self._ticks: Ticks | None = None
        self._ours: frozenset[int] = frozenset()
        self._rare_at_s: float | None = None
        self._throttles: int | None = None

    def read(
        self,
        at_unix_s: float,
        engines: tuple[EngineReading, ...],
        pids: Mapping[str, int],
        plans: Mapping[str, Plan],
    ) -> Reading:
        """The reading of this moment; `engines` are completed with what their processes do."""
        now_s = self._clock()
        rare = self._rare_at_s is None or now_s - self._rare_at_s >= RARE_S
        if rare:
            self._rare_at_s = now_s
            self._throttles = read_core_throttles(self._files, self._online)
        own = frozenset(pids.values())
        memory = fields(self._files.text("proc/meminfo"))
        swap, free_swap = size_bytes(memory.get("SwapTotal")), size_bytes(memory.get("SwapFree"))
        cpus = self._cpus(plans)
        disk_free, disk_total = self._disk()
        return Reading(
            at_unix_s=at_unix_s,
            engines=tuple(self._engine(one, pids, plans, now_s) for one in engines),
            cards=self._card_readings(own, processes=rare or own != self._ours),
            memory_total_bytes=size_bytes(memory.get("MemTotal")),
            memory_available_bytes=size_bytes(memory.get("MemAvailable")),
            swap_used_bytes=None if swap is None or free_swap is None else swap - free_swap,
            other_cpus_busy=self._others(own, cpus),
            cpus=len(cpus) or None,
            disk_free_bytes=disk_free,
            disk_total_bytes=disk_total,
            cpu_throttles=self._throttles,
            events=(self._kernel if self._kernel.readable else self._xids).new_events(),
        )

    def close(self) -> None:
        """Give back what is held open."""
        self._cards.close()
        self._kernel.close()

    def _cpus(self, plans: Mapping[str, Plan]) -> tuple[int, ...]:
        """The CPUs that the engines compute on."""
        planned = {cpu for plan in plans.values() for cpu in plan.cpus}
        return tuple(sorted(planned)) or self._online

    def _others(self, own: frozenset[int], cpus: tuple[int, ...]) -> float | None:
        ticks = read_ticks(self._files, tuple(own))
        # The ticks of a process that has gone or come would be taken for others'.
        before = self._ticks if own == self._ours else None
        self._ticks, self._ours = ticks, own
        return others_cpus(before, ticks, cpus)

    def _card_readings(self, own: frozenset[int], *, processes: bool) -> tuple[CardReading, ...]:
        return self._cards.read(own, processes=processes) or ()  # what is missing is noticed

    def _engine(
        self,
        engine: EngineReading,
        pids: Mapping[str, int],
        plans: Mapping[str, Plan],
        now_s: float,
    ) -> EngineReading:
        pid, plan = pids.get(engine.model_name), plans.get(engine.model_name)
        facts = None if pid is None else read_process(self._files, pid)
        if pid is None or facts is None:
            self._known.pop(engine.model_name, None)
            return engine
        known = self._known.get(engine.model_name)
        if known is None or known.pid != pid:
            known = self._known[engine.model_name] = Known(pid)
        cpu_share = self._cpu_share(known, facts, plan, now_s)
        known.facts, known.at_s = facts, now_s
        waits, before = read_waits(self._files, pid), known.waits
        known.waits = waits
        if engine.state == READY:
            self._ask_rarely(engine.model_name, known, plan, now_s)
        return replace(
            engine,
            pid=pid,
            resident_bytes=facts.resident_bytes,
            major_faults=facts.major_faults,
            swapped_bytes=facts.swapped_bytes,
            cpu_share=cpu_share,
            waited_share=waited_share(before, waits),
            allowed_cpus=facts.allowed_cpus,
            quota_cpus=known.quota_cpus,
            weights_cached_share=known.cached_share,
            pages_on_nodes=known.node_pages,
            loaded_gpu_layers=known.loaded_layers,
        )

    def _cpu_share(
        self, known: Known, facts: ProcessFacts, plan: Plan | None, now_s: float
    ) -> float | None:
        before = known.facts
        if before is None or before.ticks is None or facts.ticks is None or known.at_s is None:
            return None
        cpus = (len(plan.cpus) if plan and plan.cpus else 0) or len(self._online) or 1
        passed_s = now_s - known.at_s
        if passed_s <= 0:
            return None
        return max(0, facts.ticks - before.ticks) / self._hertz / passed_s / cpus

    def _ask_rarely(self, name: str, known: Known, plan: Plan | None, now_s: float) -> None:
        if known.rare_at_s is None:
            known.loaded_layers = self._loaded_layers(name)
        if known.rare_at_s is None or now_s - known.rare_at_s >= RARE_S:
            known.rare_at_s = now_s
            files = ProcessFiles(self._files, known.pid)
            limits = read_limits(files, self._online, None, None)
            known.quota_cpus = limits.quota_cpus
            if plan is not None and plan.load_mode != "none" and not plan.gpu_layers:
                known.cached_share = cached_share(Path(plan.model_path))
        if self._several_nodes and (
            known.nodes_at_s is None or now_s - known.nodes_at_s >= NODES_S
        ):
            known.nodes_at_s = now_s
            known.node_pages = read_node_pages(self._files, known.pid)

    def _disk(self) -> tuple[int | None, int | None]:
        try:
            facts = os.statvfs(existing(self._data))
        except OSError:
            return None, None
        return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize


# Threads that hardly wanted a CPU say nothing of how hard it is to get one.
WANTED_NS = 50_000_000


def waited_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Share of the time in which threads wanted a CPU and had none, between two looks."""
    if before is None or after is None:
        return None
    ran, waited = after[0] - before[0], after[1] - before[1]
    if ran < 0 or waited < 0 or ran + waited < WANTED_NS:
        return None
    return waited / (ran + waited)
