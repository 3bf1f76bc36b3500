"""The original settings of the host, kept until they are restored: one file and one lock.

The file is written whole and synced before any setting is, so that whatever happens afterwards
(a crash, a kill, a power cut) finds the originals.
"""

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from workhorse.codec import to_json
from workhorse.errors import AppError
from workhorse.knowledge.host_settings import knobs
from workhorse.text import Text

JOURNAL = "original-settings-1.json"  # the number: of its form
_LOCK = "lock"
# 8192 CPUs with two settings each, 300 bytes a setting.
_JOURNAL_BYTES_MAX = 8 * 1024**2
# `host show` needs no root, whatever root's umask.
_FOR_ALL = 0o644
_VALUE = re.compile(r"[A-Za-z0-9_+-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Original:
    """What one file held before we first wrote it; `ours`: all that we have written since."""

    knob: str
    path: str  # without the leading slash
    value: str
    ours: tuple[str, ...] = ()  # empty: we have not written it
    boot_id: str | None = None  # the kernel's id of its start when we last wrote


@dataclass(frozen=True, slots=True)
class Journal:
    """The originals of one machine that are not restored yet, in the order of writing."""

    stored_at: str  # ISO 8601, UTC
    machine_id: str | None
    originals: tuple[Original, ...]


def read_journal(folder: Path) -> Journal | None:
    """The journal in `folder`; None when there is none.

    Raises AppError when it cannot be read, or holds anything but settings that we know: the
    folder may belong to a user, and root must not write whatever its files say.
    """
    path = folder / JOURNAL
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            document = file.read(_JOURNAL_BYTES_MAX + 1)
        if len(document) > _JOURNAL_BYTES_MAX:
            raise ValueError(f"more than {_JOURNAL_BYTES_MAX // 1024**2} MiB")
        journal = msgspec.json.decode(document, type=Journal)
        _check(journal)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise AppError(
            Text(f"Only root may read {path}.", f"只有 root 才能读取 {path}。"),
            Text("Run the same command with sudo.", "请用 sudo 运行同一命令。"),
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise AppError(
            Text(
                f"The stored original settings in {path} cannot be used: {error}.",
                f"无法使用保存的原始设置 {path}：{error}。",
            ),
            Text(
                "Nothing was changed. Look at the file; when it is of no use, move it away and"
                " restart the machine: that brings back the settings of the start.",
                "未做任何更改。请查看该文件；若已无用，请将其移走并重启机器，即可恢复启动时的设置。",
            ),
        ) from error
    return journal


def write_journal(folder: Path, journal: Journal) -> None:
    """Put the journal into `folder`, whole or not at all; without originals it is removed.

    Raises AppError when the folder cannot be written.
    """
    with _folder_errors(folder):
        if not journal.originals:
            (folder / JOURNAL).unlink(missing_ok=True)
        else:
            part = folder / f"{JOURNAL}.part"
            with suppress(FileNotFoundError):
                part.unlink()  # of a crash; we have the lock
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, 0o644), "w", encoding="utf-8") as file:
                file.write(to_json(journal) + "\n")
                file.flush()
                os.fchmod(file.fileno(), _FOR_ALL)
                os.fsync(file.fileno())
            part.replace(folder / JOURNAL)
        _sync(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes `folder` and holds it for one process; the lock ends with the process.

    Raises AppError when another one has it, or the folder cannot be written.
    """
    with _folder_errors(folder):
        for place in (folder.parent, folder):
            if not place.is_dir():
                place.mkdir(parents=True)
                place.chmod(_FOR_ALL | 0o111)
                _sync(place.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(folder / _LOCK, flags, 0o644)
    try:
        try:
            with _folder_errors(folder):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AppError(
                Text(
                    "Another `workhorse host` is changing the settings right now.",
                    "另一个 `workhorse host` 正在更改设置。",
                ),
                Text("Wait until it has ended.", "请等待其结束。"),
            ) from error
        yield
    finally:
        os.close(handle)


def _check(journal: Journal) -> None:
    known = {knob.name: knob for knob in knobs()}
    seen: set[str] = set()
    for original in journal.originals:
        knob = known.get(original.knob)
        if knob is None or not knob.written or not knob.is_place(original.path):
            raise ValueError(f"{original.path[:200]!r} is no file of a setting that we write")
        if not all(_VALUE.fullmatch(value) for value in (original.value, *original.ours)):
            raise ValueError(f"a value for {original.path} that no setting has")
        if original.path in seen:
            raise ValueError(f"{original.path} stands there twice")
        seen.add(original.path)


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        steps = {
            errno.ENOSPC: Text("Free some space on that disk.", "请清理该磁盘的空间。"),
        }
        raise AppError(
            Text(
                f"The original settings cannot be kept in {folder}: {why}. Nothing more is"
                " changed.",
                f"无法在 {folder} 保存原始设置：{why}。不再做任何更改。",
            ),
            steps.get(
                error.errno or 0,
                Text(
                    "Set WORKHORSE_HOME to a folder that can be written.",
                    "请把 WORKHORSE_HOME 设为可写的目录。",
                ),
            ),
        ) from error


def _sync(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
