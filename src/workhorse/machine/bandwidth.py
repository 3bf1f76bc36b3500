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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from workhorse.machine.bandwidth_plan import (
    ALIGN_BYTES,
    Chunk,
    Reading,
    best_rate,
    not_measured,
    plan_readings,
)
from workhorse.machine.memory_policy import nodes_of_memory, place_memory
from workhorse.records import Bandwidth, Machine
from workhorse.text import Text, same
from workhorse.units import MIB

# Memory a thread reads between two looks at the clock: 0.1 … 1 ms, so that the time between
# two reads does not count.
_CHUNK_BYTES = 4 * MIB
_TOUCH_BYTES = 8 * MIB
_WINDOW_S = 0.005
# Pages of each thread whose place is asked for, where a node was asked for.
_PAGES_ASKED = 64
_SCATTER = 2_654_435_761  # Knuth's multiplicative hash: 2**32 over the golden ratio


def measure_bandwidths(
    machine: Machine, *, duration_s: float, on_progress: Callable[[float], None] | None = None
) -> tuple[tuple[Bandwidth, ...], tuple[Text, ...]]:
    """Read bandwidth of each node that has CPUs for us, with small and with huge pages.

    On a host with several nodes also of each node with another one's memory, and of all nodes
    with memory interleaved over them. Reads for `duration_s` in all, on a host with several nodes
    for half of it again for each node (two nodes: twice, four: three times as long), and takes
    at most that long again to get its memory. `on_progress` is told the share done. What could
    not be measured comes back as doubts.
    """
    readings, doubts = plan_readings(machine)
    if len(machine.nodes) > 1:
        duration_s *= 1 + len(machine.nodes) / 2
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
    return tuple(bandwidths), tuple(dict.fromkeys(doubts))


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
        return not_measured(failure)
    total_bytes = sum(thread.touched_bytes for thread in threads)
    if reading.pages == "huge" and huge_before_bytes is not None and huge_bytes[0] is not None:
        got_share = (huge_bytes[0] - huge_before_bytes) / total_bytes
        if got_share < 0.9:
            return _few_huge_pages(got_share)
    place = _placed(reading, [node for thread in threads for node in thread.nodes or ()])
    if isinstance(place, Text):
        return place
    rate = best_rate([thread.chunks for thread in threads], _WINDOW_S)
    if rate is None:
        return not_measured(Text("the threads did not read at the same time", "各线程没有同时读取"))
    pinned = all(thread.pinned for thread in threads)
    return Bandwidth(
        bytes_per_s=rate,
        pages=reading.pages,
        threads=len(threads),
        node=reading.node,
        method=f"memchr over {total_bytes // MIB} MiB, best {_WINDOW_S * 1000:.0f} ms"
        + place
        + ("" if pinned else ", threads not pinned"),
        duration_s=max(thread.chunks[-1].end_s - thread.chunks[0].start_s for thread in threads),
        memory_nodes=reading.memory_nodes,
    )


def _placed(reading: Reading, found: Sequence[int]) -> str | Text:
    """Words for the method when the memory lies where it was asked for; else why not. Pure.

    `found` are the nodes of some of the pages; none when the kernel does not tell.
    """
    if reading.memory_nodes is None:
        return ""
    if not found:
        return ", place of the memory not checked"
    counts = Counter(found)
    fair = len(found) / len(reading.memory_nodes)
    # A sample of interleaved pages is even only roughly.
    enough = fair * (0.9 if len(reading.memory_nodes) == 1 else 0.5)
    if all(counts[node] >= enough for node in reading.memory_nodes):
        return ""
    return not_measured(
        Text(
            f"the kernel did not put the memory on node {_listed(reading.memory_nodes)} (too"
            " little is free there)",
            f"内核没有把内存分配在节点 {_listed(reading.memory_nodes)} 上（该处空闲内存不足）",
        )
    )


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


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
        self.nodes: tuple[int, ...] | None = None  # of some pages, where nodes were asked for
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
            with _private_memory(self._reading.thread_bytes + ALIGN_BYTES) as memory:
                huge = self._reading.pages == "huge"
                memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
                view = ctypes.c_char.from_buffer(memory)
                address = -(-ctypes.addressof(view) // ALIGN_BYTES) * ALIGN_BYTES
                try:
                    self._place(address)
                    self._touch(address)
                    self._ask_place(address)
                    self._gate.wait()
                    self._scan(address)
                finally:
                    del view  # memory with a view into it cannot be given back
        except threading.BrokenBarrierError:
            return  # the thread that broke it says why
        except OSError as error:
            self.failure = same(str(error))
            self._gate.abort()

    def _place(self, address: int) -> None:
        nodes = self._reading.memory_nodes
        if nodes is None:
            if self._reading.node is not None:
                # Where it would lie anyway. But NUMA balancing leaves alone what has a policy:
                # it would take our pages away in turns, and Linux 6.1 does not count huge pages
                # that are taken away (seen in a two-node guest, 2026-11).
                with suppress(OSError):
                    place_memory(address, self._reading.thread_bytes, (self._reading.node,))
            return
        try:
            place_memory(address, self._reading.thread_bytes, nodes)
        except OSError as error:
            self.failure = Text(
                f"memory cannot be put on node {_listed(nodes)}: {error.strerror} (containers"
                " forbid it by default)",
                f"无法把内存分配到节点 {_listed(nodes)}：{error.strerror}（容器默认禁止该操作）",
            )
            self._gate.abort()
            raise threading.BrokenBarrierError from error

    def _ask_place(self, address: int) -> None:
        if self._reading.memory_nodes is not None:
            pages = self.touched_bytes // mmap.PAGESIZE
            # Steps of one length could meet the same node of an interleaved memory every time.
            asked = [i * _SCATTER % pages for i in range(_PAGES_ASKED)]
            self.nodes = nodes_of_memory([address + page * mmap.PAGESIZE for page in asked])

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


def _few_huge_pages(share: float) -> Text:
    return Text(
        f"Memory bandwidth with huge pages was not measured: the kernel gave only {share:.0%} of"
        " the memory in huge pages (free memory is fragmented).",
        f"未能测量大页下的内存带宽：内核只以大页提供了 {share:.0%} 的内存（空闲内存碎片化）。",
    )
