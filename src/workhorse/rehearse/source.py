"""The headers of a model's parts with the bytes behind them: local files or any other reader."""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.cursor import Cursor, ReadAt
from workhorse.models.header import ARRAY, NUMBERS, STRING, Header, read_header
from workhorse.models.parts import part_paths
from workhorse.models.refusals import shown
from workhorse.text import Text
from workhorse.units import MIB

KEY_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model: its name, its header, and the reader of its bytes."""

    name: str
    header: Header
    read_at: ReadAt

    def header_bytes(self) -> bytes:
        """All bytes before the weights (at most 64 MiB, as the header reader allows)."""
        return self.read_at(0, self.header.data_offset_bytes)


def read_part(name: str, read_at: ReadAt, size_bytes: int) -> Part:
    """A part from its reader; `name` ends as the file does. AppError as `read_header` raises."""
    return Part(name, read_header(read_at, size_bytes, name=name), read_at)


@contextmanager
def local_parts(path: Path) -> Iterator[tuple[Part, ...]]:
    """The parts of the model at `path`, open while the block runs. AppError for unusable files."""
    with ExitStack() as opened:
        first = open_part(path, opened)
        paths = part_paths(path, first.header)
        yield tuple(first if part == path else open_part(part, opened) for part in paths)


def open_part(path: Path, opened: ExitStack) -> Part:
    """One local file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise AppError(
            Text(
                f"The model {shown(str(path))} cannot be read: {error}.",
                f"无法读取模型 {shown(str(path))}：{error}。",
            ),
            Text("Check the path.", "请检查路径。"),
        ) from error
    opened.callback(os.close, handle)
    size_bytes = os.fstat(handle).st_size
    return read_part(path.name, lambda offset, size: os.pread(handle, size, offset), size_bytes)


@dataclass(frozen=True, slots=True)
class Key:
    """One metadata entry as it stands in the file: key, type, value."""

    name: str
    raw: bytes

    @property
    def _value_at(self) -> int:
        return 8 + len(self.name.encode("utf-8", errors="surrogateescape")) + 4

    @property
    def kind(self) -> int:
        """The number of the value's type."""
        return int.from_bytes(self.raw[self._value_at - 4 : self._value_at], "little")

    @property
    def number(self) -> int:
        """The value of a key that holds a number."""
        (value,) = NUMBERS[self.kind].unpack(self.raw[self._value_at :])
        return int(value)

    @property
    def entries(self) -> int | None:
        """How many numbers a list has; None when the value is no list of numbers."""
        start = self._value_at
        if self.kind != ARRAY or self.raw[start] not in NUMBERS:
            return None
        return int.from_bytes(self.raw[start + 4 : start + 12], "little")

    def with_number(self, value: int) -> "Key":
        """The same key with another whole number, in the same type."""
        start = self._value_at
        return Key(self.name, self.raw[:start] + NUMBERS[self.kind].pack(value))

    def with_entries(self, chosen: Sequence[int]) -> "Key":
        """A list of numbers cut to the chosen entries, in their order."""
        start = self._value_at
        size = NUMBERS[int.from_bytes(self.raw[start : start + 4], "little")].size
        values = self.raw[start + 12 :]
        cut = b"".join(values[i * size : (i + 1) * size] for i in chosen)
        return Key(self.name, self.raw[: start + 4] + len(chosen).to_bytes(8, "little") + cut)


def metadata(part: Part) -> tuple[Key, ...]:
    """Every metadata entry of a part's header with its bytes, in the file's order."""
    raw = part.header_bytes()
    cursor = Cursor(lambda at, size: raw[at : at + size], len(raw), part.name, MIB)
    cursor.skip(16)
    keys = []
    for _ in range(cursor.length()):
        start = cursor.position
        name = cursor.take(cursor.length()).decode("utf-8", errors="surrogateescape")
        skip_value(cursor)
        keys.append(Key(name, raw[start : cursor.position]))
    return tuple(keys)


def skip_value(cursor: Cursor) -> None:
    """Pass over one value; its form was checked when the header was read."""
    kind = int.from_bytes(cursor.take(4), "little")
    if kind == STRING:
        cursor.skip(cursor.length())
    elif kind == ARRAY:
        entry = int.from_bytes(cursor.take(4), "little")
        count = cursor.length()
        if entry == STRING:
            cursor.skip_texts(count)
        else:
            cursor.skip(count * NUMBERS[entry].size)
    else:
        cursor.skip(NUMBERS[kind].size)


def tensor_entry(name: str, shape: Sequence[int], type_id: int, offset_bytes: int) -> bytes:
    """One tensor of the header's list, as GGUF has it."""
    label = name.encode()
    return (
        struct.pack("<Q", len(label))
        + label
        + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        + struct.pack("<IQ", type_id, offset_bytes)
    )
