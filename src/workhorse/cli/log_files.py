"""Logs as users have them: files, packed or in UTF-16, pipes."""

import codecs
import os
import select
import stat
import sys
import zlib
from bz2 import BZ2File
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from gzip import GzipFile
from io import BufferedReader
from lzma import LZMAError, LZMAFile
from pathlib import Path
from typing import IO, Protocol

from workhorse.errors import AppError
from workhorse.text import Text

CHUNK_BYTES = 4 * 1024**2
_HEAD_BYTES = 4096
_PACKED: dict[bytes, Callable[[IO[bytes]], GzipFile | BZ2File | LZMAFile]] = {
    b"\x1f\x8b": lambda file: GzipFile(fileobj=file),
    b"BZh": BZ2File,
    b"\xfd7zXZ\x00": LZMAFile,
}
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_BROKEN = (OSError, EOFError, zlib.error, LZMAError)
# Text has none of these; so many of a hundred bytes are no text any more.
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\b\x1b"))
_CONTROLS_PERCENT = 5
# A program that feeds a pipe has begun to write by then.
_PIPE_WAIT_S = 2.0


class Stream(Protocol):
    """Bytes to read."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""


@dataclass(slots=True)
class Log:
    """One log that is open: its bytes, its size where that is known, and whether it is text."""

    name: str
    stream: Stream
    size_bytes: int | None
    text: bool = True

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, the last line ended. Raises AppError where it turns out broken."""
        last = b""
        try:
            while chunk := self.stream.read(CHUNK_BYTES):
                if not last:
                    self.text = _is_text(chunk[:_HEAD_BYTES])
                last = chunk[-1:]
                yield chunk
        except _BROKEN as error:
            raise _unreadable(self.name, error) from error
        if last not in (b"", b"\n"):
            yield b"\n"  # else the next log would go on in this one's last line


def open_log(name: str, open_files: ExitStack) -> Log:
    """The log, unpacked where it is packed; `-` is standard input.

    Raises AppError when it cannot be read.
    """
    if name == "-":
        return Log(name, sys.stdin.buffer, None)
    try:
        file = open_files.enter_context(Path(name).open("rb"))  # noqa: SIM115
        head = file.peek(8)[:8]  # a folder opens, and fails only when it is read
        size_bytes = Path(name).stat().st_size
    except OSError as error:
        raise _unreadable(name, error) from error
    for magic, unpack in _PACKED.items():
        if head.startswith(magic):
            return Log(name, open_files.enter_context(unpack(file)), None)
    for mark, encoding in _UTF16.items():
        if head.startswith(mark):
            return Log(name, codecs.EncodedFile(file, "utf-8", encoding, "replace"), None)
    return Log(name, file, size_bytes)


def pipe_waits() -> bool:
    """Whether somebody feeds standard input, by a pipe or from a file."""
    try:
        kind = stat.S_IFMT(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # closed, or none at all
        return False
    if kind == stat.S_IFREG:
        return True
    if kind != stat.S_IFIFO:
        return False
    ready, _, _ = select.select([sys.stdin], [], [], _PIPE_WAIT_S)
    # A pipe that was closed without a byte is none that was meant.
    return bool(ready and isinstance(sys.stdin.buffer, BufferedReader) and sys.stdin.buffer.peek(1))


def no_text(name: str) -> AppError:
    """Nothing can be read in it: it is not even text."""
    return AppError(
        Text(f"{name} is no text.", f"{name} 不是文本文件。"),
        Text(
            "Give a log as text; a journal file of systemd is read with"
            f" journalctl --file {name} | workhorse diagnose -.",
            f"请给出文本日志；systemd 的日志文件请用 journalctl --file {name} |"
            " workhorse diagnose - 读取。",
        ),
    )


def _is_text(head: bytes) -> bool:
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return controls * 100 <= _CONTROLS_PERCENT * len(head)


def _unreadable(name: str, error: Exception) -> AppError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return AppError(
        Text(f"{name} cannot be read: {reason}.", f"无法读取 {name}：{reason}。"),
        Text("Give the path of a readable log file.", "请给出可读的日志文件路径。"),
    )
