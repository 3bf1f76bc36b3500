"""Writes a file whole or not at all, and tells what the disk refuses."""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from workhorse.errors import AppError
from workhorse.models.part_file import sync_folder
from workhorse.text import Text

NAME_BYTES_MAX = 255  # of ext4, XFS, NFS (limits.h NAME_MAX, 2026-11)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write; at the end it takes the place of `path`, after an error nothing has changed.

    Raises AppError for what the disk refuses.
    """
    with disk_errors(path):
        part = part_of(path)
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """The file that becomes `path`, in the same folder and hidden."""
    name = f".{path.name}.part"
    if len(os.fsencode(name)) > NAME_BYTES_MAX:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.part"
    return path.with_name(name)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns what the disk refuses into an AppError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AppError(
                Text(
                    f"The disk is full: {path} was not written. No result is lost.",
                    f"磁盘已满，{path} 未能写入。结果没有丢失。",
                ),
                Text(
                    "Free some space, then: workhorse batch resume",
                    "请清理磁盘空间后运行：workhorse batch resume",
                ),
            ) from error
        why = error.strerror or str(error)
        raise AppError(
            Text(f"{path} cannot be written: {why}.", f"无法写入 {path}：{why}。"),
            Text(
                "Choose another place with --output, which this user may write to.",
                "请用 --output 指定当前用户可写的位置。",
            ),
        ) from error
