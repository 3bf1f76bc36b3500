"""A report as one HTML file: style, plots and text inside, nothing from elsewhere."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from workhorse.bench.report import words
from workhorse.bench.report.document import Advice, Document, Part, Section, Table, Words
from workhorse.bench.report.plots import can_draw, draw
from workhorse.text import Language, Text

# No script, nothing fetched: what a model or a label says is text.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LEVELS = {
    "good": Text("good", "良好"),
    "note": Text("note", "提示"),
    "warning": Text("warning", "警告"),
    "blocker": Text("no", "不可行"),
    "cause": Text("cause", "原因"),
}


def page(document: Document, language: Language) -> str:
    """The whole file."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    drawing = can_draw()
    title, subtitle = told(document.title, language), told(document.subtitle, language)
    lines = [
        "<!doctype html>",
        f'<html lang="{"zh-CN" if language == "zh" else "en"}">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{title}</h1><p>{subtitle}</p></header>",
        "<main>",
    ]
    if not drawing:
        lines.append(f'<p class="missing">{told(words.NO_PLOTS, language)}</p>')
    for section in document.sections:
        lines += section_lines(section, language, drawing=drawing)
    return "\n".join([*lines, "</main>", "</body>", "</html>"]) + "\n"


def told(text: Text | str, language: Language) -> str:
    """Words that mean themselves in HTML."""
    return escape(text if isinstance(text, str) else text.in_language(language))


def section_lines(section: Section, language: Language, *, drawing: bool) -> Iterator[str]:
    """A section and its parts."""
    yield "<section>"
    yield f"<h2>{told(section.title, language)}</h2>"
    for part in section.parts:
        yield from part_lines(part, language, drawing=drawing)
    yield "</section>"


def part_lines(part: Part, language: Language, *, drawing: bool) -> Iterator[str]:
    """One part."""
    if isinstance(part, Words):
        yield f"<p>{told(part.text, language)}</p>"
    elif isinstance(part, Table):
        yield from table_lines(part, language)
    elif isinstance(part, Advice):
        yield from advice_lines(part, language)
    elif drawing:
        yield f"<figure>{draw(part, language)}</figure>"


def table_lines(table: Table, language: Language) -> Iterator[str]:
    """A table that scrolls on a narrow screen; figures stand right."""

    def kind(column: int) -> str:
        return "" if column == 0 or column in table.words else ' class="n"'

    yield '<div class="wide"><table>'
    cells = "".join(
        f"<th{kind(column)}>{told(cell, language)}</th>" for column, cell in enumerate(table.head)
    )
    yield f"<thead><tr>{cells}</tr></thead><tbody>"
    for row in table.rows:
        cells = "".join(
            f"<td{kind(column)}>{told(cell, language)}</td>" for column, cell in enumerate(row)
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def advice_lines(part: Advice, language: Language) -> Iterator[str]:
    """The findings about one case."""
    yield f"<h3>{told(part.about, language)}</h3>"
    yield "<ul>"
    for finding in part.findings:
        seen, why, remedy = (
            told(text, language) for text in (finding.seen, finding.why, finding.remedy)
        )
        level = told(LEVELS[finding.level], language)
        yield (
            f'<li class="{finding.level}"><b class="level">{level}</b> <b>{seen}</b> {why} '
            f"<span>→ {remedy}</span></li>"
        )
    yield "</ul>"
