"""The part of a machine that one engine of several gets. Pure.

An engine that shares the machine is planned as if it ran in a cpuset of its own: its cards, the
CPUs and the memory of its nodes, and of what it shares with others an equal part. Everything else
stays as it is, so that a plan names cards, CPUs and nodes by the machine's own numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from workhorse.plan.cpus import allowed_cores
from workhorse.plan.readers import rated_bandwidth
from workhorse.records import Core, Limits, Machine, Memory

T = TypeVar("T")


def parts_of(machine: Machine, groups: Sequence[Sequence[int]]) -> tuple[Machine, ...]:
    """The part of each engine: `groups` are the indexes of its cards; none shares a CPU.

    Engines of the same nodes divide those nodes equally.
    """
    beside = [nodes_of(machine, group) for group in groups]
    return tuple(
        part_of(
            machine,
            group,
            nodes,
            place=beside[:position].count(nodes),
            sharers=beside.count(nodes),
        )
        for position, (group, nodes) in enumerate(zip(groups, beside, strict=True))
    )


def part_of(
    machine: Machine,
    gpus: Sequence[int],
    memory_nodes: Sequence[int] | None = None,
    *,
    place: int = 0,
    sharers: int = 1,
) -> Machine:
    """The machine as an engine with these cards on these nodes sees it.

    `gpus` are indexes of cards; () is an engine in main memory. `memory_nodes` None: the nodes
    beside the cards. It is the `place`-th (from 0) of `sharers` engines that share these nodes.
    """
    nodes = tuple(memory_nodes) if memory_nodes is not None else nodes_of(machine, gpus)
    share = memory_share(machine, nodes) / sharers
    cpus = cpus_of(machine, nodes, place, sharers)
    return replace(
        machine,
        gpus=tuple(gpu for gpu in machine.gpus if gpu.index in gpus),
        gpu_links=tuple(
            link for link in machine.gpu_links if link.first in gpus and link.second in gpus
        ),
        nodes=tuple(
            replace(node, memory_free_bytes=shared(node.memory_free_bytes, 1 / sharers))
            if node.index in nodes
            else node
            for node in machine.nodes
        ),
        memory=memory_part(machine, share, sharers),
        limits=limits_part(machine, nodes, cpus, share),
    )


def nodes_of(machine: Machine, gpus: Sequence[int]) -> tuple[int, ...]:
    """The nodes beside these cards that have CPUs for us; every such node where none is known."""
    usable = tuple(sorted(allowed_cores(machine))) or tuple(n.index for n in machine.nodes)
    beside = {gpu.numa_node for gpu in machine.gpus if gpu.index in gpus}
    return tuple(node for node in usable if node in beside) or usable


def memory_share(machine: Machine, nodes: Sequence[int]) -> float:
    """The share of main memory that these nodes have; all of it where there is but one."""
    if not machine.nodes or not nodes:
        return 1.0
    totals = {node.index: node.memory_total_bytes for node in machine.nodes}
    allowed = machine.limits.memory_nodes
    mine = [n for n in totals if allowed is None or n in allowed]
    known = [total for n in mine if (total := totals[n]) is not None]
    whole_bytes = sum(known)
    if len(known) == len(mine) and whole_bytes > 0:
        here_bytes = sum(totals[n] or 0 for n in mine if n in nodes)
        # Nodes without memory have theirs from the others: nothing can be told apart then.
        return here_bytes / whole_bytes or 1.0
    return len(set(nodes) & set(mine)) / max(1, len(mine)) or 1.0


def cpus_of(machine: Machine, nodes: Sequence[int], place: int, sharers: int) -> tuple[int, ...]:
    """The logical CPUs of whole cores that this engine gets, those of the mask alone."""
    by_node = allowed_cores(machine)
    if not by_node:  # the topology is not readable
        return slice_of(machine.limits.cpus, place, sharers)
    here = [node for node in nodes if node in by_node] or list(by_node)
    cores: list[Core] = []
    for node in here:
        cores += slice_of(by_node[node], place, sharers)
    return tuple(sorted(cpu for core in cores for cpu in core.cpus))


def slice_of(whole: Sequence[T], place: int, sharers: int) -> tuple[T, ...]:
    """One of equal slices; where there are fewer things than sharers, one that others have too."""
    if not whole:
        return ()
    low, high = (len(whole) * p // sharers for p in (place, place + 1))
    return tuple(whole[low:high]) or (whole[place % len(whole)],)


def memory_part(machine: Machine, share: float, sharers: int) -> Memory:
    """Main memory as far as it is this engine's; who shares a node shares its bandwidth too."""
    memory, rated = machine.memory, rated_bandwidth(machine)
    return replace(
        memory,
        available_bytes=shared(memory.available_bytes, share),
        huge_pages_free=shared(memory.huge_pages_free, share),
        bandwidths=tuple(
            replace(seen, bytes_per_s=seen.bytes_per_s / sharers) for seen in memory.bandwidths
        ),
        rated_bandwidth_bytes_per_s=None if rated is None else rated / sharers,
    )


def limits_part(
    machine: Machine, nodes: Sequence[int], cpus: tuple[int, ...], share: float
) -> Limits:
    """What the engine may use: its CPUs, its nodes' memory, its share of the group's limits."""
    limits = machine.limits
    left = None
    if limits.memory_bytes is not None:
        used = limits.memory_used_bytes or 0
        left = used + int(max(0, limits.memory_bytes - used) * share)
    quota = limits.quota_cpus
    if quota is not None and limits.cpus:
        quota = quota * len(cpus) / len(limits.cpus)
    bound = limits.memory_nodes
    if len(machine.nodes) > 1 and nodes:
        allowed = tuple(n for n in nodes if bound is None or n in bound)
        bound = allowed or bound
    return replace(limits, cpus=cpus, quota_cpus=quota, memory_bytes=left, memory_nodes=bound)


def shared(n_bytes: int | None, share: float) -> int | None:
    """That share of it; None where it is not known."""
    return None if n_bytes is None else int(n_bytes * share)
