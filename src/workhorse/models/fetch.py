"""Downloads one file and hands it over only when its hash is right."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.part_file import (
    CHUNK_BYTES,
    PartFile,
    check_space,
    local_errors,
    owned_part,
    sha256_of,
)
from workhorse.models.remote import Interrupted, NothingLeft, Remote, Unreachable, opened_remote
from workhorse.text import Text
from workhorse.units import show_bytes

# (bytes that are there, bytes in all). An exception from it ends the fetch; the part stays.
Progress = Callable[[int, int | None], None]

TRIES = 5  # in a row without a new byte
FIRST_PAUSE_S = 0.5  # doubled after every try: 0.5, 1, 2, 4
LONGEST_PAUSE_S = 60.0  # also when the server asks for more (Retry-After)
STALL_S = 30.0


def no_progress(_done_bytes: int, _total_bytes: int | None) -> None:
    """For callers that show nothing."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str,
    size_bytes: int | None = None,
    progress: Progress = no_progress,
    stall_s: float = STALL_S,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Download `url` to `target`; returns `target`, whose SHA-256 is then `sha256` (hex).

    Blocks; safe in a thread, and in two processes at once: the second waits for the first and
    uses its file. A `target` with the right hash costs no network. Bytes go to `NAME.part` and
    are kept when the transfer ends early; the next call asks for the rest. After a broken
    connection, `stall_s` seconds of silence or a passing server error the transfer goes on by
    itself, up to TRIES times without a new byte. Raises AppError: Unreachable for what the
    network or the server refuses, others for a full or read-only disk, a wrong size or a wrong
    hash (then the bad file is removed).
    """
    if is_right(target, sha256):
        return target
    with owned_part(target, lambda done_bytes: progress(done_bytes, size_bytes)) as part:
        if is_right(target, sha256):  # another process was faster
            part.discard()
            return target
        resumed = part.size_bytes > 0
        transfer = _Transfer(url, part, target.parent, size_bytes, progress, stall_s, pause)
        transfer.run()
        if part.sha256 != sha256 and resumed:
            # The bytes of an earlier run may be of another version: they get one fresh start.
            part.restart(None)
            transfer.run()
        if part.sha256 != sha256:
            found = part.sha256
            part.discard()
            raise wrong_hash(target.name, sha256, found)
        part.finish(target)
    return target


def is_right(target: Path, sha256: str) -> bool:
    """True when `target` is there and has that SHA-256."""
    if not target.is_file():
        return False
    with local_errors(target):
        return sha256_of(target) == sha256


@dataclass(frozen=True, slots=True)
class _Transfer:
    """The tries that it takes to bring one part file to its full size."""

    url: str
    part: PartFile
    folder: Path
    size_bytes: int | None
    progress: Progress
    stall_s: float
    pause: Callable[[float], None]

    def run(self) -> None:
        """Return when all bytes are there."""
        failures = 0
        while True:
            before_bytes = self.part.size_bytes
            try:
                self._receive()
                return
            except Interrupted as error:
                failures = 1 if self.part.size_bytes > before_bytes else failures + 1
                if failures >= TRIES:
                    raise self._given_up(error.reason) from error
                wait_s = max(FIRST_PAUSE_S * 2 ** (failures - 1), error.wait_s)
                self.pause(min(wait_s, LONGEST_PAUSE_S))

    def _receive(self) -> None:
        part = self.part
        if self.size_bytes is not None and part.size_bytes >= self.size_bytes:
            if part.size_bytes == self.size_bytes:
                return
            part.restart(None)
        try:
            with opened_remote(self.url, part.size_bytes, part.etag, self.stall_s) as remote:
                self._append(remote)
        except NothingLeft as error:
            if error.total_bytes == part.size_bytes:
                return
            part.restart(None)
            raise Interrupted("the server has a shorter file than before") from error

    def _append(self, remote: Remote) -> None:
        part = self.part
        total_bytes = self._total_bytes(remote)
        if remote.start_bytes == 0:
            part.restart(remote.etag)
        elif part.etag and remote.etag and part.etag != remote.etag:
            part.restart(None)
            raise Interrupted("the file on the server changed")
        if total_bytes is not None:
            check_space(self.folder, total_bytes - part.size_bytes)
        self.progress(part.size_bytes, total_bytes)
        while chunk := remote.read(CHUNK_BYTES):
            part.append(chunk)
            if total_bytes is not None and part.size_bytes > total_bytes:
                found_bytes = part.size_bytes
                part.restart(None)
                raise wrong_size(found_bytes, total_bytes)
            self.progress(part.size_bytes, total_bytes)
        if total_bytes is not None and part.size_bytes < total_bytes:
            raise Interrupted("the connection ended early")

    def _total_bytes(self, remote: Remote) -> int | None:
        if remote.total_bytes is None or self.size_bytes is None:
            return remote.total_bytes if self.size_bytes is None else self.size_bytes
        if remote.total_bytes != self.size_bytes:
            raise wrong_size(remote.total_bytes, self.size_bytes)
        return self.size_bytes

    def _given_up(self, reason: str) -> AppError:
        return Unreachable(
            Text(
                f"The download stopped at {show_bytes(self.part.size_bytes)} and {TRIES} tries "
                f"brought nothing more: {reason}.",
                f"下载停在 {show_bytes(self.part.size_bytes)}，重试 {TRIES} 次仍无进展：{reason}。",
            ),
            Text(
                "Check the network and run the command again: it goes on where it stopped.",
                "请检查网络后重新运行，将从中断处继续。",
            ),
        )


def wrong_size(found_bytes: int, expected_bytes: int) -> Unreachable:
    """The error for a file of another size than the one that is known."""
    return Unreachable(
        Text(
            f"The server has another file than the one we know: {found_bytes} bytes instead of "
            f"{expected_bytes}.",
            f"服务器上的文件与已知的不同：大小为 {found_bytes} 字节，"
            f"而应为 {expected_bytes} 字节。",
        ),
        Text(
            "Check the address; a proxy may have sent a page of its own.",
            "请检查地址；也可能是代理返回了它自己的页面。",
        ),
    )


def wrong_hash(name: str, expected: str, found: str) -> AppError:
    """The error for a file that arrived whole but is another one."""
    return AppError(
        Text(
            f"{name} was downloaded but is not the file we know: its SHA-256 is {found}, "
            f"expected {expected}. It was removed.",
            f"{name} 已下载，但与已知文件不符：SHA-256 为 {found}，应为 {expected}。已将其删除。",
        ),
        Text(
            "Run the command again; if it happens twice, the mirror or a proxy alters the file.",
            "请重新运行；若再次出现，说明镜像或代理改动了文件。",
        ),
    )
