"""What will read the weights of a plan: each card, and the memory of the nodes in use."""

from collections.abc import Mapping
from typing import Literal

from workhorse.plan.cpus import CpuChoice
from workhorse.plan.pages import PageChoice
from workhorse.plan.placement import Placement
from workhorse.plan.speed import Reader, best_bandwidth, card_reader
from workhorse.records import Machine
from workhorse.text import Text
from workhorse.units import show_bandwidth

# Of what its channels could do, what one socket was seen to read: 36.6 to 39 of 59.7 GB/s on two
# E5-2699 v3 (an owner's notes, 2026), 0.8 and more in vendors' STREAM tables.
RATED_SHARE = 0.7


def readers_of(
    machine: Machine, placed: Placement, cpu: CpuChoice, pages: PageChoice
) -> Reader | Mapping[str, Reader]:
    """The one device that reads everything, or all of them by their names in the budget."""
    cards = {
        device: card_reader(card.gpu)
        for device, card in zip(placed.devices, placed.cards, strict=True)
    }
    if len(cards) == 1 and not placed.cut.weights_in_ram:
        return next(iter(cards.values()))
    memory = memory_reader(machine, cpu, pages)
    return memory if not cards else {**cards, "RAM": memory}


def memory_reader(machine: Machine, cpu: CpuChoice, pages: PageChoice) -> Reader:
    """The CPU, with the bandwidth of the nodes and the page size in use.

    Measured here, else a share of what the channels could do; None where neither is known.
    """
    size: Literal["small", "huge"] = "huge" if pages.huge_pages else "small"
    read, nodes = machine.memory.bandwidths, cpu.memory_nodes
    measured = best_bandwidth(read, size, nodes) or best_bandwidth(read, "small", nodes)
    if measured is not None:
        shown = show_bandwidth(measured.bytes_per_s)
        words = Text(
            f"{shown} read with {measured.threads} threads, {measured.pages} pages "
            f"({measured.method})",
            f"{measured.threads} 线程读取 {shown}，{'大页' if measured.pages == 'huge' else '小页'}"
            f"（{measured.method}）",
        )
        return Reader("cpu", measured.bytes_per_s, words, "measured", cpu.threads)
    rated = rated_bandwidth(machine)
    if rated is None:
        return Reader("cpu", None, Text("not measured", "未测量"), "estimated", cpu.threads)
    in_use = len(nodes) if nodes else 1
    share = RATED_SHARE * min(1.0, in_use / max(1, len(machine.nodes)))
    words = Text(
        f"{RATED_SHARE:.0%} of {show_bandwidth(rated * share / RATED_SHARE)} that the channels "
        "could do at most; run `workhorse probe --measure` to know",
        f"内存通道上限 {show_bandwidth(rated * share / RATED_SHARE)} 的 {RATED_SHARE:.0%}；"
        "可用 `workhorse probe --measure` 实测",
    )
    return Reader("cpu", rated * share, words, "estimated", cpu.threads)


def rated_bandwidth(machine: Machine) -> float | None:
    """Bytes a second that all sockets' channels could do: by the board, else by the CPU's table."""
    if machine.memory.rated_bandwidth_bytes_per_s is not None:
        return machine.memory.rated_bandwidth_bytes_per_s
    channels, rate = machine.cpu.memory_channels, machine.cpu.memory_rate_max_mt_s
    sockets = len({core.socket for core in machine.cpu.cores})
    if channels is None or rate is None or not sockets:
        return None
    return sockets * channels * rate * 1e6 * 8
