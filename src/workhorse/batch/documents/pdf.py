"""The text of a PDF: its pages' letters with their places, read by PDFium."""

from pathlib import Path
from typing import Any

from workhorse.batch.documents.lines import SPLIT, Line, pages_as_text
from workhorse.batch.documents.refusal import Unreadable, shown

PAGES_MAX = 20_000
COLUMN_GAP = 1.8  # heights of the letters: so wide is no space between words
NEW_LINE = 0.6  # heights up or down; an index or an exponent stands nearer
# Letters without a meaning: a font that tells only how they look.
UNKNOWN_SHARE_MAX = 0.3
# fpdfview.h, FPDF_ERR_* (PDFium, 2026-11).
_PASSWORD, _SECURITY = 4, 5
_LINE_ENDS = (0x0D, 0x0A)
_DIVIDED = (0x02, 0xFFFE)  # how PDFium writes a hyphen at a line's end that divides a word


def pdf_text(path: Path) -> str:
    """The text of a PDF with its pages marked; raises Unreadable."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        raise _refused(error) from error
    try:
        n_pages = len(document)
        if n_pages > PAGES_MAX:
            raise Unreadable(
                f"The PDF has {n_pages} pages, more than {PAGES_MAX}.",
                f"PDF 共 {n_pages} 页，超过 {PAGES_MAX} 页。",
            )
        pages, broken = _pages(document, n_pages)
    finally:
        document.close()
    return _checked(pages, broken)


def _pages(document: Any, n_pages: int) -> tuple[list[list[Line]], int]:
    import pypdfium2

    pages, broken = [], 0
    for index in range(n_pages):
        try:
            page = document[index]
            try:
                pages.append(page_lines(page.get_textpage()))
            finally:
                page.close()
        except pypdfium2.PdfiumError:
            pages.append([])
            broken += 1
    return pages, broken


def _checked(pages: list[list[Line]], broken: int) -> str:
    letters = "".join(line.text for lines in pages for line in lines)
    n_pages = len(pages)
    if broken == n_pages:
        raise Unreadable(
            f"None of the PDF's {n_pages} pages can be read: it is damaged.",
            f"PDF 的 {n_pages} 页均无法读取：文件已损坏。",
        )
    if not letters.strip():
        raise Unreadable(
            f"The PDF has {n_pages} pages of pictures and no text: it was scanned. A program that "
            "recognises text (OCR) has to go first.",
            f"PDF 共 {n_pages} 页，只有图像而没有文字（扫描件），请先进行文字识别（OCR）。",
        )
    unknown = sum(1 for letter in letters if letter == "\ufffd" or "\ue000" <= letter <= "\uf8ff")
    if unknown > UNKNOWN_SHARE_MAX * len(letters):
        raise Unreadable(
            f"{unknown} of the PDF's {len(letters)} letters have a shape and no meaning: its fonts "
            "do not tell which letters they are. Only OCR can read it.",
            f"PDF 的 {len(letters)} 个字符中有 {unknown} 个只有字形而没有编码（字体缺少字符映射），"
            "只能通过 OCR 识别。",
        )
    text = pages_as_text(pages)
    if broken:
        text += f"\n\n[{broken} of {n_pages} pages could not be read]"
    return text


def _refused(error: Any) -> Unreadable:
    if error.err_code in (_PASSWORD, _SECURITY):
        return Unreadable("The PDF asks for a password.", "PDF 已加密，需要密码。")
    why = shown(str(error))
    return Unreadable(
        f"The file is no PDF, or a damaged one ({why}).", f"文件不是 PDF 或已损坏（{why}）。"
    )


def page_lines(textpage: Any) -> list[Line]:
    """The lines of a page in the order in which the file writes them."""
    import pypdfium2.raw as pdfium

    building, lines = _Building(), []
    box = pdfium.FS_RECTF()
    for index in range(max(0, pdfium.FPDFText_CountChars(textpage))):
        code = pdfium.FPDFText_GetUnicode(textpage, index)
        if code in _LINE_ENDS:
            lines.append(building.taken())
        elif code in _DIVIDED:
            building.text.append(SPLIT)
            lines.append(building.taken())
        elif code in (0x20, 0x09, 0xA0, 0x3000):
            building.space = True
        elif code and pdfium.FPDFText_GetLooseCharBox(textpage, index, box):
            if building.is_left_by(box.left, box.bottom):
                lines.append(building.taken())
            building.add(code, box.left, box.right, box.bottom, box.top)
    lines.append(building.taken())
    return [line for line in lines if line is not None]


class _Building:
    """A line that comes together letter by letter."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.space = False
        self._left = self._right = self._bottom = self._height = 0.0

    def add(self, code: int, left: float, right: float, bottom: float, top: float) -> None:
        """The next letter that can be seen."""
        letter = chr(code) if code < 0xD800 or 0xDFFF < code <= 0x10FFFF else "\ufffd"
        if not self.text:
            self._left, self._bottom, self._height = left, bottom, abs(top - bottom)
        elif self.space:
            wide = left - self._right > COLUMN_GAP * self._height > 0
            self.text.append("\t" if wide else " ")
        self.text.append(letter)
        self._right, self.space = right, False

    def is_left_by(self, left: float, bottom: float) -> bool:
        """Whether a letter there stands in another line: PDFium does not end each of them."""
        moved = abs(bottom - self._bottom) > NEW_LINE * self._height
        return bool(self.text) and moved and left < self._right

    def taken(self) -> Line | None:
        """The line, and an empty one begins; None: there was nothing in it."""
        text, self.text, self.space = "".join(self.text), [], False
        if not text.strip(SPLIT):
            return None
        return Line(text, self._left, self._right, self._bottom, self._height)
