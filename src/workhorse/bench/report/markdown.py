"""A report as Markdown: every table, no plots. Pure."""

import re
from collections.abc import Iterator

from workhorse.bench.report.document import Advice, Document, Part, Table, Words
from workhorse.text import Language, Text

# What Markdown or HTML would take for its own.
SPECIAL = re.compile(r"([\\`*_\[\]<>|#~!&$])")


def markdown(document: Document, language: Language) -> str:
    """The document; ends with a line end."""
    lines = [f"# {plain(document.title, language)}", "", plain(document.subtitle, language), ""]
    for section in document.sections:
        if not any(isinstance(part, Table | Advice) for part in section.parts):
            continue  # words about a plot that is not here
        lines += [f"## {plain(section.title, language)}", ""]
        for part in section.parts:
            lines += part_lines(part, language)
    return "\n".join(lines).rstrip() + "\n"


def plain(words: Text | str, language: Language) -> str:
    """Words that mean themselves, on one line."""
    told = words if isinstance(words, str) else words.in_language(language)
    return SPECIAL.sub(r"\\\1", " ".join(told.split()))


def part_lines(part: Part, language: Language) -> Iterator[str]:
    """One part with the empty line behind it; nothing of a plot."""
    if isinstance(part, Words):
        yield from (plain(part.text, language), "")
    elif isinstance(part, Table):
        yield from table_lines(part, language)
    elif isinstance(part, Advice):
        yield from (f"### {plain(part.about, language)}", "")
        for finding in part.findings:
            seen, why, remedy = (
                plain(text, language) for text in (finding.seen, finding.why, finding.remedy)
            )
            yield f"- **{seen}** {why} → {remedy}"
        yield ""


def table_lines(table: Table, language: Language) -> Iterator[str]:
    """A table; figures stand right."""
    yield row_line([plain(cell, language) for cell in table.head])
    yield row_line(
        [
            "---" if column == 0 or column in table.words else "--:"
            for column in range(len(table.head))
        ]
    )
    for row in table.rows:
        yield row_line([plain(cell, language) for cell in row])
    yield ""


def row_line(cells: list[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"
