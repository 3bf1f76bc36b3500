"""A folder for files that must not stay: gone at the end, or at the next run after a kill."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.part_file import local_errors
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

# A disk filled to the brim breaks whoever else writes.
FREE_AFTER_SHARE = 0.05

_PREFIX = "run-"
_LOCK = ".lock"
_PROBE_BYTES = 64 * MIB


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder`, removed at the end also when an error or Ctrl-C ends the block.

    A killed process cannot remove anything: what it left is removed by the next one that gets
    here. The kernel gives up its lock with it, so a folder of a living process is never touched.
    """
    with local_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
    # Named before it is made: a Ctrl-C in the very making leaves nothing either.
    own = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    handle = None
    try:
        with local_errors(folder):
            own.mkdir(mode=0o700)
            handle = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def clear_leftovers(folder: Path) -> None:
    """Remove the folders of processes that are gone."""
    for left in folder.glob(f"{_PREFIX}*"):
        # Without a lock file the process died, or is, between two steps: its folder is empty.
        with suppress(OSError):
            left.rmdir()
            continue
        with suppress(OSError):
            handle = os.open(left / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def check_room(folder: Path, needed_bytes: int) -> None:
    """AppError when the file system of `folder` cannot take this much and stay usable."""
    with local_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        usage = shutil.disk_usage(folder)
    free = usage.free - int(usage.total * FREE_AFTER_SHARE)
    if needed_bytes > free:
        raise AppError(
            Text(
                f"The twins need {show_bytes(needed_bytes)} on the disk for a few minutes; "
                f"{folder} has {show_bytes(max(free, 0))} to give.",
                f"缩小模型需要临时占用 {show_bytes(needed_bytes)} 磁盘空间；"
                f"{folder} 只能提供 {show_bytes(max(free, 0))}。",
            ),
            Text(
                "Free some space, or name a folder on a larger disk in WORKHORSE_HOME.",
                "请腾出空间，或用 WORKHORSE_HOME 指定更大磁盘上的目录。",
            ),
        )


def check_sparse(folder: Path) -> None:
    """AppError when the file system stores holes as zeros: a skeleton would take its full size."""
    if taken_by_hole(folder) > _PROBE_BYTES // 2:
        raise AppError(
            Text(
                f"The file system of {folder} has no sparse files: a header with nothing behind "
                "it would take the model's whole size.",
                f"{folder} 所在的文件系统不支持稀疏文件：只含文件头的骨架会占用模型的全部大小。",
            ),
            Text(
                "Name a folder on ext4, XFS, Btrfs or tmpfs in WORKHORSE_HOME.",
                "请用 WORKHORSE_HOME 指定 ext4、XFS、Btrfs 或 tmpfs 上的目录。",
            ),
        )


def taken_by_hole(folder: Path) -> int:
    """Bytes on the disk of a file of 64 MiB that nothing was written to."""
    probe = folder / "sparse"
    with local_errors(folder):
        try:
            with probe.open("wb") as file:
                file.truncate(_PROBE_BYTES)
                return os.fstat(file.fileno()).st_blocks * 512
        finally:
            probe.unlink(missing_ok=True)
