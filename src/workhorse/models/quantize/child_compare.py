"""Compares models with their parent, token by token; in the child process."""

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from workhorse.models.quantize.child_imatrix import chunk_of
from workhorse.models.quantize.jobs import CompareDone, CompareJob, Line
from workhorse.models.quantize.library import LoadedModel
from workhorse.models.quantize.likeness import Sums

Tokens = NDArray[np.int32]


def compare(library: ctypes.CDLL, job: CompareJob, progress: Callable[[int, int], None]) -> Line:
    """Every chunk through the parent and each candidate in turn; greedy texts at the end."""
    size = job.chunk_tokens
    parent = LoadedModel(library, job.parent, size, job.threads)
    candidates = [LoadedModel(library, path, size, job.threads) for path in job.candidates]
    if any(candidate.vocabulary != parent.vocabulary for candidate in candidates):
        return Line(failed="the models have vocabularies of different sizes")
    texts = [parent.tokens(text) for text in job.texts]
    chunks = list(_chunks(texts, job, parent.first_token()))[: job.chunks_max]
    if not chunks:
        return Line(
            failed="the text is too short", too_short_tokens=sum(len(text) for text in texts)
        )
    sums = [Sums() for _ in candidates]
    total = len(chunks) * (1 + len(candidates))
    done = 0
    for chunk in chunks:
        judged_from = min(job.judged_from, len(chunk) // 2)
        came = chunk[judged_from + 1 :]
        parent.forget()
        ours = parent.decode(chunk, judged_from)[:-1]
        if not np.isfinite(ours).all():
            return Line(no_numbers=job.parent)
        done += 1
        progress(done, total)
        for path, candidate, sum_ in zip(job.candidates, candidates, sums, strict=True):
            candidate.forget()
            theirs = candidate.decode(chunk, judged_from)[:-1]
            if not np.isfinite(theirs).all():
                return Line(no_numbers=path)
            sum_.add(ours, theirs, came)
            done += 1
            progress(done, total)
    same = _greedy(parent, candidates, texts[0], job)
    return Line(
        compared=CompareDone(tuple(sum_.result() for sum_ in sums), tuple(same), job.greedy_tokens)
    )


def _chunks(texts: list[Tokens], job: CompareJob, first: int | None) -> Iterator[Tokens]:
    """Whole chunks of long texts; a short text is one by itself."""
    for text in texts:
        if 2 <= len(text) < job.chunk_tokens and len(texts) > 1:
            yield text
        for number in range(len(text) // job.chunk_tokens):
            yield chunk_of(text, number, job.chunk_tokens, first)


def _greedy(
    parent: LoadedModel, candidates: list[LoadedModel], text: Tokens, job: CompareJob
) -> list[int]:
    """How many of the first tokens that each candidate writes are the parent's."""
    if not job.greedy_tokens:
        return [0 for _ in candidates]
    prompt = text[: max(1, job.chunk_tokens - job.greedy_tokens)]
    ours = _written(parent, prompt, job.greedy_tokens)
    counts = []
    for candidate in candidates:
        theirs = _written(candidate, prompt, job.greedy_tokens)
        differ = [place for place, pair in enumerate(zip(ours, theirs, strict=True))
                  if pair[0] != pair[1]]  # fmt: skip
        counts.append(differ[0] if differ else len(ours))
    return counts


def _written(model: LoadedModel, prompt: Tokens, count: int) -> list[int]:
    """The most likely tokens after the prompt, one after the other."""
    model.forget()
    found: list[int] = []
    tokens, position = prompt, 0
    while len(found) < count:
        logits = model.decode(tokens, len(tokens) - 1, position)
        position += len(tokens)
        found.append(int(logits[-1].argmax()))
        tokens = np.array(found[-1:], np.int32)
    return found
