"""Brings one remote file here: by several connections, on from where it stopped, checked."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from workhorse.errors import AppError
from workhorse.models.fetch import wrong_size
from workhorse.models.hub import Digest
from workhorse.models.part_file import CHUNK_BYTES, check_space
from workhorse.models.pull_crew import Changed, Crew
from workhorse.models.pull_door import Door, Opened
from workhorse.models.pull_part import PIECE_BYTES, PulledPart, Version, owned_pulled_part
from workhorse.models.pull_tries import GivenUp, Manner, Wanted, given_up, patiently
from workhorse.models.refusals import shown
from workhorse.models.remote import Interrupted
from workhorse.text import Text

T = TypeVar("T")

ANEW_MAX = 3


class WrongDigest(AppError):
    """All bytes came, and they are not those of the file; what came was removed."""


def pull_file(
    wanted: Wanted,
    target: Path,
    manner: Manner,
    is_there: Callable[[], bool],
    arrived: Callable[[Version], None],
) -> None:
    """Download to `target`, and say which version `arrived`, unless `is_there` by then.

    Blocks. Two processes at once: the second waits for the first, which has said by then what
    arrived. Bytes go to `NAME.part` and
    stay when it ends early, whatever ends it. With a digest the file is handed over only when it
    is right; without one its size is what is checked. Raises Refused for what the server denies,
    AppError for everything else.
    """
    told: list[bool] = []

    def waiting(_bytes: int) -> None:
        if not told:
            told.append(True)
            manner.tell(
                Text(
                    f"{target.name} is being pulled by another process: waiting for it.",
                    f"{target.name} 正由另一进程下载，等待其完成。",
                )
            )

    with owned_pulled_part(target, waiting) as part:
        if is_there():
            part.discard()
            return
        _Transfer(wanted, part, target.parent, manner).run()
        part.finish(target)
        arrived(part.version)


def still_served(wanted: Wanted, manner: Manner, known: Version) -> bool:
    """Whether the server still has the version that was pulled, as far as its ETag tells."""
    door = Door(wanted.addresses, manner.headers, manner.stall_s)

    def ask() -> bool:
        with door.opened(0, 1) as answer:
            now = Version(answer.total_bytes, answer.etag)
            return now.same_as(known)

    try:
        return patiently(ask, manner, threading.Event())
    except GivenUp as end:
        raise given_up(wanted, end.error, 0) from end


class _Transfer:
    """What it takes to bring one part to its full size and the right hash."""

    def __init__(self, wanted: Wanted, part: PulledPart, folder: Path, manner: Manner) -> None:
        self._wanted = wanted
        self._part = part
        self._folder = folder
        self._manner = manner
        self._door = Door(wanted.addresses, manner.headers, manner.stall_s, direct=manner.direct)
        self._mixed = False  # bytes of an earlier run, or of another etag

    def run(self) -> None:
        """Return when all bytes are there and right."""
        for _ in range(ANEW_MAX):
            try:
                self._bring()
            except GivenUp as end:
                raise given_up(self._wanted, end.error, self._part.done_bytes) from end
            except Changed:
                self._begin_anew("the file on the server changed", "服务器上的文件已变化")
                continue
            digest = self._wanted.digest
            if digest is None or self._part.hash == digest.value:
                return
            if not self._mixed:
                found = self._part.hash
                self._part.restart(Version(None, None))
                raise _wrong_digest(self._wanted.name, digest, found)
            self._begin_anew("its bytes are of two versions", "已有字节来自两个版本")
        raise AppError(
            Text(
                f"{shown(self._wanted.name)} changed {ANEW_MAX} times while it was downloaded.",
                f"{shown(self._wanted.name)} 在下载过程中变化了 {ANEW_MAX} 次。",
            ),
            Text("Run the command again later.", "请稍后重新运行该命令。"),
        )

    def _begin_anew(self, english: str, chinese: str) -> None:
        self._part.restart(Version(None, None))
        self._mixed = False
        name = shown(self._wanted.name)
        self._manner.tell(
            Text(f"{name}: {english}; beginning anew.", f"{name}：{chinese}，重新下载。")
        )

    def _bring(self) -> None:
        size = self._wanted.size_bytes
        if size is not None and size <= PIECE_BYTES:
            self._receive_whole()
            return
        version, ranged = self._try(self._look)
        if not ranged:
            self._receive_whole()
            return
        if self._part.version.same_as(version):
            self._mixed = self._part.done_bytes > 0
        else:
            if self._part.done_bytes and version.digest is None and version.etag is None:
                self._begin_anew("the server names no version", "服务器未给出版本标识")
            elif self._part.done_bytes:
                self._begin_anew("the file on the server changed", "服务器上的文件已变化")
            self._part.restart(version)
        check_space(self._folder, (version.size_bytes or 0) - self._part.done_bytes)
        crew = Crew(self._part, self._door, self._manner)
        try:
            crew.bring()
        finally:
            self._mixed = self._mixed or crew.mixed

    def _try(self, ask: Callable[[], T]) -> T:
        return patiently(ask, self._manner, threading.Event())

    def _look(self) -> tuple[Version, bool]:
        """Which version the server has, and whether it sends stretches of it."""
        with self._door.opened(0, 1) as answer:
            return self._version_of(answer), answer.ranged

    def _version_of(self, answer: Opened) -> Version:
        expected = self._wanted.size_bytes
        if None not in (expected, answer.total_bytes) and expected != answer.total_bytes:
            raise wrong_size(answer.total_bytes or 0, expected or 0)
        return Version(answer.total_bytes, answer.etag, self._wanted.digest)

    # ------------------------------------------------------------ one answer with all

    def _receive_whole(self) -> None:
        self._try(self._receive_once)

    def _receive_once(self) -> None:
        part, at = self._part, 0
        with self._door.opened(0, None) as answer:
            version = self._version_of(answer)
            total = version.size_bytes
            total = self._wanted.size_bytes if total is None else total
            part.restart(version)
            check_space(self._folder, total or 0)
            while chunk := answer.read(CHUNK_BYTES):
                if total is not None and at + len(chunk) > total:
                    raise wrong_size(at + len(chunk), total)
                part.write(chunk, at, version)
                at += len(chunk)
                self._manner.progress(at, total)
            if total is not None and at < total:
                raise Interrupted("the connection ended early")
        part.received_whole(at)


def _wrong_digest(name: str, digest: Digest, found: str) -> WrongDigest:
    kind = "SHA-256" if digest.kind == "sha256" else "git SHA-1"
    return WrongDigest(
        Text(
            f"{shown(name)} arrived whole but is not what the hub lists: its {kind} is {found}, "
            f"expected {digest.value}. It was removed.",
            f"{shown(name)} 已下载完整，但与平台登记的不符：{kind} 为 {found}，"
            f"应为 {digest.value}。已将其删除。",
        ),
        Text(
            "Run the command again; if it happens twice, the mirror or a proxy alters the file.",
            "请重新运行；若再次出现，说明镜像或代理改动了文件。",
        ),
    )
