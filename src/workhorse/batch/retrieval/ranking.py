"""Which texts a question is about: by their words (BM25), by their meaning (vectors), by both."""

from collections.abc import Sequence
from typing import Any

from workhorse.batch.retrieval.words import asked_words, words_of

# Reciprocal rank fusion: Cormack, Clarke, Büttcher, SIGIR 2009, found 60 best and hardly mattering.
FUSION_K = 60


class WordRanking:
    """The texts by the words that they share with a question.

    BM25 as Lucene has it, by `bm25s`: rare words count more, the tenth mention hardly more than
    the third, long texts no more than short ones.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s

        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(w, len(vocabulary)) for w in words_of(t)] for t in texts]
        self._index: Any = None
        if vocabulary:
            self._index = bm25s.BM25(method="lucene")
            self._index.index((ids, vocabulary), show_progress=False)
        self._vocabulary = vocabulary

    def best(self, question: str, most: int) -> list[int]:
        """The texts that share a word with the question, the best first; the first of equals."""
        known = [word for word in asked_words(question) if word in self._vocabulary]
        if not known:
            return []
        scores = self._index.get_scores(known)
        order = sorted(range(len(scores)), key=lambda at: -float(scores[at]))
        return [at for at in order[:most] if scores[at] > 0]


class MeaningRanking:
    """The texts by the angle between their vectors and a question's."""

    def __init__(self, vectors: Sequence[Sequence[float]]) -> None:
        """Raises ValueError where the vectors differ in length or are no numbers."""
        import numpy as np

        self._rows = _of_length_one(np.asarray(vectors, dtype=np.float32))

    def best(self, vector: Sequence[float], most: int) -> list[int]:
        """The texts nearest to the question, the nearest first; ValueError as above."""
        import numpy as np

        row = _of_length_one(np.asarray([vector], dtype=np.float32))[0]
        if len(row) != self._rows.shape[1]:
            raise ValueError(f"{len(row)} dimensions, not {self._rows.shape[1]}")
        return [int(at) for at in np.argsort(-(self._rows @ row), kind="stable")[:most]]


def _of_length_one(rows: Any) -> Any:
    import numpy as np

    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        raise ValueError("no vectors")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def fused(rankings: Sequence[Sequence[int]]) -> list[int]:
    """One order out of several: what several put high comes first; scores need not compare."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, at in enumerate(ranking, 1):
            scores[at] = scores.get(at, 0.0) + 1 / (FUSION_K + rank)
    return sorted(scores, key=lambda at: (-scores[at], at))
