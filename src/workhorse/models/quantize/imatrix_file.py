"""Importance matrices as llama.cpp's llama-imatrix writes and reads them: GGUF, F32 tensors.

For each weight matrix the sum of the squares of its inputs (`NAME.in_sum2`, one row an expert) and
how many inputs there were (`NAME.counts`). Source: tools/imatrix/imatrix.cpp and
tools/quantize/quantize.cpp of llama.cpp, commit 0c1e57098, 2026-10-01.
"""

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workhorse.errors import AppError
from workhorse.models.header import read_header
from workhorse.models.refusals import damaged, shown
from workhorse.text import Text

SUMS, COUNTS = ".in_sum2", ".counts"
CHUNKS, CHUNK_TOKENS, DATASETS = (
    "imatrix.chunk_count",
    "imatrix.chunk_size",
    "imatrix.datasets",
)
_U32, _STRING, _ARRAY, _F32 = 4, 8, 9, 0
_ALIGNMENT_BYTES = 32
VALUES_MAX = 2**31  # 8 GB: far more than the largest known (Kimi K2, 384 experts: 0.6 GB)


@dataclass(slots=True)
class Importance:
    """What was seen of one weight matrix: `sums` of shape (experts, columns), `counts` of each."""

    sums: NDArray[np.float32]
    counts: NDArray[np.float32]

    def weights(self) -> NDArray[np.float32]:
        """The mean square of each input; 1 for experts that no text came to."""
        counts = self.counts[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(counts > 0, self.sums / counts, 1.0)
        return np.ascontiguousarray(means, np.float32)


@dataclass(slots=True)
class Imatrix:
    """An importance matrix: by the names of the weights, and what it was made from."""

    chunks: int
    chunk_tokens: int
    dataset: str | None  # None: not read
    of: dict[str, Importance] = field(default_factory=dict)


def write_imatrix(path: Path, imatrix: Imatrix) -> None:
    """Write the file at once: a reader finds the old one or the new one, whole."""
    tensors: list[tuple[str, NDArray[np.float32]]] = []
    for name in sorted(imatrix.of):
        found = imatrix.of[name]
        tensors.append((name + SUMS, found.sums))
        tensors.append((name + COUNTS, found.counts[:, None]))
    values = [
        ("general.type", _string_value("imatrix")),
        (DATASETS, struct.pack("<IIQ", _ARRAY, _STRING, 1) + _text(imatrix.dataset or "")),
        (CHUNKS, struct.pack("<II", _U32, imatrix.chunks)),
        (CHUNK_TOKENS, struct.pack("<II", _U32, imatrix.chunk_tokens)),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(_text(key) + value for key, value in values)
    at = 0
    for name, data in tensors:
        rows, columns = data.shape
        head += _text(name) + struct.pack("<IQQIQ", 2, columns, rows, _F32, at)
        at += _padded(data.size * 4)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for _, data in tensors:
            raw = np.ascontiguousarray(data, np.float32).tobytes()
            file.write(raw.ljust(_padded(len(raw)), b"\0"))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_imatrix(path: Path) -> Imatrix:
    """The importance matrix in a file; AppError for anything else, and for damaged ones."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if os.pread(file.fileno(), 4, 0) != b"GGUF":
                raise _none(path)
            header = read_header(
                lambda offset, n_bytes: os.pread(file.fileno(), n_bytes, offset),
                size,
                name=str(path),
            )
            chunks, tokens = header.values.get(CHUNKS), header.values.get(CHUNK_TOKENS)
            if not isinstance(chunks, int) or not isinstance(tokens, int):
                raise _none(path)
            arrays = {}
            for tensor in header.tensors:
                if tensor.type != "f32" or tensor.n_bytes > 4 * VALUES_MAX:
                    raise damaged(str(path), "it holds other numbers", "含有其他类型的数值")
                raw = os.pread(file.fileno(), tensor.n_bytes, tensor.offset_bytes)
                values = np.frombuffer(raw, np.float32)
                arrays[tensor.name] = values.reshape(-1, tensor.shape[0])
    except OSError as error:
        raise AppError(
            Text(
                f"{shown(str(path))} cannot be read: {error.strerror or error}.",
                f"无法读取 {shown(str(path))}：{error.strerror or error}。",
            ),
            Text("Check the path.", "请检查路径。"),
        ) from error
    return Imatrix(chunks, tokens, None, _pairs(path, arrays))


def _pairs(path: Path, arrays: dict[str, NDArray[np.float32]]) -> dict[str, Importance]:
    found = {}
    for name, sums in arrays.items():
        if not name.endswith(SUMS):
            continue
        counts = arrays.get(name.removesuffix(SUMS) + COUNTS)
        if counts is None or counts.size != len(sums) or not np.isfinite(sums).all():
            raise damaged(str(path), f"{name} is not whole", f"{name} 不完整")
        if (sums < 0).any() or not np.isfinite(counts).all():
            raise damaged(str(path), f"{name} has impossible values", f"{name} 的数值不可能")
        found[name.removesuffix(SUMS)] = Importance(sums, counts.reshape(-1))
    if not found:
        raise _none(path)
    return found


def _none(path: Path) -> AppError:
    return AppError(
        Text(
            f"{shown(str(path))} is no importance matrix in GGUF form.",
            f"{shown(str(path))} 不是 GGUF 格式的重要性矩阵。",
        ),
        Text(
            "Leave --imatrix out to have one made, or make it with "
            "`llama-imatrix --output-format gguf`.",
            "请去掉 --imatrix 以自动生成，或用 `llama-imatrix --output-format gguf` 生成。",
        ),
    )


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _string_value(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _text(text)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
