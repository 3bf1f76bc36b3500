"""A document as blocks: what is translated, and what stays as it is between and around it.

Blocks joined are the document. Code blocks, front matter, tables' rules, addresses, figures and
whatever has no words stay; the marks at the beginning of a heading, a list item or a quote too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from workhorse.batch.split import code_blocks

_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?:[\w-]+[ \t]*[:=].*\n|[ \t#-].*\n|\n){1,200}?\1[ \t]*(?:\n|\Z)"
)
_EMPTY_LINES = re.compile(r"(?<![ \t\u3000])(?:[ \t\u3000]*\r?\n){2,}|\f")
_ADDRESS = re.compile(r"(?:https?|ftp|file)://\S+|[\w.+-]+@[\w-]+\.[\w.-]+")
_WORD = re.compile(r"[^\W\d_]")
# What stays at the beginning of a line: of a heading, of a list item, of a quote.
_MARK = re.compile(r"[ \t]*(?:(?:\#{1,6}|[-*+•]|\d{1,3}[.)]|>+)[ \t]+)*")
_INDENTED = re.compile(r"(?:(?: {4}|\t)[^\n]*(?:\n|\Z))+")
_CODE_SIGNS = re.compile(r"[=;{}()\[\]<>|$\\/]")


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a document; `words`: what is to be translated, with its marks taken off.

    `before` and `after` stay as they are; a block without words has all in `before`.
    """

    before: str
    words: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """The block as it stands in the document."""
        return self.before + self.words + self.after


def blocks_of(document: str) -> list[Block]:
    """The document's blocks in their order; joined, their texts are the document."""
    found: list[Block] = []
    at = 0
    if front := _FRONT_MATTER.match(document):
        found.append(Block(front[0]))
        at = front.end()
    for begin, end in code_blocks(document):
        if begin >= at:
            found += _prose(document[at:begin])
            found.append(Block(document[begin:end]))
            at = end
    found += _prose(document[at:])
    return [block for block in found if block.text]


def _prose(text: str) -> Iterator[Block]:
    """The paragraphs of a text without code blocks, and the empty lines between them."""
    at = 0
    for gap in _EMPTY_LINES.finditer(text):
        yield _paragraph(text[at : gap.start()])
        yield Block(gap[0])
        at = gap.end()
    yield _paragraph(text[at:])


def _paragraph(text: str) -> Block:
    if not _WORD.search(_ADDRESS.sub("", text)) or _is_code(text):
        return Block(text)
    body = text.lstrip("\r\n")
    before = text[: len(text) - len(body)] + ("" if "\n" in body.strip() else mark_of(body))
    words = text[len(before) :]
    stripped = words.rstrip()
    if not stripped:
        return Block(text)
    return Block(before, stripped, words[len(stripped) :])


def _is_code(text: str) -> bool:
    """Whether a paragraph is code that is set in by four spaces, as Markdown has it."""
    text = text.strip("\r\n")
    if not _INDENTED.fullmatch(text):
        return False
    lines = text.splitlines()
    return sum(bool(_CODE_SIGNS.search(line)) for line in lines) * 2 > len(lines)


def same_form(asked: str, answered: str) -> bool:
    """Whether a translation has its original's form: paragraphs, list items, rows of tables."""
    return _form(asked) == _form(answered)


def _form(text: str) -> list[str]:
    """The empty lines, and the marks and numbers of cells at which a text's lines begin."""
    found: list[str] = []
    for paragraph in _EMPTY_LINES.split(text.strip()):
        found.append("")
        lines = [line.strip() for line in paragraph.splitlines()]
        rows = [line for line in lines if line.startswith("|") and line.endswith("|")]
        found += [f"{line.count('|')} cells" for line in rows]
        found += ["```" for line in lines if line.startswith(("```", "~~~"))]
        marks = (mark_of(line).strip() for line in lines)
        found += [mark for mark in marks if mark]
    return found


def lines_of(words: str) -> list[Block]:
    """The lines of a block, each with its marks taken off: for models that join them."""
    return [_line(line) for line in words.splitlines(keepends=True)]


def _line(line: str) -> Block:
    content = line.rstrip()
    mark = mark_of(content)
    if not _WORD.search(_ADDRESS.sub("", content[len(mark) :])):
        return Block(line)
    return Block(mark, content[len(mark) :], line[len(content) :])


def mark_of(line: str) -> str:
    """What stays at the beginning of a line: of a heading, a list item, a quote."""
    match = _MARK.match(line)
    return match[0] if match else ""
