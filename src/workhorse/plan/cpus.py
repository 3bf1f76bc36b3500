"""Which CPUs and how many threads an engine gets."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from workhorse.records import Core, Machine, Reason, Rejected
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """Threads, the CPUs they may use and the memory node beside them (None: only one node)."""

    threads: int
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...] | None
    reason: Reason
    rejected: tuple[Rejected, ...]


def allowed_cores(machine: Machine) -> dict[int, list[Core]]:
    """Physical cores that this process may use, by NUMA node; threads outside the mask removed."""
    allowed = set(machine.limits.cpus)
    by_node: dict[int, list[Core]] = {}
    for core in machine.cpu.cores:
        cpus = tuple(cpu for cpu in core.cpus if cpu in allowed)
        if cpus:
            by_node.setdefault(core.node, []).append(
                Core(socket=core.socket, core=core.core, node=core.node, cpus=cpus)
            )
    return by_node


def allowed_memory(machine: Machine, nodes: Iterable[int]) -> tuple[int, ...] | None:
    """Of these nodes, those that have memory for us; None when it is none of them.

    A cpuset may allow a node's CPUs and not its memory, and on a half-filled board a socket has
    no memory at all. The kernel refuses a binding to such a node, and that ends the start.
    """
    allowed = machine.limits.memory_nodes
    empty = {node.index for node in machine.nodes if node.memory_total_bytes == 0}
    usable = (n for n in nodes if n not in empty and (allowed is None or n in allowed))
    return tuple(sorted(usable)) or None


def spread_cpus(machine: Machine) -> CpuChoice:
    """One thread for each physical core of every node, memory interleaved: for a model that is
    larger than one node's memory, where binding to a node would end it."""
    by_node = allowed_cores(machine)
    cores = [core for group in by_node.values() for core in group]
    threads = quota_cut(len(cores), machine.limits.quota_cpus)
    because = Text(
        "The model is larger than the free memory of one node: every node's cores and memory, "
        "pages interleaved.",
        "模型大于单个节点的空闲内存：使用所有节点的核心与内存，内存页交错分布。",
    )
    return CpuChoice(
        threads,
        tuple(sorted(cpu for core in cores for cpu in core.cpus)),
        allowed_memory(machine, by_node),
        Reason("threads", str(threads), because),
        (),
    )


def choose_cpus(machine: Machine, *, beside_node: int | None = None) -> CpuChoice:
    """One thread for each physical core of one NUMA node.

    `beside_node` is the node of the GPU in use, else the node with most cores is taken (the one
    with most free memory among equals); nodes whose memory we may not use come last. A control
    group's CPU quota cuts the threads.
    """
    by_node = allowed_cores(machine)
    if not by_node:  # topology unreadable: the mask is all that is known
        cpus = machine.limits.cpus
        threads = quota_cut(len(cpus), machine.limits.quota_cpus)
        because = Text(
            "The core topology is not readable: one thread for each CPU of the mask.",
            "读不到核心拓扑：按可用 CPU 数设置线程。",
        )
        return CpuChoice(threads, cpus, None, Reason("threads", str(threads), because), ())
    free = {node.index: node.memory_free_bytes or 0 for node in machine.nodes}
    if beside_node in by_node:
        node = beside_node
    else:
        node = max(
            by_node,
            key=lambda n: (
                allowed_memory(machine, (n,)) is not None,
                len(by_node[n]),
                free.get(n, 0),
                -n,
            ),
        )
    cores = by_node[node]
    cpus = tuple(sorted(cpu for core in cores for cpu in core.cpus))
    threads = quota_cut(len(cores), machine.limits.quota_cpus)
    memory_nodes = allowed_memory(machine, (node,)) if len(machine.nodes) > 1 else None
    reason = Reason("threads", str(threads), why(machine, node, len(cores), threads))
    return CpuChoice(threads, cpus, memory_nodes, reason, rejected(machine, node, cores, threads))


def quota_cut(cores: int, quota_cpus: float | None) -> int:
    """Threads that `quota_cpus` can keep running; more would be throttled in the barriers."""
    return max(1, cores if quota_cpus is None else min(cores, math.floor(quota_cpus)))


def why(machine: Machine, node: int, cores: int, threads: int) -> Text:
    """The reason for the number of threads, in words."""
    if threads < cores:
        quota = machine.limits.quota_cpus
        return Text(
            f"The control group's quota is {quota:g} CPUs; more threads would be throttled.",
            f"控制组配额为 {quota:g} 个 CPU，更多线程只会被限流。",
        )
    if len(machine.nodes) > 1 and allowed_memory(machine, (node,)) is None:
        return Text(
            f"One thread for each of the {cores} physical cores of node {node}; that node has no "
            "memory for this process (empty slots, or its cpuset), so the weights lie on another.",
            f"节点 {node} 的 {cores} 个物理核各一个线程；该节点没有本进程可用的内存"
            "（插槽为空，或受 cpuset 限制），权重只能放在其他节点。",
        )
    if len(machine.nodes) > 1:
        return Text(
            f"One thread for each of the {cores} physical cores of node {node}: weights, threads "
            "and memory stay on one node.",
            f"节点 {node} 的 {cores} 个物理核各一个线程：权重、线程、内存都在同一节点上。",
        )
    return Text(
        f"One thread for each of the {cores} physical cores.", f"{cores} 个物理核各一个线程。"
    )


def rejected(machine: Machine, node: int, cores: list[Core], threads: int) -> tuple[Rejected, ...]:
    """The larger thread counts that users try first, and why they lose."""
    found = []
    logical = sum(len(core.cpus) for core in cores)
    if logical > threads:
        found.append(
            Rejected(
                f"{logical} threads",
                Text(
                    "Two threads of one core share its vector units and caches; decode waits for "
                    "the slower.",
                    "同一物理核的两个线程共用向量单元和缓存，解码要等较慢的一个。",
                ),
            )
        )
    every = sum(len(group) for group in allowed_cores(machine).values())
    if every > len(cores):
        found.append(
            Rejected(
                f"{every} threads on all nodes",
                Text(
                    f"Half of the reads would cross the link between the sockets (a 2×14-core "
                    f"owner measured 56 threads slower than 28, pinned +5–10 %); the cores beside "
                    f"node {node} stay free for a second service.",
                    f"一半读取要跨插槽（有 2×14 核用户实测 56 线程慢于 28 线程，"
                    f"绑定单节点快 5–10 %）；节点 {node} 以外的核留给另一个服务。",
                ),
            )
        )
    return tuple(found)
