"""What was measured of a machine, kept in its capture: a plan made from it has a forecast.

As JSON it is the `measured.json` of a captured tree. Read back it is as little trusted as every
other file: sizes are bounded, figures positive, words printable.
"""

import math
from dataclasses import dataclass, replace

import msgspec

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import NUMBER_MAX, words
from workhorse.records import Bandwidth, CopyBandwidth, Disk, Gpu, Machine, PeerCopy
from workhorse.text import Text

MEASURED_CAPTURE = "measured.json"
_COUNT_MAX = 256
_LINKS_MAX = 64 * 63 // 2


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """What was measured of one GPU."""

    index: int
    copies: tuple[CopyBandwidth, ...] = ()
    pcie_generation_loaded: int | None = None
    pcie_width_loaded: int | None = None


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """The copies between two GPUs that were tried."""

    first: int
    second: int
    copies: tuple[PeerCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """Bandwidths of memory and GPUs, and the disk where models would lie."""

    bandwidths: tuple[Bandwidth, ...] = ()
    gpus: tuple[MeasuredGpu, ...] = ()
    disks: tuple[Disk, ...] = ()
    links: tuple[MeasuredLink, ...] = ()


def measured_of(machine: Machine) -> Measured:
    """The part of a Machine that no file holds."""
    gpus = tuple(
        MeasuredGpu(gpu.index, gpu.copies, gpu.pcie_generation_loaded, gpu.pcie_width_loaded)
        for gpu in machine.gpus
        if gpu.copies or gpu.pcie_width_loaded is not None
    )
    links = tuple(
        MeasuredLink(link.first, link.second, link.copies)
        for link in machine.gpu_links
        if link.copies
    )
    return Measured(machine.memory.bandwidths, gpus, machine.disks, links)


def read_measured(files: HostFiles) -> tuple[Measured, tuple[Text, ...]]:
    """The figures kept in a capture; none when it holds none, and a doubt when they are broken."""
    document = files.text(MEASURED_CAPTURE)
    if document is None:
        return Measured(), ()
    try:
        measured = msgspec.json.decode(document, type=Measured)
    except (ValueError, RecursionError):
        return Measured(), (
            Text(
                f"{MEASURED_CAPTURE} could not be read: of this machine nothing is measured.",
                f"无法读取 {MEASURED_CAPTURE}：该机器没有实测数据。",
            ),
        )
    return Measured(
        bandwidths=tuple(
            replace(b, method=words(b.method) or "?", memory_nodes=_nodes(b.memory_nodes))
            for b in measured.bandwidths[:_COUNT_MAX]
            if _rate(b.bytes_per_s) and 0 < b.threads < 8192 and 0 <= (b.node or 0) < 1024
        ),
        gpus=tuple(map(_gpu, measured.gpus[:_COUNT_MAX])),
        disks=tuple(map(_disk, measured.disks[:_COUNT_MAX])),
        links=tuple(map(_link, measured.links[:_LINKS_MAX])),
    ), ()


def with_measured(machine: Machine, measured: Measured) -> Machine:
    """The Machine with the figures that were measured of it."""
    of = {gpu.index: gpu for gpu in measured.gpus}
    tried = {(link.first, link.second): link.copies for link in measured.links}
    learned = dict(machine.learned_from)
    if measured.bandwidths:
        learned["bandwidths"] = f"{MEASURED_CAPTURE}, each by its method"
    if measured.disks:
        learned["disks"] = MEASURED_CAPTURE
    return replace(
        machine,
        memory=replace(machine.memory, bandwidths=measured.bandwidths),
        gpus=tuple(
            _with_copies(gpu, of[gpu.index]) if gpu.index in of else gpu for gpu in machine.gpus
        ),
        gpu_links=tuple(
            replace(link, copies=tried.get((link.first, link.second), link.copies))
            for link in machine.gpu_links
        ),
        disks=measured.disks,
        learned_from=learned,
    )


def _with_copies(gpu: Gpu, measured: MeasuredGpu | None) -> Gpu:
    if measured is None:
        return gpu
    return replace(
        gpu,
        copies=measured.copies,
        pcie_generation_loaded=measured.pcie_generation_loaded,
        pcie_width_loaded=measured.pcie_width_loaded,
    )


def _gpu(gpu: MeasuredGpu) -> MeasuredGpu:
    return replace(
        gpu,
        copies=tuple(
            replace(copy, method=words(copy.method) or "?")
            for copy in gpu.copies[:16]
            if _rate(copy.bytes_per_s)
        ),
        pcie_generation_loaded=_whole(gpu.pcie_generation_loaded, high=16) or None,
        pcie_width_loaded=_whole(gpu.pcie_width_loaded, high=32) or None,
    )


def _link(link: MeasuredLink) -> MeasuredLink:
    return replace(
        link,
        copies=tuple(
            replace(
                copy,
                bytes_per_s=copy.bytes_per_s if _rate(copy.bytes_per_s) else None,
                latency_s=copy.latency_s if _seconds(copy.latency_s) else None,
                failure=words(copy.failure),
            )
            for copy in link.copies[:4]
        ),
    )


def _disk(disk: Disk) -> Disk:
    return replace(
        disk,
        path=words(disk.path) or "?",
        file_system=words(disk.file_system),
        total_bytes=_whole(disk.total_bytes),
        free_bytes=_whole(disk.free_bytes),
        read_bytes_per_s=disk.read_bytes_per_s if _rate(disk.read_bytes_per_s) else None,
        read_method=words(disk.read_method),
    )


def _rate(value: float | None) -> bool:
    """Whether it can be bytes a second: positive, and below what any part has (2026-11)."""
    return value is not None and math.isfinite(value) and 0 < value < 1e15


def _seconds(value: float | None) -> bool:
    """Whether it can be how long a small copy takes."""
    return value is not None and math.isfinite(value) and 0 < value < 60


def _whole(value: int | None, *, high: int = NUMBER_MAX) -> int | None:
    return value if value is not None and 0 <= value <= high else None


def _nodes(nodes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if nodes is None else tuple(node for node in nodes[:1024] if 0 <= node < 1024)
