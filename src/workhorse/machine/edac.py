"""The kernel's memory controllers (EDAC): modules without root's rights, and error counts.

There when a driver for the memory controller is loaded: sb_edac for Xeon E5, skx_edac and
i10nm_edac for Xeon Scalable, amd64_edac. Which channels hold modules is told, their speed is not.
"""

import re
from dataclasses import dataclass

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import number, words
from workhorse.machine.slot_labels import Key, Place, settle
from workhorse.records import Dimm

MC_ROOT = "sys/devices/system/edac/mc"
_CONTROLLERS_MAX = 64
_MODULES_MAX = 64  # of one controller
_MIB_MAX = 2**24  # 16 TiB
# sb_edac, skx_edac: `CPU_SrcID#0_Ha#0_Chan#1_DIMM#0`, `CPU_SrcID#1_MC#0_Chan#2_DIMM#0`.
_SOURCE = re.compile(r"SrcID#(\d{1,2})(?:_(?:Ha|MC)#(\d))?_Chan#(\d{1,2})", re.ASCII)
_LOCATION = re.compile(r"(?:csrow (\d{1,2}) )?channel (\d{1,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Module:
    """One module; `row` tells the modules of a channel apart where the kernel counts ranks."""

    controller: int
    socket: int | None
    key: Key | None
    row: int | None
    size_bytes: int | None
    kind: str | None
    label: str | None


def read_error_counts(files: HostFiles) -> tuple[int | None, int | None]:
    """Corrected and uncorrected memory errors since the start; None: no controller counts."""
    counts: list[int | None] = []
    for name in ("ce_count", "ue_count"):
        found = [number(files.text(f"{MC_ROOT}/mc{i}/{name}")) for i in _controllers(files)]
        known = [count for count in found if count is not None]
        counts.append(min(sum(known), 2**63 - 1) if known else None)
    return counts[0], counts[1]


def read_edac_modules(
    files: HostFiles, sockets: tuple[int, ...], channels: int | None
) -> tuple[Dimm, ...]:
    """The modules that the controllers list; none when there is no controller."""
    controllers = _controllers(files)
    modules = [module for index in controllers for module in _modules(files, index)]
    # amd64_edac has one controller a die: those of one socket follow each other.
    per_socket = len(controllers) // len(sockets) if sockets else 0
    even = per_socket > 0 and len(controllers) == per_socket * len(sockets)
    placed: list[Place] = []
    for module in modules:
        if module.socket is not None:
            placed.append(Place(module.socket if module.socket in sockets else None))
        else:
            at = controllers.index(module.controller) // per_socket if even else None
            placed.append(Place(None if at is None else sorted(sockets)[at]))
    settled = settle(placed, [m.key for m in modules], [True] * len(modules), channels)
    return tuple(
        Dimm(
            slot=module.label,
            socket=place.socket,
            channel=place.channel,
            size_bytes=module.size_bytes,
            kind=module.kind,
            rated_mt_s=None,
            configured_mt_s=None,
        )
        for module, place in zip(modules, settled, strict=True)
    )


def _controllers(files: HostFiles) -> list[int]:
    names = (n.removeprefix("mc") for n in files.names(MC_ROOT) if n.startswith("mc"))
    return sorted({i for n in names if (i := number(n, high=_CONTROLLERS_MAX)) is not None})


def _modules(files: HostFiles, controller: int) -> list[_Module]:
    root = f"{MC_ROOT}/mc{controller}"
    names = files.names(root)
    # `rank`: the controller is described by chip-select rows, two of which are one module.
    for prefix in ("dimm", "rank"):
        found = [n for n in names if re.fullmatch(rf"{prefix}\d{{1,3}}", n, re.ASCII)]
        if found:
            listed = [_module(files, controller, f"{root}/{name}") for name in found[:_MODULES_MAX]]
            modules = [module for module in listed if module is not None]
            return _joined(modules) if prefix == "rank" else modules
    return [
        module
        for name in names[:_MODULES_MAX]
        if re.fullmatch(r"csrow\d{1,3}", name, re.ASCII)
        for module in _old_row(files, controller, root, name)
    ]


def _module(files: HostFiles, controller: int, place: str) -> _Module | None:
    size_mib = number(files.text(f"{place}/size"), high=_MIB_MAX)
    if size_mib == 0:
        return None
    label = files.text(f"{place}/dimm_label") or ""
    source = _SOURCE.search(label[:200])
    location = _LOCATION.search((files.text(f"{place}/dimm_location") or "")[:200])
    key: Key | None = None
    row: int | None = None
    if source:
        key = (int(source[2] or 0), int(source[3]))
    elif location:
        key = (controller, int(location[2]))
        row = None if location[1] is None else int(location[1]) // 2
    return _Module(
        controller=controller,
        socket=int(source[1]) if source else None,
        key=key,
        row=row,
        size_bytes=None if size_mib is None else size_mib * 1024**2,
        kind=_kind(files.text(f"{place}/dimm_mem_type")),
        label=words(label),
    )


def _joined(ranks: list[_Module]) -> list[_Module]:
    """Ranks of the same controller, channel and pair of rows as one module."""
    modules: dict[tuple[Key | None, int | None], _Module] = {}
    for rank in ranks:
        first = modules.get((rank.key, rank.row))
        if first is None or rank.key is None:
            modules[(rank.key, rank.row)] = rank
            continue
        sizes = (first.size_bytes, rank.size_bytes)
        total = None if None in sizes else sum(size or 0 for size in sizes)
        modules[(rank.key, rank.row)] = _Module(
            first.controller, first.socket, first.key, first.row, total, first.kind, first.label
        )
    return list(modules.values())


def _old_row(files: HostFiles, controller: int, root: str, name: str) -> list[_Module]:
    """The modules of one row before Linux 3.6, which lists no modules: a row over its channels."""
    size_mib = number(files.text(f"{root}/{name}/size_mb"), high=_MIB_MAX)
    channels = [
        int(found[1])
        for entry in files.names(f"{root}/{name}")
        if (found := re.fullmatch(r"ch(\d{1,2})_dimm_label", entry, re.ASCII))
    ]
    if not size_mib or not channels:
        return []
    kind = _kind(files.text(f"{root}/{name}/mem_type"))
    size_bytes = size_mib * 1024**2 // len(channels)
    return [
        _Module(controller, None, (controller, channel), None, size_bytes, kind, None)
        for channel in channels
    ]


def _kind(text: str | None) -> str | None:
    """DDR4 of `Registered-DDR4`; None for what is no module of main memory."""
    found = re.search(r"DDR\d", (text or "")[:100], re.ASCII)
    return found[0] if found else None
