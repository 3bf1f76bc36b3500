"""How many documents there are and how long, seen as they pass by; a sample of them. Pure."""

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from workhorse.batch.capacity import Range
from workhorse.batch.item import NewItem

SAMPLED = 64
# The beginning of a long document says as much of its characters' tokens as the whole.
SAMPLE_CHARS = 20_000
SEED = 2026


class Census:
    """Counts documents; keeps their lengths (8 bytes each) and `SAMPLED` of them by chance."""

    def __init__(self) -> None:
        self.chars: array[int] = array("q")  # one a document, in input order; 0: unreadable
        self.unreadable = 0
        self.kinds: set[str] = set()
        self._sample: list[str] = []
        self._draw = random.Random(SEED)  # noqa: S311 a sample that can be drawn again, no secret

    def passing(self, items: Iterator[NewItem]) -> Iterator[NewItem]:
        """The same items, counted as they are taken."""
        for item in items:
            self.saw(item.kind, item.content)
            yield item

    def saw(self, kind: str, content: str | None) -> None:
        """One more document."""
        self.chars.append(len(content or ""))
        if content is None:
            self.unreadable += 1
            return
        self.kinds.add(kind)
        place = self._draw.randrange(self.readable)
        if len(self._sample) < SAMPLED:
            self._sample.append(content[:SAMPLE_CHARS])
        elif place < SAMPLED:  # each document is in the sample with the same chance
            self._sample[place] = content[:SAMPLE_CHARS]

    @property
    def readable(self) -> int:
        """Documents with a text."""
        return len(self.chars) - self.unreadable

    @property
    def sample(self) -> Sequence[str]:
        """The beginnings of some of them; of all when they are few."""
        return tuple(self._sample)


@dataclass(frozen=True, slots=True)
class TokensAChar:
    """What a character of these documents costs in tokens; `counted` documents told it."""

    share: Range
    counted: int


def tokens_a_char(sample: Sequence[str], tokens: Sequence[int], documents: int) -> TokensAChar:
    """The ratio of the sample, ± two standard errors; the whole has none when all are in it."""
    chars = [len(text) for text in sample]
    total = sum(chars)
    if not total:
        return TokensAChar(Range(0.0, 0.0, 0.0), len(sample))
    ratio = sum(tokens) / total
    count = len(sample)
    off = 0.0
    if count > 1:
        left = [n - ratio * length for n, length in zip(tokens, chars, strict=True)]
        spread = sqrt(sum(one * one for one in left) / (count - 1))
        unseen = max(0.0, 1 - count / max(count, documents))
        off = 2 * spread / (total / count) / sqrt(count) * sqrt(unseen)
    elif documents > 1:
        off = ratio / 2
    return TokensAChar(Range(max(0.0, ratio - off), ratio, ratio + off), count)
