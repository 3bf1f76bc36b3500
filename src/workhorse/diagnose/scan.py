"""Reads a log of any size once and keeps the few lines that some expression matches."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ahocorasick_rs import BytesAhoCorasick, Implementation

from workhorse.diagnose.anchors import anchors

# A line longer than this is looked at around the place that was found.
LINE_BYTES_MAX = 4096
SAMPLES_MAX = 3
_SHOWN_CHARACTERS, _SHOWN_BEFORE = 320, 120
# Lines that differ in digits alone are looked at once; so many different ones are remembered.
_SHAPES_MAX = 100_000
_RUNS_MAX = 10_000
_REPEATS_MAX = 8  # of one expression in one run of the program
LATE = 1 << 62  # beyond every byte of a log
_DIGITS = b"0123456789"
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAIL_BYTES_MAX = 1024**2
# Source code and manuals hold the same sentences as logs; a trace back shows the code as well.
_CODE = re.compile(
    r"%(?:[sdurxi]|[lz]+[dux])\b|;\s*$|\{\s*$|\\n[\"'][;)\s]*$|\s//\s|:\s*#(?!error)"
    r"|^\s*(?://|/\*|\* |#include|#define|def |class |from |import )"
    r"|\b(?:throw|raise|except|catch|assert|elif)(?: [\w(\"']|\()"
    r"|\b(?:printf?|if|format|die|warn|fail|error)\(|^\s*(?:if|while|for) .*:$"
    r"|\b(?:if|for|while|switch) \("
    r"|\bf[\"'][^\"']*\{|LOG_\w+\(|</?(?:td|li|p|code|h\d|br)>"
    r"|^\s*(?:[-*>]|\|) .*`|^\s*[\"'][\w: ]+[\"'],?$"
    r"|^[0-9a-f]{7,40} (?:\w[\w .+/-]*: |Merge )"  # a list of commits
)
# What was asked or answered may hold any sentence, and engines write it into their logs.
_TALK = re.compile(
    r"""["']role\\?["'] ?: ?\\?["'](?:user|system|assistant|tool)\b|\bprompt[=:] ?["']""",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Line:
    """One line of the log; `number` counts from 1, `place` is where in it the words stand."""

    number: int
    text: str
    place: int = 0

    def shown(self) -> str:
        """Number and text; of a long line what stands around the words."""
        begin = max(0, min(self.place - _SHOWN_BEFORE, len(self.text) - _SHOWN_CHARACTERS))
        end = begin + _SHOWN_CHARACTERS
        dots = "…" * (begin > 0), "…" * (end < len(self.text))
        return f"{self.number}: {dots[0]}{self.text[begin:end]}{dots[1]}"


@dataclass(slots=True)
class Seen:
    """What one expression found: the first different lines, and the groups of its matches.

    `runs` are those of the program in which it matched; 0 is before the first start. `last_byte`
    is where in the log it last matched, LATE when it came too often to be followed to the end.
    """

    samples: list[Line] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    runs: set[int] = field(default_factory=set)
    last_byte: int = 0


class Search:
    """Many expressions made ready to be looked for at once; may serve many logs.

    `series` are those whose every match counts, for the figures in their groups, and how many are
    kept; of the others lines that differ in digits alone count once. `starts` mark where a
    program begins anew. `talk` are those that are looked for in prompts and answers too.
    Raises ValueError for an expression without a literal of four bytes: it would have to see
    every line.
    """

    def __init__(
        self,
        expressions: Sequence[str],
        series: Mapping[str, int] = MappingProxyType({}),
        starts: Sequence[str] = (),
        talk: Sequence[str] = (),
    ) -> None:
        self.series, self.starts, self.talk = series, frozenset(starts), frozenset(talk)
        self._compiled: dict[str, re.Pattern[str]] = {}
        of_anchor: dict[bytes, list[str]] = {}
        for expression in dict.fromkeys((*expressions, *series, *starts)):
            found = anchors(expression)
            if not found:
                raise ValueError(f"no literal in every match of {expression!r}")
            for anchor in found:
                of_anchor.setdefault(anchor.encode(), []).append(expression)
        # A third faster than the default, for 20 MB (1,300 literals, Nov 2026).
        self.automaton = BytesAhoCorasick(list(of_anchor), implementation=Implementation.DFA)
        self.of_anchor = list(of_anchor.values())

    def compiled(self, expression: str) -> re.Pattern[str]:
        """The expression, compiled when a log first needs it: most logs need few."""
        if expression not in self._compiled:
            self._compiled[expression] = re.compile(expression, re.IGNORECASE)
        return self._compiled[expression]


class Scanner:
    """What one log shows of a search, in one pass and in bounded memory."""

    def __init__(self, search: Search) -> None:
        self._search = search
        # Of each kind of line that was looked at: whether it matched.
        self._shapes: dict[tuple[str, int], bool] = {}
        self._run = 0
        # Up to which run an expression was met so often that more would add nothing to it.
        self._settled: dict[str, int] = {}
        self._repeats: dict[str, int] = {}
        self.seen: dict[str, Seen] = {}
        self.lines = self._bytes = 0

    def read(self, chunks: Iterable[bytes]) -> None:
        """Take the whole log, in chunks of any size."""
        for block in _whole_lines(chunks):
            self._block(block)

    def _block(self, block: bytes) -> None:
        """Look at each line that holds an anchor."""
        of_anchor, settled, shapes = self._search.of_anchor, self._settled, self._shapes
        looked_at: set[str] = set()
        begin = end = shape = 0
        for index, start, _ in self._search.automaton.find_matches_as_indexes(
            block.lower(), overlapping=True
        ):
            for expression in of_anchor[index]:
                if settled.get(expression, -1) >= self._run:
                    continue
                if not begin <= start < end:
                    begin, end = _line_around(block, start)
                    shape = hash(block[begin:end].translate(None, _DIGITS))
                    looked_at.clear()
                if expression in looked_at or shapes.get((expression, shape)) is False:
                    continue
                looked_at.add(expression)
                self._look(expression, block, begin, end, shape)
        self.lines += block.count(b"\n")
        self._bytes += len(block)

    def _look(self, expression: str, block: bytes, begin: int, end: int, shape: int) -> None:
        wanted = self._search.series.get(expression, 0)
        key = (expression, shape)
        known = self._shapes.get(key)
        if known is None and len(self._shapes) >= _SHAPES_MAX:
            return
        if known and len(self.seen[expression].groups) >= wanted:
            if wanted:
                self._settled[expression] = _RUNS_MAX
            self._note_run(expression, begin)
            return
        text = _COLOURS.sub("", block[begin:end].decode("utf-8", errors="replace")).strip()
        match = self._search.compiled(expression).search(text)
        if match is not None and self._quotes(expression, text, match.end()):
            match = None
        self._shapes[key] = match is not None
        if match is None:
            return
        seen = self.seen.setdefault(expression, Seen())
        if len(seen.samples) < SAMPLES_MAX:
            number = self.lines + block.count(b"\n", 0, begin) + 1
            # An expression that looks at the whole line matches from its beginning on.
            place = max(match.start(), match.end() - _SHOWN_BEFORE)
            seen.samples.append(Line(number, text, place))
        if len(seen.groups) < wanted:
            seen.groups.append(tuple(group or "" for group in match.groups()))
        self._note_run(expression, begin)

    def _quotes(self, expression: str, text: str, end: int) -> bool:
        """Whether the words stand in source code, or in what somebody asked or was answered."""
        if _CODE.search(text):
            return True
        return expression not in self._search.talk and bool(_TALK.search(text, 0, end))

    def _note_run(self, expression: str, begin: int) -> None:
        """Note in which run of the program, and where, the expression matched."""
        self.seen[expression].last_byte = self._bytes + begin
        if expression in self._search.starts:
            self._run += self._run < _RUNS_MAX
            self._repeats.clear()
        elif expression not in self._search.series:
            repeats = self._repeats[expression] = self._repeats.get(expression, 0) + 1
            if repeats >= _REPEATS_MAX:
                self._settled[expression] = self._run
                self.seen[expression].last_byte = LATE
        self.seen[expression].runs.add(self._run)


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
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        chunk = tail + chunk
        cut = chunk.rfind(b"\n") + 1
        if cut == 0 and len(chunk) < _TAIL_BYTES_MAX:
            tail = chunk
            continue
        cut = cut or len(chunk)
        yield chunk[:cut]
        tail = chunk[cut:]
    if tail:
        yield tail
