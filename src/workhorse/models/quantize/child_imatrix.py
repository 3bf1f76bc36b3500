"""Computes an importance matrix; in the child process."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workhorse.models.quantize.imatrix_file import Imatrix, read_imatrix, write_imatrix
from workhorse.models.quantize.jobs import ImatrixDone, ImatrixJob, Line
from workhorse.models.quantize.library import LoadedModel
from workhorse.models.quantize.watch import Watch


def importance(library: ctypes.CDLL, job: ImatrixJob, progress: Callable[[int, int], None]) -> Line:
    """Sum up chunk after chunk, storing what there is now and then; goes on from a stored one."""
    target = Path(job.target)
    watch, begun = Watch(library), 0
    if target.exists():
        earlier = read_imatrix(target)
        watch.take(earlier.of)
        begun = earlier.chunks
    model = LoadedModel(library, job.model, job.chunk_tokens, job.threads, watch.callback)
    tokens = model.tokens(Path(job.text).read_text("utf-8", errors="replace"))
    chunks = len(tokens) // job.chunk_tokens
    if not chunks:
        return Line(failed="the text is too short", too_short_tokens=len(tokens))
    chunks = min(chunks, job.chunks_max or chunks)
    progress(min(begun, chunks), chunks)
    for number in range(begun, chunks):
        model.forget()
        # Of every token: else the last layer would see the last one alone.
        model.decode(chunk_of(tokens, number, job.chunk_tokens, model.first_token()), 0)
        if (number + 1) % job.save_chunks == 0 or number + 1 == chunks:
            made = Imatrix(number + 1, job.chunk_tokens, Path(job.text).name, watch.result())
            write_imatrix(target, made)
        progress(number + 1, chunks)
    return Line(imatrix=ImatrixDone(chunks, begun, chunks * job.chunk_tokens))


def chunk_of(
    tokens: NDArray[np.int32], number: int, size: int, first: int | None
) -> NDArray[np.int32]:
    """One chunk of a text, its first token replaced by the one that texts begin with."""
    chunk = tokens[number * size : (number + 1) * size].copy()
    if first is not None:
        chunk[0] = first
    return chunk
