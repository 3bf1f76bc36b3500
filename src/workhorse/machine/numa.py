"""NUMA nodes: which CPUs and how much memory sit together, and how far apart."""

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import cpu_list, fields, number, size_bytes
from workhorse.records import NumaNode
from workhorse.text import Text

NODE_ROOT = "sys/devices/system/node"
# CONFIG_NODES_SHIFT is at most 10 (x86 Kconfig; read 2026-11).
_NODES_MAX = 1024


def read_nodes(
    files: HostFiles, cpus: tuple[int, ...]
) -> tuple[tuple[NumaNode, ...], tuple[Text, ...]]:
    """The memory nodes, and what could not be read.

    A kernel without NUMA has no node directory: that is one node with every CPU. So is a host
    with one node; its memory comes from /proc/meminfo, as a virtual machine's only node may
    leave out memory that was plugged in later (12 of 24 GiB, seen 2026-11).
    """
    indexes = _indexes(files)
    whole = _whole_machine(files, cpus, indexes[0] if indexes else 0)
    if len(indexes) < 2:
        return (whole,), ()
    online = set(cpus)
    seen: set[int] = set()
    nodes: list[NumaNode] = []
    unreadable: list[int] = []
    for index in indexes:
        root = f"{NODE_ROOT}/node{index}"
        listed = cpu_list(files.text(f"{root}/cpulist"))
        if listed is None:
            unreadable.append(index)
        own = (set(listed or ()) & online) - seen
        seen |= own
        memory = fields(files.text(f"{root}/meminfo"))
        prefix = f"Node {index} "
        nodes.append(
            NumaNode(
                index=index,
                cpus=tuple(sorted(own)),
                memory_total_bytes=size_bytes(memory.get(f"{prefix}MemTotal")),
                memory_free_bytes=size_bytes(memory.get(f"{prefix}MemFree")),
                distances=_distances(files.text(f"{root}/distance"), len(indexes)),
            )
        )
    if not seen and online:
        return (whole,), (_doubt(unreadable or indexes),)
    return tuple(nodes), (_doubt(unreadable),) if unreadable else ()


def _indexes(files: HostFiles) -> list[int]:
    listed = cpu_list(files.text(f"{NODE_ROOT}/online"))
    if listed is None:
        names = (n.removeprefix("node") for n in files.names(NODE_ROOT) if n.startswith("node"))
        listed = tuple(sorted({i for i in (number(n) for n in names) if i is not None}))
    return [index for index in listed if index < _NODES_MAX]


def _whole_machine(files: HostFiles, cpus: tuple[int, ...], index: int) -> NumaNode:
    memory = fields(files.text("proc/meminfo"))
    return NumaNode(
        index=index,
        cpus=cpus,
        memory_total_bytes=size_bytes(memory.get("MemTotal")),
        memory_free_bytes=size_bytes(memory.get("MemFree")),
        distances=_distances(files.text(f"{NODE_ROOT}/node{index}/distance"), 1),
    )


def _distances(text: str | None, count: int) -> tuple[int, ...]:
    """The distances to each online node, in order; none when any of them is not a number."""
    values = [number(word, high=255) for word in (text or "")[:8192].split()]
    if len(values) != count or any(value is None for value in values):
        return ()
    return tuple(value for value in values if value is not None)


def _doubt(indexes: list[int]) -> Text:
    listed = ", ".join(map(str, indexes[:8]))
    return Text(
        f"Which CPUs belong to NUMA node {listed} could not be read.",
        f"无法读取 NUMA 节点 {listed} 包含哪些 CPU。",
    )
