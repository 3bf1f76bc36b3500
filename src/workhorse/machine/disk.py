"""The file system under a path: what kind, how large, how much is free, and what disk it is on."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, number
from workhorse.records import Disk
from workhorse.text import Text

Kind = Literal["nvme", "ssd", "hdd", "network", "memory"]

BLOCK_ROOT = "sys/dev/block"
_MEMORY_SYSTEMS = frozenset({"tmpfs", "ramfs"})
# Kinds in /proc/filesystems that lie on another machine, and FUSE programs that fetch from one
# (their own manuals; read 2026-11). A FUSE program that is not listed is unknown.
_NETWORK_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "afs", "gpfs", "beegfs", "glusterfs",
    "pvfs2", "orangefs", "ncpfs", "coda", "quobyte",
    "fuse.sshfs", "fuse.s3fs", "fuse.juicefs", "fuse.JuiceFS", "fuse.rclone", "fuse.glusterfs",
    "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.ossfs", "fuse.cosfs", "fuse.obsfs",
    "fuse.davfs", "fuse.curlftpfs", "fuse.goofys", "fuse.seaweedfs", "fuse.mfs", "fuse.cifs",
    "fuse.quobyte", "fuse.smbnetfs", "fuse.blobfuse", "fuse.blobfuse2", "fuse.alluxio-fuse",
})  # fmt: skip
# Makers of disks that a hypervisor or a storage array presents: what is behind is not seen.
_VIRTUAL_MAKERS = frozenset({"qemu", "vmware", "msft", "vbox", "virtual", "google", "lio-org"})
_SLAVES_MAX = 64
_DEPTH_MAX = 8  # a volume on a mirror on a cache on a disk is four


@dataclass(frozen=True, slots=True)
class Mount:
    """The file system mounted over a path, as the kernel lists it."""

    kind: str
    device: str  # `8:1`; `0:57` for file systems without a device of their own
    source: str  # `/dev/sda1`, `host:/export`, `tank/models`


def read_disk(files: HostFiles, path: Path) -> tuple[Disk, tuple[Text, ...]]:
    """The file system that holds `path`, or would hold it once it exists."""
    file_system: str | None = None
    kind: Kind | None = None
    try:
        place = existing(path)
        mount = mount_of(files.text("proc/self/mountinfo") or "", os.path.realpath(place))
        if mount is not None:
            file_system = mount.kind
            kind = disk_kind(files, mount)
        facts = os.statvfs(place)
    except OSError as error:
        doubt = Text(
            f"The file system of {path} could not be read: {error.strerror}.",
            f"无法读取 {path} 所在的文件系统：{error.strerror}。",
        )
        return Disk(str(path), file_system, None, None), (doubt,)
    return Disk(
        path=str(path),
        file_system=file_system,
        total_bytes=facts.f_blocks * facts.f_frsize,
        free_bytes=facts.f_bavail * facts.f_frsize,
        kind=kind,
    ), ()


def existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists.

    Raises OSError when it cannot be looked at.
    """
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def mount_of(mountinfo: str, place: str) -> Mount | None:
    """The file system mounted over `place`, from /proc/self/mountinfo's text. Pure.

    The fields are those of proc(5): device, root and mount point are the third to fifth; type
    and source follow the dash.
    """
    best, found = "", None
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        columns, rest = before.split(" "), after.split(" ")
        if not dash or len(columns) < 5 or not rest[0]:
            continue
        point = _unescaped(columns[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # `>=`: of two mounts on one point the later one hides the earlier one.
        if inside and len(point) >= len(best):
            source = _unescaped(rest[1]) if len(rest) > 1 else ""
            best, found = point, Mount(rest[0], columns[2], source)
    return found


def disk_kind(files: HostFiles, mount: Mount) -> Kind | None:
    """What the file system lies on; None for what the kernel does not tell, as a virtual disk."""
    if mount.kind in _MEMORY_SYSTEMS:
        return "memory"
    if mount.kind in _NETWORK_SYSTEMS:
        return "network"
    device: str | None = mount.device
    if mount.device.startswith("0:"):  # btrfs and its like have many devices and none of their own
        device = _device_of(files, mount.source)
    if device is None or not re.fullmatch(r"\d{1,6}:\d{1,8}", device, re.ASCII):
        return None
    kinds = set(_device_kinds(files, device, 0))
    # A volume over different disks is as slow as the slowest of them.
    for kind in ("hdd", None, "ssd", "nvme", "memory"):
        if kind in kinds:
            return kind
    return None


def _device_of(files: HostFiles, source: str) -> str | None:
    name = source.removeprefix("/dev/")
    # The numbers of a device are in /sys/class/block, whatever file it is reached by.
    if name == source or not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name):
        return None
    return (files.text(f"sys/class/block/{name}/dev") or "").strip()[:40] or None


def _device_kinds(files: HostFiles, device: str, depth: int) -> Iterator[Kind | None]:
    """The kinds of the disks under one block device, such as `8:1`."""
    root = f"{BLOCK_ROOT}/{device}"
    name = fields(files.text(f"{root}/uevent"), "=").get("DEVNAME", "")
    below = files.names(f"{root}/slaves")[:_SLAVES_MAX]
    if below and depth < _DEPTH_MAX:
        for slave in below:
            inner = (files.text(f"{root}/slaves/{slave}/dev") or "").strip()[:40]
            if re.fullmatch(r"\d{1,6}:\d{1,8}", inner, re.ASCII):
                yield from _device_kinds(files, inner, depth + 1)
            else:
                yield None
        return
    # A partition has its disk's queue one folder above.
    spins = next(
        (
            value
            for place in (f"{root}/queue", f"{root}/../queue")
            if (value := number(files.text(f"{place}/rotational"), high=1)) is not None
        ),
        None,
    )
    maker = next(
        (
            text.strip().lower()
            for place in (f"{root}/device", f"{root}/../device")
            if (text := files.text(f"{place}/vendor"))
        ),
        "",
    )
    if name.startswith("nvme"):
        yield "nvme"
    elif re.match(r"zram|ram|pmem", name):
        yield "memory"
    elif re.match(r"sd|hd|dasd", name) and maker not in _VIRTUAL_MAKERS and spins is not None:
        yield "hdd" if spins else "ssd"
    else:
        yield None  # virtio, Xen, loop, network block devices: what is behind is not seen


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
