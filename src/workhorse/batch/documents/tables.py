"""Rows of a table as items, or a table as one text; pure but for reading rows as they come."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from workhorse.batch.documents.refusal import Unreadable, shown, wrong_input
from workhorse.batch.item import NewItem, Reason
from workhorse.errors import AppError

CELL_CHARS_MAX = 16 * 2**20  # an open quote would take in the rest of the file
NAMED_MAX = 30  # columns told in an error
# A table with one of these needs no `--column`; the first that is there.
USUAL_COLUMNS = ("text", "content", "document", "body", "文本", "正文", "内容")
_DELIMITERS = (",", ";", "\t", "|")
SEP_LINE = re.compile(r"sep=(.)\s*$", re.IGNORECASE)  # Excel's own, before the head
_QUOTED = re.compile(r'"[^"]*"')

Row = tuple[int, Sequence[str]]  # its number as a spreadsheet shows it, the cells


@dataclass(frozen=True, slots=True)
class Columns:
    """Which cells of a row make an item."""

    text: int
    id: int | None  # None: the row's number


def csv_rows(lines: Iterable[str], delimiter: str, first: int = 1) -> Iterator[Row]:
    """The rows of a CSV text, numbered from `first`; AppError where the quotes go wrong."""
    csv.field_size_limit(CELL_CHARS_MAX)
    rows = csv.reader(lines, delimiter=delimiter)
    for number in count(first):
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise wrong_input(
                f"The table cannot be read at line {rows.line_num}: {error}.",
                f"表格第 {rows.line_num} 行无法读取：{error}。",
                'Look for a quotation mark (") without its pair before that line.',
                '请检查该行之前是否有不成对的引号（"）。',
            ) from error
        yield number, row


def delimiter_of(head: str) -> str:
    """What separates the columns, by the head of the table; a comma where nothing does."""
    if named := SEP_LINE.match(head):
        return named[1]
    plain = _QUOTED.sub("", head)
    most = max(_DELIMITERS, key=plain.count)
    return most if plain.count(most) else ","


def chosen_columns(
    head: Sequence[str], column: str | None, id_column: str | None, where: str
) -> Columns:
    """Where an item's text and id stand; AppError names the columns that are there."""
    names = [name.strip().removeprefix("\ufeff") for name in head]
    if column is None:
        lower = [name.lower() for name in names]
        usual = next((lower.index(name) for name in USUAL_COLUMNS if name in lower), None)
        text = 0 if len(names) == 1 else usual
        if text is None:
            raise _which(names, where)
    else:
        text = _found(names, column, "--column", where)
    return Columns(
        text, None if id_column is None else _found(names, id_column, "--id-column", where)
    )


def items_of_rows(
    rows: Iterable[Row], column: str | None, id_column: str | None, where: str
) -> Iterator[NewItem]:
    """An item a row below the head; rows with nothing in them are none."""
    columns: Columns | None = None
    for number, cells in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if columns is None:
            columns = chosen_columns(cells, column, id_column, where)
            continue
        yield _item(number, cells, columns, where)
    if columns is None:
        raise wrong_input(
            f"{where} has no rows.",
            f"{where} 中没有任何行。",
            "Choose another file.",
            "请选择其他文件。",
        )


def _item(number: int, cells: Sequence[str], columns: Columns, where: str) -> NewItem:
    own = "" if columns.id is None or columns.id >= len(cells) else cells[columns.id].strip()
    text = cells[columns.text] if columns.text < len(cells) else ""
    item_id, source = own or str(number), f"{where} row {number}"
    if text.strip():
        return NewItem(id=item_id, source=source, content=text)
    return NewItem(id=item_id, source=source, reason=empty_cell())


def empty_cell() -> Reason:
    """Why a row without a text has no result."""
    return Unreadable("The cell is empty.", "单元格为空。").reason


def _found(names: Sequence[str], wanted: str, option: str, where: str) -> int:
    places = [index for index, name in enumerate(names) if name == wanted.strip()]
    if len(places) > 1:
        raise wrong_input(
            f"{where} has {len(places)} columns named “{shown(wanted)}”.",
            f"{where} 有 {len(places)} 列都叫 “{shown(wanted)}”。",
            f"Name it by its place: {option} {places[0] + 1}.",
            f"请用列号指定：{option} {places[0] + 1}。",
        )
    if places:
        return places[0]
    if wanted.isdecimal() and len(wanted) < 6 and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    raise wrong_input(
        f"{where} has no column “{shown(wanted)}”. It has: {_listed(names)}.",
        f"{where} 中没有 “{shown(wanted)}” 列，现有列：{_listed(names)}。",
        f"Name one of them with {option}.",
        f"请用 {option} 指定其中一列。",
    )


def _which(names: Sequence[str], where: str) -> AppError:
    return wrong_input(
        f"{where} has {len(names)} columns: {_listed(names)}.",
        f"{where} 有 {len(names)} 列：{_listed(names)}。",
        "Say which of them has the texts: --column NAME.",
        "请用 --column 列名 指定文本所在的列。",
    )


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(f"“{shown(name)[:60]}”" for name in names[:NAMED_MAX])
    return listed + (" …" if len(names) > NAMED_MAX else "")


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table whose first row is its head; rows may be of any length.

    A table of one column is its cells, a line each. The cells have no line ends.
    """
    full = [list(row) for row in rows if any(row)]
    width = max((len(row) - _empty_end(row) for row in full), default=0)
    if width <= 1:
        return [row[0] for row in full if row and row[0]]
    squared = [(row + [""] * width)[:width] for row in full]
    written = ["| " + " | ".join(row) + " |" for row in squared]
    return [written[0], "|" + " --- |" * width, *written[1:]]


def _empty_end(row: Sequence[str]) -> int:
    """How many of a row's last cells are empty."""
    return next((n for n, cell in enumerate(reversed(row)) if cell), len(row))
