"""Sums up what goes into each weight matrix while a text is computed: the importance matrix."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workhorse.models.quantize.imatrix_file import Importance
from workhorse.models.quantize.library import EvalCallback, GgmlTensor

F32, I32 = 0, 26  # GGML_TYPE_F32, GGML_TYPE_I32
# Fewer tokens at once are a single answer and no text (`collect_imatrix` of imatrix.cpp).
TOKENS_LEAST = 16


@dataclass(slots=True)
class _Sum:
    sums: NDArray[np.float64]
    counts: NDArray[np.float64]


@dataclass(slots=True)
class Watch:
    """What `callback` has seen so far. The rules are those of llama.cpp's llama-imatrix."""

    library: ctypes.CDLL
    seen: dict[str, _Sum] = field(default_factory=dict)
    error: BaseException | None = None
    callback: Any = None
    _matrix: int = -1
    _by_expert: int = -1

    def __post_init__(self) -> None:
        """Learn the numbers of the two operations that multiply by a weight matrix."""
        names = {self.library.ggml_op_name(number): number for number in range(64)}
        self._matrix, self._by_expert = names[b"MUL_MAT"], names[b"MUL_MAT_ID"]
        self.callback = EvalCallback(self._evaluate)

    def take(self, earlier: dict[str, Importance]) -> None:
        """Go on from what an earlier run has summed up."""
        for name, found in earlier.items():
            self.seen[name] = _Sum(found.sums.astype(np.float64), found.counts.astype(np.float64))

    def result(self) -> dict[str, Importance]:
        """The sums as a file holds them; raises what went wrong while they were made."""
        if self.error is not None:
            raise self.error
        return {
            name: Importance(found.sums.astype(np.float32), found.counts.astype(np.float32))
            for name, found in self.seen.items()
        }

    def _evaluate(self, pointer: Any, only_asked: bool, _: int | None) -> bool:
        try:
            return self._wanted(pointer[0]) if only_asked else self._add(pointer[0])
        except BaseException as error:  # noqa: BLE001 - ctypes would print it and go on
            self.error = error
            return False

    def _wanted(self, tensor: GgmlTensor) -> bool:
        if tensor.op == self._by_expert:
            return True
        if tensor.op != self._matrix:
            return False
        weights, inputs = _source(tensor, 0), _source(tensor, 1)
        text = inputs.type == F32 and inputs.ne[1] >= TOKENS_LEAST
        return text and _plain_name(weights).startswith("blk.")

    def _add(self, tensor: GgmlTensor) -> bool:
        weights, inputs = _source(tensor, 0), _source(tensor, 1)
        name = _plain_name(weights)
        values = _array(inputs, np.float32, 4)
        if tensor.op == self._by_expert:
            experts = _array(_source(tensor, 2), np.int32, 2)
            found = self._of(name, int(weights.ne[2]), int(inputs.ne[0]), per_row=True)
            add_by_expert(found.sums, found.counts, values[0], experts)
        else:
            matrices = int(weights.ne[2] * weights.ne[3])
            found = self._of(name, matrices, int(inputs.ne[0]), per_row=False)
            add_dense(found.sums, found.counts, values, int(weights.ne[2]), int(weights.ne[3]))
        if not np.isfinite(found.sums).all():
            raise RuntimeError(f"the inputs of {name} are not finite numbers")
        return True

    def _of(self, name: str, rows: int, columns: int, *, per_row: bool) -> _Sum:
        if name not in self.seen:
            counts = np.zeros(rows if per_row else 1)
            self.seen[name] = _Sum(np.zeros((rows, columns)), counts)
        found = self.seen[name]
        if found.sums.shape != (rows, columns):
            raise RuntimeError(f"{name} has another shape than before")
        return found


def add_dense(
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    values: NDArray[np.float32],
    rows2: int,
    rows3: int,
) -> None:
    """Add the squares of `values` (3, 2, tokens, columns) to the row of the matrix each goes to."""
    for third in range(values.shape[0]):
        for second in range(values.shape[1]):
            plane = values[third, second]
            row = (third % rows3) * rows2 + second % rows2
            sums[row] += np.einsum("ij,ij->j", plane, plane)
    counts += values.shape[0] * values.shape[1] * values.shape[2] / (rows2 * rows3)


def add_by_expert(
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    values: NDArray[np.float32],
    experts: NDArray[np.int32],
) -> None:
    """Add the squares of `values` (tokens, 1 or chosen, columns) to each token's chosen experts.

    `experts`: (tokens, chosen).
    """
    for place in range(experts.shape[1]):
        plane = values[:, place % values.shape[1]]
        for expert in np.unique(experts[:, place]):
            rows = plane[experts[:, place] == expert]
            sums[expert] += np.einsum("ij,ij->j", rows, rows)
            counts[expert] += len(rows)


def _source(tensor: GgmlTensor, number: int) -> GgmlTensor:
    return GgmlTensor.from_address(tensor.src[number])


def _plain_name(tensor: GgmlTensor) -> str:
    """`blk.0.attn_k.weight` of `CPU#blk.0.attn_k.weight#0`."""
    name: str = tensor.name.decode(errors="replace")
    return name.split("#")[1] if "#" in name else name


def _array(tensor: GgmlTensor, kind: Any, dimensions: int) -> NDArray[Any]:
    """The numbers of a tensor, slowest dimension first, where they lie."""
    shape = tuple(tensor.ne[i] for i in reversed(range(dimensions)))
    strides = tuple(tensor.nb[i] for i in reversed(range(dimensions)))
    extent = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 4
    raw = (ctypes.c_ubyte * extent).from_address(tensor.data)
    return np.ndarray(shape, kind, buffer=raw, strides=strides)
