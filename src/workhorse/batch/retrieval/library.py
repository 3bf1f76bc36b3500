"""The passages of a job, searched by words, and by meaning where the served model can."""

import asyncio
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from workhorse.batch.documents.refusal import missing
from workhorse.batch.item import Reason
from workhorse.batch.retrieval.passages import Passage
from workhorse.batch.retrieval.ranking import MeaningRanking, WordRanking, fused
from workhorse.batch.task import ItemFailed, Tools

LOOKED_AT = 50  # of each ranking, before they are joined
TEXTS_AT_ONCE = 64


class Shelf:
    """What a library is made of: passages, and the documents that could not be read."""

    def __init__(self, passages: Sequence[Passage], unread: Sequence[str] = ()) -> None:
        """Raises AppError where the search's packages are missing."""
        for module, package in (("bm25s", "bm25s"), ("snowballstemmer", "snowballstemmer")):
            if find_spec(module) is None:
                raise missing(package, "an index of words", "词语索引")
        self.passages = tuple(passages)
        self.unread = tuple(unread)
        self.by_words = WordRanking([one.searched for one in passages])


class Library:
    """Finds passages; reads them when it is first asked, once for all items of a job."""

    def __init__(self, read: Callable[[], Shelf]) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._shelf: Shelf | None = None
        self._embedded = False
        self._by_meaning: MeaningRanking | None = None

    async def shelf(self) -> Shelf:
        """What is searched; raises AppError where it cannot be read."""
        async with self._lock:
            if self._shelf is None:
                self._shelf = await asyncio.to_thread(self._read)
        return self._shelf

    async def find(self, question: str, tools: Tools, most: int) -> list[Passage]:
        """The passages that a question is about, the best first; none: it is about none."""
        shelf = await self.shelf()
        rankings = [await asyncio.to_thread(shelf.by_words.best, question, LOOKED_AT)]
        if by_meaning := await self._meaning(shelf, tools):
            try:
                for vector in await tools.embed([question]) or ():
                    rankings.append(by_meaning.best(vector, LOOKED_AT))
            except ValueError as error:
                raise _no_vectors(error) from error
        return [shelf.passages[at] for at in fused(rankings)[:most]]

    async def _meaning(self, shelf: Shelf, tools: Tools) -> MeaningRanking | None:
        """The vectors of all passages; None: the served model makes none."""
        async with self._lock:
            if not self._embedded:
                self._by_meaning = await self._embed(shelf, tools)
                self._embedded = True
        return self._by_meaning

    async def _embed(self, shelf: Shelf, tools: Tools) -> MeaningRanking | None:
        vectors: list[Sequence[float]] = []
        texts = [one.searched for one in shelf.passages]
        for begin in range(0, len(texts), TEXTS_AT_ONCE):
            some = await tools.embed(texts[begin : begin + TEXTS_AT_ONCE])
            if some is None:
                return None
            vectors += some
        try:
            if len(vectors) != len(texts):
                raise ValueError(f"{len(vectors)} of {len(texts)} came")
            return MeaningRanking(vectors)
        except ValueError as error:
            raise _no_vectors(error) from error


def _no_vectors(error: ValueError) -> ItemFailed:
    return ItemFailed(
        Reason(
            cause="not valid",
            seen=f"The service's embeddings cannot be compared: {error}.",
            seen_zh=f"服务返回的向量无法比较：{error}。",
        )
    )
