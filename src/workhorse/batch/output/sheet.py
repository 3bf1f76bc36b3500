"""Results as an Excel file, written row by row: memory stays flat for a million of them."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from workhorse.batch.documents.refusal import missing

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.worksheet import Worksheet

# "Excel specifications and limits" (2026-11); a letter outside of the BMP counts twice.
CELL_CHARS_MAX = 32_767
ROWS_MAX = 1_048_576
SHOWN_CHARS = 15_000  # of a text that is too long, in its own cell
PIECE_CHARS = 16_000  # of it in each cell of the second sheet
RESULTS, LONG = "results", "long texts"
WIDE, NARROW = 60, 18  # characters


@dataclass(frozen=True, slots=True)
class SheetWritten:
    """What a reader has to know of the file."""

    rows: int
    long_texts: int  # that stand on a sheet of their own


def check_can_write() -> None:
    """AppError where the library that writes Excel files is not here."""
    if find_spec("xlsxwriter") is None:
        raise missing("XlsxWriter", "and writes Excel files", "或写入 Excel 文件")


def write_sheet(
    file: BinaryIO, folder: Path, head: Sequence[str], rows: Iterable[Sequence[str]]
) -> SheetWritten:
    """Write an .xlsx: nothing in it is computed, and no text is cut.

    A text too long for a cell begins in it and stands whole, in pieces, on the sheet `long texts`.
    `folder` has room for what is not put together yet. Raises OSError.
    """
    from xlsxwriter import Workbook
    from xlsxwriter.exceptions import FileCreateError

    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as room:
        book = Workbook(
            file,
            {
                "constant_memory": True,
                "tmpdir": room,
                "strings_to_formulas": False,
                "strings_to_urls": False,
                "strings_to_numbers": False,
            },
        )
        wide = {head.index("result")} if "result" in head else set()
        results = _Rows(book, RESULTS, head, wide)
        long_texts = _Rows(book, LONG, ("id", "column", "part", "text"), {3})
        count = n_long = 0
        for row in rows:
            count += 1
            cells = list(map(_plain, row))
            for column, cell in enumerate(cells):
                if _units(cell) > CELL_CHARS_MAX:
                    n_long += 1
                    _spread(long_texts, cells[0], head[column], cell)
                    cells[column] = _beginning(cell)
            results.add(cells)
        try:
            book.close()
        except FileCreateError as error:
            raise error.args[0] from error
    return SheetWritten(count, n_long)


class _Rows:
    """A sheet that goes on in another one where it is full."""

    def __init__(self, book: "Workbook", name: str, head: Sequence[str], wide: set[int]) -> None:
        self._book, self._name, self._head, self._wide = book, name, head, wide
        self._bold = book.add_format({"bold": True})
        self._count = 0
        self._sheet = self._begun()

    def add(self, cells: Sequence[str]) -> None:
        """The next row."""
        if self._row >= ROWS_MAX:
            self._sheet = self._begun()
        for column, cell in enumerate(cells):
            if cell:
                self._sheet.write_string(self._row, column, cell)
        self._row += 1

    def _begun(self) -> "Worksheet":
        self._count += 1
        name = self._name if self._count == 1 else f"{self._name} {self._count}"
        sheet = self._book.add_worksheet(name)
        sheet.freeze_panes(1, 0)
        for column, title in enumerate(self._head):
            sheet.set_column(column, column, WIDE if column in self._wide else NARROW)
            sheet.write_string(0, column, title, self._bold)
        self._row = 1
        return sheet


def _plain(cell: str) -> str:
    """Without what no XML file can hold: halves of a character."""
    return cell.encode("utf-8", "replace").decode()


def _units(text: str) -> int:
    return len(text) if len(text) <= CELL_CHARS_MAX // 2 else len(text.encode("utf-16-le")) // 2


def _beginning(text: str) -> str:
    return f"{text[:SHOWN_CHARS]}… [{len(text)} characters; the whole text: sheet “{LONG}”]"


def _spread(rows: _Rows, item_id: str, column: str, text: str) -> None:
    for part, at in enumerate(range(0, len(text), PIECE_CHARS), 1):
        rows.add((item_id[: CELL_CHARS_MAX // 2], column, str(part), text[at : at + PIECE_CHARS]))
