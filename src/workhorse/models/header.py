"""Reads the header of a GGUF file: metadata and tensor list, never weights.

Format: github.com/ggml-org/ggml, docs/gguf.md; where that leaves room, the engine decides
(`gguf_init_from_reader` of llama.cpp's ggml/src/gguf.cpp, commit 0c1e57098, 2026-10-01), because
a file that the engine refuses is of no use to us.
"""

import math
import struct
from dataclasses import dataclass

from workhorse.errors import AppError
from workhorse.knowledge.quants import quants, removed_quants
from workhorse.models.cursor import Cursor, ReadAt
from workhorse.models.foreign import HEAD_BYTES, foreign
from workhorse.models.refusals import AGAIN, damaged, shown, truncated, unsupported
from workhorse.records import Tensor
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

Number = int | float | bool

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT_BYTES = 32  # GGUF_DEFAULT_ALIGNMENT, ggml/include/gguf.h
DIMENSIONS_MAX = 4  # GGML_MAX_DIMS, ggml/include/ggml.h
TENSOR_NAME_BYTES_MAX = 63  # GGML_MAX_NAME is 64 with the closing zero
ELEMENTS_MAX = 2**63 - 1  # the engine counts elements in an int64

# Bounds that keep a hostile header small in memory and time. Real models have fewer than 100 keys
# and 3,000 tensors; the engine's longest key has 60 letters (2026-11).
KEYS_MAX = 10_000
KEY_BYTES_MAX = 1024
TENSORS_MAX = 65_536
# Longer number lists are vocabularies' scores and types. The engine's LLAMA_MAX_LAYERS is 512, so
# every list with a value a layer is kept.
KEPT_NUMBERS_MAX = 512

STRING, ARRAY = 8, 9
NUMBERS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
UINT32 = 4

# Every other text is passed over: `tokenizer.huggingface.json` alone can have 30 MB.
KEPT_TEXTS = frozenset(
    {
        "general.architecture",
        "general.basename",
        "general.license",
        "general.name",
        "general.type",
        "tokenizer.chat_template",
    }
)

_TYPE_AND_OFFSET = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A value that was passed over; `count` is its length in entries (of a text: in bytes)."""

    count: int


Value = Number | str | tuple[Number, ...] | Skipped


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one file. Tensors in the file's order, their offsets from its beginning."""

    name: str
    size_bytes: int
    version: int
    values: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_offset_bytes: int


def read_header(read_at: ReadAt, size_bytes: int, *, name: str, chunk_bytes: int = MIB) -> Header:
    """The header of the GGUF file that `read_at` reads from.

    `size_bytes` is the size of the whole file, `name` what errors call it, `chunk_bytes` how much
    is read at once. Raises AppError for everything that is wrong with the file; errors of
    `read_at` itself pass through.
    """
    cursor = Cursor(read_at, size_bytes, name, chunk_bytes)
    version = _read_version(cursor, read_at)
    tensor_count, key_count = cursor.length(), cursor.length()
    if tensor_count > TENSORS_MAX or key_count > KEYS_MAX:
        raise damaged(
            name,
            f"it claims {tensor_count} tensors and {key_count} keys",
            f"声称有 {tensor_count} 个张量和 {key_count} 个键",
        )
    values: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.text("a key", KEY_BYTES_MAX)
        if not key or key in values:
            raise damaged(
                name,
                f"the key “{shown(key)}” is {'there twice' if key else 'empty'}",
                f"键“{shown(key)}”{'重复出现' if key else '为空'}",
            )
        values[key] = _read_value(cursor, key)
    alignment = _alignment_bytes(name, values)
    tensors, data_offset = _read_tensors(cursor, tensor_count, alignment)
    return Header(name, size_bytes, version, values, tensors, data_offset)


def _read_version(cursor: Cursor, read_at: ReadAt) -> int:
    head = read_at(0, min(HEAD_BYTES, cursor.size_bytes))
    if not head.startswith(MAGIC):
        if head and MAGIC.startswith(head):
            raise truncated(
                cursor.name, f"it has only {len(head)} bytes", f"只有 {len(head)} 个字节"
            )
        raise foreign(cursor.name, head, cursor.size_bytes)
    cursor.skip(len(MAGIC))
    version = int.from_bytes(cursor.take(4), "little")
    if version in VERSIONS:
        return version
    if version and not version & 0xFFFF:
        raise unsupported(
            cursor.name,
            "its numbers are big-endian, as IBM Z machines write them",
            "其数值为大端序（IBM Z 等机器的格式）",
            Text("Take the little-endian file of the model.", "请改用该模型的小端序文件。"),
        )
    raise unsupported(
        cursor.name,
        f"it is GGUF version {version}; versions 2 and 3 are read",
        f"GGUF 版本为 {version}，仅支持版本 2 和 3",
        Text("Take a newer GGUF file of the model.", "请改用该模型较新的 GGUF 文件。")
        if version < 2
        else Text("Update workhorse.", "请升级 workhorse。"),
    )


def _read_value(cursor: Cursor, key: str) -> Value:
    kind = int.from_bytes(cursor.take(4), "little")
    if kind == STRING:
        if key in KEPT_TEXTS:
            return cursor.text(key)
        n_bytes = cursor.length()
        cursor.skip(n_bytes)
        return Skipped(n_bytes)
    if kind != ARRAY:
        form = _number(cursor, key, kind)
        # The engine takes nothing but a u32 here; another width would shift every offset.
        if key == "general.alignment" and kind != UINT32:
            raise damaged(cursor.name, f"{key} is not a 32-bit number", f"{key} 不是 32 位整数")
        (value,) = cursor.unpack(form)
        return value
    entry = int.from_bytes(cursor.take(4), "little")
    count = cursor.length()
    if entry == STRING:
        cursor.skip_texts(count)
        return Skipped(count)
    if entry == ARRAY:
        raise damaged(
            cursor.name,
            f"{shown(key)} is a list of lists, which no engine reads",
            f"{shown(key)} 是嵌套列表，没有引擎能读取",
        )
    form = _number(cursor, key, entry)
    if count > KEPT_NUMBERS_MAX:
        cursor.skip(count * form.size)
        return Skipped(count)
    numbers = cursor.take(count * form.size)
    return tuple(value for (value,) in form.iter_unpack(numbers))


def _number(cursor: Cursor, key: str, kind: int) -> struct.Struct:
    if kind not in NUMBERS:
        raise damaged(
            cursor.name,
            f"{shown(key)} has the unknown value type {kind}",
            f"{shown(key)} 的值类型 {kind} 未知",
        )
    return NUMBERS[kind]


def _alignment_bytes(name: str, values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise damaged(
            name,
            "its alignment (general.alignment) is not a power of two",
            "对齐值（general.alignment）不是 2 的幂",
        )
    return alignment


def _padded(n_bytes: int, alignment_bytes: int) -> int:
    return -(-n_bytes // alignment_bytes) * alignment_bytes


def _read_tensors(
    cursor: Cursor, count: int, alignment_bytes: int
) -> tuple[tuple[Tensor, ...], int]:
    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    for _ in range(count):
        label = cursor.text("a tensor's name", TENSOR_NAME_BYTES_MAX)
        if label in entries:
            raise damaged(
                cursor.name,
                f"the tensor “{shown(label)}” is there twice",
                f"张量“{shown(label)}”重复出现",
            )
        shape = _read_shape(cursor, label)
        kind, offset = (int(number) for number in cursor.unpack(_TYPE_AND_OFFSET))
        type_name, n_bytes = _storage(cursor.name, label, shape, kind)
        entries[label] = (type_name, shape, n_bytes, offset)
    data_offset = _padded(cursor.position, alignment_bytes) if count else cursor.position
    tensors = []
    expected = 0  # the engine wants tensors back to back, each padded to the alignment
    for label, (type_name, shape, n_bytes, offset) in entries.items():
        if offset != expected:
            raise damaged(
                cursor.name,
                f"the tensor “{shown(label)}” is at {offset} and not at {expected}",
                f"张量“{shown(label)}”位于 {offset}，而应位于 {expected}",
            )
        if data_offset + offset + n_bytes > cursor.size_bytes:
            raise _cut_off(cursor, label, entries, data_offset, alignment_bytes)
        tensors.append(Tensor(label, type_name, shape, n_bytes, data_offset + offset))
        expected += _padded(n_bytes, alignment_bytes)
    return tuple(tensors), data_offset


def _read_shape(cursor: Cursor, label: str) -> tuple[int, ...]:
    dimensions = int.from_bytes(cursor.take(4), "little")
    if dimensions > DIMENSIONS_MAX:
        raise damaged(
            cursor.name,
            f"the tensor “{shown(label)}” has {dimensions} dimensions",
            f"张量“{shown(label)}”有 {dimensions} 个维度",
        )
    shape = tuple(cursor.length() for _ in range(dimensions)) or (1,)
    if not 0 < math.prod(shape) <= ELEMENTS_MAX:
        raise damaged(
            cursor.name,
            f"the tensor “{shown(label)}” has the impossible shape {list(shape)}",
            f"张量“{shown(label)}”的形状 {list(shape)} 不可能存在",
        )
    return shape


def _storage(name: str, label: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
    """The type's name and the tensor's bytes."""
    quant = quants().get(kind)
    if quant is None:
        raise _unknown_type(name, label, kind)
    if shape[0] % quant.block_elements:
        raise damaged(
            name,
            f"a row of “{shown(label)}” has {shape[0]} elements, not whole {quant.name} blocks "
            f"of {quant.block_elements}",
            f"“{shown(label)}”每行 {shape[0]} 个元素，不是 {quant.name} 块（{quant.block_elements}"
            " 个元素）的整数倍",
        )
    return quant.name, math.prod(shape) // quant.block_elements * quant.block_bytes


def _unknown_type(name: str, label: str, kind: int) -> AppError:
    removed = removed_quants().get(kind)
    if removed is None:
        return unsupported(
            name,
            f"the tensor “{shown(label)}” has the type {kind}, which this version does not know",
            f"张量“{shown(label)}”的类型 {kind} 是本版本不认识的",
            AGAIN,
        )
    return unsupported(
        name,
        f"its weights have the type {removed.name}, which engines no longer read",
        f"其权重类型 {removed.name} 已不被引擎支持",
        Text(
            f"Take the {removed.use} file of the same model.",
            f"请改用同一模型的 {removed.use} 文件。",
        ),
    )


def _cut_off(
    cursor: Cursor,
    label: str,
    entries: dict[str, tuple[str, tuple[int, ...], int, int]],
    data_offset: int,
    alignment_bytes: int,
) -> AppError:
    whole = data_offset + sum(_padded(entry[2], alignment_bytes) for entry in entries.values())
    return truncated(
        cursor.name,
        f"the header describes {show_bytes(whole)}, the file has {show_bytes(cursor.size_bytes)} "
        f"and ends before or in “{shown(label)}”",
        f"文件头描述了 {show_bytes(whole)}，文件只有 {show_bytes(cursor.size_bytes)}，"
        f"在“{shown(label)}”处或之前中断",
    )
