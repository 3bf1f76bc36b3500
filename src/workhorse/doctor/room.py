"""How much room models have: memory that is free, limits of this process, swap, disk."""

import shlex
from collections.abc import Iterator
from dataclasses import replace

from workhorse.doctor.opinion import Opinion, finding
from workhorse.knowledge.health import threshold
from workhorse.records import Disk, Finding, Machine
from workhorse.text import Text
from workhorse.units import GB, show_bandwidth, show_bytes, show_duration, show_share

# The kernel's default, at which an idle model's weights do go to the disk while files are read.
_SWAPPINESS_DEFAULT = 60
# A model to reckon load times with: a 32B model in 4 bits.
_EXAMPLE_BYTES = 20 * GB
_HARD_DISK_BYTES_PER_S = 150e6  # in the middle of one disk's 100 to 250 MB/s


def judge_room(machine: Machine) -> Opinion:
    """Memory and CPU time that this process may use, swap, and the disk for models."""
    findings = (
        *small_memory(machine),
        *swap(machine),
        *quota(machine),
        *fewer_cpus(machine),
        *memory_limit(machine),
        *(found for disk in machine.disks for found in judge_disk(disk)),
    )
    good = None
    available = available_bytes(machine)
    if available is not None:
        good = Text(
            f"Room: {show_bytes(available)} of memory free for models"
            + "".join(f", {show_bytes(d.free_bytes)} of disk" for d in machine.disks[:1]) + ".",
            f"空间：可用于模型的内存 {show_bytes(available)}"
            + "".join(f"，磁盘 {show_bytes(d.free_bytes)}" for d in machine.disks[:1]) + "。",
        )  # fmt: skip
    return Opinion(findings, good)


def total_bytes(machine: Machine) -> int | None:
    """What this process could have at most: the memory, or its control group's limit."""
    known = [v for v in (machine.memory.total_bytes, machine.limits.memory_bytes) if v]
    return min(known, default=None)


def available_bytes(machine: Machine) -> int | None:
    """What is free for this process now."""
    limit, used = machine.limits.memory_bytes, machine.limits.memory_used_bytes
    known = [v for v in (machine.memory.available_bytes,) if v is not None]
    if limit is not None:
        known.append(max(0, limit - (used or 0)))
    return min(known, default=None)


def small_memory(machine: Machine) -> Iterator[Finding]:
    """Too little memory, or too much of it taken."""
    total, available = total_bytes(machine), available_bytes(machine)
    if total is not None and total < threshold("memory_small_bytes"):
        yield finding(
            "memory.small",
            Text(
                f"This process can have {show_bytes(total)} of memory.",
                f"本进程最多可用 {show_bytes(total)} 内存。",
            ),
            evidence=(f"total {total}, control group {machine.limits.memory_bytes}",),
            # The weights of a card's model lie on the card.
            level="note" if machine.gpus else None,
        )
    elif (
        total and available is not None and available < total * threshold("memory_available_share")
    ):
        yield finding(
            "memory.taken",
            Text(
                f"Only {show_bytes(available)} of {show_bytes(total)} of memory are available "
                f"({show_share(available / total)}).",
                f"{show_bytes(total)} 内存仅剩 {show_bytes(available)} 可用"
                f"（{show_share(available / total)}）。",
            ),
            evidence=(f"available {available}, total {total}",),
        )


def swap(machine: Machine) -> Iterator[Finding]:
    """Swap that is in use, or that the kernel is eager to use."""
    memory, swappiness = machine.memory, machine.settings.swappiness
    total, free = memory.swap_total_bytes, memory.swap_free_bytes
    if not total:
        return
    used = max(0, total - free) if free is not None else 0
    if used >= threshold("swap_used_bytes"):
        available, ram = memory.available_bytes, memory.total_bytes
        short = available is not None and ram is not None and available < ram / 4
        told = finding(
            "memory.swap-used",
            Text(
                f"{show_bytes(used)} of memory lie in the swap on disk.",
                f"有 {show_bytes(used)} 内存被换到磁盘。",
            ),
            evidence=(f"SwapTotal {total}, SwapFree {free}, vm.swappiness {swappiness}",),
            # Plenty is free: what lies there was pushed out in the past and may well stay.
            level=None if short else "note",
        )
        # Bringing back more than there is room for ends programs.
        fits = available is not None and available > used + threshold("memory_small_bytes")
        yield told if fits else replace(told, command="sudo sysctl vm.swappiness=10")
    elif swappiness is not None and swappiness >= _SWAPPINESS_DEFAULT:
        yield finding(
            "memory.swappiness",
            Text(
                f"vm.swappiness is {swappiness}, with {show_bytes(total)} of swap.",
                f"vm.swappiness 为 {swappiness}，交换区 {show_bytes(total)}。",
            ),
            evidence=(f"vm.swappiness = {swappiness}",),
        )


def quota(machine: Machine) -> Iterator[Finding]:
    """CPU time that a control group holds back."""
    allowed, cores = machine.limits.quota_cpus, len(machine.cpu.cores)
    if allowed is None or not cores or allowed >= cores:
        return
    yield finding(
        "limits.quota",
        Text(
            f"The control group gives {allowed:g} CPUs' worth of time; the machine has "
            f"{cores} cores.",
            f"控制组只给 {allowed:g} 个 CPU 的时间；本机有 {cores} 个核心。",
        ),
        evidence=(f"cpu.max: {allowed:g} CPUs",),
        level="warning" if allowed < cores * threshold("quota_share") else None,
        cores=cores,
    )


def fewer_cpus(machine: Machine) -> Iterator[Finding]:
    """CPUs that this process may not use."""
    every = {cpu for core in machine.cpu.cores for cpu in core.cpus}
    allowed = set(machine.limits.cpus)
    if not allowed or not every or len(allowed) >= len(every):
        return
    yield finding(
        "limits.cpus",
        Text(
            f"This process may use {len(allowed)} of {len(every)} CPUs.",
            f"本进程只能使用 {len(every)} 个 CPU 中的 {len(allowed)} 个。",
        ),
        evidence=(machine.learned_from.get("limits", "affinity mask, cpuset"),),
    )


def memory_limit(machine: Machine) -> Iterator[Finding]:
    """Memory that a control group holds back; where it is too little `memory.small` says so."""
    limit, total = machine.limits.memory_bytes, machine.memory.total_bytes
    if limit is None or total is None or not threshold("memory_small_bytes") <= limit < total:
        return
    yield finding(
        "limits.memory",
        Text(
            f"The control group gives {show_bytes(limit)} of the {show_bytes(total)} of memory.",
            f"控制组只给 {show_bytes(total)} 内存中的 {show_bytes(limit)}。",
        ),
        evidence=(f"memory.max {limit}",),
    )


def judge_disk(disk: Disk) -> Iterator[Finding]:
    """Where models would live: room, speed, and whether it stays."""
    evidence = (
        f"{disk.path}: {disk.file_system or '?'}, {disk.kind or 'kind unknown'}, "
        f"{show_bytes(disk.free_bytes)} of {show_bytes(disk.total_bytes)} free, "
        f"read {show_bandwidth(disk.read_bytes_per_s)}",
    )
    where = Text(f"The place for models ({disk.path})", f"模型目录（{disk.path}）")
    if disk.free_bytes is not None and disk.free_bytes < threshold("disk_free_bytes"):
        free = show_bytes(disk.free_bytes)
        yield finding(
            "disk.full",
            Text(f"{where.en} has {free} free.", f"{where.zh}仅剩 {free}。"),
            evidence=evidence,
            path=shlex.quote(disk.path),
        )
    if disk.kind == "memory" or disk.file_system in ("tmpfs", "ramfs"):
        yield finding(
            "disk.in-memory",
            Text(f"{where.en} lies in main memory.", f"{where.zh}位于内存中。"),
            evidence=evidence,
            path=shlex.quote(disk.path),
        )
    elif disk.file_system == "overlay":
        yield finding(
            "disk.goes-away",
            Text(f"{where.en} is a container's own layer.", f"{where.zh}位于容器自身的层中。"),
            evidence=evidence,
        )
    rate = disk.read_bytes_per_s
    slow = rate is not None and rate < threshold("disk_slow_bytes_per_s")
    if slow or (rate is None and disk.kind == "hdd"):
        load = show_duration(_EXAMPLE_BYTES / (rate or _HARD_DISK_BYTES_PER_S))
        yield finding(
            "disk.slow",
            Text(f"{where.en} reads at {show_bandwidth(rate)}.",
                 f"{where.zh}读取速度 {show_bandwidth(rate)}。")
            if rate is not None
            else Text(f"{where.en} is on a hard disk.", f"{where.zh}位于机械硬盘。"),
            evidence=evidence,
            sure="certain" if rate is not None else "likely",
            load=load,
        )  # fmt: skip
