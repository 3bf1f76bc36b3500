"""Finds what a narrower type turned into infinity: the converter says nothing of it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workhorse.errors import EXIT_NO, AppError
from workhorse.models.fetch import Progress
from workhorse.models.refusals import shown
from workhorse.records import Tensor
from workhorse.text import Text

SLAB_BYTES = 8 * 1024**2 // 34 * 34  # whole blocks of every type here
NAMES_SHOWN = 4
# A number of FP16, or the scale of a block of Q8_0, is infinite or NaN when all these are set.
_EXPONENT = np.uint16(0x7C00)
_WORDS = {"f16": 1, "q8_0": 17}  # 16-bit words a value or a block; the first is looked at


def refuse_infinite(file: Path, tensors: Sequence[Tensor], kind: str, progress: Progress) -> None:
    """AppError that names the tensors with infinities or NaN in FP16; reads the file once.

    `progress(done, total)` in bytes.
    """
    found = infinite_in(file, tensors, progress)
    if not found:
        return
    names = ", ".join(shown(name) for name in list(found)[:NAMES_SHOWN])
    more = " …" if len(found) > NAMES_SHOWN else ""
    count = sum(found.values())
    raise AppError(
        Text(
            f"{count} values are too large for {kind.upper()} or no numbers, in {names}{more}.",
            f"{count} 个值超出 {kind.upper()} 的范围或不是数，位于 {names}{more}。",
        ),
        Text(
            "Make a BF16 file (--type bf16), which holds them, and quantise that.",
            "请生成能容纳这些值的 BF16 文件（--type bf16），再对其量化。",
        ),
        exit_code=EXIT_NO,
    )


def infinite_in(file: Path, tensors: Sequence[Tensor], progress: Progress) -> dict[str, int]:
    """How many values (of Q8_0: blocks) of which tensor are no finite numbers."""
    looked_at = [t for t in tensors if t.type in _WORDS and t.n_bytes]
    found, done, total = {}, 0, sum(tensor.n_bytes for tensor in looked_at)
    raw = np.memmap(file, np.uint8, "r")
    for tensor in looked_at:
        count, end = 0, tensor.offset_bytes + tensor.n_bytes
        for at in range(tensor.offset_bytes, end, SLAB_BYTES):
            part = raw[at : min(at + SLAB_BYTES, end)]
            heads = part.view(np.uint16)[:: _WORDS[tensor.type]]
            count += int(((heads & _EXPONENT) == _EXPONENT).sum())
            done += part.size
            progress(done, total)
        if count:
            found[tensor.name] = count
    return found
