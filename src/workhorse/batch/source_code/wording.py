"""The words of a comment: taken out of a model's answer, made safe, broken into lines. Pure."""

import re
import unicodedata
from collections.abc import Iterable

from workhorse.batch.source_code.place import NoComment

# Longer than any good comment: the model repeats itself or answers something else.
LONGEST_COMMENT_LINES = 80

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_LINE_ENDS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Written so that code shows in another order than it runs in ("Trojan Source", CVE-2021-42574).
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ENTRY = re.compile(r"\s+\*{0,2}\w+ ?(?:\([^)]*\))?: ")
_BULLET = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
_VERBATIM = re.compile(r"\s*(?:>>>|\.\.\. |\||```)|\s{8,}\S")
# No line of Chinese begins with one of these.
_CLOSING = frozenset("，。、；：？！）》」』】”’％,.;:?!)]}")


def plain(text: str) -> str:
    """The text with plain line ends and no character that is not seen.

    Control characters and marks of direction are taken out, tabs become spaces, halves of
    surrogate pairs the replacement character.
    """
    text = _LINE_ENDS.sub("\n", text).expandtabs(4)
    kept = []
    for character in text:
        kind = unicodedata.category(character)
        if kind == "Cs":
            kept.append("\ufffd")
        elif character == "\n" or not (
            kind == "Cc" or character in _DIRECTIONS or character == "\ufeff"
        ):
            kept.append(character)
    return "\n".join(line.rstrip() for line in "".join(kept).split("\n"))


def out_of_fence(answer: str) -> str:
    """The answer without a model's thoughts and without the fence that it was put in.

    A fence with words before it ("Here is the docstring:") is the answer; one inside of a longer
    text, an example, stays.
    """
    answer = _THOUGHT.sub("", answer).strip("\n")
    fences = list(_FENCE.finditer(answer))
    if len(fences) == 1:
        before = answer[: fences[0].start()].strip()
        after = answer[fences[0].end() :].strip()
        if not after and (not before or ("\n" not in before and before.endswith((":", "：")))):
            return fences[0][1]
    return answer


def trimmed(text: str) -> str:
    """Without blank lines around it and without the indentation that its lines share.

    The first line counts for nothing there: it often stands behind a quotation mark.
    """
    lines = text.strip("\n").split("\n")
    later = [line for line in lines[1:] if line.strip()]
    shared = min((len(line) - len(line.lstrip(" ")) for line in later), default=0)
    return "\n".join([lines[0].strip(), *(line[shared:].rstrip() for line in lines[1:])]).strip()


def check_length(text: str) -> None:
    """Raise `NoComment` for no words at all, and for far too many."""
    if not text:
        raise NoComment("It holds no words.", "其中没有文字。")
    if text.count("\n") >= LONGEST_COMMENT_LINES:
        raise NoComment(
            f"It has more than {LONGEST_COMMENT_LINES} lines.",
            f"超过 {LONGEST_COMMENT_LINES} 行。",
        )


def unquoted(text: str) -> str:
    """Without the quotation marks that a model put around all of it."""
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'`" and text.count(text[0]) == 2:
        return text[1:-1].strip()
    return text


def broken(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns; a Chinese character takes two.

    Lines of code, tables and words without a place to break stay as long as they are.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        if columns_of(line) <= columns or _VERBATIM.match(line):
            lines.append(line)
        else:
            lines += _broken_line(line, columns)
    return lines


def columns_of(text: str) -> int:
    """How wide a terminal shows it."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _broken_line(line: str, columns: int) -> Iterable[str]:
    lead = line[: len(line) - len(line.lstrip(" "))]
    bullet = _BULLET.match(line)
    further = lead
    if bullet:
        further = " " * len(bullet[0])
    elif _ENTRY.match(line):
        further = lead + "    "
    current, has_words = lead, False
    for piece in _pieces(line[len(lead) :]):
        fits = columns_of(current) + columns_of(piece.rstrip()) <= columns
        if has_words and not fits and piece.strip() and piece[0] not in _CLOSING:
            yield current.rstrip()
            current = further
        current += piece
        has_words = True
    if current.strip():
        yield current.rstrip()


def _pieces(text: str) -> list[str]:
    """Words with the space behind them; Chinese characters one by one."""
    return re.findall(
        r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]\s*|[^\s\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]+\s*|\s+",
        text,
    )
