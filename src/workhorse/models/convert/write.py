"""Writes one converted file block by block on several cores, and reads every block back."""

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workhorse.models.convert.refusals import changed, disk_errors, not_as_written
from workhorse.models.convert.report import OnOverflow, ShardDone, TensorRange, range_of
from workhorse.models.convert.rounding import Rounder, Tally, widen
from workhorse.models.convert.source import Shard, Tensor
from workhorse.models.folders import local_errors_of, opened_file
from workhorse.models.safetensors import DTYPE_BITS
from workhorse.units import MIB

BLOCK_BYTES = MIB  # with its results it stays in a core's second cache
# Asked of the disk this far ahead: several threads on one file are no pattern that the kernel's own
# reading ahead makes out.
AHEAD_BLOCKS = 16
Progress = Callable[[int], None]  # bytes that were written or read back since the last call


@dataclass(frozen=True, slots=True)
class _Block:
    """Some bytes of one tensor: where they come from and where they go."""

    tensor: int
    source_bytes: int
    target_bytes: int
    n_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    header: bytes
    blocks: tuple[_Block, ...]
    n_bytes: int

    def ahead(self, number: int) -> _Block:
        """The block that will be wanted soon after block `number`."""
        return self.blocks[min(number + AHEAD_BLOCKS, len(self.blocks) - 1)]


def stored_type(tensor: Tensor, kept: Collection[str]) -> str:
    """The type that a tensor gets: `kept` ones become F32, other types stay."""
    if tensor.dtype != "BF16":
        return tensor.dtype
    return "F32" if tensor.name in kept else "F16"


def _layout(shard: Shard, kept: Collection[str]) -> _Layout:
    """Where everything goes; tensors of wide types first, so that each is aligned to its own."""
    types = [stored_type(tensor, kept) for tensor in shard.tensors]
    order = sorted(range(len(types)), key=lambda i: -DTYPE_BITS[types[i]])
    head: dict[str, object] = {"__metadata__": shard.metadata} if shard.metadata else {}
    places: list[tuple[int, int]] = []
    at = 0
    for i in order:
        tensor, widened = shard.tensors[i], types[i] == "F32" and shard.tensors[i].dtype == "BF16"
        n_bytes = tensor.n_bytes * 2 if widened else tensor.n_bytes
        offsets = [at, at + n_bytes]
        head[tensor.name] = {"dtype": types[i], "shape": tensor.shape, "data_offsets": offsets}
        places.append((i, at))
        at += n_bytes
    raw = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    header = len(raw).to_bytes(8, "little") + raw
    blocks = tuple(
        block
        for i, place in places
        for block in _blocks(i, shard.tensors[i], len(header) + place, types[i])
    )
    return _Layout(header, blocks, len(header) + at)


def _blocks(number: int, tensor: Tensor, target_bytes: int, stored: str) -> Iterator[_Block]:
    times = 2 if stored == "F32" and tensor.dtype == "BF16" else 1
    for at in range(0, tensor.n_bytes, BLOCK_BYTES):
        n_bytes = min(BLOCK_BYTES, tensor.n_bytes - at)
        yield _Block(
            number, tensor.offset_bytes + at, target_bytes + at * times, n_bytes, n_bytes * times
        )


@dataclass(frozen=True, slots=True)
class _Written:
    tallies: list[Tally]
    blocks: int
    write_s: float
    read_back_s: float


class _Hand:
    """What one thread needs: buffers that it uses again and again."""

    def __init__(self, *, clamp: bool) -> None:
        self._read = np.empty(BLOCK_BYTES, np.uint8)
        self._made = np.empty(2 * BLOCK_BYTES, np.uint8)
        # Odd factors: no change of one word, and hardly any of several, leaves the sum as it was.
        self._factors = np.random.default_rng(8).integers(
            0, 1 << 63, 2 * BLOCK_BYTES // 8, np.uint64
        ) * np.uint64(2) + np.uint64(1)
        self._rounder = Rounder(BLOCK_BYTES // 2, clamp=clamp)

    def convert(
        self, source: int, target: int, block: _Block, dtype: str, stored: str, path: Path
    ) -> tuple[int, Tally]:
        """Write the block; the fingerprint of what was written, and what rounding did."""
        read = self._read[: block.n_bytes]
        with local_errors_of(path):
            count = os.preadv(source, [read.data], block.source_bytes)
        if count != block.n_bytes:
            raise changed(path)
        made, tally = read, Tally()
        if dtype == "BF16":
            made = self._made[: block.written_bytes]
            codes = read.view(np.uint16)
            rounded = made[: block.n_bytes].view(np.uint16)
            tally = self._rounder.round(codes, rounded)
            if stored == "F32":
                widen(codes, made.view(np.uint32))
        rest, at = made.data, block.target_bytes
        while rest:
            count = os.pwrite(target, rest, at)
            rest, at = rest[count:], at + count
        return self._fingerprint(made), tally

    def read_back(self, target: int, block: _Block) -> int | None:
        """The fingerprint of what is there; None when the file ends."""
        there = self._made[: block.written_bytes]
        if os.preadv(target, [there.data], block.target_bytes) != block.written_bytes:
            return None
        return self._fingerprint(there)

    def _fingerprint(self, data: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> int:
        whole = data.size // 8 * 8
        words = data[:whole].view(np.uint64)
        tail = int.from_bytes(data[whole:].tobytes(), "little")
        return hash((int(np.dot(words, self._factors[: words.size])), tail))


class ShardWriter:
    """Converts files with `threads` threads. `progress` hears of bytes written and read back.

    The arithmetic and the system calls run outside Python's lock, so that threads use the cores
    as processes would, and none is left behind when the program is killed.
    """

    def __init__(self, threads: int, on_overflow: OnOverflow, progress: Progress) -> None:
        self._on_overflow: OnOverflow = on_overflow
        self._progress = progress
        self._hands = [_Hand(clamp=on_overflow == "clamp") for _ in range(threads)]
        self._turn = threading.Lock()

    def write(self, shard: Shard, folder: Path) -> ShardDone:
        """The shard converted into `folder`: under its final name when every block is good.

        Tensors with values beyond FP16's range stop that, unless told what to do: then the file
        does not get its name. Raises AppError for the disk and for a source that changes.
        """
        part, final = folder / (shard.target + ".part"), folder / shard.target
        try:
            made = self._write(shard, part, frozenset())
            tallies = made.tallies
            kept: frozenset[str] = frozenset()
            if self._on_overflow == "keep-f32":
                names = zip(shard.tensors, tallies, strict=True)
                kept = frozenset(tensor.name for tensor, tally in names if tally.overflowed)
                if kept:
                    made = self._write(shard, part, kept)
            ranges = tuple(_ranges(shard.tensors, tallies, kept))
            refused = self._on_overflow == "fail" and any(found.overflowed for found in ranges)
            if not refused:
                with disk_errors(final):
                    part.replace(final)
                    status = final.stat()
        finally:
            part.unlink(missing_ok=True)
        return ShardDone(
            file=shard.target,
            source_file=shard.path.name,
            source_n_bytes=shard.n_bytes,
            source_mtime_ns=shard.mtime_ns,
            on_overflow=self._on_overflow,
            n_bytes=0 if refused else status.st_size,
            mtime_ns=0 if refused else status.st_mtime_ns,
            write_s=round(made.write_s, 3),
            read_back_s=round(made.read_back_s, 3),
            verified_blocks=made.blocks,
            copied_tensors=sum(tensor.dtype != "BF16" for tensor in shard.tensors),
            ranges=ranges,
        )

    def _write(self, shard: Shard, part: Path, kept: frozenset[str]) -> _Written:
        layout = _layout(shard, kept)
        tallies = [Tally() for _ in shard.tensors]
        marks: dict[int, int] = {}
        with disk_errors(part), opened_file(shard.path) as (source, _), part.open("w+b") as file:
            target = file.fileno()
            os.truncate(target, layout.n_bytes)
            os.pwrite(target, layout.header, 0)

            def convert(hand: _Hand, number: int) -> None:
                block, ahead = layout.blocks[number], layout.ahead(number)
                os.posix_fadvise(source, ahead.source_bytes, ahead.n_bytes, os.POSIX_FADV_WILLNEED)
                tensor = shard.tensors[block.tensor]
                stored = stored_type(tensor, kept)
                mark, tally = hand.convert(source, target, block, tensor.dtype, stored, shard.path)
                marks[number] = mark
                with self._turn:
                    tallies[block.tensor] += tally
                    self._progress(block.n_bytes)

            def verify(hand: _Hand, number: int) -> None:
                block, ahead = layout.blocks[number], layout.ahead(number)
                os.posix_fadvise(
                    target, ahead.target_bytes, ahead.written_bytes, os.POSIX_FADV_WILLNEED
                )
                if hand.read_back(target, block) != marks[number]:
                    raise not_as_written(part, block.target_bytes)
                with self._turn:
                    self._progress(block.n_bytes)

            began_s = time.monotonic()
            self._all_hands(convert, len(layout.blocks))
            os.fsync(target)
            written_s = time.monotonic()
            # So that what is read back comes from the disk, not from the pages just written.
            os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)
            self._all_hands(verify, len(layout.blocks))
            if os.pread(target, len(layout.header), 0) != layout.header:
                raise not_as_written(part, 0)
            read_s = time.monotonic()
        return _Written(tallies, len(layout.blocks), written_s - began_s, read_s - written_s)

    def _all_hands(self, work: Callable[[_Hand, int], None], count: int) -> None:
        """Do `work` for each number below `count`; the first error ends all."""
        numbers = iter(range(count))
        stopped = threading.Event()

        def run(hand: _Hand) -> None:
            while not stopped.is_set():
                with self._turn:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    work(hand, number)
                except BaseException:
                    stopped.set()
                    raise

        with ThreadPoolExecutor(len(self._hands)) as pool:
            tasks = [pool.submit(run, hand) for hand in self._hands]
            try:
                for task in tasks:
                    task.result()
            finally:
                stopped.set()  # Ctrl-C comes to this thread alone


def _ranges(
    tensors: Sequence[Tensor], tallies: Sequence[Tally], kept: Collection[str]
) -> Iterator[TensorRange]:
    for tensor, tally in zip(tensors, tallies, strict=True):
        if tensor.dtype == "BF16":
            stays = tensor.name in kept
            yield range_of(tensor.name, "F32" if stays else "F16", tally)
