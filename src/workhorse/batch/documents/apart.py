"""Reads documents in a process of its own, so that no document can harm the rest.

A PDF, a Word file or a page is a program of somebody else's to the library that reads it. One
that crashes it, makes it count for ever or fill the memory ends that process, and is told as
unreadable; the next document gets a new process.
"""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from workhorse.batch.documents.kinds import Form
from workhorse.batch.documents.refusal import Unreadable, missing
from workhorse.batch.item import NewItem
from workhorse.errors import AppError
from workhorse.text import Text

# -P: modules in the current folder, which may be the documents', are not run.
COMMAND = ("-P", "-m", "workhorse.batch.documents.child")
# So long without a word: the disk hangs, as one over a network may. Counting too long is ended by
# the child's own limit.
PATIENCE_S = 600.0
LENGTH_BYTES = 4  # before each message
DOCUMENTS_EACH = 500  # then a new process: what a library does not give back is given back
# What reads each form, and its words in an error.
LIBRARIES: dict[Form, tuple[tuple[str, str], str, str]] = {
    "html": (("selectolax", "selectolax"), "HTML", " HTML"),
    "docx": (("mammoth", "mammoth"), "Word documents", " Word 文档"),
    "pdf": (("pypdfium2", "pypdfium2"), "PDF", " PDF"),
    "sheet": (("python_calamine", "python-calamine"), "spreadsheets", "电子表格"),
}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One document to be read; with `rows` its rows are items."""

    path: bytes
    form: Form
    rows: bool = False
    column: str | None = None
    id_column: str | None = None
    where: str = ""  # the document's name for people


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the answer; the last one says so."""

    text: str | None = None
    items: list[NewItem] = []
    unreadable: tuple[str, str] | None = None
    refused: tuple[str, str, str, str] | None = None  # an AppError's words
    last: bool = True


class ReaderApart:
    """The process that reads, started when it is first needed; close it, or use it in `with`."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def text(self, path: Path, form: Form) -> str:
        """The text of a document; raises Unreadable, AppError where its library is missing."""
        texts = [said.text for said in self._answers(Wanted(path=os.fsencode(path), form=form))]
        return next((text for text in texts if text is not None), "")

    def rows(
        self, path: Path, column: str | None, id_column: str | None, where: str
    ) -> Iterator[NewItem]:
        """An item a row of a spreadsheet; raises Unreadable, AppError."""
        wanted = Wanted(
            path=os.fsencode(path),
            form="sheet",
            rows=True,
            column=column,
            id_column=id_column,
            where=where,
        )
        for said in self._answers(wanted):
            yield from said.items

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with child:  # closes the pipes and waits
                pass

    def _answers(self, wanted: Wanted) -> Iterator[Said]:
        (module, package), what, what_zh = LIBRARIES[wanted.form]
        if find_spec(module) is None:
            raise missing(package, what, what_zh)
        child = self._started()
        try:
            with suppress(BrokenPipeError):
                cast(IO[bytes], child.stdin).write(framed(msgspec.msgpack.encode(wanted)))
            while True:
                message = _message(cast(IO[bytes], child.stdout))
                if message is None:
                    raise self._died(child)
                said = msgspec.msgpack.decode(message, type=Said)
                if said.unreadable:
                    raise Unreadable(*said.unreadable)
                if said.refused:
                    raise _as_error(said.refused)
                yield said
                if said.last:
                    return
        except Unreadable:
            raise
        except BaseException:  # also a reader that wants no more rows: the rest would come next
            self.close()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and (
            self._read >= DOCUMENTS_EACH or self._child.poll() is not None
        ):
            self.close()
        if self._child is None:
            self._read = 0
            self._child = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        self._read += 1
        return self._child

    def _died(self, child: subprocess.Popen[bytes]) -> Unreadable:
        self.close()
        return why_it_ended(child.returncode)


def framed(message: bytes) -> bytes:
    """A message with its length before it."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def why_it_ended(code: int) -> Unreadable:
    """What became of the process that read a document; pure."""
    from workhorse.batch.documents.child import CPU_S, MEMORY_BYTES

    if code == -24:  # SIGXCPU
        return Unreadable(
            f"Reading it took more than {CPU_S} s of computing; it was given up.",
            f"读取所需计算时间超过 {CPU_S} 秒，已放弃。",
        )
    if code == -9:
        return Unreadable(
            f"Its reader gave no answer for {PATIENCE_S:.0f} s, or the system ended it because "
            "memory ran out.",
            f"读取进程 {PATIENCE_S:.0f} 秒没有响应，或因内存不足被系统终止。",
        )
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Unreadable(
        f"Its reader ended ({how}): the document is damaged, made to do harm, or needs more than "
        f"{MEMORY_BYTES // 2**30} GiB of memory.",
        f"读取进程异常结束（{how}）：文档已损坏、含恶意内容，或所需内存超过 "
        f"{MEMORY_BYTES // 2**30} GiB。",
    )


def _message(stream: IO[bytes]) -> bytes | None:
    """The next message; None: the process has ended, or says nothing."""
    head = _exactly(stream, LENGTH_BYTES)
    return head and _exactly(stream, int.from_bytes(head, "little"))


def _exactly(stream: IO[bytes], n_bytes: int) -> bytes | None:
    """So many bytes; None: they did not come."""
    found = bytearray()
    while len(found) < n_bytes:
        deadline_s = time.monotonic() + PATIENCE_S
        if not select.select([stream], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            return None
        if not (chunk := stream.read(min(n_bytes - len(found), 2**20))):
            return None
        found += chunk
    return bytes(found)


def _as_error(words: tuple[str, str, str, str]) -> AppError:
    return AppError(Text(words[0], words[1]), Text(words[2], words[3]), exit_code=2)
