"""A pulled file in the making: pieces in any order, and a journal of those that are there."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import msgspec

from workhorse.models.hub import Digest
from workhorse.models.part_file import CHUNK_BYTES, local_errors, locked_file, sync_folder
from workhorse.units import MIB

# What a killed process loses for each of its connections.
PIECE_BYTES = 4 * MIB
# Longer stretches cost fewer requests; shorter ones keep the connections busy to the end.
STRETCH_BYTES_MAX = 64 * MIB
JOURNAL_BYTES_MAX = 16 * MIB  # 2 million pieces: 8 TB


class Version(msgspec.Struct, frozen=True):
    """What tells one version of a file from another."""

    size_bytes: int | None
    etag: str | None
    digest: Digest | None = None

    def same_as(self, other: "Version") -> bool:
        """Whether bytes of both belong together; what nothing vouches for does not."""
        if self.size_bytes is None or self.size_bytes != other.size_bytes:
            return False
        if self.digest is not None and other.digest is not None:
            return self.digest == other.digest
        return self.etag is not None and self.etag == other.etag


@dataclass(slots=True)
class Stretch:
    """Bytes that lie together and that one request asks for; `at` moves on as they come."""

    at: int
    end: int


class PulledPart:
    """The bytes of `NAME.part`; `NAME.part.done` says which pieces of which version are there.

    Several threads may write, one keeps the journal. Bytes are hashed in order while they are
    still in memory. Raises AppError when the disk does not take them; what is there stays.
    """

    def __init__(self, handle: int, path: Path) -> None:
        self._handle = handle
        self._path = path
        self._journal_path = path.with_name(path.name + ".done")
        self._open = True
        self._writing = Lock()
        self.version, self._done = self._read_journal()
        self.done_bytes = sum(self._length(piece) for piece in self._done)
        self._begin_hash()

    @property
    def size_bytes(self) -> int | None:
        """The size of the whole file."""
        return self.version.size_bytes

    @property
    def unhashed_bytes(self) -> int:
        """What `hash_next` has not passed yet."""
        return (self.version.size_bytes or 0) - self._hashed_bytes

    @property
    def hash(self) -> str:
        """The hash of what `hash_next` has passed, in hex; of the kind that the version has."""
        return self._hash.hexdigest()

    def restart(self, version: Version) -> None:
        """Forget all bytes; the next ones are of `version`."""
        with local_errors(self._path), self._writing:
            os.ftruncate(self._handle, 0)
            with self._journal_path.open("wb") as journal:
                journal.write(msgspec.json.encode(version) + b"\n")
            self.version, self._done, self.done_bytes = version, set(), 0
        self._begin_hash()

    def stretches(self, connections: int) -> list[Stretch]:
        """What is missing, in order, in pieces of work for so many connections."""
        size = self.version.size_bytes or 0
        share = size // (4 * connections) // PIECE_BYTES * PIECE_BYTES
        longest = min(STRETCH_BYTES_MAX, max(PIECE_BYTES, share))
        found: list[Stretch] = []
        for piece in range(-(-size // PIECE_BYTES)):
            start, end = piece * PIECE_BYTES, min(size, (piece + 1) * PIECE_BYTES)
            if piece in self._done:
                continue
            if found and found[-1].end == start and end - found[-1].at <= longest:
                found[-1].end = end
            else:
                found.append(Stretch(start, end))
        return found

    def write(self, chunk: bytes, at: int, version: Version) -> None:
        """Put bytes of that version where they belong.

        Ignored once the part is closed or has begun another version: a connection that was slow
        to hear of it must not write over what is there.
        """
        with local_errors(self._path):
            rest = memoryview(chunk)
            while rest:
                with self._writing:
                    if not self._open or version is not self.version:
                        return
                    n_bytes = os.pwrite(self._handle, rest, at)
                rest, at = rest[n_bytes:], at + n_bytes

    def note(self, piece: int) -> None:
        """The whole piece is there."""
        self._done.add(piece)
        self.done_bytes += self._length(piece)
        with local_errors(self._path), self._journal_path.open("ab") as journal:
            journal.write(b"%d\n" % piece)

    def hash_next(self) -> bool:
        """Hash the piece that follows in order; False when it is not there or all is hashed."""
        piece = self._hashed_bytes // PIECE_BYTES
        if piece not in self._done or self._hashed_bytes == self.version.size_bytes:
            return False
        end = piece * PIECE_BYTES + self._length(piece)
        self._hash_to(end)
        return self._hashed_bytes == end

    def received_whole(self, size_bytes: int) -> None:
        """All bytes came in one answer, in order: whatever was behind them is cut off."""
        with local_errors(self._path):
            os.ftruncate(self._handle, size_bytes)
        self.version = msgspec.structs.replace(self.version, size_bytes=size_bytes)
        self._begin_hash()
        self._hash_to(size_bytes)

    def discard(self) -> None:
        """Remove the file and its journal."""
        with local_errors(self._path), suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._handle), self._path.stat()):
                self._journal_path.unlink(missing_ok=True)
                self._path.unlink()

    def finish(self, target: Path) -> None:
        """Make it `target`, at once and for good: a crash leaves either file whole."""
        with local_errors(self._path):
            os.fsync(self._handle)
            self._path.replace(target)
            self._journal_path.unlink(missing_ok=True)
            sync_folder(target.parent)

    def close(self) -> None:
        """Let the file go; threads that still write are ignored."""
        with self._writing:
            self._open = False
            os.close(self._handle)

    def _length(self, piece: int) -> int:
        size = self.version.size_bytes or 0
        return max(0, min(PIECE_BYTES, size - piece * PIECE_BYTES))

    def _begin_hash(self) -> None:
        self._hashed_bytes = 0
        digest, size = self.version.digest, self.version.size_bytes
        if digest is not None and digest.kind == "git-sha1":
            self._hash = hashlib.sha1(usedforsecurity=False)
            self._hash.update(b"blob %d\0" % (size or 0))
        else:
            self._hash = hashlib.sha256()

    def _hash_to(self, end: int) -> None:
        with local_errors(self._path):
            while self._hashed_bytes < end:
                wanted = min(CHUNK_BYTES, end - self._hashed_bytes)
                chunk = os.pread(self._handle, wanted, self._hashed_bytes)
                if not chunk:  # shorter than the journal says: the hash will show it
                    return
                self._hash.update(chunk)
                self._hashed_bytes += len(chunk)

    def _read_journal(self) -> tuple[Version, set[int]]:
        """What an earlier run left; nothing where it cannot be read. A torn last line is none."""
        nothing: tuple[Version, set[int]] = Version(None, None), set()
        with suppress(OSError):
            if self._journal_path.stat().st_size > JOURNAL_BYTES_MAX:
                return nothing
            head, _, rest = self._journal_path.read_bytes().partition(b"\n")
            try:
                version = msgspec.json.decode(head, type=Version)
            except (msgspec.MsgspecError, RecursionError):
                return nothing
            there = os.fstat(self._handle).st_size
            pieces = -(-(version.size_bytes or 0) // PIECE_BYTES)
            lines = rest.split(b"\n")[:-1]
            done = {int(line) for line in lines if line.isdigit() and len(line) < 9}
            return version, {p for p in done if p < pieces and p * PIECE_BYTES < there}
        return nothing


@contextmanager
def owned_pulled_part(target: Path, waiting: Callable[[int], None]) -> Iterator[PulledPart]:
    """The part of `target`, locked; waits while another process has it (`waiting` is called)."""
    path = target.with_name(target.name + ".part")
    with local_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = locked_file(path, waiting)
    part = PulledPart(handle, path)
    try:
        yield part
    finally:
        if not part.done_bytes:  # nothing to go on from: leave no empty file behind
            part.discard()
        part.close()
