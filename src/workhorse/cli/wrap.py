"""Breaks text into lines of a terminal, Chinese at any character and English at blanks."""

import re

# Chinese is broken between characters, everything else between words.
_PIECES = re.compile(
    r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]|[^\s\u2e80-\u9fff\uff00-\uffef]+|\s+"
)
# A line does not begin with these, nor end with the others (GB/T 15834-2011, 5.1).
_CLOSING = frozenset("，。、；：？！）》」』”’%,.;:?!)")
_OPENING = frozenset("（《「『“‘(")


def wrapped(words: str, width: int) -> list[str]:
    """The lines of `words`, none wider than `width` cells unless one word alone is."""
    from rich.cells import cell_len

    lines: list[str] = []
    for paragraph in words.splitlines() or [""]:
        line = ""
        for piece in _units(paragraph):
            if line and cell_len(line + piece.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            line += piece if line else piece.lstrip()
        lines.append(line.rstrip())
    return lines


def _units(paragraph: str) -> list[str]:
    """Pieces that stay on one line: a word, or a character with its punctuation."""
    units: list[str] = []
    for piece in _PIECES.findall(paragraph):
        if units and (piece in _CLOSING or units[-1][-1] in _OPENING):
            units[-1] += piece
        else:
            units.append(piece)
    return units
