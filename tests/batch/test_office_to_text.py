"""Word documents and spreadsheets as text."""

import datetime
from pathlib import Path

import pytest
from document_builder import docx, paragraph, word_table, xlsx

from workhorse.batch.documents.office import docx_text
from workhorse.batch.documents.refusal import Unreadable
from workhorse.batch.documents.sheet import sheet_items, sheet_text
from workhorse.errors import AppError

BODY = (
    paragraph("更换风扇", style="1")
    + paragraph("Switch the server off &amp; open the lid.")
    + paragraph("Tools", style="2")
    + paragraph("a screwdriver", list_of=(1, 0))
    + paragraph("flat", list_of=(1, 1))
    + paragraph("a fan", list_of=(1, 0))
    + paragraph("Pull", list_of=(2, 0))
    + paragraph("Push", list_of=(2, 0))
    + paragraph("第三级", style="a3")
    + word_table([("Fan", "Speed"), ("1", "4,000 rpm")])
    + paragraph("ipmitool sdr", style="c")
    + paragraph("grep FAN", style="c")
)
TEXT = """# 更换风扇

Switch the server off & open the lid.

## Tools

- a screwdriver
  - flat
- a fan

1. Pull
2. Push

### 第三级

| Fan | Speed |
| --- | --- |
| 1 | 4,000 rpm |

```
ipmitool sdr
grep FAN
```"""


def written(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_word_document_keeps_its_form(tmp_path: Path) -> None:
    assert docx_text(written(docx(BODY), tmp_path, "a.docx")) == TEXT


def test_what_was_deleted_is_not_read_and_what_was_inserted_is(tmp_path: Path) -> None:
    body = (
        "<w:p><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
        "<w:ins><w:r><w:t>new</w:t></w:r></w:ins></w:p>"
    )
    assert docx_text(written(docx(body), tmp_path, "a.docx")) == "new"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 and no more",
        docx(BODY)[:-200],
        docx("<w:p><w:r>"),  # no XML
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
    ],
)
def test_damaged_and_locked_documents_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        docx_text(written(data, tmp_path, "a.docx"))


def test_entities_are_refused_before_they_grow(tmp_path: Path) -> None:
    grow = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    outside = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>'
    for head in (grow, outside):
        with pytest.raises(Unreadable, match="entities"):
            docx_text(written(docx(paragraph("&a;"), head=head), tmp_path, "a.docx"))


def test_a_part_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    bomb = docx("", parts={"word/document.xml": b" " * (70 * 2**20)})
    assert len(bomb) < 2**20
    with pytest.raises(Unreadable, match="70 MiB"):
        docx_text(written(bomb, tmp_path, "a.docx"))


MAILS = [
    ("id", "文本", "when", "amount", "open"),
    ("m1", "服务器坏了", datetime.date(2026, 11, 5), 17.0, True),
    (None, None, None, None, None),
    ("m2", "It is | fixed\nnow", None, 0.5, False),
    ("m3", "", None, None, None),
]


def test_a_spreadsheet_is_a_table_a_sheet(tmp_path: Path) -> None:
    path = written(xlsx({"Mails": MAILS, "Empty": [], "Notes": [("only",)]}), tmp_path, "a.xlsx")
    assert sheet_text(path) == (
        "## Mails\n\n"
        "| id | 文本 | when | amount | open |\n| --- | --- | --- | --- | --- |\n"
        "| m1 | 服务器坏了 | 2026-11-05 | 17 | TRUE |\n"
        "| m2 | It is \\| fixed now |  | 0.5 | FALSE |\n"
        "| m3 |  |  |  |  |\n\n"
        "## Notes\n\nonly"
    )


def test_each_row_of_a_column_is_an_item(tmp_path: Path) -> None:
    path = written(xlsx({"Notes": [("only",)], "Mails": MAILS}), tmp_path, "a.xlsx")
    items = list(sheet_items(path, "文本", "id", "a.xlsx"))
    assert [(one.id, one.source, one.content) for one in items] == [
        ("m1", "a.xlsx Mails row 2", "服务器坏了"),
        ("m2", "a.xlsx Mails row 4", "It is | fixed\nnow"),
        ("m3", "a.xlsx Mails row 5", None),
    ]
    assert items[2].reason is not None
    assert [one.id for one in sheet_items(path, "Mails!amount", None, "a.xlsx")] == ["2", "4", "5"]


@pytest.mark.parametrize(
    ("column", "told"),
    [("nothing", "“文本”"), ("Other!文本", "Notes, Mails"), ("7", "no column “7”")],
)
def test_a_column_that_is_not_there_is_told_with_those_that_are(
    column: str, told: str, tmp_path: Path
) -> None:
    path = written(xlsx({"Notes": [], "Mails": MAILS}), tmp_path, "a.xlsx")
    with pytest.raises(AppError, match=told):
        list(sheet_items(path, column, None, "a.xlsx"))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", xlsx({"A": MAILS})[:900], b"a,b\n1,2\n"])
def test_damaged_spreadsheets_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        sheet_text(written(data, tmp_path, "a.xlsx"))
