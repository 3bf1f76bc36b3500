"""Where in a source file a comment may go, and how it gets there. Pure.

Positions are bytes of the file in UTF-8: what `ast` and tree-sitter count in.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

# Above this a file is a table of data or generated; parsing it would take seconds.
LARGEST_SOURCE_BYTES = 4_000_000

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class NotCommentable(Exception):
    """Why a file cannot be given comments, for people."""

    def __init__(self, seen: str, seen_zh: str) -> None:
        super().__init__(seen)
        self.seen, self.seen_zh = seen, seen_zh


class NoComment(Exception):
    """Why a model's answer cannot be a comment, for people."""

    def __init__(self, seen: str, seen_zh: str) -> None:
        super().__init__(seen)
        self.seen, self.seen_zh = seen, seen_zh


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A module, a class or a function that a comment can be written for."""

    name: str  # `Fan.spin`; the module has none
    kind: Literal["module", "class", "function"]
    line: int  # of its first line, from 1
    begin: int  # its code, for the model to read
    end: int
    header_end: int  # the code up to here is its signature
    at: int  # where the comment goes
    cut: int = 0  # so many bytes from `at` on are the comment that it replaces
    before: str = ""  # what the comment needs around it
    after: str = ""
    indent: str = ""  # of the comment's further lines
    parameters: frozenset[str] | None = None  # None: not known


class Code(Protocol):
    """A source file that was understood."""

    source: bytes
    language: str  # as people call it
    places: list[Place]  # where comments may go, in the file's order
    left_out: int  # further places that were not understood

    def comment(self, place: Place, answer: str) -> tuple[str, tuple[str, ...]]:
        """The comment's words out of a model's answer, and the parameters dropped from them.

        Raises `NoComment` where the answer holds none.
        """
        ...

    def with_comments(self, comments: Mapping[int, str]) -> bytes:
        """The file with comments in it, by the index of their places; checked.

        Raises `NotCommentable` where anything but comments would have changed.
        """
        ...


class Insertion(msgspec.Struct, frozen=True):
    """Bytes that take the place of `cut` bytes."""

    at: int
    cut: int
    put: bytes


def inserted(source: bytes, insertions: Sequence[Insertion]) -> bytes:
    """The source with all of them made; they are in order and do not overlap."""
    parts, done = [], 0
    for one in insertions:
        parts += [source[done : one.at], one.put]
        done = one.at + one.cut
    return b"".join([*parts, source[done:]])


def taken_out(changed: bytes, source: bytes, insertions: Sequence[Insertion]) -> bytes:
    """What `inserted` made, undone by position; equal to the source if nothing else changed."""
    parts, done, shift = [], 0, 0
    for one in insertions:
        at = one.at + shift
        parts += [changed[done:at], source[one.at : one.at + one.cut]]
        done = at + len(one.put)
        shift += len(one.put) - one.cut
    return b"".join([*parts, changed[done:]])


def source_of(text: str) -> bytes:
    """The bytes of a text; raises NotCommentable where it has none, or too many."""
    try:
        source = text.encode()
    except UnicodeEncodeError as error:
        raise NotCommentable(
            f"The text has half a character at {error.start}.",
            f"文本在第 {error.start} 个字符处有残缺字符。",
        ) from error
    if len(source) > LARGEST_SOURCE_BYTES:
        raise NotCommentable(
            f"The file has {len(source)} bytes, more than {LARGEST_SOURCE_BYTES}.",
            f"文件有 {len(source)} 字节，超过 {LARGEST_SOURCE_BYTES}。",
        )
    return source


def lines_of(source: bytes) -> list[bytes]:
    """The lines with their ends, as Python counts them: no form feed, no Unicode separator."""
    return _LINE.findall(source)


def line_starts(lines: Sequence[bytes]) -> list[int]:
    """The byte at which each line begins, and the end of the last."""
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts


def line_end_of(source: bytes) -> str:
    """What ends the file's lines, by its first one."""
    found = re.search(rb"\r\n|\r|\n", source)
    return found[0].decode() if found else "\n"


def leading_space(line: bytes) -> str:
    """A line's indentation."""
    return line[: len(line) - len(line.lstrip(b" \t\f"))].decode()
