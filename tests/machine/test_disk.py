"""Disks: their kind from the kernel's files, their speed from a file that is there."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.machine import disk_speed
from workhorse.machine.disk import Mount, disk_kind, mount_of, read_disk
from workhorse.machine.disk_speed import largest_file, measure_disk
from workhorse.machine.files import DirectoryFiles, PackedFiles
from workhorse.units import MIB

BLOCK = "sys/dev/block"


def block(
    device: str, name: str, rotational: str | None = None, vendor: str | None = None
) -> dict[str, object]:
    files: dict[str, object] = {f"{BLOCK}/{device}/uevent": f"MAJOR=8\nDEVNAME={name}\n"}
    if rotational is not None:
        files[f"{BLOCK}/{device}/queue/rotational"] = rotational
    if vendor is not None:
        files[f"{BLOCK}/{device}/device/vendor"] = vendor
    return files


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (block("8:1", "sda1", "1\n", "ATA     \n"), "hdd"),
        (block("8:1", "sda1", "0\n"), "ssd"),
        (block("8:1", "nvme0n1p2", "0\n"), "nvme"),
        (block("8:1", "vda1", "1\n"), None),  # virtio: the hypervisor says what it likes
        (block("8:1", "sda1", "1\n", "QEMU    \n"), None),
        (block("8:1", "sda1", "0\n", "VMware  \n"), None),
        (block("8:1", "xvda", "0\n"), None),
        (block("8:1", "loop3", "0\n"), None),
        (block("8:1", "zram0", "0\n"), "memory"),
        (block("8:1", "sda1", "2\n"), None),
        (block("8:1", "sda1", None), None),
        ({}, None),
    ],
)
def test_the_kind_of_a_disk(files: dict[str, object], kind: str | None) -> None:
    assert disk_kind(PackedFiles(files), Mount("ext4", "8:1", "/dev/sda1")) == kind


def test_a_partition_has_its_disks_queue_above_it(tmp_path: Path) -> None:
    disk = tmp_path / "sys/devices/pci0/block/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "queue").mkdir()
    (disk / "queue/rotational").write_text("1\n")
    (disk / "sda1/uevent").write_text("DEVNAME=sda1\nDEVTYPE=partition\n")
    (tmp_path / BLOCK).mkdir(parents=True)
    (tmp_path / BLOCK / "8:1").symlink_to("../../devices/pci0/block/sda/sda1")
    found = disk_kind(DirectoryFiles(tmp_path), Mount("xfs", "8:1", "/dev/sda1"))
    assert found == "hdd"


@pytest.mark.parametrize(
    ("under", "kind"),
    [
        (("nvme0n1", "nvme1n1"), "nvme"),
        (("nvme0n1", "sdb"), "hdd"),  # as slow as the slowest
        (("nvme0n1", "vda"), None),
    ],
)
def test_a_volume_is_what_lies_under_it(under: tuple[str, str], kind: str | None) -> None:
    files: dict[str, object] = block("253:0", "dm-0", "1")
    for index, name in enumerate(under):
        files[f"{BLOCK}/253:0/slaves/{name}/dev"] = f"259:{index}\n"
        files |= block(f"259:{index}", name, "1")
    assert disk_kind(PackedFiles(files), Mount("ext4", "253:0", "/dev/mapper/x")) == kind


def test_a_volume_that_is_under_itself_ends() -> None:
    files: dict[str, object] = block("253:0", "dm-0", "1")
    files[f"{BLOCK}/253:0/slaves/dm-0/dev"] = "253:0\n"
    assert disk_kind(PackedFiles(files), Mount("ext4", "253:0", "/dev/dm-0")) is None


def test_btrfs_is_found_by_its_source() -> None:
    files = block("8:2", "sdb2", "0") | {"sys/class/block/sdb2/dev": "8:2\n"}
    assert disk_kind(PackedFiles(files), Mount("btrfs", "0:35", "/dev/sdb2")) == "ssd"
    for source in ("tank/models", "/dev/../etc", "overlay", ""):
        assert disk_kind(PackedFiles(files), Mount("zfs", "0:35", source)) is None


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        ("nfs4", "network"), ("cifs", "network"), ("fuse.sshfs", "network"), ("tmpfs", "memory"),
        ("fuse.mergerfs", None), ("overlay", None), ("fuseblk", None),
    ],
)  # fmt: skip
def test_file_systems_without_a_disk_of_their_own(system: str, kind: str | None) -> None:
    assert disk_kind(PackedFiles({}), Mount(system, "0:40", "x:/y")) == kind


def test_the_mount_has_device_and_source() -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /data rw shared:1 - xfs /dev/sdb rw\n"
        "4 1 0:9 / /data rw - nfs4 host:/x\\040y rw\nrubbish\n5 1 0:3 / /cut - tmpfs\n"
    )
    assert mount_of(mounts, "/data/models") == Mount("nfs4", "0:9", "host:/x y")
    assert mount_of(mounts, "/other") == Mount("ext4", "8:1", "/dev/sda1")
    assert mount_of(mounts, "/cut") == Mount("tmpfs", "0:3", "")
    assert mount_of("", "/data") is None


@given(st.text(max_size=200), st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_any_mounts_and_files_give_a_kind_or_none(
    mounts: str, system: str, device: str, text: str
) -> None:
    mount_of(mounts, "/data")
    files: dict[str, object] = {
        f"{BLOCK}/{device}/uevent": text,
        f"{BLOCK}/{device}/queue/rotational": text,
        f"{BLOCK}/{device}/slaves/{text}/dev": text,
        f"sys/class/block/{text}/dev": device,
    }
    found = disk_kind(PackedFiles(files), Mount(system, device, f"/dev/{text}"))
    assert found in (None, "nvme", "ssd", "hdd", "network", "memory")


def test_this_machines_disk_is_read() -> None:
    disk, doubts = read_disk(DirectoryFiles(Path("/")), Path("/dev/shm/not/yet"))
    assert doubts == () and disk.file_system == "tmpfs" and disk.kind == "memory"


# ---------------------------------------------------------------- speed


def full(place: Path, n_bytes: int) -> Path:
    """A file without holes."""
    block_of_noise = os.urandom(MIB)
    with place.open("wb") as file:
        for _ in range(n_bytes // MIB):
            file.write(block_of_noise)
        file.flush()
        os.fsync(file.fileno())
    return place


def test_a_large_file_is_read_past_the_page_cache(tmp_path: Path) -> None:
    place = full(tmp_path / "weights.gguf", 64 * MIB)
    before = place.stat()
    speed = measure_disk(tmp_path / "models" / "not-yet")
    assert speed.bytes_per_s is not None and speed.bytes_per_s > 1e5
    assert "sequential" in speed.method and "MiB of one file" in speed.method
    after = place.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [place]


def test_a_file_system_that_refuses_direct_reads_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(tmp_path / "weights.gguf", 64 * MIB)
    opened = os.open

    def refuse(place: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(place, flags)

    monkeypatch.setattr(disk_speed.os, "open", refuse)
    speed = measure_disk(tmp_path)
    assert speed.bytes_per_s is not None and "page cache dropped" in speed.method


def test_a_file_that_cannot_be_read_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(tmp_path / "weights.gguf", 64 * MIB)

    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_speed.os, "preadv", refuse)
    speed = measure_disk(tmp_path)
    assert speed.bytes_per_s is None and "Input/output error" in speed.method


def test_without_a_large_file_nothing_is_measured_and_nothing_written(tmp_path: Path) -> None:
    full(tmp_path / "small", 2 * MIB)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "link").symlink_to("/proc/kcore")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    speed = measure_disk(tmp_path)
    assert speed.bytes_per_s is None and "no file of 64 MiB" in speed.method
    assert sorted(tmp_path.iterdir()) == before


def test_files_beside_the_path_stand_in_for_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "engine").mkdir()
    full(tmp_path / "engine/lib.so", 64 * MIB)
    assert measure_disk(tmp_path / "empty").bytes_per_s is None
    assert measure_disk(tmp_path / "empty", (tmp_path / "engine",)).bytes_per_s is not None


def test_another_file_system_is_not_entered(tmp_path: Path) -> None:
    place = full(tmp_path / "weights.gguf", 64 * MIB)
    assert largest_file(tmp_path, place.stat().st_dev) == place
    assert largest_file(tmp_path, place.stat().st_dev + 1) is None


def test_a_path_that_cannot_be_looked_at_gives_the_reason() -> None:
    speed = measure_disk(Path("/" + "x" * 300))
    assert speed.bytes_per_s is None and "not measured" in speed.method
