"""How long a model takes to load."""

from collections.abc import Mapping

from workhorse.plan.speed.device import Reader
from workhorse.records import Basis, Disk, Estimate, Model
from workhorse.text import Text

# Sequential reads by kind of disk, where this one was not measured (usual figures of servers of
# 2016 on: SATA SSD, 7200 rpm, 10 Gb/s Ethernet).
DISK_BYTES_PER_S = {
    "nvme": 2.0e9,
    "ssd": 0.5e9,
    "hdd": 0.15e9,
    "network": 0.8e9,
    "memory": 5.0e9,
}
UNKNOWN_DISK_BYTES_PER_S = 0.5e9
# Starting the process, reading the vocabulary, a first token; a card's context and kernels on top
# (two H200 hosts: ready 7.5 s after the start of a 2.6 GB model; CPU 0.6 s; measured 2026-11).
START_S, CARD_START_S = 0.8, 5.0


def loading(model: Model, readers: Mapping[str, Reader], disk: Disk | None) -> Estimate | None:
    """Seconds from the start until the model answers; None when nothing is known of the disk.

    The first load; the page cache makes a second one faster, which `low` allows for.
    """
    if disk is None:
        return None
    measured = disk.read_bytes_per_s
    rate = measured or DISK_BYTES_PER_S.get(disk.kind or "", UNKNOWN_DISK_BYTES_PER_S)
    cards = [reader for reader in readers.values() if reader.device == "gpu"]
    links = [reader.link_bytes_per_s for reader in cards if reader.link_bytes_per_s]
    start = START_S + (CARD_START_S if cards else 0.0)
    n_bytes = max(model.file_bytes, model.weight_bytes)
    value = start + n_bytes / min(rate, *links) if links else start + n_bytes / rate
    cached = start + n_bytes / max(rate, DISK_BYTES_PER_S["memory"])
    slow = 1.3 if measured else 2.0
    source = (
        Text("file over the disk's measured read rate", "文件大小 ÷ 磁盘实测读取速度")
        if measured
        else Text(f"file over a usual {disk.kind or 'disk'}", "文件大小 ÷ 该类磁盘的常见速度")
    )
    basis: Basis = "measured" if measured else "estimated"
    return Estimate(value, min(cached, value), value * slow, "s", basis, source)
