"""The headers of a model's parts with the bytes behind them: local files or any other reader."""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.cursor import Cursor, ReadAt
from workhorse.models.folders import opened_file, opened_folder
from workhorse.models.header import ARRAY, NUMBERS, STRING, Header, read_header
from workhorse.models.parts import part_paths
from workhorse.models.read import part_files
from workhorse.models.refusals import shown
from workhorse.models.sources import LocalSource, source_of
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
def model_parts(
    reference: str, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[Part, ...]]:
    """The parts of the GGUF model called `reference`, open while the block runs.

    `reference` is as `Model.path` has it: a path, `hf:owner/name:file`, an address. No weights
    are fetched. AppError for what cannot be read or is no GGUF file.
    """
    source = source_of(reference, environment)
    if isinstance(source, LocalSource):
        with local_parts(source.path) as parts:
            yield parts
        return
    with opened_folder(source, environment) as (folder, file):
        if file is None or not file.lower().endswith(".gguf"):
            raise no_header(reference)
        first = read_part(file, *folder.opened(file))
        files = part_files(file, first.header)
        yield tuple(
            first if part == file else read_part(part, *folder.opened(part)) for part in files
        )


@contextmanager
def local_parts(path: Path) -> Iterator[tuple[Part, ...]]:
    """The parts of the model at `path`, open while the block runs. AppError for unusable files."""
    with ExitStack() as opened:
        first = open_part(path, opened)
        paths = part_paths(path, first.header)
        yield tuple(first if part == path else open_part(part, opened) for part in paths)


def open_part(path: Path, opened: ExitStack) -> Part:
    """One local file."""
    handle, size_bytes = opened.enter_context(opened_file(path))
    return read_part(path.name, lambda offset, size: os.pread(handle, size, offset), size_bytes)


def no_header(reference: str) -> AppError:
    """A checkpoint describes a model, but its tokenizer and metadata are in no GGUF form."""
    return AppError(
        Text(
            f"{shown(reference)} is no GGUF file: there is no header to make a twin from.",
            f"{shown(reference)} 不是 GGUF 文件，没有可用来制作缩小模型的文件头。",
        ),
        Text(
            "Name a GGUF file of the same model, such as hf:owner/name-GGUF:Q4_K_M.",
            "请指定同一模型的 GGUF 文件，例如 hf:owner/name-GGUF:Q4_K_M。",
        ),
    )


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
