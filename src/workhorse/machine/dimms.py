"""The memory modules: which slots are filled, how fast they run, which channels that gives.

From the board's table (SMBIOS, by `dmidecode`, which needs root), else from the kernel's memory
controllers (EDAC), which everybody may read and which tell the channels and no speeds.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from workhorse.machine.edac import read_edac_modules, read_error_counts
from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, number, size_bytes, words
from workhorse.machine.slot_labels import Slot, places
from workhorse.records import Cpu, Dimm, Memory
from workhorse.text import Text

DMIDECODE = ("dmidecode", "-t", "memory")
_MODULES_MAX = 512
_RATE_MAX_MT_S = 20_000
# Bytes that a channel moves with each transfer: 64 bits, DDR to DDR5 (JESD79; read 2026-11).
_CHANNEL_BYTES = 8
# The slowest rate that controllers run a kind at, 10^6 transfers a second (JESD79-3, -4, -5;
# Xeon E5 v3 runs three load-reduced DDR4 modules a channel at 1333; read 2026-11).
_SLOWEST_MT_S = {"DDR2": 400, "DDR3": 800, "DDR4": 1333, "DDR5": 3200}


def add_modules(files: HostFiles, memory: Memory, cpu: Cpu) -> tuple[Memory, tuple[Text, ...]]:
    """`memory` with its modules, the channels in use, the rated bandwidth and the error counts.

    A virtual machine's table is made up by the hypervisor, so there the modules are unknown.
    """
    corrected, uncorrected = read_error_counts(files)
    memory = replace(memory, ecc_corrected=corrected, ecc_uncorrected=uncorrected)
    if "hypervisor" in cpu.flags:
        return memory, ()
    sockets = tuple(sorted({core.socket for core in cpu.cores}))
    listed = parse_modules(files.said(*DMIDECODE) or "", cpu)
    counted = read_edac_modules(files, sockets, cpu.memory_channels)
    dimms = listed or counted
    if not dimms:
        return memory, (_doubt(),) if files.live else ()
    in_use = channels_in_use(dimms, sockets) or channels_in_use(counted, sockets)
    return replace(
        memory,
        dimms=dimms,
        channels_in_use=in_use,
        rated_bandwidth_bytes_per_s=rated_bandwidth(dimms, sockets, in_use),
    ), ()


def parse_modules(text: str, cpu: Cpu) -> tuple[Dimm, ...]:
    """The slots in what `dmidecode -t memory` prints, with the place of each. Pure.

    None of them when the text lists none: dmidecode without root's rights prints only its name.
    """
    arrays: dict[str, str] = {}
    tables: list[dict[str, str]] = []
    for block in re.split(r"\n\s*\n", text):
        values = fields(block)
        if "Use" in values and (handle := re.match(r"Handle (0x[0-9A-Fa-f]{1,8})", block.strip())):
            arrays[handle[1]] = values["Use"]
        elif "Locator" in values and "Size" in values and len(tables) < _MODULES_MAX:
            tables.append(values)
    tables = [t for t in tables if arrays.get(t.get("Array Handle", ""), _MAIN) == _MAIN]
    bare = [_module(values, cpu) for values in tables]
    slots = [
        Slot(dimm.slot or "", words(values.get("Bank Locator")) or "", dimm.size_bytes != 0)
        for dimm, values in zip(bare, tables, strict=True)
    ]
    sockets = tuple(sorted({core.socket for core in cpu.cores}))
    return tuple(
        replace(dimm, socket=place.socket, channel=place.channel)
        for dimm, place in zip(bare, places(slots, sockets, cpu.memory_channels), strict=True)
    )


def channels_in_use(dimms: Iterable[Dimm], sockets: Sequence[int]) -> tuple[int, ...] | None:
    """Channels with a module in them, one figure for each socket. Pure.

    None unless the place of every module is known: a module somewhere could be a channel.
    """
    filled = [dimm for dimm in dimms if dimm.size_bytes != 0]
    if not filled or not sockets:
        return None
    for dimm in filled:
        if None in (dimm.size_bytes, dimm.socket, dimm.channel):
            return None
    return tuple(len({d.channel for d in filled if d.socket == socket}) for socket in sockets)


def rated_bandwidth(
    dimms: Iterable[Dimm], sockets: Sequence[int], in_use: tuple[int, ...] | None
) -> float | None:
    """Channels in use x the rate they run at x 8 bytes, over all sockets, in bytes a second. Pure.

    None when a rate is not known or the modules are no DDR modules: LPDDR's channels are narrower.
    """
    filled = [dimm for dimm in dimms if dimm.size_bytes != 0]
    if in_use is None or any(re.fullmatch(r"DDR\d", dimm.kind or "") is None for dimm in filled):
        return None
    total = 0.0
    for socket, channels in zip(sockets, in_use, strict=True):
        mine = [d for d in filled if d.socket == socket] if channels else []
        # The place may be known from the controllers alone; then one rate must hold for all.
        rates = {d.configured_mt_s for d in (mine or filled)}
        if None in rates or (not mine and len(rates) > 1):
            return None
        total += channels * min(rate for rate in rates if rate is not None) * 1e6 * _CHANNEL_BYTES
    return total


_MAIN = "System Memory"


def _module(values: dict[str, str], cpu: Cpu) -> Dimm:
    """One `Memory Device` of the table."""
    said = (words(values.get("Size")) or "").lower()
    size = 0 if said.startswith(("no module", "not installed")) else size_bytes(said)
    kind = re.fullmatch(r"(?:LP)?DDR\d?X?", (values.get("Type") or "").strip(), re.ASCII)
    name = kind[0] if kind else None
    rated = _rate(values.get("Speed"))
    # The second name is dmidecode's before 3.2.
    now = _rate(values.get("Configured Memory Speed") or values.get("Configured Clock Speed"))
    return Dimm(
        slot=words(values.get("Locator"), longest=60),
        socket=None,
        channel=None,
        size_bytes=size,
        kind=name,
        rated_mt_s=transfers(rated, name, None, None),
        configured_mt_s=transfers(now, name, rated, cpu.memory_rate_max_mt_s),
    )


def transfers(
    value: int | None, kind: str | None, rated: int | None, most_mt_s: int | None
) -> int | None:
    """Transfers in 10^6/s of a speed in a board's table, which may be the clock: half of it. Pure.

    It is the clock when no memory of the kind is that slow, or when it is half of the module's
    rate although the CPU (`most_mt_s`) takes the whole.
    """
    if value is None:
        return None
    slowest = _SLOWEST_MT_S.get(kind or "", 0)
    half = rated is not None and abs(2 * value - rated) <= 2
    if value < slowest - 1 or (half and most_mt_s is not None and most_mt_s >= 2 * value - 2):
        return 2 * value
    return value


def _rate(text: str | None) -> int | None:
    # dmidecode before 2.12 adds the time of a cycle: `1333 MHz (0.8 ns)`.
    found = re.fullmatch(
        r"(\d{1,5}) ?(?:MT/s|MHz)(?: \([\d.]+ ns\))?", (text or "").strip()[:40], re.ASCII
    )
    # Tables write 0 for a slot without a module.
    return (number(found[1], high=_RATE_MAX_MT_S) or None) if found else None


def _doubt() -> Text:
    if os.geteuid() == 0:
        return Text(
            "Which memory modules are in which slots could not be read: install dmidecode and"
            " probe again (a container does not see the board's table).",
            "无法读取内存条的插槽分布：请安装 dmidecode 后重新检测（容器内看不到主板信息表）。",
        )
    return Text(
        "Which memory modules are in which slots is readable by root alone: run `sudo workhorse"
        " probe` with dmidecode installed to see whether every memory channel is in use.",
        "只有 root 才能读取内存条的插槽分布：请安装 dmidecode 并运行 `sudo workhorse probe`，"
        "以确认每个内存通道都插了内存。",
    )
