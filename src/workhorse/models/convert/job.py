"""A conversion from beginning to end: in a folder beside the target, which gets its name last."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.models.convert.carry import carry, other_files, write_index
from workhorse.models.convert.families import findings_of, known_to_overflow
from workhorse.models.convert.refusals import disk_errors, overflows, too_little_space
from workhorse.models.convert.report import Conversion, OnOverflow, ShardDone
from workhorse.models.convert.source import Checkpoint, Shard, read_source
from workhorse.models.convert.write import ShardWriter
from workhorse.models.part_file import sync_folder
from workhorse.models.refusals import shown
from workhorse.records import Verdict
from workhorse.text import Text
from workhorse.units import MIB

REPORT = "conversion.json"
THREADS_MAX = 16  # each takes 6 MiB; a disk or the memory is busy long before
HEADER_SPARE_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; `target` None: beside the source, `-FP16` added to its name."""

    reference: str
    target: Path | None = None
    on_overflow: OnOverflow = "fail"
    threads: int | None = None


def convert(wish: Wish, progress: Callable[[int, int], None]) -> Conversion:
    """The checkpoint as FP16 in a folder of its own, verified; `progress(done, total)` in bytes.

    A run that was stopped leaves `TARGET.part`; the next one takes the finished files from it.
    The target appears at once, when all is there. Raises AppError.
    """
    began_s = time.monotonic()
    checkpoint = read_source(wish.reference)
    target = target_of(wish, checkpoint)
    carried, weights = other_files(checkpoint.folder)
    used = {shard.path.name for shard in checkpoint.shards} | {checkpoint.index}
    left_out = tuple(name for name in weights if name not in used)
    with _workplace(checkpoint.folder, target.absolute()) as place:
        threads = wish.threads or min(len(os.sched_getaffinity(0)), THREADS_MAX)
        shards, resumed = _shards(place, checkpoint, wish.on_overflow, threads, progress, carried)
        _refuse_overflows(shards, wish.on_overflow)
        carry(checkpoint.folder, place.model, carried)
        write_index(place.model, checkpoint.index, checkpoint.shards)
        ranges = [found for shard in shards for found in shard.ranges]
        verdict = Verdict((*known_to_overflow(checkpoint.folder), *findings_of(ranges, left_out)))
        done = Conversion(
            source=str(checkpoint.folder.resolve()),
            target=str(target.absolute()),
            on_overflow=wish.on_overflow,
            duration_s=round(time.monotonic() - began_s, 3),
            n_bytes=sum(shard.n_bytes for shard in shards),
            resumed_files=resumed,
            shards=tuple(shards),
            carried=tuple(carried),
            left_out=left_out,
            verdict=verdict,
        )
        place.publish(done)
    return done


def converted_before(wish: Wish) -> Conversion | None:
    """The conversion that `convert` would make, when it is there already; raises AppError.

    None as well when the original has changed since, or other files are there now.
    """
    checkpoint = read_source(wish.reference)
    target = target_of(wish, checkpoint)
    try:
        done = from_json(Conversion, (target / REPORT).read_bytes(), what=REPORT)
        there = [(target / shard.file).stat().st_size == shard.n_bytes for shard in done.shards]
    except (OSError, AppError):
        return None
    sources = {(s.source_file, s.source_n_bytes, s.source_mtime_ns) for s in done.shards}
    now = {(s.path.name, s.n_bytes, s.mtime_ns) for s in checkpoint.shards}
    same = done.source == str(checkpoint.folder.resolve()) and sources == now and all(there)
    return done if same and done.on_overflow == wish.on_overflow else None


def target_of(wish: Wish, checkpoint: Checkpoint) -> Path:
    """Where the converted checkpoint goes."""
    source = checkpoint.folder.resolve()
    return wish.target or source.with_name(source.name + "-FP16")


class _Place:
    """`TARGET.part`: the model as far as it is finished, and a note for each finished file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._root = part_of(target)
        self.model = self._root / "model"
        self._notes = self._root / "finished"

    def prepare(self) -> None:
        """Make the folders, without half-written files of a run that was killed."""
        self.model.mkdir(parents=True, exist_ok=True)
        self._notes.mkdir(exist_ok=True)
        for part in self.model.glob("*.part"):
            part.unlink()

    def finished(self, shard: Shard, on_overflow: OnOverflow) -> ShardDone | None:
        """What an earlier run made of this shard, when it is still what would be made now."""
        try:
            done = from_json(ShardDone, self._note(shard).read_bytes(), what=shard.target)
            status = (self.model / shard.target).stat()
        except (OSError, AppError):
            return None
        same_source = (done.source_file, done.source_n_bytes, done.source_mtime_ns) == (
            shard.path.name, shard.n_bytes, shard.mtime_ns,
        )  # fmt: skip
        same_file = (done.n_bytes, done.mtime_ns) == (status.st_size, status.st_mtime_ns)
        same_wish = done.on_overflow == on_overflow or not done.overflows
        return done if same_source and same_file and same_wish else None

    def keep(self, shard: Shard, done: ShardDone) -> None:
        """Note that the shard is finished, for a later run."""
        note = self._note(shard)
        part = note.with_name(note.name + ".part")
        with disk_errors(note):
            part.write_text(to_json(done), "utf-8")
            part.replace(note)

    def publish(self, done: Conversion) -> None:
        """Give the model its name: all of it or nothing."""
        with disk_errors(self._target):
            (self.model / REPORT).write_text(to_json(done) + "\n", "utf-8")
            for place, _, files in os.walk(self.model):
                for file in files:
                    _sync(Path(place) / file)
                sync_folder(Path(place))
            self.model.replace(self._target)
            sync_folder(self._target.parent)
            shutil.rmtree(self._root, ignore_errors=True)

    def _note(self, shard: Shard) -> Path:
        return self._notes / f"{shard.target}.json"


def part_of(target: Path) -> Path:
    """Where a conversion into `target` is being made."""
    return target.with_name(target.name + ".part")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _workplace(source: Path, target: Path) -> Iterator[_Place]:
    """The place beside `target`, for this process alone."""
    inside = target.resolve().is_relative_to(source.resolve())
    if inside or source.resolve().is_relative_to(target.resolve()):
        raise AppError(
            Text(
                f"{shown(str(target))} is, holds or lies in the folder that is converted.",
                f"{shown(str(target))} 与待转换目录相同或相互包含。",
            ),
            Text("Choose another folder with --output.", "请用 --output 指定其他目录。"),
        )
    with disk_errors(target):
        if os.path.lexists(target) and not _is_empty_folder(target):
            raise AppError(
                Text(f"{shown(str(target))} is there already.", f"{shown(str(target))} 已存在。"),
                Text(
                    "Remove it, or choose another folder with --output.",
                    "请先删除它，或用 --output 指定其他目录。",
                ),
            )
        root = part_of(target)
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(handle, target)
        place = _Place(target)
        with disk_errors(root):
            place.prepare()
        yield place
    finally:
        os.close(handle)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _lock(handle: int, target: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise AppError(
            Text(
                f"Another process is converting into {shown(str(target))}.",
                f"另一个进程正在转换到 {shown(str(target))}。",
            ),
            Text("Wait for it, or choose another folder.", "请等待其完成，或指定其他目录。"),
        ) from error
    except OSError:
        return  # a network disk without locks


def _shards(
    place: _Place,
    checkpoint: Checkpoint,
    on_overflow: OnOverflow,
    threads: int,
    progress: Callable[[int, int], None],
    carried: Sequence[str],
) -> tuple[list[ShardDone], int]:
    """Every file converted, and how many of them an earlier run had finished."""
    earlier = {s.target: place.finished(s, on_overflow) for s in checkpoint.shards}
    left = [shard for shard in checkpoint.shards if earlier[shard.target] is None]
    _check_space(place.model, checkpoint.folder, left, carried)
    total = 2 * sum(tensor.n_bytes for shard in left for tensor in shard.tensors)
    done_bytes = 0

    def step(n_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes = min(done_bytes + n_bytes, total)  # a shard may be written twice
        progress(done_bytes, total)

    writer = ShardWriter(threads, on_overflow, step)
    done: list[ShardDone] = []
    for shard in checkpoint.shards:
        found = earlier[shard.target]
        if found is None:
            found = writer.write(shard, place.model)
            if found.n_bytes:
                place.keep(shard, found)
        done.append(found)
    return done, len(checkpoint.shards) - len(left)


def _check_space(place: Path, source: Path, left: Sequence[Shard], carried: Sequence[str]) -> None:
    """AppError when the disk cannot take what is left to write."""
    with disk_errors(place):
        needed = sum(shard.n_bytes for shard in left)
        for shard in left:  # what a run that was killed left under the final name is replaced
            with suppress(FileNotFoundError):
                (place / shard.target).unlink()
        needed += sum((source / name).stat().st_size for name in carried) + HEADER_SPARE_BYTES
        free = shutil.disk_usage(place).free
    if free < needed:
        raise too_little_space(place.parent.parent, free, needed)


def _refuse_overflows(shards: Sequence[ShardDone], on_overflow: OnOverflow) -> None:
    found = [tensor for shard in shards for tensor in shard.overflows]
    if found and on_overflow == "fail":
        raise overflows(found)
