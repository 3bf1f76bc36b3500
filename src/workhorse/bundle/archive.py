"""A bundle as one uncompressed tar, or in pieces for a FAT32 stick: written, checked, unpacked."""

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from workhorse.bundle.carried.check import CHUNK_BYTES, Difference
from workhorse.bundle.carried.files import told_of_disk
from workhorse.bundle.carried.manifest import (
    FILES_MAX,
    MANIFEST,
    File,
    Manifest,
    is_inside,
    parse,
    to_document,
)
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.models.fetch import Progress
from workhorse.models.part_file import check_space, local_errors
from workhorse.text import Text

_PIECE = re.compile(r"(?P<stem>.+\.tar)\.(?P<number>\d{3})")
PIECES_MAX = 999
# More than the header of any member, its long name and its padding take.
_MEMBER_BYTES = 4096
_MANIFEST_BYTES_MAX = 8_000_000


def piece_name(target: Path, number: int) -> Path:
    """`NAME.tar.001` …: `cat NAME.tar.*` puts them together in order."""
    return target.with_name(f"{target.name}.{number:03d}")


class _Pieces:
    """A file to write to that begins a new piece when one is full."""

    def __init__(self, target: Path, piece_bytes: int | None) -> None:
        self.target = target
        self.piece_bytes = piece_bytes
        self.paths: list[Path] = []
        self._file: IO[bytes] | None = None
        self._left_bytes = 0
        self._written_bytes = 0

    def write(self, content: bytes) -> int:
        """Take the next bytes."""
        rest = memoryview(content)
        while rest:
            if self._file is None or (self.piece_bytes and not self._left_bytes):
                self._next()
            assert self._file is not None  # noqa: S101 - for the type checker
            size = min(len(rest), self._left_bytes) if self.piece_bytes else len(rest)
            self._file.write(rest[:size])
            self._left_bytes -= size
            rest = rest[size:]
        self._written_bytes += len(content)
        return len(content)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._written_bytes

    def close(self) -> None:
        """Make the last piece survive a crash."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def _next(self) -> None:
        self.close()
        number = len(self.paths) + 1
        if number > PIECES_MAX:
            raise AppError(
                Text(f"More than {PIECES_MAX} pieces.", f"分卷超过 {PIECES_MAX} 个。"),
                Text("Choose a larger --split.", "请调大 --split。"),
                exit_code=EXIT_USAGE,
            )
        path = piece_name(self.target, number) if self.piece_bytes else self.target
        self.paths.append(path)
        self._file = part_of(path).open("wb")
        self._left_bytes = self.piece_bytes or 0


def part_of(path: Path) -> Path:
    """The name of a tar or a piece while it is written."""
    return path.with_name(path.name + ".part")


def write_tar(
    paths: Mapping[str, Path],
    manifest_of: Callable[[tuple[File, ...]], Manifest],
    target: Path,
    piece_bytes: int | None,
    progress: Progress,
) -> tuple[list[Path], Manifest]:
    """Pack files by their paths in the bundle; none has its name before all are whole.

    Each original is read once, and nothing is copied besides. The manifest is made of their
    hashes and comes last: a tar that was cut off has none. Raises AppError, Refusal.
    """
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    total_bytes = sum(sizes.values()) + (len(paths) + 1) * _MEMBER_BYTES
    check_space(target.absolute().parent, total_bytes)
    top = target.name.removesuffix(".tar")
    pieces, files, done_bytes = _Pieces(target, piece_bytes), list[File](), 0
    with told_of_disk(target):
        try:
            with tarfile.open(
                fileobj=pieces,  # type: ignore[call-overload]
                mode="w|",
                format=tarfile.PAX_FORMAT,
                copybufsize=CHUNK_BYTES,
            ) as tar:
                for name, path in sorted(paths.items()):
                    with path.open("rb") as file:
                        watched = _Watched(file, done_bytes, total_bytes, progress)
                        executable = os.access(path, os.X_OK)
                        _add(tar, f"{top}/{name}", sizes[name], watched, executable=executable)
                    files.append(File(name, watched.sha256, sizes[name]))
                    done_bytes += sizes[name]
                manifest = manifest_of(tuple(files))
                document = to_document(manifest)
                _add(tar, f"{top}/{MANIFEST}", len(document), io.BytesIO(document))
            pieces.close()
            for path in pieces.paths:
                part_of(path).rename(path)
        finally:
            pieces.close()
            for path in pieces.paths:
                part_of(path).unlink(missing_ok=True)
    return pieces.paths, manifest


def _add(
    tar: tarfile.TarFile, name: str, size: int, content: object, *, executable: bool = False
) -> None:
    """One member, with nothing in it of who made it and when."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o755 if executable else 0o644
    tar.addfile(member, content)  # type: ignore[arg-type]


class _Watched:
    """A file that is hashed as it is read, and tells how far that is."""

    def __init__(self, file: IO[bytes], before: int, total: int, progress: Progress) -> None:
        self._file, self._done, self._total, self._progress = file, before, total, progress
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of all that was read, in hex."""
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        chunk = self._file.read(size)
        self._digest.update(chunk)
        self._done += len(chunk)
        self._progress(self._done, self._total)
        return chunk


def pieces_of(path: Path) -> list[Path]:
    """The files that a tar is in; AppError when a piece is missing."""
    match = _PIECE.fullmatch(path.name)
    if match is None:
        return [path]
    found = sorted(
        other
        for other in path.absolute().parent.glob(f"{_escaped(match['stem'])}.*")
        if _PIECE.fullmatch(other.name)
    )
    for number, other in enumerate(found, 1):
        if not other.name.endswith(f".{number:03d}"):
            missing = piece_name(path.with_name(match["stem"]), number).name
            raise AppError(
                Text(f"The piece {missing} is missing.", f"缺少分卷 {missing}。"),
                Text("Bring all pieces into one folder.", "请将所有分卷放在同一目录。"),
                exit_code=EXIT_NO,
            )
    return found


def _escaped(stem: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", stem)


class _Joined:
    """The pieces as one file to read."""

    def __init__(self, files: Sequence[IO[bytes]]) -> None:
        self._files = list(files)

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end of a piece."""
        while self._files:
            if chunk := self._files[0].read(size):
                return chunk
            self._files.pop(0)
        return b""


@contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes], int, bool]]]:
    """The regular files of a tar as (path below its one folder, content, size, executable)."""
    with ExitStack() as opened, _readable(path):
        files = [opened.enter_context(one.open("rb")) for one in pieces_of(path)]
        tar = opened.enter_context(
            tarfile.open(fileobj=_Joined(files), mode="r|", bufsize=CHUNK_BYTES)  # type: ignore[call-overload]
        )
        yield _walked(tar, path)


def _walked(tar: tarfile.TarFile, path: Path) -> Iterator[tuple[str, IO[bytes], int, bool]]:
    seen: set[str] = set()
    for member in tar:
        top, _, name = member.name.partition("/")
        # Ours has regular files in one folder and nothing else.
        strange = not member.isreg() or not top or top in (".", "..") or not is_inside(name)
        if strange or name in ("", ".") or name in seen or len(seen) >= FILES_MAX:
            raise _damaged(
                path, f"{member.name[:80]!r} does not belong", f"含有 {member.name[:80]!r}"
            )
        seen.add(name)
        content = tar.extractfile(member)
        if content is not None:
            yield name, content, member.size, bool(member.mode & 0o100)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(path, "it is cut off or no tar", "被截断或不是 tar") from error


def _damaged(path: Path, why: str, why_zh: str) -> AppError:
    return AppError(
        Text(f"{path.name} cannot be read: {why}.", f"无法读取 {path.name}：{why_zh}。"),
        Text("Copy it again from where it was made.", "请从制作处重新复制。"),
        exit_code=EXIT_NO,
    )


def compare_tar(path: Path, progress: Progress) -> tuple[Manifest, Difference]:
    """The manifest of a tar and where its files differ from it; nothing is unpacked."""
    found: dict[str, tuple[str, int]] = {}
    document: bytes | None = None
    with local_errors(path):
        total_bytes, done_bytes = sum(one.stat().st_size for one in pieces_of(path)), 0
        with _members(path) as members:
            for name, content, size, _ in members:
                if name == MANIFEST:
                    document = content.read(_MANIFEST_BYTES_MAX + 1)
                    continue
                digest = hashlib.sha256()
                while chunk := content.read(CHUNK_BYTES):
                    digest.update(chunk)
                    done_bytes += len(chunk)
                    progress(done_bytes, total_bytes)
                found[name] = (digest.hexdigest(), size)
    if document is None:
        raise _damaged(path, f"it has no {MANIFEST} at its end", f"末尾没有 {MANIFEST}")
    manifest = parse(document)
    expected = {file.path: (file.sha256, file.n_bytes) for file in manifest.files}
    return manifest, Difference(
        tuple(sorted(expected.keys() - found.keys())),
        tuple(sorted(found.keys() - expected.keys())),
        tuple(
            sorted(name for name in expected.keys() & found.keys() if expected[name] != found[name])
        ),
    )


def unpack_tar(path: Path, folder: Path, progress: Progress) -> None:
    """Unpack a tar into a new folder; what it holds is compared with its manifest afterwards."""
    with local_errors(folder):
        total_bytes, done_bytes = sum(one.stat().st_size for one in pieces_of(path)), 0
        check_space(folder.parent, total_bytes)
        folder.mkdir()
        with _members(path) as members:
            for name, content, _, executable in members:
                target = folder / PurePosixPath(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    while chunk := content.read(CHUNK_BYTES):
                        file.write(chunk)
                        done_bytes += len(chunk)
                        progress(done_bytes, total_bytes)
                target.chmod(0o755 if executable else 0o644)
