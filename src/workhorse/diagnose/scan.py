"""Reads a log of any size once and keeps the few lines that some expression matches."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ahocorasick_rs import BytesAhoCorasick

from workhorse.diagnose.anchors import anchors

# A line longer than this is looked at around the place that was found.
LINE_BYTES_MAX = 4096
SAMPLES_MAX = 3
# Different values of a fact that are kept.
GROUPS_MAX = 64
# Lines that differ in digits alone are looked at once; so many different ones are remembered.
_SHAPES_MAX = 100_000
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
    """What one expression found: the first different lines, and the groups of its matches."""

    samples: list[Line] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)


class Search:
    """Many expressions made ready to be looked for at once; may serve many logs.

    `series` are those whose every match counts, for the figures in their groups; of the others
    lines that differ in digits alone count once. Raises ValueError for an expression without a
    literal of four bytes: it would have to see every line.
    """

    def __init__(self, expressions: Sequence[str], series: Sequence[str] = ()) -> None:
        self.series = frozenset(series)
        self._compiled: dict[str, re.Pattern[str]] = {}
        self.of_anchor: dict[bytes, list[str]] = {}
        for expression in dict.fromkeys((*expressions, *series)):
            found = anchors(expression)
            if not found:
                raise ValueError(f"no literal in every match of {expression!r}")
            for anchor in found:
                self.of_anchor.setdefault(anchor.encode(), []).append(expression)
        self.anchors = list(self.of_anchor)
        self.automaton = BytesAhoCorasick(self.anchors)

    def compiled(self, expression: str) -> re.Pattern[str]:
        """The expression, compiled when a log first needs it: most logs need few."""
        if expression not in self._compiled:
            self._compiled[expression] = re.compile(expression, re.IGNORECASE)
        return self._compiled[expression]


class Scanner:
    """What one log shows of a search, in one pass and in bounded memory."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._of_anchor = {anchor: list(known) for anchor, known in search.of_anchor.items()}
        self._anchors = search.anchors
        self._automaton = search.automaton
        self._shapes: set[int] = set()
        self._full: set[str] = set()
        self.seen: dict[str, Seen] = {}
        self.lines = 0

    def read(self, chunks: Iterable[bytes]) -> None:
        """Take the whole log, in chunks of any size."""
        for block in _whole_lines(chunks):
            self._block(block)
            if self._full:
                self._drop_full()

    def _block(self, block: bytes) -> None:
        """Look at each line that holds an anchor."""
        looked_at: set[tuple[int, str]] = set()
        found = self._automaton.find_matches_as_indexes(block.lower(), overlapping=True)
        begin = end = 0
        for index, start, _ in found:
            if not begin <= start < end:
                begin, end = _line_around(block, start)
            for expression in self._of_anchor[self._anchors[index]]:
                if expression not in self._full and (begin, expression) not in looked_at:
                    looked_at.add((begin, expression))
                    self._look(expression, block, begin, end)
        self.lines += block.count(b"\n")

    def _look(self, expression: str, block: bytes, begin: int, end: int) -> None:
        raw = block[begin:end]
        serial = expression in self._search.series
        if not serial:
            shape = hash((expression, raw.translate(None, b"0123456789")))
            if shape in self._shapes or len(self._shapes) >= _SHAPES_MAX:
                return
            self._shapes.add(shape)
        text = _COLOURS.sub("", raw.decode("utf-8", errors="replace")).strip()
        match = self._search.compiled(expression).search(text)
        if match is None:
            return
        seen = self.seen.setdefault(expression, Seen())
        if len(seen.samples) < SAMPLES_MAX:
            seen.samples.append(Line(self.lines + block.count(b"\n", 0, begin) + 1, text))
        if match.groups():
            seen.groups.append(tuple(group or "" for group in match.groups()))
        wanted = SERIES_MAX if serial else GROUPS_MAX if match.groups() else SAMPLES_MAX
        if max(len(seen.samples) if not match.groups() else 0, len(seen.groups)) >= wanted:
            self._full.add(expression)

    def _drop_full(self) -> None:
        """Search no longer for what has been seen often enough: common lines cost time."""
        for anchor, known in list(self._of_anchor.items()):
            left = [expression for expression in known if expression not in self._full]
            if left:
                self._of_anchor[anchor] = left
            else:
                del self._of_anchor[anchor]
        self._full.clear()
        self._anchors = list(self._of_anchor)
        self._automaton = BytesAhoCorasick(self._anchors)


def _line_around(block: bytes, place: int) -> tuple[int, int]:
    """Where the line of `place` begins and ends; of an endless line a piece with `place` in it."""
    from_here = max(0, place - LINE_BYTES_MAX // 2)
    begin = block.rfind(b"\n", from_here, place) + 1
    if begin == 0 and from_here:
        begin = from_here - from_here % (LINE_BYTES_MAX // 4)
    end = block.find(b"\n", place, begin + LINE_BYTES_MAX)
    return begin, end if end >= 0 else min(len(block), begin + LINE_BYTES_MAX)


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
