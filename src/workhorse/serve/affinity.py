"""Which engine has which beginnings of prompts in its cache, as far as one can know. Pure.

A prompt is told by digests of longer and longer beginnings. An engine that has seen a beginning is
taken to have it still, until so many others came that it was forgotten here: a wrong guess costs
one prefill, which a request without any guess would have cost too.
"""

import zlib

# Where the beginnings end. What prompts differ in after that decides nothing any more.
ENDS_KIB = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ENDS_BYTES = tuple(1024 * end for end in ENDS_KIB)
MOST_REMEMBERED = 8192  # beginnings of all engines together: about 1 MB

_SPANS = tuple(zip((0, *ENDS_BYTES), ENDS_BYTES, strict=False))


def digests_of(prompt: bytes) -> tuple[int, ...]:
    """A digest of each beginning that the prompt is long enough for."""
    found: list[int] = []
    digest, size_bytes = 0, len(prompt)
    for start, end in _SPANS:
        if end > size_bytes:
            break
        digest = zlib.crc32(prompt[start:end], digest)
        found.append(digest)
    return tuple(found)


class Affinity:
    """Remembers which engine was last given which beginning."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], None] = {}  # the oldest first

    def remember(self, engine: int, digests: tuple[int, ...]) -> None:
        """The engine has been given a prompt that begins so."""
        for digest in digests:
            self._seen.pop((engine, digest), None)
            self._seen[engine, digest] = None
        while len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def known_bytes(self, engine: int, digests: tuple[int, ...]) -> int:
        """How much of the prompt the engine should have: the longest beginning it was given."""
        for index in range(len(digests) - 1, -1, -1):
            if (engine, digests[index]) in self._seen:
                return ENDS_BYTES[index]
        return 0

    def forget(self, engine: int) -> None:
        """The engine is gone or was started anew, and its cache with it."""
        for seen in [seen for seen in self._seen if seen[0] == engine]:
            del self._seen[seen]
