"""The rows of a knowledge table as entries: which column asks, which answers. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence

from workhorse.batch.retrieval.passages import LONGEST_CHARS, Passage
from workhorse.batch.split import split
from workhorse.batch.template import language_of

_QUESTIONS = ("question", "questions", "q", "title", "topic", "问题", "提问", "问", "标题", "主题")
_ANSWERS = ("answer", "answers", "a", "reply", "response", "答案", "回答", "答", "答复", "回复")
_CELL = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|?(?:\s*:?-+:?\s*\|)+\s*")


class NoColumns(Exception):
    """A table whose columns are called otherwise."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = tuple(names)


def entries_of_rows(rows: Iterable[tuple[int, Sequence[str]]], source: str) -> Iterator[Passage]:
    """An entry a row below the head, its question as the heading; long answers in several.

    A table of two columns with other names is taken as question and answer. Raises `NoColumns`.
    """
    columns: tuple[int, int] | None = None
    for number, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if columns is None:
            columns = _columns(cells)
            continue
        question, answer = (cells[at].strip() if at < len(cells) else "" for at in columns)
        if answer:
            longest = 2 * LONGEST_CHARS[language_of(answer)]
            for piece in split(answer, longest):
                place = f"{source} row {number}"
                yield Passage(source=place, heading=question[:300], text=piece.strip())


def _columns(head: Sequence[str]) -> tuple[int, int]:
    names = [name.strip().strip("\ufeff") for name in head]
    lower = [name.lower() for name in names]
    question = next((lower.index(name) for name in _QUESTIONS if name in lower), None)
    answer = next((lower.index(name) for name in _ANSWERS if name in lower), None)
    if question is not None and answer is not None:
        return question, answer
    if len(names) == 2:
        return 0, 1
    raise NoColumns(names)


def markdown_tables(text: str) -> Iterator[list[tuple[int, list[str]]]]:
    """The rows of each Markdown table in a text, numbered, its head with 1."""
    rows: list[tuple[int, list[str]]] = []
    for line in [*text.split("\n"), ""]:
        if not line.startswith("|"):
            if rows:
                yield rows
            rows = []
        elif not _RULE.fullmatch(line):
            cells = _CELL.split(line.strip().removeprefix("|").removesuffix("|"))
            rows.append((len(rows) + 1, [cell.strip().replace("\\|", "|") for cell in cells]))
