"""Writes the folder of a bundle: whole under its name, or `NAME.part` to go on from."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from workhorse import __version__
from workhorse.bundle.carried.check import CHUNK_BYTES, opened_plainly
from workhorse.bundle.carried.files import Moved, alone, place, told_of_disk
from workhorse.bundle.carried.manifest import MANIFEST, File, Manifest, Target, to_document
from workhorse.bundle.order import Order
from workhorse.bundle.sources import Source
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.fetch import Progress
from workhorse.models.part_file import check_space, sync_folder
from workhorse.text import Text


def refuse_taken(target: Path) -> None:
    """AppError when something has the bundle's name already, or it has no place."""
    if os.path.lexists(target):
        raise AppError(
            Text(f"{target} is there already.", f"{target} 已存在。"),
            Text("Name another --output, or remove it first.", "请另取 --output，或先删除它。"),
            exit_code=EXIT_USAGE,
        )
    if not target.absolute().parent.is_dir():
        raise AppError(
            Text(f"There is no folder {target.parent}.", f"没有目录 {target.parent}。"),
            Text("Make it first, or name another --output.", "请先创建，或另取 --output。"),
            exit_code=EXIT_USAGE,
        )


def assemble(target: Path, sources: Sequence[Source], order: Order, progress: Progress) -> Manifest:
    """Write the bundle to the folder `target`, all of it or nothing; returns its manifest.

    Files are shared or linked where the file system can, else copied; a copy that was broken off
    goes on. Memory stays small, each byte is read twice at most. Raises Refusal and AppError.
    """
    part = part_of(target)
    with told_of_disk(target), alone(part):
        paths = {path: origin for source in sources for path, origin in source.files}
        programs = {path for one in sources if one.part.kind == "script" for path in one.part.files}
        _remove_strangers(part, set(paths))
        sizes = {path: origin.stat().st_size for path, origin in paths.items()}
        _check_room(part, paths, sizes)
        total_bytes, done_bytes = 2 * sum(sizes.values()), 0

        def moved(n_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += n_bytes
            progress(done_bytes, total_bytes)

        for path, origin in paths.items():
            made = part / path
            if _is_there(made, origin):
                moved(sizes[path])
            else:
                made.unlink(missing_ok=True)
                # Beside a program that is worked on, a link would change with it.
                place(origin, made, moved, may_link=path not in programs)
        files = tuple(File(path, *_hashed(part / path, moved)) for path in sorted(paths))
        manifest = manifest_of(files, sources, order)
        _write(part / MANIFEST, to_document(manifest))
        part.rename(target)
        sync_folder(target.absolute().parent)
    return manifest


def manifest_of(files: tuple[File, ...], sources: Sequence[Source], order: Order) -> Manifest:
    """What a bundle of these files says of itself."""
    parts = tuple(source.part for source in sources)
    glibc = max((source.glibc for source in sources if source.glibc), key=_minor, default="2.17")
    return Manifest(
        __version__,
        datetime.now(UTC).isoformat(timespec="seconds"),
        Target(order.architecture, glibc, order.pythons, order.cpu),
        files,
        parts,
    )


def _minor(glibc: str) -> int:
    return int(glibc.split(".")[1])


def part_of(target: Path) -> Path:
    """Where a bundle grows."""
    return target.with_name(target.name + ".part")


def _remove_strangers(part: Path, wanted: set[str]) -> None:
    """What an earlier run with other wishes left; what is half copied stays."""
    for path in sorted(part.rglob("*"), reverse=True):
        relative = path.relative_to(part).as_posix()
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # not empty: it has something wanted
                path.rmdir()
        elif relative not in wanted and relative.removesuffix(".part") not in wanted:
            path.unlink()


def _check_room(part: Path, paths: dict[str, Path], sizes: dict[str, int]) -> None:
    """AppError before a copy begins that the disk cannot take; what may be linked is not counted.

    A file system without links shows when it is full; no half file gets a name there either.
    """
    device = part.stat().st_dev
    needed_bytes = 0
    for path, origin in paths.items():
        if origin.stat().st_dev != device and not _is_there(part / path, origin):
            begun = part / f"{path}.part"
            needed_bytes += sizes[path] - (begun.stat().st_size if begun.exists() else 0)
    check_space(part, needed_bytes)


def _is_there(made: Path, origin: Path) -> bool:
    """Whether an earlier run brought it: a file gets its name when it is whole."""
    try:
        one, other = made.lstat(), origin.stat()
    except FileNotFoundError:
        return False
    # FAT keeps times to two seconds.
    near = abs(one.st_mtime_ns - other.st_mtime_ns) <= 2_000_000_000
    return os.path.samestat(one, other) or (one.st_size == other.st_size and near)


def _hashed(path: Path, moved: Moved) -> tuple[str, int]:
    digest, n_bytes = hashlib.sha256(), 0
    with os.fdopen(opened_plainly(path), "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            n_bytes += len(chunk)
            moved(len(chunk))
    return digest.hexdigest(), n_bytes


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
