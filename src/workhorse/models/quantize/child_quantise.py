"""Writes a quantised GGUF file with llama.cpp's own code for it; in the child process.

The header is made by the engine's gguf functions in the way of `llama_model_quantize_impl`
(src/llama-quant.cpp of llama.cpp, commit 0c1e57098, 2026-10-01), the blocks by its
`ggml_quantize_chunk`; which type each tensor gets was decided before (`plan/quant_mix.py`).
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from workhorse.knowledge.quants import quant
from workhorse.models.gguf import read_header_of
from workhorse.models.quantize.choice import WEIGHTED_ONLY
from workhorse.models.quantize.imatrix_file import Imatrix, read_imatrix
from workhorse.models.quantize.jobs import QuantiseDone, QuantiseJob
from workhorse.models.quantize.library import GgufInit
from workhorse.records import Tensor

QUANTISATION_VERSION = 2  # GGML_QNT_VERSION, ggml/include/ggml.h
SLAB_VALUES = 2**20  # 4 MB as F32 a thread, and its blocks
_SPLIT_KEYS = (b"split.no", b"split.count", b"split.tensors.count")


@dataclass(frozen=True, slots=True)
class _Slab:
    """Some rows of one expert of one tensor."""

    source: NDArray[np.uint8]
    source_type: str
    type: str
    target_bytes: int
    rows: int
    columns: int
    weights: NDArray[np.float32] | None


def quantise(
    library: ctypes.CDLL, job: QuantiseJob, progress: Callable[[int, int], None]
) -> QuantiseDone:
    """Write the target; `progress(done, total)` in bytes of the sources."""
    tensors = {
        t.name: (t, path) for path in job.sources for t in read_header_of(Path(path)).tensors
    }
    imatrix = read_imatrix(Path(job.imatrix)) if job.imatrix else None
    meta, places = _header(library, job, imatrix)
    total = sum(tensor.n_bytes for tensor, _ in tensors.values())
    weighted, bare = 0, []
    with ExitStack() as stack:
        maps = {path: np.memmap(path, np.uint8, "r") for path in job.sources}
        target = os.open(job.target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, target)
        n_bytes = len(meta) + sum(_padded(size) for _, size in places.values())
        os.posix_fallocate(target, 0, n_bytes)
        os.pwrite(target, meta, 0)
        writer = _Writer(library, target, job.threads, progress, total)
        for written in job.tensors:
            tensor, path = tensors[written.name]
            weights = None
            if written.type != tensor.type and quant(written.type).block_elements > 1:
                weights = _weights(imatrix, tensor)
                weighted += weights is not None
                if weights is None and imatrix is not None:
                    bare.append(tensor.name)
                if weights is None and written.type in WEIGHTED_ONLY:
                    raise RuntimeError(
                        f"the importance matrix has nothing of {tensor.name}, which cannot become "
                        f"{written.type} without"
                    )
            at = len(meta) + places[tensor.name][0]
            writer.write(tensor, maps[path], written.type, at, weights)
        os.fsync(target)
    return QuantiseDone(n_bytes, weighted, tuple(bare))


def _header(
    library: ctypes.CDLL, job: QuantiseJob, imatrix: Imatrix | None
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The new header, and where each tensor goes behind it: (offset, bytes)."""
    made = library.gguf_init_empty()
    parts = []
    for path in job.sources:
        context = ctypes.c_void_p()
        gguf = library.gguf_init_from_file(path.encode(), GgufInit(True, ctypes.pointer(context)))
        if not gguf:
            raise RuntimeError(f"the engine cannot read the header of {path}")
        parts.append((gguf, context.value))
    library.gguf_set_kv(made, parts[0][0])
    library.gguf_set_val_u32(made, b"general.quantization_version", QUANTISATION_VERSION)
    library.gguf_set_val_u32(made, b"general.file_type", job.file_type)
    for key in _SPLIT_KEYS:
        library.gguf_remove_key(made, key)
    if imatrix is not None and job.imatrix is not None:
        file = Path(job.imatrix).name.encode()
        library.gguf_set_val_str(made, b"quantize.imatrix.file", file)
        if job.dataset is not None:
            library.gguf_set_val_str(made, b"quantize.imatrix.dataset", job.dataset.encode())
        library.gguf_set_val_u32(made, b"quantize.imatrix.entries_count", len(imatrix.of))
        library.gguf_set_val_u32(made, b"quantize.imatrix.chunks_count", imatrix.chunks)
    for written in job.tensors:
        name = written.name.encode()
        found = [t for _, held in parts if (t := library.ggml_get_tensor(held, name))]
        library.gguf_add_tensor(made, found[0])
        library.gguf_set_tensor_type(made, name, quant(written.type).id)
    raw = ctypes.create_string_buffer(library.gguf_get_meta_size(made))
    library.gguf_get_meta_data(made, raw)
    places = {}
    for written in job.tensors:
        number = library.gguf_find_tensor(made, written.name.encode())
        offset = library.gguf_get_tensor_offset(made, number)
        places[written.name] = (offset, library.gguf_get_tensor_size(made, number))
    for gguf, held in parts:
        library.gguf_free(gguf)
        library.ggml_free(held)
    library.gguf_free(made)
    return raw.raw, places


def _weights(imatrix: Imatrix | None, tensor: Tensor) -> NDArray[np.float32] | None:
    """One row an expert; None when the matrix does not name the tensor."""
    found = imatrix.of.get(tensor.name) if imatrix else None
    if found is None:
        return None
    weights = found.weights()
    experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
    if weights.shape != (experts, tensor.shape[0]):
        raise RuntimeError(f"the importance matrix is of another model: {tensor.name} differs")
    return weights


class _Writer:
    """Quantises slab after slab on several threads; the work runs outside Python's lock."""

    def __init__(
        self,
        library: ctypes.CDLL,
        target: int,
        threads: int,
        progress: Callable[[int, int], None],
        total: int,
    ) -> None:
        self._library, self._target = library, target
        self._threads, self._progress, self._total = threads, progress, total
        self._done, self._turn = 0, Lock()

    def write(
        self,
        tensor: Tensor,
        source: NDArray[np.uint8],
        type_name: str,
        at: int,
        weights: NDArray[np.float32] | None,
    ) -> None:
        """Write one tensor at byte `at`; RuntimeError when its values cannot be quantised."""
        data = source[tensor.offset_bytes : tensor.offset_bytes + tensor.n_bytes]
        columns = tensor.shape[0]
        rows = tensor.n_bytes // _row_bytes(tensor.type, columns)
        experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
        slabs = []
        for expert in range(experts):
            own = rows // experts
            step = max(1, SLAB_VALUES // columns)
            for first in range(expert * own, (expert + 1) * own, step):
                count = min(step, (expert + 1) * own - first)
                from_, size = _row_bytes(tensor.type, columns), _row_bytes(type_name, columns)
                part = data[first * from_ : (first + count) * from_]
                important = None if weights is None else weights[expert]
                slabs.append(
                    _Slab(
                        part, tensor.type, type_name, at + first * size, count, columns, important
                    )
                )
        with ThreadPoolExecutor(self._threads) as pool:
            for made in [pool.submit(self._one, slab, tensor.name) for slab in slabs]:
                made.result()

    def _one(self, slab: _Slab, name: str) -> None:
        made: NDArray[np.uint8]
        if slab.type == slab.source_type:
            made = slab.source
        else:
            values = as_f32(slab.source, slab.source_type)
            if not np.isfinite(values).all():
                raise RuntimeError(f"{name} holds values that are no finite numbers")
            made = np.empty(slab.rows * _row_bytes(slab.type, slab.columns), np.uint8)
            kind = quant(slab.type).id
            weights = None if slab.weights is None else slab.weights.ctypes.data
            self._library.ggml_quantize_chunk(
                kind, values.ctypes.data, made.ctypes.data, 0, slab.rows, slab.columns, weights
            )
            if not self._library.ggml_validate_row_data(kind, made.ctypes.data, made.size):
                raise RuntimeError(f"{name} cannot be quantised to {slab.type}")
        rest, at = made.data, slab.target_bytes
        while rest:
            count = os.pwrite(self._target, rest, at)
            rest, at = rest[count:], at + count
        with self._turn:
            self._done += slab.source.size
            self._progress(self._done, self._total)


def as_f32(raw: NDArray[np.uint8], type_name: str) -> NDArray[np.float32]:
    """The numbers of an F32, F16 or BF16 tensor; RuntimeError for blocks."""
    if type_name == "f32":
        return np.ascontiguousarray(raw.view(np.float32))
    if type_name == "f16":
        return raw.view(np.float16).astype(np.float32)
    if type_name == "bf16":
        wide = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    raise RuntimeError(f"weights of type {type_name} are quantised already")


def _row_bytes(type_name: str, columns: int) -> int:
    kind = quant(type_name)
    return columns // kind.block_elements * kind.block_bytes


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // 32) * 32
