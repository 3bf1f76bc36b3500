"""How fast main memory can be read, measured by reading it.

One thread a physical core, pinned, runs libc's `memchr` for a byte that is not there over memory
of its own. ctypes lets go of the interpreter's lock meanwhile, so the threads read at once.

Why memchr (2026-11, passes interleaved with a C loop over as much memory: gcc -O3 -mavx2, eight
sums, OpenMP): on a 2-core Zen 4 virtual machine 47.9 against 47.0 GB/s with small pages and 64.9
against 67.5 with huge ones, on 16 Sapphire Rapids cores 136 against 123 and 138 against 144.
memcmp, software prefetch and two or four streams a thread were no faster.

Why the best window and not the mean: other work on the machine can only take away from the
figure, and the ceiling of a forecast must not be lower than what the memory can do. With two busy
processes on the two cores the mean fell from 47 to 16 GB/s, the best 5 ms from 65 to 50. Windows
of 2 ms gave up to 13 % more than the C loop: short enough to catch a lucky stretch of pages.
"""

import ctypes
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workhorse.records import Bandwidth, Core, Machine
from workhorse.text import Text, same
from workhorse.units import MIB

# Memory a thread reads between two looks at the clock: 0.1 … 1 ms, so that the time between
# two reads does not count.
_CHUNK_BYTES = 4 * MIB
_TOUCH_BYTES = 8 * MIB
_WINDOW_S = 0.005
_ALIGN_BYTES = 2 * MIB
# A cyclic read of eight times the last-level cache finds next to nothing in it. On chips with
# many separate caches the sum over cores counts: 4 MiB a core on AMD's Zen 2 to Zen 4.
_CACHE_MULTIPLE = 8
_CACHE_MULTIPLE_MIN = 4
_THREAD_BYTES = 32 * MIB
_TOTAL_BYTES_MIN = 256 * MIB
_SHARE_OF_AVAILABLE = 0.1
_THREADS_MAX = 256

Pages = Literal["small", "huge"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement to make: who reads, what pages, how much memory each thread has."""

    node: int | None
    cpus: tuple[int, ...]
    pages: Pages
    thread_bytes: int
    thread_bytes_min: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One finished read of one thread."""

    start_s: float
    end_s: float
    n_bytes: int


def measure_bandwidths(
    machine: Machine, *, duration_s: float, on_progress: Callable[[float], None] | None = None
) -> tuple[tuple[Bandwidth, ...], tuple[Text, ...]]:
    """Read bandwidth of each node that has CPUs for us, with small and with huge pages.

    Reads for `duration_s` in all and takes at most that long again to get its memory.
    `on_progress` is told the share done. What could not be measured comes back as doubts.
    """
    readings, doubts = plan_readings(machine)
    bandwidths: list[Bandwidth] = []
    for position, reading in enumerate(readings):

        def progress(share: float, position: int = position) -> None:
            if on_progress is not None:
                on_progress((position + share) / len(readings))

        result = _measure(reading, duration_s / len(readings), progress)
        if isinstance(result, Bandwidth):
            bandwidths.append(result)
        else:
            doubts = (*doubts, result)
    return tuple(bandwidths), doubts


def plan_readings(machine: Machine) -> tuple[tuple[Reading, ...], tuple[Text, ...]]:
    """The measurements to make on this machine, and why some are left out. Pure.

    One thread for each physical core we may use, no more than the group's quota; at most a
    tenth of the available memory; on a host with several nodes one measurement for each.
    """
    readers = _readers(machine.cpu.cores, machine.limits.cpus)
    l3_bytes = machine.cpu.l3_bytes or 0
    several = len(machine.nodes) > 1
    free_of = {node.index: node.memory_free_bytes for node in machine.nodes} if several else {}
    limits = machine.limits
    left_bytes = None
    if limits.memory_bytes is not None:
        left_bytes = max(0, limits.memory_bytes - (limits.memory_used_bytes or 0))
    readings: list[Reading] = []
    for node, node_cpus in readers.items():
        quota = len(node_cpus) if limits.quota_cpus is None else max(1, int(limits.quota_cpus))
        cpus = node_cpus[: min(quota, _THREADS_MAX)]
        bounds = [b for b in (machine.memory.available_bytes, left_bytes) if b is not None]
        room_bytes = int(_SHARE_OF_AVAILABLE * min(bounds, default=0))
        # A full node would be served from another one, before its own page cache is dropped.
        room_bytes = min(room_bytes, (free_of.get(node) or 2 * room_bytes) // 2)
        least_bytes = max(_CACHE_MULTIPLE_MIN * l3_bytes, len(cpus) * _ALIGN_BYTES)
        wish_bytes = max(_CACHE_MULTIPLE * l3_bytes, len(cpus) * _THREAD_BYTES, _TOTAL_BYTES_MIN)
        if room_bytes < least_bytes:
            return (), (_no_room(room_bytes, least_bytes),)
        thread_bytes = min(wish_bytes, room_bytes) // len(cpus) // _ALIGN_BYTES * _ALIGN_BYTES
        thread_least_bytes = least_bytes // len(cpus) // _ALIGN_BYTES * _ALIGN_BYTES
        kinds: tuple[Pages, ...] = ("small", "huge")
        for pages in kinds if machine.memory.thp in ("always", "madvise") else kinds[:1]:
            where = node if several else None
            readings.append(Reading(where, cpus, pages, thread_bytes, thread_least_bytes))
    if not readings:
        return (), (_not_measured(Text("no CPU is known to be ours", "没有可用的 CPU")),)
    return tuple(readings), ()


def best_rate(chunks: Iterable[Iterable[Chunk]], window_s: float) -> float | None:
    """Bytes per second in the best window during which every thread was reading. Pure.

    `chunks` holds each thread's reads in order of time. When the threads shared less than one
    window, the time they shared is the window; None when they shared none.
    """
    threads = [list(thread) for thread in chunks]
    if not threads or not all(threads):
        return None
    begin = max(thread[0].start_s for thread in threads)
    end = min(thread[-1].end_s for thread in threads)
    if end <= begin:
        return None
    # Four bins a window: fine enough to catch a quiet moment, and linear in the reads.
    window_s = min(window_s, end - begin)
    bin_s = window_s / 4
    bins = [0.0] * int((end - begin) / bin_s + 1e-9)
    for chunk in (chunk for thread in threads for chunk in thread):
        rate = chunk.n_bytes / max(chunk.end_s - chunk.start_s, 1e-9)
        first = max(0, int((chunk.start_s - begin) / bin_s))
        last = min(len(bins) - 1, int((chunk.end_s - begin) / bin_s))
        for position in range(first, last + 1):
            bin_begin = begin + position * bin_s
            shared = min(chunk.end_s, bin_begin + bin_s) - max(chunk.start_s, bin_begin)
            bins[position] += max(0.0, shared) * rate
    return max(sum(bins[i : i + 4]) for i in range(max(1, len(bins) - 3))) / window_s


def _readers(cores: tuple[Core, ...], allowed: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """One CPU of each physical core that we may use, for each node."""
    readers: dict[int, tuple[int, ...]] = {}
    ours = set(allowed)
    for core in cores:
        cpu = next((cpu for cpu in core.cpus if cpu in ours), None)
        if cpu is not None:
            readers[core.node] = (*readers.get(core.node, ()), cpu)
    if not readers and allowed:
        readers[0] = allowed
    return readers


def _measure(
    reading: Reading, duration_s: float, progress: Callable[[float], None]
) -> Bandwidth | Text:
    """Run one measurement: all threads get their memory, then all read for `duration_s`."""
    huge_before_bytes = _anonymous_huge_bytes()
    huge_bytes: list[int | None] = []
    gate = threading.Barrier(
        len(reading.cpus), action=lambda: huge_bytes.append(_anonymous_huge_bytes())
    )
    begin_s = time.perf_counter()
    threads = [_Reader(cpu, reading, gate, duration_s, begin_s) for cpu in reading.cpus]
    started: list[_Reader] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # the group's limit on processes
        gate.abort()
        threads[0].failure = threads[0].failure or same(str(error))
    for thread in started:
        while thread.is_alive():
            thread.join(0.1)
            progress(min(1.0, (time.perf_counter() - begin_s) / (2 * duration_s)))
    failure = next((t.failure for t in threads if t.failure), None)
    if failure is not None:
        return _not_measured(failure)
    total_bytes = sum(thread.touched_bytes for thread in threads)
    if reading.pages == "huge" and huge_before_bytes is not None and huge_bytes[0] is not None:
        got_share = (huge_bytes[0] - huge_before_bytes) / total_bytes
        if got_share < 0.9:
            return _few_huge_pages(got_share)
    rate = best_rate([thread.chunks for thread in threads], _WINDOW_S)
    if rate is None:
        return _not_measured(
            Text("the threads did not read at the same time", "各线程没有同时读取")
        )
    pinned = all(thread.pinned for thread in threads)
    return Bandwidth(
        bytes_per_s=rate,
        pages=reading.pages,
        threads=len(threads),
        node=reading.node,
        method=f"memchr over {total_bytes // MIB} MiB, best {_WINDOW_S * 1000:.0f} ms"
        + ("" if pinned else ", threads not pinned"),
        duration_s=max(thread.chunks[-1].end_s - thread.chunks[0].start_s for thread in threads),
    )


class _Reader(threading.Thread):
    """Gets memory on its own CPU, waits for the others, then reads it over and over."""

    def __init__(
        self,
        cpu: int,
        reading: Reading,
        gate: threading.Barrier,
        duration_s: float,
        begin_s: float,
    ) -> None:
        super().__init__(name=f"memory reader on CPU {cpu}")
        self.chunks: list[Chunk] = []
        self.touched_bytes = 0
        self.pinned = False
        self.failure: Text | None = None
        self._cpu = cpu
        self._reading = reading
        self._gate = gate
        self._duration_s = duration_s
        # A host short of free pages must not hold up the probe: getting memory and reading it
        # take less than twice the time together.
        self._enough_s = begin_s + 0.9 * duration_s  # from here on the least memory will do
        self._too_late_s = begin_s + 1.7 * duration_s
        self._end_s = begin_s + 1.9 * duration_s

    def run(self) -> None:
        """Read; a failure lets the other threads go as well."""
        try:
            # 0 is the calling thread. A seccomp filter may refuse: then the kernel places it.
            os.sched_setaffinity(0, {self._cpu})
            self.pinned = True
        except OSError:
            self.pinned = False
        try:
            with _private_memory(self._reading.thread_bytes + _ALIGN_BYTES) as memory:
                huge = self._reading.pages == "huge"
                memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
                view = ctypes.c_char.from_buffer(memory)
                address = -(-ctypes.addressof(view) // _ALIGN_BYTES) * _ALIGN_BYTES
                try:
                    self._touch(address)
                    self._gate.wait()
                    self._scan(address)
                finally:
                    del view  # memory with a view into it cannot be given back
        except threading.BrokenBarrierError:
            return  # the thread that broke it says why
        except OSError as error:
            self.failure = same(str(error))
            self._gate.abort()

    def _touch(self, address: int) -> None:
        """Write page after page while there is time: so they are there, on this CPU's node."""
        wanted_bytes = self._reading.thread_bytes
        least_bytes = self._reading.thread_bytes_min
        while self.touched_bytes < wanted_bytes and time.perf_counter() < (
            self._enough_s if self.touched_bytes >= least_bytes else self._too_late_s
        ):
            size = min(_TOUCH_BYTES, wanted_bytes - self.touched_bytes)
            ctypes.memset(address + self.touched_bytes, 1, size)
            self.touched_bytes += size
        if self.touched_bytes < least_bytes:
            self.failure = Text(
                f"the kernel gave a thread only {self.touched_bytes // MIB} MiB in time",
                f"内核在限时内只分给某个线程 {self.touched_bytes // MIB} MiB 内存",
            )
            self._gate.abort()

    def _scan(self, address: int) -> None:
        memchr = ctypes.CDLL(None).memchr
        memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        memchr.restype = ctypes.c_void_p
        position, end_s = 0, 0.0
        while not self.chunks or self.chunks[-1].end_s < end_s:
            size = min(_CHUNK_BYTES, self.touched_bytes - position)
            start_s = time.perf_counter()
            memchr(address + position, 2, size)
            self.chunks.append(Chunk(start_s, time.perf_counter(), size))
            position = (position + size) % self.touched_bytes
            if len(self.chunks) == 1:
                # Wait until every thread has begun: on a busy machine one may come late.
                self._gate.wait()
                now_s = time.perf_counter()
                end_s = max(now_s, min(now_s + self._duration_s, self._end_s))


def _private_memory(n_bytes: int) -> mmap.mmap:
    # Python maps shared memory unless told: that is shmem, with a huge-page switch of its own.
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _anonymous_huge_bytes() -> int | None:
    """This process's memory in transparent huge pages; None before Linux 4.14."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"^AnonHugePages: +(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _not_measured(why: Text) -> Text:
    return Text(f"Memory bandwidth was not measured: {why.en}.", f"未能测量内存带宽：{why.zh}。")


def _no_room(room_bytes: int, least_bytes: int) -> Text:
    room, least = f"{room_bytes // MIB} MiB", f"{least_bytes // MIB} MiB"
    return _not_measured(
        Text(
            f"a tenth of the available memory is {room}, and reading past the caches needs {least}",
            f"可用内存的十分之一是 {room}，而要绕过缓存至少需要 {least}",
        )
    )


def _few_huge_pages(share: float) -> Text:
    return Text(
        f"Memory bandwidth with huge pages was not measured: the kernel gave only {share:.0%} of"
        " the memory in huge pages (free memory is fragmented).",
        f"未能测量大页下的内存带宽：内核只以大页提供了 {share:.0%} 的内存（空闲内存碎片化）。",
    )
