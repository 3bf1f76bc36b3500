"""Documents that the tests read: PDF, Word and Excel files made byte by byte or by a library."""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence

import xlsxwriter

# --- PDF -----------------------------------------------------------------------------------------

FONTS = (
    "<< /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >> "
    "/F2 << /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UCS2-H "
    "/DescendantFonts [<< /Type /Font /Subtype /CIDFontType0 /BaseFont /STSong-Light "
    "/CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) /Supplement 2 >> /DW 1000 "
    "/FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 6 "
    "/FontBBox [-25 -254 1000 880] /ItalicAngle 0 /Ascent 880 /Descent -120 /CapHeight 880 "
    "/StemV 93 >> >>] >> >>"
)
Print = tuple[float, float, float, str]  # from the left, from below, size of the letters, words


def column(
    lines: Iterable[str], left: float = 72, top: float = 720, size: float = 11, pitch: float = 14
) -> list[Print]:
    """Lines one below the other."""
    return [(left, top - row * pitch, size, line) for row, line in enumerate(lines) if line]


def pdf(pages: Sequence[Sequence[Print]]) -> bytes:
    """A PDF with a text at each place; Chinese in a font that is not in the file."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for prints in pages:
        stream = "\n".join(_printed(*one) for one in prints)
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R "
            f"/Resources << /Font {FONTS} >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    return pdf_of_objects(objects)


def pdf_of_objects(objects: Sequence[str]) -> bytes:
    """A PDF of these objects, numbered from 1; the first is the catalogue."""
    data = b"%PDF-1.7\n"
    places = []
    for number, words in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{words}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    return (
        data
        + (
            f"xref\n0 {size}\n0000000000 65535 f \n{table}"
            f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
        ).encode()
    )


def _printed(left: float, bottom: float, size: float, words: str) -> str:
    chinese = any(letter > "\u2e80" for letter in words)
    font, coded = "F1", words.encode("cp1252", "replace").hex()
    if chinese:
        font, coded = "F2", words.encode("utf-16-be").hex()
    return f"BT /{font} {size} Tf {left} {bottom} Td <{coded}> Tj ET"


# --- Office --------------------------------------------------------------------------------------

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
TYPES = (
    f'<Types xmlns="{PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships'
    '+xml"/><Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.wordprocessingml.document.main+xml"/></Types>'
)
RELATIONS = (
    f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
    f'Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>'
)
OWN_RELATIONS = (
    f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/styles" Target="styles.xml"/>'
    f'<Relationship Id="rId2" Type="{OFFICE}/numbering" Target="numbering.xml"/></Relationships>'
)
# As Chinese Word writes them: the id is a number, the name English.
STYLES = f'<w:styles xmlns:w="{WORD}">' + "".join(
    f'<w:style w:type="paragraph" w:styleId="{style}"><w:name w:val="{name}"/></w:style>'
    for style, name in (("1", "heading 1"), ("2", "heading 2"), ("a3", "标题 3"), ("c", "Code"))
)
STYLES += "</w:styles>"
NUMBERING = (
    f'<w:numbering xmlns:w="{WORD}">'
    '<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/></w:lvl>'
    '<w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/></w:lvl></w:abstractNum>'
    '<w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/></w:lvl>'
    '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num></w:numbering>'
)


def paragraph(
    words: str, *, style: str | None = None, list_of: tuple[int, int] | None = None
) -> str:
    """A paragraph of Word's; `list_of`: the number of its list and how deep in it."""
    about = f'<w:pStyle w:val="{style}"/>' if style else ""
    if list_of:
        about += f'<w:numPr><w:ilvl w:val="{list_of[1]}"/><w:numId w:val="{list_of[0]}"/></w:numPr>'
    return f"<w:p><w:pPr>{about}</w:pPr><w:r><w:t>{words}</w:t></w:r></w:p>"


def word_table(rows: Sequence[Sequence[str]]) -> str:
    """A table of Word's."""
    cells = [[f"<w:tc>{paragraph(words)}</w:tc>" for words in row] for row in rows]
    return "<w:tbl>" + "".join(f"<w:tr>{''.join(row)}</w:tr>" for row in cells) + "</w:tbl>"


def docx(body: str, *, head: str = "", parts: Mapping[str, bytes] | None = None) -> bytes:
    """A Word document with this body; `head` goes before its root."""
    document = f'{head}<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    contents = {
        "[Content_Types].xml": TYPES.encode(),
        "_rels/.rels": RELATIONS.encode(),
        "word/_rels/document.xml.rels": OWN_RELATIONS.encode(),
        "word/styles.xml": STYLES.encode(),
        "word/numbering.xml": NUMBERING.encode(),
        "word/document.xml": document.encode(),
    } | dict(parts or {})
    return zipped(contents)


def zipped(contents: Mapping[str, bytes]) -> bytes:
    """An archive of these files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return made.getvalue()


def xlsx(sheets: Mapping[str, Sequence[Sequence[object]]]) -> bytes:
    """An Excel file; a cell is a text, a number, a truth, a date, None."""
    made = io.BytesIO()
    with xlsxwriter.Workbook(
        made, {"in_memory": True, "default_date_format": "yyyy-mm-dd"}
    ) as book:
        for name, rows in sheets.items():
            sheet = book.add_worksheet(name)
            for at, row in enumerate(rows):
                for column_at, cell in enumerate(row):
                    if cell is not None:
                        sheet.write(at, column_at, cell)
    return made.getvalue()
