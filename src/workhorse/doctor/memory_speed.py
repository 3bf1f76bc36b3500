"""What was measured of the memory's speed, against its rating and across nodes."""

from collections.abc import Iterator

from workhorse.doctor.opinion import finding, is_virtual, on_cpu_alone
from workhorse.knowledge.health import threshold
from workhorse.records import Bandwidth, Finding, Machine
from workhorse.text import Text
from workhorse.units import show_bandwidth, show_share


def own_memory(machine: Machine) -> tuple[Bandwidth, ...]:
    """The best read of each node from its own memory; () when one with CPUs was not measured."""
    if len(machine.nodes) < 2:
        alone = [b for b in machine.memory.bandwidths if b.node is None and not b.memory_nodes]
        best = max(alone, key=lambda b: b.bytes_per_s, default=None)
        return () if best is None else (best,)
    wanted = {n.index for n in machine.nodes if n.cpus and n.memory_total_bytes != 0}
    found: dict[int, Bandwidth] = {}
    for read in machine.memory.bandwidths:
        if (
            read.node in wanted
            and read.node is not None
            and read.memory_nodes in (None, (read.node,))
        ):
            kept = found.get(read.node)
            if kept is None or read.bytes_per_s > kept.bytes_per_s:
                found[read.node] = read
    return tuple(found.values()) if wanted and found.keys() == wanted else ()


def own_memory_bytes_per_s(machine: Machine) -> float | None:
    """What all nodes together read, each from its own memory; None when not measured.

    The nodes were measured one after the other; they share no channel.
    """
    reads = own_memory(machine)
    return sum(read.bytes_per_s for read in reads) if reads else None


def measured_low(machine: Machine) -> Iterator[Finding]:
    """A measured bandwidth far below what the modules are rated for."""
    rated, reads = machine.memory.rated_bandwidth_bytes_per_s, own_memory(machine)
    every = {cpu for core in machine.cpu.cores for cpu in core.cpus}
    # A part of the CPUs cannot fill the channels of all, and a virtual machine's rating is made up.
    if not rated or not reads or is_virtual(machine) or machine.limits.quota_cpus:
        return
    if not every or set(machine.limits.cpus) != every:
        return
    best = sum(read.bytes_per_s for read in reads)
    share = best / rated
    if share >= threshold("memory_measured_share"):
        return
    busy = (machine.busy_cpus or 0) > len(every) / 4
    reachable = threshold("memory_reachable_share")
    yield finding(
        "memory.slower-than-rated",
        Text(
            f"Memory read at {show_bandwidth(best)}, {show_share(share)} of the rated "
            f"{show_bandwidth(rated)}; {show_share(reachable)} is usual.",
            f"内存实测 {show_bandwidth(best)}，为额定 {show_bandwidth(rated)} 的 "
            f"{show_share(share)}；通常可达 {show_share(reachable)}。",
        ),
        evidence=(
            f"node {read.node if read.node is not None else 0}: {read.bytes_per_s:.4g} B/s, "
            f"{read.threads} threads, {read.pages} pages, {read.method}"
            for read in reads
        ),
        share_lost=None if busy else on_cpu_alone(machine, 1 - share / reachable),
        level="note" if busy else None,
        sure="possible" if busy else None,
    )


def remote(machine: Machine) -> Iterator[Finding]:
    """How much slower memory of another node was read than a node's own."""
    local: dict[int, float] = {}
    across: dict[int, float] = {}
    for found in machine.memory.bandwidths:
        if found.node is None:
            continue
        own = found.memory_nodes is None or found.memory_nodes == (found.node,)
        if not own and (found.memory_nodes is None or found.node in found.memory_nodes):
            continue  # interleaved over both: neither near nor far
        kind = local if own else across
        kind[found.node] = max(found.bytes_per_s, kind.get(found.node, 0.0))
    both = [(across[node] / local[node], node) for node in across if local.get(node)]
    if not both:
        return
    share, node = min(both)
    if share >= 1:
        return
    yield finding(
        "memory.cross-node",
        Text(
            f"Another node's memory reads at {show_bandwidth(across[node])}, {show_share(share)} "
            f"of the own {show_bandwidth(local[node])}.",
            f"跨节点读内存 {show_bandwidth(across[node])}，为本地 {show_bandwidth(local[node])} 的 "
            f"{show_share(share)}。",
        ),
        evidence=(f"node {node}: local {local[node]:.4g} B/s, across {across[node]:.4g} B/s",),
    )
