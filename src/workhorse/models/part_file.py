"""A download in the making: `NAME.part`, owned by one process at a time."""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workhorse.errors import AppError
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

CHUNK_BYTES = MIB
LOCK_POLL_S = 0.2


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class PartFile:
    """The bytes that have arrived so far, and their running SHA-256.

    Beside it, `NAME.part.etag` keeps the server's name for the version they belong to, so that a
    later run can ask for the rest of that version only. Raises AppError when the disk does not
    take the bytes; what has arrived stays for the next try.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self._handle = handle
        self._path = path
        self._etag_path = path.with_name(path.name + ".etag")
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        with local_errors(path):
            while chunk := os.read(handle, CHUNK_BYTES):
                self._hash.update(chunk)
                self.size_bytes += len(chunk)

    @property
    def sha256(self) -> str:
        """The SHA-256 of what is there, in hex."""
        return self._hash.hexdigest()

    @property
    def etag(self) -> str | None:
        """The version that the bytes belong to; None when the server did not name one."""
        with suppress(OSError):
            return self._etag_path.read_text("ascii") or None
        return None

    def append(self, chunk: bytes) -> None:
        """Write the next bytes."""
        with local_errors(self._path):
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        self._hash.update(chunk)
        self.size_bytes += len(chunk)

    def restart(self, etag: str | None) -> None:
        """Forget all bytes; the next ones are of the version `etag`."""
        with local_errors(self._path):
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
            self._etag_path.unlink(missing_ok=True)
            if etag:
                self._etag_path.write_text(etag, "ascii")
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def discard(self) -> None:
        """Remove the file; nothing happens when it is gone already."""
        with local_errors(self._path), suppress(FileNotFoundError):
            # After we let it go, the name may belong to the next process.
            if os.path.samestat(os.fstat(self._handle), self._path.stat()):
                self._etag_path.unlink(missing_ok=True)
                self._path.unlink()

    def finish(self, target: Path) -> None:
        """Make it `target`, at once and for good: a crash leaves either file whole."""
        with local_errors(self._path):
            os.fsync(self._handle)
            self._path.replace(target)
            self._etag_path.unlink(missing_ok=True)
            sync_folder(target.parent)


@contextmanager
def owned_part(target: Path, waiting: Callable[[int], None]) -> Iterator[PartFile]:
    """The part file of `target`, locked; waits while another process has it.

    `waiting` is called with the bytes that the other process has so far. After a wait `target`
    may be there already. The lock is on the part file itself and ends with the process.
    """
    path = target.with_name(target.name + ".part")
    with local_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = locked_file(path, waiting)
    try:
        part = PartFile(handle, path)
        try:
            yield part
        finally:
            if not part.size_bytes:  # nothing to go on from: leave no empty file behind
                part.discard()
    finally:
        os.close(handle)


def locked_file(path: Path, waiting: Callable[[int], None]) -> int:
    """A descriptor of `path`, made when it is not there, that no other process has locked.

    `waiting` is called with the bytes it has while another process holds it. The caller closes it.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(os.fstat(handle).st_size)
            os.close(handle)
            time.sleep(LOCK_POLL_S)
            continue
        except OSError:
            # A network disk without locks. The hash still keeps a mixed-up file from being used.
            return handle
        # The owner before us may have renamed or removed the file that we have just locked.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_space(folder: Path, needed_bytes: int) -> None:
    """AppError when the disk under `folder` has not `needed_bytes` left."""
    with local_errors(folder):
        free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise AppError(
            Text(
                f"{folder} has {show_bytes(free_bytes)} left, {show_bytes(needed_bytes)} more are "
                "needed.",
                f"{folder} 所在磁盘剩余 {show_bytes(free_bytes)}，还需要 "
                f"{show_bytes(needed_bytes)}。",
            ),
            _FREE_SOME,
        )


_FREE_SOME = Text(
    "Free some space and run the command again; what has arrived is kept.",
    "请清理磁盘空间后重新运行；已下载的部分会保留。",
)


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Turns what the local disk can refuse into an AppError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AppError(
                Text(f"The disk is full at {path}.", f"磁盘已满：{path}。"), _FREE_SOME
            ) from error
        why = error.strerror or str(error)
        raise AppError(
            Text(f"{path} cannot be written: {why}.", f"无法写入 {path}：{why}。"),
            Text(
                "Choose a data directory that this user may write to.",
                "请选择当前用户可写的数据目录。",
            ),
        ) from error
