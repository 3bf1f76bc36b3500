"""Brings a file to its place whole or not at all: shared with the original, linked or copied."""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .check import CHUNK_BYTES, opened_plainly
from .words import Refusal, Words

# linux/fs.h: FICLONE, _IOW(0x94, 9, int)
_FICLONE = 0x40049409
Moved = Callable[[int], None]  # so many bytes more


def place(source: Path, target: Path, moved: Moved, *, may_link: bool = True) -> str | None:
    """Bring `source` to `target`, which is whole when it has its name; replaces nothing.

    A file system that can shares the blocks; else, with `may_link`, a second name of the same
    file; else a copy, which goes on where an earlier one was broken off (`NAME.part`). Returns the
    SHA-256 of what was copied, None where nothing was. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with os.fdopen(opened_plainly(source), "rb", buffering=0) as opened:
        origin = opened.fileno()
        status = os.fstat(origin)
        with _opened_part(part, status) as made:
            digest = None
            if not _shared(origin, made):
                if may_link and _is_ours_alone(status) and _linked(source, target):
                    part.unlink()
                    moved(status.st_size)
                    return None
                digest = _copied(origin, made, moved)
            else:
                moved(status.st_size)
            os.ftruncate(made, status.st_size)
            os.fsync(made)
    os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
    part.rename(target)
    return digest


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time works in `folder`, made when it is not there; Refusal for the second.

    The lock ends with the process, however that ends. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refusal(
                Words(f"Another process is at work in {folder}.", f"另一个进程正在使用 {folder}。"),
                Words("Wait for it, then try again.", "请等它结束后再试。"),
            ) from error
        yield
    finally:
        os.close(handle)


@contextmanager
def told_of_disk(path: Path) -> Iterator[None]:
    """Turns what the disk refuses into a Refusal that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refusal(
                Words(f"The disk is full at {path}.", f"磁盘已满：{path}。"),
                Words(
                    "Free some space and run the command again; what has arrived is kept.",
                    "请清理磁盘空间后重新运行；已完成的部分会保留。",
                ),
            ) from error
        if error.errno == errno.EFBIG:
            raise Refusal(
                Words(
                    f"The file system of {path} takes no file as large as this (FAT32: 4 GiB).",
                    f"{path} 所在的文件系统不支持这么大的文件（FAT32：4 GiB）。",
                ),
                Words(
                    "Write pieces: --output NAME.tar --split 4000M.",
                    "请分卷写入：--output 名称.tar --split 4000M。",
                ),
            ) from error
        why = error.strerror or str(error)
        raise Refusal(
            Words(f"{path} cannot be written: {why}.", f"无法写入 {path}：{why}。"),
            Words("Name a folder that you may write to.", "请指定有写权限的目录。"),
        ) from error


@contextmanager
def _opened_part(part: Path, status: os.stat_result) -> Iterator[int]:
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with suppress(OSError):  # FAT knows no modes
            os.fchmod(handle, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
        yield handle
    finally:
        os.close(handle)


def _shared(origin: int, made: int) -> bool:
    with suppress(OSError):
        fcntl.ioctl(made, _FICLONE, origin)
        return True
    return False


def _linked(source: Path, target: Path) -> bool:
    with suppress(OSError):
        os.link(source, target)
        return True
    return False


def _is_ours_alone(status: os.stat_result) -> bool:
    """A second name is taken only of a file that nobody else may change."""
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == os.geteuid() and not writable


def _copied(origin: int, made: int, moved: Moved) -> str:
    digest, done_bytes = hashlib.sha256(), 0
    while chunk := os.read(origin, CHUNK_BYTES):
        # What an earlier run wrote counts as far as it is the same.
        if os.pread(made, len(chunk), done_bytes) != chunk:
            _write(made, chunk, done_bytes)
        digest.update(chunk)
        done_bytes += len(chunk)
        moved(len(chunk))
    return digest.hexdigest()


def _write(handle: int, chunk: bytes, at_bytes: int) -> None:
    rest = memoryview(chunk)
    while rest:
        written = os.pwrite(handle, rest, at_bytes)
        rest, at_bytes = rest[written:], at_bytes + written
