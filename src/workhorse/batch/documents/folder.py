"""The files of a folder that are documents, in a fixed order; what else is there is told."""

import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from workhorse.batch.documents.kinds import Kind, kind_of, save_as
from workhorse.batch.output.claim import is_output_file, is_output_folder
from workhorse.text import Text

DEPTH_MAX = 100  # of folders; a loop of links is not followed, a loop of mounts could be
BINARY_LOOK_BYTES = 8192


class Skipped(msgspec.Struct, frozen=True):
    """Something in the input that is no item, and why."""

    source: str
    why: Text


class Found(msgspec.Struct, frozen=True):
    """A file to be read; `kind` None: a document of a form that cannot be read."""

    path: Path
    id: str  # its path in the folder
    kind: Kind | None


HIDDEN = Text("hidden", "隐藏文件")
LINK = Text("a link out of the folder", "指向文件夹之外的链接")
LINKED_FOLDER = Text("a link to a folder", "指向文件夹的链接")
NO_FILE = Text("no regular file", "不是普通文件")
BINARY = Text("binary", "二进制文件")
EMPTY = Text("empty", "空文件")
NOT_WANTED = Text("of another kind than asked for", "不是要处理的类型")
RESULTS = Text("the results of a job", "任务的结果")
TOO_DEEP = Text(f"more than {DEPTH_MAX} folders deep", f"文件夹层级超过 {DEPTH_MAX}")
NO_FOLDER = Text("a folder that cannot be read", "无法读取的文件夹")


def walked(root: Path, accept: Sequence[str] = ()) -> Iterator[Found | Skipped]:
    """Every file below `root` by the order of its path, links to folders not followed.

    `accept`: patterns such as `*.py`, of a name or of a path in the folder; none: everything.
    """
    real_root = root.resolve()
    waiting: list[tuple[Path, str, int]] = [(root, "", 0)]
    while waiting:
        path, name, depth = waiting.pop()
        if depth == 0 or _is_folder(path):
            entries = _entries(path)
            if depth and (why := _left_out(path, entries, depth)) is not None:
                yield Skipped(plain(name), why)
                continue
            prefix = f"{name}/" if name else ""
            # The last one in is the first one out.
            waiting += [
                (path / entry, prefix + entry, depth + 1) for entry in reversed(entries or [])
            ]
        else:
            yield _looked_at(path, name, real_root, accept)


def _left_out(folder: Path, entries: list[str] | None, depth: int) -> Text | None:
    if entries is None:
        return NO_FOLDER
    if depth > DEPTH_MAX:
        return TOO_DEEP
    return RESULTS if is_output_folder(folder) else None


def _entries(folder: Path) -> list[str] | None:
    """The names in a folder: files and folders as their paths sort, `a/b` before `a.txt`."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found)
    except OSError:
        return None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode) and not path.name.startswith(".")
    except OSError:
        return False


def _looked_at(path: Path, name: str, root: Path, accept: Sequence[str]) -> Found | Skipped:
    shown = plain(name)
    if path.name.startswith((".", "~$")):
        return Skipped(shown, HIDDEN)
    try:
        if path.is_symlink():
            target = path.resolve(strict=True)
            if target.is_dir():
                return Skipped(shown, LINKED_FOLDER)
            if not target.is_relative_to(root):
                return Skipped(shown, LINK)
        status = path.stat()
    except (OSError, RuntimeError):  # a link to nowhere, or to itself
        return Skipped(shown, NO_FILE)
    if not stat.S_ISREG(status.st_mode):
        return Skipped(shown, NO_FILE)
    if accept and not any(fnmatch(path.name, one) or fnmatch(name, one) for one in accept):
        return Skipped(shown, NOT_WANTED)
    if is_output_file(path):
        return Skipped(shown, RESULTS)
    if not status.st_size:
        return Skipped(shown, EMPTY)
    kind = kind_of(path.name)
    if kind is None and save_as(path.name) is None:
        if _is_binary(path):
            return Skipped(shown, BINARY)
        kind = Kind("text", "text/plain")
    return Found(path, shown, kind)


def _is_binary(path: Path) -> bool:
    """Whether a file of an unknown kind has bytes that no text has; UTF-16 is taken for one."""
    try:
        with path.open("rb") as file:
            beginning = file.read(BINARY_LOOK_BYTES)
    except OSError:
        return False  # it is told when it is read
    return b"\0" in beginning and not beginning.startswith((b"\xff\xfe", b"\xfe\xff"))


def plain(name: str) -> str:
    """A file's name as text: names that are no UTF-8, such as those of old archives, too."""
    try:
        name.encode()
        return name
    except UnicodeEncodeError:
        raw = os.fsencode(name)
        try:
            return raw.decode("gb18030")
        except UnicodeDecodeError:
            return raw.decode("utf-8", "backslashreplace")
