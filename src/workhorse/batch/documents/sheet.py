"""Spreadsheets (xlsx, xlsb, xls, ods), read by calamine: as one text, or an item a row."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.batch.documents.office import check_archive
from workhorse.batch.documents.refusal import Unreadable, shown, wrong_input
from workhorse.batch.documents.tables import Row, chosen_columns, items_of_rows, table_lines
from workhorse.batch.item import NewItem
from workhorse.errors import AppError

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook

SHEET_XML_BYTES_MAX = 2**30  # it is read as a stream; a million rows have some 200 MB
_ZIP = b"PK\x03\x04"


def sheet_text(path: Path) -> str:
    """Every visible sheet as a Markdown table under its name; raises Unreadable."""
    written = []
    with _opened(path) as book:
        for sheet in _visible(book):
            cells = [[_in_table(cell) for cell in row] for _, row in _rows(sheet)]
            if lines := table_lines(cells):
                written.append("\n".join([f"## {sheet.name}", "", *lines]))
    return "\n\n".join(written)


def sheet_items(
    path: Path, column: str | None, id_column: str | None, where: str
) -> Iterator[NewItem]:
    """An item a row of the first sheet that has the columns; `Sheet2!Text` names one of another.

    Raises Unreadable, AppError (no such column).
    """
    wanted, _, plain = (column or "").rpartition("!")
    with _opened(path) as book:
        sheet = _sheet_with(book, wanted, plain or None, id_column, where)
        named = where if len(book.sheet_names) == 1 else f"{where} {sheet.name}"
        yield from items_of_rows(_rows(sheet), plain or None, id_column, named)


def _sheet_with(
    book: "CalamineWorkbook", wanted: str, column: str | None, id_column: str | None, where: str
) -> "CalamineSheet":
    first: AppError | None = None
    for sheet in _visible(book):
        if wanted and sheet.name != wanted:
            continue
        head = next((cells for _, cells in _rows(sheet) if any(cells)), None)
        if head is None:
            continue
        try:
            chosen_columns(head, column, id_column, f"{where} {sheet.name}")
        except AppError as error:
            first = first or error
            continue
        return sheet
    names = ", ".join(shown(name) for name in book.sheet_names[:30])
    raise first or wrong_input(
        f"{where} has no sheet with rows for this. Its sheets: {names}.",
        f"{where} 中没有可用的工作表，现有工作表：{names}。",
        "Name sheet and column: --column SHEET!COLUMN.",
        "请指定工作表和列：--column 工作表!列名。",
    )


def _opened(path: Path) -> "CalamineWorkbook":
    import python_calamine as calamine

    with path.open("rb") as file:
        if file.read(4) == _ZIP:
            file.seek(0)
            check_archive(file, SHEET_XML_BYTES_MAX)
    try:
        return calamine.load_workbook(path)
    except calamine.PasswordError as error:
        raise Unreadable("The table asks for a password.", "表格已加密，需要密码。") from error
    except (calamine.CalamineError, OSError) as error:
        why = shown(str(error))
        raise Unreadable(
            f"The file is no spreadsheet, or a damaged one ({why}).",
            f"文件不是电子表格或已损坏（{why}）。",
        ) from error


def _visible(book: "CalamineWorkbook") -> Iterator["CalamineSheet"]:
    from python_calamine import CalamineError, SheetTypeEnum, SheetVisibleEnum

    for index, about in enumerate(book.sheets_metadata):
        if about.typ == SheetTypeEnum.WorkSheet and about.visible == SheetVisibleEnum.Visible:
            try:
                yield book.get_sheet_by_index(index)
            except CalamineError as error:
                why = shown(str(error))
                raise Unreadable(
                    f"The sheet “{shown(about.name)}” is damaged ({why}).",
                    f"工作表 “{shown(about.name)}” 已损坏（{why}）。",
                ) from error


def _rows(sheet: "CalamineSheet") -> Iterator[Row]:
    for number, row in enumerate(sheet.iter_rows(), 1):
        yield number, [_shown_cell(cell) for cell in row]


def _in_table(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _shown_cell(cell: object) -> str:
    """A cell as a person reads it in the table."""
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else repr(cell)
    if isinstance(cell, datetime.datetime):
        midnight = cell.time() == datetime.time()
        return cell.date().isoformat() if midnight else cell.isoformat(sep=" ")
    return str(cell)
