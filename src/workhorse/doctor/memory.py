"""Main memory: modules, channels, rates, nodes and errors."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from workhorse.doctor.memory_speed import measured_low, own_memory_bytes_per_s, remote
from workhorse.doctor.opinion import Opinion, finding, is_virtual, on_cpu_alone
from workhorse.knowledge.health import threshold
from workhorse.records import Dimm, Finding, Machine
from workhorse.text import Text
from workhorse.units import show_bandwidth, show_bytes, show_share

# EDAC's UE, a machine check that was not corrected, a page that the kernel gave up.
_UNCORRECTED = re.compile(r"\bUE\b|uncorrect|Memory failure", re.IGNORECASE)


def judge_memory(machine: Machine) -> Opinion:
    """What the memory's modules and nodes give and lose."""
    memory = machine.memory
    findings = [
        *empty_nodes(machine),
        *nodes_without_cpus(machine),
        *errors(machine),
        *measured_low(machine),
        *remote(machine),
    ]
    unchecked = []
    if is_virtual(machine):
        unchecked.append(
            Text(
                "In a virtual machine the memory modules of the host cannot be seen.",
                "虚拟机中看不到宿主机的内存条。",
            )
        )
    elif memory.dimms is None and memory.channels_in_use is None:
        unchecked.append(
            Text(
                "Memory modules, channels and their rate: run `sudo workhorse doctor`.",
                "内存条、通道与频率：请运行 `sudo workhorse doctor`。",
            )
        )
    else:
        placed = [*channels(machine)]
        if memory.channels_in_use is None and not placed:
            unchecked.append(
                Text(
                    "Which memory channels the modules are in: the board's labels do not tell.",
                    "内存条各在哪个通道：主板的插槽标签没有说明。",
                )
            )
        findings += [*placed, *rates(machine), *sizes(machine)]
    return Opinion(tuple(findings), good_memory(machine), tuple(unchecked))


def populated(machine: Machine) -> tuple[Dimm, ...]:
    """The slots with a module in them."""
    return tuple(dimm for dimm in machine.memory.dimms or () if dimm.size_bytes)


def channels(machine: Machine) -> Iterator[Finding]:
    """Channels without a module, and sockets that differ."""
    in_use, has = machine.memory.channels_in_use, machine.cpu.memory_channels
    if not in_use:
        yield from too_few_modules(machine)
        return
    evidence = dimm_lines(machine)
    # A socket without any module has a finding of its own: a node without memory.
    filled = [count for count in in_use if count > 0 or len(machine.nodes) < 2]
    if has and filled and min(filled) < has:
        lost = 1 - sum(filled) / (has * len(filled))
        listed = ", ".join(f"{count} of {has}" for count in in_use)
        listed_zh = "、".join(f"{count}/{has}" for count in in_use)
        yield finding(
            "memory.channels-empty",
            Text(
                f"Memory channels in use, socket by socket: {listed}. {show_share(lost)} of the "
                "bandwidth is missing.",
                f"各插槽已用内存通道：{listed_zh}，缺少 {show_share(lost)} 的带宽。",
            ),
            evidence=evidence,
            share_lost=on_cpu_alone(machine, lost),
        )
    elif len(set(filled)) > 1 or len(set(socket_sizes(machine).values())) > 1:
        sizes_by_socket = socket_sizes(machine)
        listed = ", ".join(
            f"socket {socket}: {show_bytes(size)}" for socket, size in sizes_by_socket.items()
        ) or ", ".join(f"{count} channels" for count in in_use)
        yield finding(
            "memory.sockets-unequal",
            Text(f"The sockets' memory differs: {listed}.", f"各插槽内存不一致：{listed}。"),
            evidence=evidence,
        )


def too_few_modules(machine: Machine) -> Iterator[Finding]:
    """Fewer modules than channels: some are empty, wherever the modules are."""
    sockets, has = {core.socket for core in machine.cpu.cores}, machine.cpu.memory_channels
    # A slot of unknown size may have a module in it.
    modules = [dimm for dimm in machine.memory.dimms or () if dimm.size_bytes != 0]
    plain = all(re.fullmatch(r"DDR\d", dimm.kind or "") for dimm in modules)
    if not has or not modules or not plain or len(modules) >= has * len(sockets):
        return
    every = has * len(sockets)
    lost = 1 - len(modules) / every
    yield finding(
        "memory.channels-empty",
        Text(
            f"{len(modules)} memory modules for {every} channels: at least {show_share(lost)} of "
            "the bandwidth is missing.",
            f"{every} 个内存通道只有 {len(modules)} 条内存，至少缺少 {show_share(lost)} 的带宽。",
        ),
        evidence=dimm_lines(machine),
        share_lost=on_cpu_alone(machine, lost),
    )


def socket_sizes(machine: Machine) -> dict[int, int]:
    """The memory of each socket, where the board's table says it of every module."""
    found: dict[int, int] = defaultdict(int)
    for dimm in populated(machine):
        if dimm.socket is None:
            return {}
        found[dimm.socket] += dimm.size_bytes or 0
    return dict(sorted(found.items()))


def rates(machine: Machine) -> Iterator[Finding]:
    """Modules that run slower than they and the CPU could."""
    known = [
        (dimm.rated_mt_s, dimm.configured_mt_s)
        for dimm in populated(machine)
        if dimm.rated_mt_s and dimm.configured_mt_s
    ]
    if not known:
        return
    limit = machine.cpu.memory_rate_max_mt_s
    slowest = min(rated for rated, _ in known)
    fastest = max(rated for rated, _ in known)
    runs_at = min(configured for _, configured in known)
    possible = min(filter(None, (slowest, limit)))
    tolerance = threshold("memory_rate_share")
    seen_by = tuple(
        f"{n} × rated {r} MT/s, runs at {c} MT/s" for (r, c), n in Counter(known).items()
    )
    if runs_at < possible * tolerance:
        lost = 1 - runs_at / possible
        # Some boards tell the clock here and the rate there: exactly half is that, mostly.
        halved = abs(2 * runs_at - possible) <= possible * (1 - tolerance)
        told = limit is not None and not halved
        yield finding(
            "memory.slow-rate",
            Text(
                f"Memory runs at {runs_at} MT/s; {possible} MT/s is possible.",
                f"内存运行在 {runs_at} MT/s，可达 {possible} MT/s。",
            ),
            evidence=seen_by,
            share_lost=on_cpu_alone(machine, lost) if told else None,
            # Not knowing the CPU's limit, the module's rate may simply be beyond it.
            level=None if told else "note",
            sure="certain" if told else "possible",
        )
    elif slowest < min(filter(None, (fastest, limit))) * tolerance:
        best = min(filter(None, (fastest, limit)))
        yield finding(
            "memory.mixed-rates",
            Text(
                f"Modules rated {slowest} and {fastest} MT/s are mixed: all run at {runs_at}.",
                f"混用了 {slowest} 与 {fastest} MT/s 的内存条，全部运行在 {runs_at} MT/s。",
            ),
            evidence=seen_by,
            share_lost=on_cpu_alone(machine, 1 - runs_at / best) if runs_at < best else None,
        )


def sizes(machine: Machine) -> Iterator[Finding]:
    """Channels of one socket that hold different amounts."""
    amounts: dict[tuple[int, int], int] = defaultdict(int)
    for dimm in populated(machine):
        if dimm.socket is None or dimm.channel is None:
            return
        amounts[dimm.socket, dimm.channel] += dimm.size_bytes or 0
    by_socket: dict[int, set[int]] = defaultdict(set)
    for (socket, _), amount in amounts.items():
        by_socket[socket].add(amount)
    uneven = {socket: found for socket, found in by_socket.items() if len(found) > 1}
    if not uneven:
        return
    listed = "; ".join(
        f"{socket}: {', '.join(map(show_bytes, sorted(found)))}"
        for socket, found in sorted(uneven.items())
    )
    yield finding(
        "memory.mixed-sizes",
        Text(
            f"Channels hold different amounts (socket {listed}).",
            f"各通道容量不同（插槽 {listed}）。",
        ),
        evidence=dimm_lines(machine),
    )


def empty_nodes(machine: Machine) -> Iterator[Finding]:
    """NUMA nodes with CPUs and no memory."""
    empty = [n for n in machine.nodes if n.cpus and n.memory_total_bytes == 0]
    if not empty or len(machine.nodes) < 2:
        return
    listed = ", ".join(str(node.index) for node in empty)
    yield finding(
        "memory.node-empty",
        Text(
            f"NUMA node {listed} has CPUs and no memory.", f"NUMA 节点 {listed} 有 CPU 但没有内存。"
        ),
        evidence=(f"node {node.index}: {len(node.cpus)} CPUs, 0 bytes" for node in empty),
        # Each socket's memory is its own part of the bandwidth.
        share_lost=on_cpu_alone(machine, len(empty) / sum(bool(n.cpus) for n in machine.nodes)),
    )


def nodes_without_cpus(machine: Machine) -> Iterator[Finding]:
    """Memory that no CPU is near to: a card's, CXL, or HBM beside the CPU."""
    bare = [n for n in machine.nodes if not n.cpus and n.memory_total_bytes]
    if not bare or len(bare) == len(machine.nodes):
        return
    listed = ", ".join(f"{n.index} ({show_bytes(n.memory_total_bytes)})" for n in bare)
    yield finding(
        "memory.node-without-cpus",
        Text(
            f"NUMA node {listed} has memory and no CPUs.", f"NUMA 节点 {listed} 有内存但没有 CPU。"
        ),
        evidence=(f"node {n.index}: 0 CPUs, {n.memory_total_bytes} bytes" for n in bare),
    )


def errors(machine: Machine) -> Iterator[Finding]:
    """What the memory controllers counted, with the kernel's lines about it."""
    memory = machine.memory
    lines = [event for event in machine.events or () if event.kind == "memory"]
    said = tuple(event.text for event in lines[:3])
    lost = [event for event in lines if _UNCORRECTED.search(event.text)]
    uncorrected = memory.ecc_uncorrected or sum(event.times for event in lost)
    if uncorrected:
        yield finding(
            "memory.errors-uncorrected",
            Text(
                f"{uncorrected} memory errors could not be corrected.",
                f"有 {uncorrected} 个内存错误无法纠正。",
            ),
            evidence=(f"ue_count {memory.ecc_uncorrected}", *(e.text for e in lost[:3])),
        )
        return
    count = memory.ecc_corrected or 0
    if not count and not lines:
        return
    times = sum(event.times for event in lines)
    often = max(count, times) >= threshold("memory_corrected_errors")
    seen = (
        Text(f"{count} memory errors were corrected.", f"已纠正 {count} 个内存错误。")
        if count
        else Text(
            f"The kernel's log tells of machine checks or memory errors ({times}).",
            f"内核日志记录了机器检查或内存错误（{times} 次）。",
        )
    )
    yield finding(
        "memory.errors-corrected",
        seen,
        evidence=(f"ce_count {count}", *said),
        level="warning" if often else "note",
        sure="certain" if often else "possible",
    )


def dimm_lines(machine: Machine) -> tuple[str, ...]:
    """The modules, equal ones together, and how many slots are empty."""
    every = machine.memory.dimms or ()
    kinds = Counter(
        f"{show_bytes(d.size_bytes)} {d.kind or 'memory'}"
        + (f" in socket {d.socket}" if d.socket is not None else "")
        for d in populated(machine)
    )
    empty = sum(dimm.size_bytes == 0 for dimm in every)
    lines = [f"{count} × {kind}" for kind, count in kinds.items()]
    if in_use := machine.memory.channels_in_use:
        lines.append(f"channels in use: {', '.join(map(str, in_use))}")
    return (*lines[:8], *([f"{empty} slots empty"] if empty else []))


def good_memory(machine: Machine) -> Text | None:
    """The memory in a line, for a reader whose memory is well."""
    memory = machine.memory
    if memory.total_bytes is None:
        return None
    parts, parts_zh = [show_bytes(memory.total_bytes)], [show_bytes(memory.total_bytes)]
    in_use, has = memory.channels_in_use, machine.cpu.memory_channels
    if in_use and has and min(in_use) >= has and not is_virtual(machine):
        parts.append("every channel filled")
        parts_zh.append("通道全部插满")
    if (read := own_memory_bytes_per_s(machine)) is not None:
        parts.append(f"read at {show_bandwidth(read)}")
        parts_zh.append(f"实测读取 {show_bandwidth(read)}")
    return Text(f"Memory: {', '.join(parts)}.", f"内存：{'，'.join(parts_zh)}。")
