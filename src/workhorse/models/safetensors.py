"""Reads the header of a safetensors file: names, types and shapes, never weights.

Format: github.com/huggingface/safetensors, README.md, "Format": an 8-byte length, that many bytes
of JSON, then the data.
"""

import math
import re
from dataclasses import dataclass

import msgspec

from workhorse.errors import AppError
from workhorse.models.cursor import ReadAt
from workhorse.models.foreign import HEAD_BYTES, foreign
from workhorse.models.refusals import damaged, shown, truncated, unsupported
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

# The format allows 100 MB. The largest header known, 20,000 tensors in one file, has 2.5 MB; what
# Python makes of 4 MB of hostile JSON stays below 40 MB.
HEADER_BYTES_MAX = 4 * MIB
ENTRIES_MAX = 32_768
NAME_LETTERS_MAX = 256
DIMENSIONS_MAX = 8
SHARDS_MAX = 1024
INDEX_BYTES_MAX = 32 * MIB  # DeepSeek V3's index has 9 MB
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(rb':\s*"([^"\\/]{1,200}\.safetensors)"')

# Bytes of one element (safetensors/src/tensor.rs, `Dtype`, 0.7, 2026-11); sub-byte types pack.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor of a checkpoint; `shape` as PyTorch has it, slowest dimension first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(read_at: ReadAt, size_bytes: int, *, name: str) -> list[RawTensor]:
    """The tensors of one safetensors file in the order of its data; see `parse_header`."""
    return parse_header(header_text(read_at, size_bytes, name=name), size_bytes, name=name)


def header_text(read_at: ReadAt, size_bytes: int, *, name: str) -> bytes:
    """The JSON at the beginning of a safetensors file; AppError for a file that is none."""
    head = read_at(0, min(HEAD_BYTES, size_bytes))
    length = int.from_bytes(head[:8], "little")
    if len(head) < 10 or head[8:9] != b"{" or length < 2:
        raise foreign(name, head, size_bytes)
    if 8 + length > size_bytes:
        raise truncated(
            name,
            f"its header has {show_bytes(length)}, the file {show_bytes(size_bytes)}",
            f"文件头为 {show_bytes(length)}，而文件只有 {show_bytes(size_bytes)}",
        )
    if length > HEADER_BYTES_MAX:
        raise damaged(
            name,
            f"{show_bytes(length)} of header are not believable",
            f"文件头长达 {show_bytes(length)}，不可信",
        )
    raw = read_at(8, length)
    if len(raw) < length:
        raise truncated(name, "its header ends early", "文件头不完整")
    return raw


def parse_header(raw: bytes, size_bytes: int, *, name: str) -> list[RawTensor]:
    """The tensors that the JSON of a file of `size_bytes` describes, in the order of its data.

    Checked as the `safetensors` package does: the data is without holes and ends with the file.
    Raises AppError for everything that is wrong with the file.
    """
    entries, length = _entries(raw, name), len(raw)
    tensors = [(entry.data_offsets, _tensor(key, entry, name)) for key, entry in entries]
    tensors.sort(key=lambda pair: pair[0])
    at = 0
    for (first, last), tensor in tensors:
        if first != at or last - first != tensor.n_bytes:
            raise damaged(
                name,
                f"“{shown(tensor.name)}” does not lie where it should",
                f"“{shown(tensor.name)}”的位置不正确",
            )
        at = last
    if 8 + length + at > size_bytes:
        raise truncated(
            name,
            f"its header describes {show_bytes(8 + length + at)}, the file has "
            f"{show_bytes(size_bytes)}",
            f"文件头描述了 {show_bytes(8 + length + at)}，文件只有 {show_bytes(size_bytes)}",
        )
    return [tensor for _, tensor in tensors]


def _entries(raw: bytes, name: str) -> list[tuple[str, _Entry]]:
    # Counted before anything is made of it: an entry has four colons.
    if raw.count(b":") > 4 * ENTRIES_MAX:
        raise damaged(name, "it has too many entries", "条目过多")
    try:
        # Each entry stays raw text until its turn, so that the whole is never Python objects.
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        decoder = msgspec.json.Decoder(_Entry)
        return [(k, decoder.decode(part)) for k, part in parts.items() if k != "__metadata__"]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, f"its JSON is wrong ({error})", f"其 JSON 有误（{error}）") from error


def _tensor(key: str, entry: _Entry, name: str) -> RawTensor:
    bits = DTYPE_BITS.get(entry.dtype)
    if bits is None:
        raise unsupported(
            name,
            f"“{shown(key[:80])}” has the unknown type {shown(entry.dtype[:40])}",
            f"“{shown(key[:80])}”的类型 {shown(entry.dtype[:40])} 未知",
            Text("Update workhorse.", "请升级 workhorse。"),
        )
    shape = tuple(entry.shape[: DIMENSIONS_MAX + 1])
    if len(key) > NAME_LETTERS_MAX or len(shape) > DIMENSIONS_MAX or min(shape, default=0) < 0:
        raise damaged(
            name,
            f"“{shown(key[:80])}” has the shape {list(shape)}",
            f"“{shown(key[:80])}”的形状为 {list(shape)}",
        )
    return RawTensor(key, entry.dtype, shape, -(-math.prod(shape) * bits // 8))


def shard_names(index: bytes, name: str) -> list[str]:
    """The files that an index (`model.safetensors.index.json`) spreads the tensors over.

    Only the names are picked out of the text: as objects a large index would take 50 MB.
    """
    found = {match[1] for match in _SHARD.finditer(index)}
    names = sorted(found)[: SHARDS_MAX + 1]
    try:
        shards = [shard.decode() for shard in names]
    except UnicodeDecodeError as error:
        raise damaged(name, "it is not UTF-8", "不是 UTF-8 编码") from error
    if not shards or len(shards) > SHARDS_MAX or b'"weight_map"' not in index:
        raise damaged(name, "it is no index of safetensors files", "不是 safetensors 索引文件")
    return shards


def missing_shards(label: str, shards: list[str], present: list[str]) -> AppError:
    """The error for a checkpoint of which files are missing."""
    left = [shard for shard in shards if shard not in present]
    listed = shown(", ".join(left[:3]) + (" …" if len(left) > 3 else ""))
    return AppError(
        Text(
            f"{len(left)} of the {len(shards)} files of the model are missing: {listed}.",
            f"模型共 {len(shards)} 个文件，缺少 {len(left)} 个：{listed}。",
        ),
        Text(f"Put them into {shown(label)}.", f"请将它们放入 {shown(label)}。"),
    )
