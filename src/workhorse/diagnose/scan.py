"""Reads a log of any size once and keeps the few lines that some expression matches."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ahocorasick_rs import BytesAhoCorasick

from workhorse.diagnose.anchors import anchors

# A line longer than this is looked at around the place that was found.
LINE_BYTES_MAX = 4096
SAMPLES_MAX = 3
# Lines that differ in digits alone are looked at once; so many different ones are remembered.
_SHAPES_MAX = 200_000
# Figures of a series (tokens a second) that are kept.
SERIES_MAX = 5_000
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAIL_BYTES_MAX = 1024**2


@dataclass(slots=True)
class Line:
    """One line of the log; `number` counts from 1."""

    number: int
    text: str


@dataclass(slots=True)
class Seen:
    """What one expression found: the first lines, how many kinds of them, and its groups."""

    samples: list[Line] = field(default_factory=list)
    kinds: int = 0
    groups: list[tuple[str, ...]] = field(default_factory=list)


class Scanner:
    """Searches chunks of a log for many expressions at once.

    `series` are those whose every match counts, for the figures in their groups; of the others
    lines that differ in digits alone count once. Raises ValueError for an expression without a
    literal of four characters: it would have to see every line.
    """

    def __init__(self, expressions: Sequence[str], series: Sequence[str] = ()) -> None:
        self._compiled = {e: re.compile(e, re.IGNORECASE) for e in (*expressions, *series)}
        self._series = frozenset(series)
        self._of_anchor: dict[str, list[str]] = {}
        for expression in self._compiled:
            found = anchors(expression)
            if not found:
                raise ValueError(f"no literal in every match of {expression!r}")
            for anchor in found:
                self._of_anchor.setdefault(anchor, []).append(expression)
        self._anchors = list(self._of_anchor)
        self._automaton = BytesAhoCorasick([anchor.encode() for anchor in self._anchors])
        self._shapes: set[tuple[str, bytes]] = set()
        self.seen: dict[str, Seen] = {}
        self.lines = 0

    def read(self, chunks: Iterable[bytes]) -> None:
        """Take the whole log, in chunks of any size."""
        for block in _whole_lines(chunks):
            self._block(block)

    def _block(self, block: bytes) -> None:
        lower = block.lower()
        looked_at: set[tuple[int, str]] = set()
        for index, start, _ in self._automaton.find_matches_as_indexes(lower, overlapping=True):
            begin = _line_start(block, start)
            for expression in self._of_anchor[self._anchors[index]]:
                if (begin, expression) not in looked_at:
                    looked_at.add((begin, expression))
                    self._look(expression, block, begin, start)
        self.lines += block.count(b"\n")

    def _look(self, expression: str, block: bytes, begin: int, start: int) -> None:
        seen = self.seen.get(expression)
        if expression in self._series and seen and len(seen.groups) >= SERIES_MAX:
            return
        end = block.find(b"\n", start)
        raw = block[begin : end if end >= 0 else len(block)][:LINE_BYTES_MAX]
        if expression not in self._series:
            shape = (expression, raw.translate(None, b"0123456789"))
            if shape in self._shapes or len(self._shapes) >= _SHAPES_MAX:
                return
            self._shapes.add(shape)
        text = _COLOURS.sub("", raw.decode("utf-8", errors="replace")).strip()
        match = self._compiled[expression].search(text)
        if match is None:
            return
        if seen is None:
            seen = self.seen[expression] = Seen()
        seen.kinds += 1
        if len(seen.groups) < SERIES_MAX:
            seen.groups.append(tuple(group or "" for group in match.groups()))
        if len(seen.samples) < SAMPLES_MAX:
            seen.samples.append(Line(self.lines + block.count(b"\n", 0, begin) + 1, text))


def _line_start(block: bytes, place: int) -> int:
    """Where the line of `place` begins; of an endless line a piece with `place` in it."""
    from_here = max(0, place - LINE_BYTES_MAX // 2)
    found = block.rfind(b"\n", from_here, place)
    if found >= 0 or from_here == 0:
        return found + 1
    return from_here - from_here % (LINE_BYTES_MAX // 4)


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes cut at line ends, so that no line is split between two blocks."""
    tail = b""
    for chunk in chunks:
        # Windows and progress bars end lines with a carriage return.
        chunk = tail + chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        cut = chunk.rfind(b"\n") + 1
        if cut == 0 and len(chunk) < _TAIL_BYTES_MAX:
            tail = chunk
            continue
        cut = cut or len(chunk)
        yield chunk[:cut]
        tail = chunk[cut:]
    if tail:
        yield tail
