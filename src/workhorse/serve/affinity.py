"""Which engine has which beginnings of prompts in its cache, as far as one can know. Pure.

A prompt's beginning is told by one digest for each further KiB of it. An engine that has seen a
prompt is taken to have its beginning still, until so many others came that it was forgotten here:
a wrong guess costs one prefill, which a request without any guess would have cost too.
"""

import zlib

BLOCK_BYTES = 1024
MOST_BLOCKS = 64  # what prompts differ in after 64 KiB decides nothing any more
MOST_REMEMBERED = 8192  # beginnings of all engines together: about 1 MB


def digests_of(prompt: bytes) -> tuple[int, ...]:
    """One digest for each whole KiB that the prompt goes on, of all of it up to there."""
    found: list[int] = []
    digest = 0
    for start in range(
        0, min(len(prompt), MOST_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES
    ):
        digest = zlib.crc32(prompt[start : start + BLOCK_BYTES], digest)
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
        for blocks in range(len(digests), 0, -1):
            if (engine, digests[blocks - 1]) in self._seen:
                return blocks * BLOCK_BYTES
        return 0

    def forget(self, engine: int) -> None:
        """The engine is gone or was started anew, and its cache with it."""
        for seen in [seen for seen in self._seen if seen[0] == engine]:
            del self._seen[seen]
