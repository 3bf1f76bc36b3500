"""Documents in passages: cut at headings first, several fit into a prompt. Pure."""

import re
from collections.abc import Iterator

import msgspec

from workhorse.batch.split import split
from workhorse.batch.template import language_of

# A passage of some 300 tokens: longer ones bury the sentence that answers, shorter ones lose what
# it is about. Chinese says in one character what English says in three or four.
LONGEST_CHARS = {"en": 1200, "zh": 500}
_HEADING = re.compile(r"^(#{1,6})[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\1", re.MULTILINE | re.DOTALL)
_LONGEST_HEADING_CHARS = 200
_DEEPEST = 6


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """Some paragraphs of a document, and where they stand."""

    source: str  # the document
    heading: str = ""  # the headings above it: `Fans › Replacing one`
    text: str

    @property
    def place(self) -> str:
        """Document and headings, for people."""
        return f"{self.source} › {self.heading}" if self.heading else self.source

    @property
    def searched(self) -> str:
        """What a search looks at: the heading belongs to every paragraph below it."""
        return f"{self.heading}\n{self.text}"


def passages_of(text: str, media_type: str, source: str) -> Iterator[Passage]:
    """The passages of a document; nothing but white space is left out.

    Headings are Markdown's, in Markdown. The head of a CSV table stands above each of its parts.
    """
    longest_chars = LONGEST_CHARS[language_of(text)]
    kind = media_type.partition(";")[0]
    if kind in ("text/csv", "text/tab-separated-values"):
        head, _, text = text.partition("\n")
        sections = iter([(head.strip()[:_LONGEST_HEADING_CHARS], text or head)])
    elif kind == "text/markdown":
        sections = _sections(text)
    else:
        sections = iter([("", text)])
    for heading, section in sections:
        for piece in split(section, longest_chars):
            if piece.strip():
                yield Passage(source=source, heading=heading, text=piece.strip("\n"))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """What stands below each heading, with the headings above it."""
    fences = [match.span() for match in _FENCE.finditer(text)]
    path: list[str] = []
    heading, begin, fence = "", 0, 0
    for match in _HEADING.finditer(text):
        while fence < len(fences) and fences[fence][1] <= match.start():
            fence += 1
        if fence < len(fences) and fences[fence][0] <= match.start():
            continue  # a comment of code
        yield heading, text[begin : match.start()]
        level = len(match[1])
        path = [*path[: level - 1], *[""] * (level - 1 - len(path)), match[2]][:_DEEPEST]
        heading = " › ".join(one for one in path if one)[:_LONGEST_HEADING_CHARS]
        begin = match.end()
    yield heading, text[begin:]
