"""What to measure of the memory's bandwidth, and what the reads add up to. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from workhorse.records import Core, Machine, NumaNode
from workhorse.text import Text
from workhorse.units import MIB

ALIGN_BYTES = 2 * MIB
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
    """One measurement to make: who reads, what pages, how much memory each thread has, where."""

    node: int | None  # of the CPUs; None: of several nodes, or there is one alone
    cpus: tuple[int, ...]
    pages: Pages
    thread_bytes: int
    thread_bytes_min: int
    memory_nodes: tuple[int, ...] | None = None  # None: where the kernel puts it, with the CPUs


@dataclass(frozen=True, slots=True)
class Chunk:
    """One finished read of one thread."""

    start_s: float
    end_s: float
    n_bytes: int


def plan_readings(machine: Machine) -> tuple[tuple[Reading, ...], tuple[Text, ...]]:
    """The measurements to make on this machine, and why some are left out.

    One thread for each physical core we may use, no more than the group's quota; at most a
    tenth of the available memory. On a host with several nodes: each node by itself, each with
    the memory of the node farthest from it, and all of them with memory interleaved over all.
    """
    readers = _readers(machine.cpu.cores, machine.limits.cpus)
    if not readers:
        return (), (not_measured(Text("no CPU is known to be ours", "没有可用的 CPU")),)
    if len(machine.nodes) < 2:
        return _sized(machine, None, _in_turn(readers.values()), None, _page_sizes(machine))
    allowed = machine.limits.memory_nodes
    # A node may have CPUs and no module in its slots.
    filled = [node.index for node in machine.nodes if node.memory_total_bytes != 0]
    ours = {node for node in filled if allowed is None or node in allowed}
    readings: list[Reading] = []
    doubts: list[Text] = []
    # Across nodes the larger pages alone: that is where a model's weights lie.
    wide = _page_sizes(machine)[-1:]
    wishes: list[tuple[int | None, tuple[int, ...], tuple[int, ...] | None, tuple[Pages, ...]]] = [
        (node, cpus, None, _page_sizes(machine)) for node, cpus in readers.items() if node in ours
    ]
    for node, cpus in readers.items():
        other = _farthest(machine.nodes, node, ours & readers.keys() or ours)
        if other is not None:
            wishes.append((node, cpus, (other,), wide))
    shared = tuple(sorted(ours & readers.keys()))
    if len(shared) > 1:
        every = _in_turn(readers[node] for node in shared)
        wishes.append((None, every, shared, _page_sizes(machine)))
    for of_node, cpus, nodes, sizes in wishes:
        planned, why = _sized(machine, of_node, cpus, nodes, sizes)
        readings += planned
        doubts += why
    return tuple(readings), tuple(dict.fromkeys(doubts))


def _sized(
    machine: Machine,
    node: int | None,
    node_cpus: tuple[int, ...],
    memory_nodes: tuple[int, ...] | None,
    sizes: tuple[Pages, ...],
) -> tuple[tuple[Reading, ...], tuple[Text, ...]]:
    """The readings of these CPUs with each size of pages; none, and why, without room for them."""
    l3_bytes = machine.cpu.l3_bytes or 0
    limits = machine.limits
    left_bytes = None
    if limits.memory_bytes is not None:
        left_bytes = max(0, limits.memory_bytes - (limits.memory_used_bytes or 0))
    quota = len(node_cpus) if limits.quota_cpus is None else max(1, int(limits.quota_cpus))
    cpus = node_cpus[: min(quota, _THREADS_MAX)]
    bounds = [b for b in (machine.memory.available_bytes, left_bytes) if b is not None]
    room_bytes = int(_SHARE_OF_AVAILABLE * min(bounds, default=0))
    # A full node would be served from another one, before its own page cache is dropped.
    places = memory_nodes or (() if node is None else (node,))
    free = [n.memory_free_bytes for n in machine.nodes if n.index in places and n.memory_free_bytes]
    if free:
        room_bytes = min(room_bytes, min(free) * len(places) // 2)
    caches_bytes = l3_bytes * max(1, len(places) if node is None else 1)
    least_bytes = max(_CACHE_MULTIPLE_MIN * caches_bytes, len(cpus) * ALIGN_BYTES)
    wish_bytes = max(_CACHE_MULTIPLE * caches_bytes, len(cpus) * _THREAD_BYTES, _TOTAL_BYTES_MIN)
    if room_bytes < least_bytes:
        return (), (_no_room(room_bytes, least_bytes),)
    thread_bytes = min(wish_bytes, room_bytes) // len(cpus) // ALIGN_BYTES * ALIGN_BYTES
    thread_least_bytes = least_bytes // len(cpus) // ALIGN_BYTES * ALIGN_BYTES
    return tuple(
        Reading(node, cpus, pages, thread_bytes, thread_least_bytes, memory_nodes)
        for pages in sizes
    ), ()


def _in_turn(groups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """One CPU of each node after the other, so that a quota leaves some of every node."""
    lists = list(groups)
    longest = max(map(len, lists), default=0)
    return tuple(cpus[i] for i in range(longest) for cpus in lists if i < len(cpus))


def _page_sizes(machine: Machine) -> tuple[Pages, ...]:
    return ("small", "huge") if machine.memory.thp in ("always", "madvise") else ("small",)


def _farthest(nodes: tuple[NumaNode, ...], node: int, others: set[int]) -> int | None:
    """Of the other nodes the one that is farthest from `node`; of equals the first."""
    distances = next((n.distances for n in nodes if n.index == node), ())
    far = dict(zip((n.index for n in nodes), distances, strict=False))
    return min(others - {node}, key=lambda n: (-far.get(n, 0), n), default=None)


def best_rate(chunks: Iterable[Iterable[Chunk]], window_s: float) -> float | None:
    """Bytes per second in the best window during which every thread was reading.

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


def not_measured(why: Text) -> Text:
    """The doubt that says why there is no figure."""
    return Text(f"Memory bandwidth was not measured: {why.en}.", f"未能测量内存带宽：{why.zh}。")


def _no_room(room_bytes: int, least_bytes: int) -> Text:
    room, least = f"{room_bytes // MIB} MiB", f"{least_bytes // MIB} MiB"
    return not_measured(
        Text(
            f"a tenth of the available memory is {room}, and reading past the caches needs {least}",
            f"可用内存的十分之一是 {room}，而要绕过缓存至少需要 {least}",
        )
    )
