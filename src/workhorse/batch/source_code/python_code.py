"""Docstrings into a Python file: everything else stays byte for byte, and is checked to. Pure."""

import ast
import re
from collections.abc import Mapping

from workhorse.batch.source_code.parameters import only_known
from workhorse.batch.source_code.place import (
    Insertion,
    NoComment,
    NotCommentable,
    Place,
    inserted,
    line_end_of,
    source_of,
    taken_out,
)
from workhorse.batch.source_code.python_places import (
    Documented,
    docstring_of,
    found_in,
    parsed,
    places_in,
)
from workhorse.batch.source_code.wording import (
    broken,
    check_length,
    columns_of,
    out_of_fence,
    plain,
    trimmed,
    unquoted,
)

# PEP 8 asks for 72 to 79; most formatters break code at 88.
COLUMNS = 88

_QUOTED = re.compile(r"[rRuU]?(\"\"\"|''')(.*?)\1", re.DOTALL)
_HEADER = re.compile(r"@\w|(?:async\s+)?def\s+\w+\s*[\[(]|class\s+\w+\s*[\[(:]")


class PythonCode:
    """A Python file, see `place.Code`."""

    language = "Python"

    def __init__(
        self, text: str, *, charset: str = "utf-8", replace: bool = False, private: bool = True
    ) -> None:
        """`charset`: in which the file is written, see `docstring`. Raises NotCommentable."""
        self.source = source_of(text)
        self._charset = charset
        self._tree = parsed(text)
        self.places, self.left_out = places_in(text, replace=replace, private=private)
        self._line_end = line_end_of(self.source)

    def comment(self, place: Place, answer: str) -> tuple[str, tuple[str, ...]]:
        """The docstring's words, and the parameters dropped from them; see `place.Code`."""
        text = trimmed(plain(_bare(out_of_fence(answer))))
        dropped: tuple[str, ...] = ()
        if place.parameters is not None:
            text, dropped = only_known(text, place.parameters)
        check_length(text)
        return text, dropped

    def with_comments(self, comments: Mapping[int, str]) -> bytes:
        """The file with the docstrings in it; see `place.Code`."""
        values, insertions = set(), []
        for index in sorted(comments):
            place = self.places[index]
            literal, value = docstring(comments[index], place.indent, self._charset)
            values.add(value)
            put = place.before + literal.replace("\n", self._line_end) + place.after
            insertions.append(Insertion(place.at, place.cut, put.encode()))
        changed = inserted(self.source, insertions)
        if taken_out(changed, self.source, insertions) != self.source:
            raise _changed("bytes")
        _check(self._tree, parsed(changed.decode()), values)
        return changed


def docstring(text: str, indent: str, charset: str = "utf-8") -> tuple[str, str]:
    """The literal for a docstring, its lines ended by a line feed, and the value that it has.

    A character that the file's encoding lacks is written as an escape.
    """
    lines = broken(text, COLUMNS - columns_of(indent.expandtabs(8)) - 2 * len('"""'))
    value = "\n".join([lines[0], *(indent + line if line else "" for line in lines[1:])])
    if len(lines) > 1:
        value += "\n" + indent
    # The last mark would close the literal together with the three behind it.
    last = '\\"' if value.endswith('"') else ""
    literal = value.removesuffix('"').replace("\\", "\\\\").replace('"""', '""\\"') + last
    return f'"""{literal.encode(charset, "backslashreplace").decode(charset)}"""', value


def _bare(answer: str) -> str:
    """The docstring in an answer that holds it in quotes, or the whole definition with it."""
    stripped = answer.strip()
    is_code = bool(_HEADER.match(stripped))
    if is_code or stripped.startswith(("#", '"""', "'''")):
        try:
            nodes = [found.node for found in found_in(parsed(trimmed(answer)))]
        except NotCommentable:
            nodes = []
        for node in nodes:
            if literal := docstring_of(node):
                return str(literal.value)
    match = (_QUOTED.search if is_code else _QUOTED.match)(stripped)
    if match:
        return match[2]
    if is_code:
        raise NoComment("It is code without a docstring.", "其中只有代码，没有文档字符串。")
    return unquoted(stripped)


def _check(before: ast.Module, after: ast.Module, written: set[str]) -> None:
    """Both trees are the same but for docstrings, and those that are new were meant."""
    waiting: list[tuple[object, object]] = [(before, after)]
    while waiting:
        one, other = waiting.pop()
        if type(one) is not type(other):
            raise _changed(type(one).__name__)
        if isinstance(one, ast.AST) and isinstance(other, ast.AST):
            waiting += zip(_parts(one), _parts(other), strict=True)
            if isinstance(one, Documented) and isinstance(other, Documented):
                old, new = docstring_of(one), docstring_of(other)
                if new and (not old or old.value != new.value) and new.value not in written:
                    raise _changed("docstring")
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                raise _changed("list")
            waiting += zip(one, other, strict=True)
        elif one != other:
            raise _changed(type(one).__name__)


def _parts(node: ast.AST) -> list[object]:
    """What a node is made of, its docstring left out."""
    parts = [getattr(node, field, None) for field in node._fields]
    if isinstance(node, Documented) and docstring_of(node):
        parts[node._fields.index("body")] = node.body[1:]
    return parts


def _changed(what: str) -> NotCommentable:
    return NotCommentable(
        f"With the docstrings in it the code would not be the same ({what}).",
        f"插入文档字符串后代码会发生变化（{what}）。",
    )
