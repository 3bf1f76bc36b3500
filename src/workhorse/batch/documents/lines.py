"""Paragraphs out of the lines of a printed page, by where the lines stand; pure.

A page of a PDF knows no paragraphs, only lines at places. Two lines belong together unless
something speaks against it: more room between them, another size, an indent, a list's mark, or a
line that ends although the next word would have fitted into it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

ROOM = 1.35  # of the usual distance from line to line: more than that is a gap
OTHER_SIZE = 0.15  # of the height
INDENT = 0.8  # of the height
NEIGHBOURS = 8  # lines on each side that tell how far lines reach here
SLACK_LETTERS = 2.0  # so many letters may a line lack although the next word did not fit
# Running heads and feet: the same first or last line, but for its number, on so many pages.
PAGES_LEAST = 4
REPEATED_SHARE = 0.6
SPLIT = "\xad"  # at a line's end: its last word goes on in the next line
_HYPHENS = (SPLIT, "-", "\u2010")
_WIDE = re.compile(r"[\u2e80-\u303f\u3041-\u9fff\uf900-\ufaff\uff01-\uff60]")
_MARK = re.compile(
    r"(?:[•·▪◦‣●○■□\uf0b7*–—-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]"
    r"|[（(]?[一二三四五六七八九十]{1,3}[、）).．]|第[一二三四五六七八九十百\d]{1,4}[章节条部分])\s*\S"
)
_SENTENCE_END = re.compile(r"[.!?:;。！？：；…][\"'”’」』）)]*$")
_WORD = re.compile(r"[^\W\d_]+(?:[-\u2010][^\W\d_]+)*")
_NUMBER = re.compile(r"\d+")


class Line(NamedTuple):
    """A line of print; lengths in points, upwards. A tab stands where a column of a table ends."""

    text: str
    left: float
    right: float
    bottom: float
    height: float  # of its letters


def pages_as_text(pages: Sequence[Sequence[Line]]) -> str:
    """The text of a document; each page with something on it begins with `[page 3]`."""
    kept = without_running_heads(pages)
    words = known_words(line.text for lines in kept for line in lines)
    written = []
    for number, lines in enumerate(kept, 1):
        if found := paragraphs(lines, words):
            written.append("\n\n".join([f"[page {number}]", *found]))
    return "\n\n".join(written)


def known_words(texts: Iterable[str]) -> frozenset[str]:
    """The words of a document that no line's end divides, small letters."""
    found: set[str] = set()
    for text in texts:
        words = _WORD.findall(text)
        found.update(word.lower() for word in (words[:-1] if text.endswith(_HYPHENS) else words))
    return frozenset(found)


def without_running_heads(pages: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """The pages without heads and feet that come again and again; the first of each stays."""
    left = [list(lines) for lines in pages]
    if len(pages) < PAGES_LEAST:
        return left
    for end in (0, -1):
        forms = [_NUMBER.sub("#", lines[end].text) if lines else None for lines in pages]
        times = Counter(form for form in forms if form is not None)
        seen: set[str] = set()
        for lines, form in zip(left, forms, strict=True):
            if form is None or times[form] < REPEATED_SHARE * len(pages):
                continue
            if form in seen and lines:
                del lines[end]
            seen.add(form)
    return left


def paragraphs(lines: Sequence[Line], words: frozenset[str] = frozenset()) -> list[str]:
    """The paragraphs of a page; the rows of a table are a paragraph, a line each."""
    pitch = _pitch(lines)
    found: list[str] = []
    for index, line in enumerate(lines):
        text = _cells(line.text)
        before = lines[index - 1] if index else None
        if before is None:
            found.append(text)
        elif "\t" in line.text and "\t" in before.text and not _gap(before, line, pitch):
            found[-1] += "\n" + text
        elif _belong(before, line, _reach(lines, index - 1), pitch):
            found[-1] = joined(found[-1], text, words)
        else:
            found.append(text)
    return [text.replace(SPLIT, "-") if text.endswith(SPLIT) else text for text in found]


def joined(above: str, below: str, words: frozenset[str]) -> str:
    """Two lines as one: a divided word whole again, no space between Chinese characters."""
    if above.endswith(_HYPHENS):
        head, tail = _last_word(above[:-1]), _first_word(below)
        if _is_divided(head, tail, above[-1], words):
            return above[:-1] + below
        return above[:-1] + "-" + below
    if above and below and _WIDE.match(above[-1]) and _WIDE.match(below[0]):
        return above + below
    return f"{above} {below}"


def _is_divided(head: str, tail: str, hyphen: str, words: frozenset[str]) -> bool:
    """Whether the hyphen is the line end's, and not the word's own (`well-known`)."""
    if not head or not tail:
        return hyphen == SPLIT
    whole, hyphened = (head + tail).lower(), f"{head}-{tail}".lower()
    if (whole in words) != (hyphened in words):
        return whole in words
    return tail[0].islower() and head[-1].islower()


def _last_word(text: str) -> str:
    found = _WORD.findall(text[-60:])
    return found[-1] if found and text.endswith(found[-1]) else ""


def _first_word(text: str) -> str:
    found = _WORD.match(text)
    return found[0] if found else ""


def _cells(text: str) -> str:
    return " | ".join(cell.strip() for cell in text.split("\t"))


def _pitch(lines: Sequence[Line]) -> float | None:
    """The usual distance from a line to the next; None: there are no two."""
    steps = [above.bottom - below.bottom for above, below in pairwise(lines)]
    near = [
        step
        for step, line in zip(steps, lines, strict=False)
        if 0.5 * line.height < step < 3 * line.height
    ]
    return median(near) if near else None


def _gap(above: Line, below: Line, pitch: float | None) -> bool:
    return pitch is None or above.bottom - below.bottom > ROOM * pitch


def _reach(lines: Sequence[Line], index: int) -> float:
    """How far to the right lines reach around this one, in its column."""
    here = lines[index]
    near = lines[max(0, index - NEIGHBOURS) : index + NEIGHBOURS + 1]
    return max(
        line.right
        for line in near
        if line.left < here.right and line.right > here.left and _same_size(line, here)
    )


def _same_size(one: Line, other: Line) -> bool:
    return abs(one.height - other.height) <= OTHER_SIZE * max(one.height, other.height)


def _belong(above: Line, below: Line, reach: float, pitch: float | None) -> bool:
    if "\t" in above.text or "\t" in below.text or not _same_size(above, below):
        return False
    if above.text.endswith(SPLIT):
        return True
    if _MARK.match(below.text):
        return False
    if below.bottom >= above.bottom:  # the next column
        return not _SENTENCE_END.search(above.text) and _goes_on(below.text)
    if _gap(above, below, pitch):
        return False
    if below.left > above.left + INDENT * above.height and not _MARK.match(above.text):
        return False
    return _was_full(above, below, reach)


def _goes_on(text: str) -> bool:
    return bool(text) and (text[0].islower() or bool(_WIDE.match(text[0])))


def _was_full(above: Line, below: Line, reach: float) -> bool:
    """Whether the first word of `below` would not have fitted behind `above`."""
    letter = (below.right - below.left) / max(1, len(below.text))
    word = below.text.split(" ", 1)[0]
    n_letters = 1 if _WIDE.match(word) else len(word) + 1
    return reach - above.right < (n_letters + SLACK_LETTERS) * letter
