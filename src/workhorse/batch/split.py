"""Splits a long text where its structure has its joints; joined again, the pieces are the text.

A piece ends at the strongest joint of its last part: before a heading, at an empty line, at the
end of a line that ends a sentence, after a sentence, at a line's end, after a clause, at a space.
Inside a code block, a table's row or a word only where there is nothing else.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator

_CLOSING = r"[\"'”’」』）)\]】》]*"
_HEADING = re.compile(
    r"\n(?=#{1,6}[ \t]\S)|\n(?=第[\d零一二三四五六七八九十百千]{1,8}[章节節条條回])|\f"
)
_PARAGRAPH = re.compile(r"\n[ \t]*\n+(?=\S)")  # before what begins at the margin
_EMPTY_LINE = re.compile(r"\n[ \t]*\n+")
_FULL_LINE = re.compile(
    rf"[.!?。！？…;；:：}}>]{_CLOSING}[ \t]*\n|\n(?=[ \t]*(?:[-*+•]|\d{{1,3}}[.)、])[ \t])"
)
_SENTENCE = re.compile(rf"[.!?]{_CLOSING}\s+|[。！？；…]{_CLOSING}\s*")
_LINE = re.compile(r"\n")
_CLAUSE = re.compile(r"[,;:]\s+|[，、：]\s*")
_SPACE = re.compile(r"\s+")
# Tried in turn: a joint, and how early in the longest piece it may lie. Early cuts make many small
# pieces, each a request.
_JOINTS: tuple[tuple[re.Pattern[str], float], ...] = (
    (_HEADING, 0.6),
    (_PARAGRAPH, 0.7),
    (_EMPTY_LINE, 0.7),
    (_FULL_LINE, 0.75),
    (_SENTENCE, 0.75),
    (_LINE, 0.75),
    (_PARAGRAPH, 0.4),
    (_SENTENCE, 0.4),
    (_LINE, 0.4),
    (_CLAUSE, 0.5),
    (_SPACE, 0.4),
)
_AHEAD_CHARS = 16  # so much of what follows decides whether a joint is one

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*$", re.MULTILINE)
_ROWS = re.compile(r"^[ \t]*\|[^\n]*\|[ \t]*$", re.MULTILINE)
# What belongs to the character before it: joiners, variation selectors, skin tones.
_STICKY = re.compile("[\u200c\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]")


def split(text: str, most_chars: int) -> list[str]:
    """The text in pieces of at most `most_chars` characters, about equally long."""
    if most_chars < 1:
        raise ValueError(most_chars)
    return list(_pieces(text, most_chars)) if text else []


def _pieces(text: str, most_chars: int) -> Iterator[str]:
    blocks, rows = _Spans(code_blocks(text)), _Spans(_row_spans(text))
    begin, n_chars = 0, len(text)
    while begin < n_chars:
        left = n_chars - begin
        # Equal pieces: a short last one would have the model sum up two sentences. A joint is
        # found some way before the end, so that is allowed for.
        aim = left / -(-left // most_chars)
        most = min(most_chars, round(aim * 1.15))
        end = n_chars if left <= most_chars else _joint(text, begin, begin + most, blocks, rows)
        yield text[begin:end]
        begin = end


def _joint(text: str, begin: int, most: int, blocks: "_Spans", rows: "_Spans") -> int:
    """Where the piece that begins at `begin` ends: after it, at `most` at the latest."""
    for pattern, share in _JOINTS:
        if end := _last(pattern, text, begin, share, most, (blocks, rows)):
            return end
    for pattern, kept_whole in ((_LINE, (rows,)), (_LINE, ()), (_SPACE, ())):
        if end := _last(pattern, text, begin, 0.4, most, kept_whole):
            return end
    end = most
    while end > begin + 1 and _inside_character(text, end):
        end -= 1
    return most if _inside_character(text, end) else end


def _last(
    pattern: re.Pattern[str],
    text: str,
    begin: int,
    share: float,
    most: int,
    kept_whole: tuple["_Spans", ...],
) -> int | None:
    """The last joint in the last part of a piece that lies in none of the spans."""
    found, earliest = None, begin + max(1, int((most - begin) * share))
    for match in pattern.finditer(text, max(begin, earliest - _AHEAD_CHARS), most + _AHEAD_CHARS):
        end = min(match.end(), most) if pattern is _SPACE else match.end()
        if earliest <= end <= most and not any(end in spans for spans in kept_whole):
            found = end
    return found


def _inside_character(text: str, at: int) -> bool:
    """Whether a cut there would tear what is read as one character."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    return (
        (before == "\r" and after == "\n")
        or unicodedata.combining(after) != 0
        or bool(_STICKY.match(after))
        or before == "\u200d"
    )


class _Spans:
    """Stretches of a text in which it should not be cut; their two ends are free."""

    def __init__(self, spans: Iterator[tuple[int, int]] | tuple[()]) -> None:
        self._spans = list(spans)
        self._begins = [begin for begin, _ in self._spans]

    def __contains__(self, at: int) -> bool:
        place = bisect_right(self._begins, at) - 1
        if place < 0:
            return False
        begin, end = self._spans[place]
        return begin < at < end


def code_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where fenced code blocks begin and end; one that is never closed is none."""
    opened: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opened is None:
            opened = match
        elif match[1].startswith(opened[1]) and match[0].strip() == match[1]:
            yield opened.start(), min(match.end() + 1, len(text))
            opened = None


def _row_spans(text: str) -> Iterator[tuple[int, int]]:
    for match in _ROWS.finditer(text):
        yield match.start(), match.end() + 1
