"""Parameters that a comment describes and its function does not have are taken out of it. Pure.

Known forms: Google's and NumPy's sections (also with Chinese headings), Sphinx's `:param x:`,
Javadoc's `@param x`.
"""

import re
from collections.abc import Iterator, Set
from typing import Literal, NamedTuple

_NAMED = r"(?:(?:keyword|other) )?(?:args|arguments|parameters|params)|参数(?:说明|列表)?|入参|形参"
_OTHERS = (
    r"returns?|yields?|raises|throws|examples?|notes?|attributes|warnings?|see also|references|todo"
    r"|返回(?:值|类型)?|异常|抛出(?:异常)?|示例|例子|注意|说明|属性|产生"
)
_PARAMETERS = re.compile(rf"\s*[*`]*(?:{_NAMED})[*`]*\s*[:：]?[*`]*\s*", re.IGNORECASE)
_OTHER_HEADING = re.compile(rf"\s*[*`]*(?:{_OTHERS})[*`]*\s*(?:[:：].*)?", re.IGNORECASE)
_RULE = re.compile(r"\s*-{3,}\s*")
_GOOGLE_ENTRY = re.compile(
    r"\s*(?:[-*•]\s+)?[`*]{0,3}(?P<name>\w+)[`*]{0,3}\s*(?:[(（][^)）]*[)）])?[`*]*\s*"
    r"(?:[:：]|--|–|—|\s-\s)"
)
_NUMPY_ENTRY = re.compile(r"\s*\*{0,2}(?P<name>\w+)\s*(?::.*)?$")
_FIELD = re.compile(
    r"\s*:(?:param|parameter|arg|argument|key|keyword|type)\s+(?:[^:]*\s)?\\?\*{0,2}"
    r"(?P<name>\w+)\s*:"
)
_TAG = re.compile(r"\s*@param(?:\[\w+\])?\s+(?:\{[^}]*\}\s*)?\[?(?P<name>[\w$]+)")
_NOTHING = re.compile(
    r"\s*(?:[-*•]\s+)?(?:none|no (?:parameters|arguments)|无|没有(?:参数)?)[.。]?\s*", re.IGNORECASE
)
# Named by models although no caller gives them; dropping them is nothing to tell.
_RECEIVERS = frozenset({"self", "cls", "this", "mcs"})

_Kind = Literal["prose", "google", "numpy"]


class _Entry(NamedTuple):
    """Lines that describe one parameter, or none."""

    name: str | None
    lines: list[str]


def only_known(text: str, parameters: Set[str]) -> tuple[str, tuple[str, ...]]:
    """The text without what it says of other parameters, and the names that were dropped."""
    dropped: dict[str, None] = {}
    kept: list[str] = []
    for kind, heading, body in _sections(text.split("\n")):
        entries = list(_entries(kind, body))
        left: list[str] = []
        for entry in entries:
            if entry.name is None or entry.name in parameters:
                left += [line for line in entry.lines if kind == "prose" or not _is_nothing(line)]
            else:
                left += [""] if not entry.lines[-1].strip() else []
                dropped |= {} if entry.name in _RECEIVERS else {entry.name: None}
        had = any(entry.name for entry in entries)
        has = any(entry.name in parameters for entry in entries if entry.name)
        if has or (not had and any(line.strip() for line in left)):
            kept += heading
        kept += left
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), tuple(dropped)


def _sections(lines: list[str]) -> Iterator[tuple[_Kind, list[str], list[str]]]:
    """The text in pieces: what kind, the heading of a section of parameters, the lines below."""
    kind: _Kind = "prose"
    heading: list[str] = []
    body: list[str] = []
    for index, line in enumerate(lines):
        below = lines[index + 1] if index + 1 < len(lines) else ""
        named = bool(_PARAMETERS.fullmatch(line))
        numpy = named and bool(_RULE.fullmatch(below))
        google = named and line.rstrip(" *`").endswith((":", "：")) and not numpy
        if numpy or google:
            yield kind, heading, body
            kind, heading, body = "numpy" if numpy else "google", [line], []
        elif kind != "prose" and _OTHER_HEADING.fullmatch(line):
            yield kind, heading, body
            kind, heading, body = "prose", [], [line]
        elif kind == "numpy" and not body and _RULE.fullmatch(line):
            heading.append(line)
        else:
            body.append(line)
    yield kind, heading, body


def _entries(kind: _Kind, body: list[str]) -> Iterator[_Entry]:
    entry = _Entry(None, [])
    margin: int | None = None  # the indentation of the section's entries
    for line in body:
        indent = _indent(line)
        name = _name(kind, line)
        if name and (margin is None or indent <= margin or kind == "prose"):
            margin = indent
            yield entry
            entry = _Entry(name, [line])
        elif not line.strip() or entry.name is None or _goes_on(kind, entry, line):
            entry.lines.append(line)
        else:
            yield entry
            entry = _Entry(None, [line])
    yield entry


def _goes_on(kind: _Kind, entry: _Entry, line: str) -> bool:
    """Whether a line still belongs to an entry: deeper than it, or models' flat lists."""
    first = _indent(entry.lines[0])
    return _indent(line) > first or (
        kind == "google" and first == 0 and bool(entry.lines[-1].strip())
    )


def _name(kind: _Kind, line: str) -> str | None:
    """The parameter that a line begins to describe."""
    forms = [_FIELD, _TAG]
    if kind != "prose":
        forms.append(_GOOGLE_ENTRY if kind == "google" else _NUMPY_ENTRY)
    for form in forms:
        if match := form.match(line):
            return match["name"]
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_nothing(line: str) -> bool:
    return bool(_NOTHING.fullmatch(line))
