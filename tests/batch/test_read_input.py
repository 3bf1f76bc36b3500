"""An input as items: folders, single files, tables, lines of JSON."""

import json
import os
from pathlib import Path

import pytest
from document_builder import column, docx, paragraph, pdf, xlsx

from workhorse.batch.documents import Skipped, read_input
from workhorse.batch.documents import apart as apart_module
from workhorse.batch.item import NewItem
from workhorse.batch.output import claim_output
from workhorse.errors import AppError


def read(path: Path, **how: object) -> tuple[list[NewItem], dict[str, str]]:
    """The items, and what was passed over with the reason."""
    told: list[Skipped] = []
    items = list(read_input(path, skipped=told.append, **how))  # type: ignore[arg-type]
    return items, {one.source: one.why.en for one in told}


def made(folder: Path, **files: bytes | str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_a_folder_of_everything(tmp_path: Path) -> None:
    made(
        tmp_path,
        a_DOT_txt="line\r\nline",
        b_DOT_md="# 标题".encode("gbk"),
        code__main_DOT_py="x = 1\r\n",
        code__old_DOT_py="# coding: gbk\ns = '风扇'\n".encode("gbk"),
        d_DOT_docx=docx(paragraph("Word")),
        e_DOT_pdf=pdf([column(["Printed"])]),
        f_DOT_html="<p>Page</p>",
        g_DOT_csv="a,b\n1,2\n",
        h_DOT_xlsx=xlsx({"S": [("a", "b"), (1, 2)]}),
        README="no suffix",
    )
    items, skipped = read(tmp_path)
    assert [(one.id, one.content, one.media_type) for one in items] == [
        ("README", "no suffix", "text/plain"),
        ("a.txt", "line\nline", "text/plain"),
        ("b.md", "# 标题", "text/markdown; charset=gb18030"),
        ("code/main.py", "x = 1\r\n", "text/x-python"),
        ("code/old.py", "# coding: gbk\ns = '风扇'\n", "text/x-python; charset=gbk"),
        ("d.docx", "Word", "text/markdown"),
        ("e.pdf", "[page 1]\n\nPrinted", "text/plain"),
        ("f.html", "Page", "text/markdown"),
        ("g.csv", "a,b\n1,2\n", "text/csv"),
        ("h.xlsx", "## S\n\n| a | b |\n| --- | --- |\n| 1 | 2 |", "text/markdown"),
    ]
    assert all(one.source == one.id and one.reason is None for one in items)
    assert skipped == {}
    assert [one.id for one in read(tmp_path, accept=["*.py"])[0]] == ["code/main.py", "code/old.py"]
    assert [one.id for one in read(tmp_path, accept=["code/o*"])[0]] == ["code/old.py"]


def test_what_cannot_be_read_is_told_in_its_place(tmp_path: Path) -> None:
    made(
        tmp_path,
        a_DOT_pdf=b"no PDF",
        b_DOT_doc=b"\xd0\xcf\x11\xe0",
        c_DOT_txt=b"\0\1\2\3",
        d_DOT_html="<script>only()</script>",
        e_DOT_txt="good",
    )
    items, _ = read(tmp_path)
    assert [(one.id, one.content) for one in items] == [
        ("a.pdf", None),
        ("b.doc", None),
        ("c.txt", None),
        ("d.html", None),
        ("e.txt", "good"),
    ]
    reasons = [one.reason.seen for one in items if one.reason]
    assert [one.reason.cause for one in items if one.reason] == ["unreadable"] * 4
    assert "damaged" in reasons[0]
    assert "Save it as docx" in reasons[1]
    assert "binary" in reasons[2]
    assert "no text" in reasons[3]


def test_what_is_no_document_is_passed_over_and_told(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    root = made(
        tmp_path / "in",
        _DOT_git__config="hidden",
        empty_DOT_txt="",
        blank_DOT_md=" \n",
        picture_DOT_png=b"\x89PNG\r\n\x1a\n\0\0",
        real_DOT_txt="words",
        _xlsx="no dot",
    )
    os.mkfifo(root / "pipe.txt")
    (root / "loop").symlink_to(root)
    (root / "self.txt").symlink_to("self.txt")
    (root / "gone.txt").symlink_to("nowhere.txt")
    (root / "secret.txt").symlink_to(outside / "secret.txt")
    (root / "same.txt").symlink_to("real.txt")
    items, skipped = read(root)
    assert [one.id for one in items] == ["_xlsx", "real.txt", "same.txt"]
    assert skipped == {
        ".git": "hidden",
        "blank.md": "empty",
        "empty.txt": "empty",
        "gone.txt": "no regular file",
        "loop": "a link to a folder",
        "picture.png": "binary",
        "pipe.txt": "no regular file",
        "secret.txt": "a link out of the folder",
        "self.txt": "no regular file",
    }


def test_results_of_a_job_are_no_documents(tmp_path: Path) -> None:
    made(tmp_path, a_DOT_txt="words", results_DOT_jsonl="{}\n", out__a_DOT_txt_DOT_md="summary")
    claim_output(tmp_path / "results.jsonl", "jsonl", "abc", replace=True)
    claim_output(tmp_path / "out", "folder", "abc", replace=True)
    items, skipped = read(tmp_path)
    assert [one.id for one in items] == ["a.txt"]
    assert skipped["results.jsonl"] == skipped["out"] == "the results of a job"


def test_names_that_are_no_utf8_are_shown_and_stay_apart(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path)
    for name in ("报告.txt".encode("gbk"), "报告.txt".encode()):
        Path(os.fsdecode(raw + b"/" + name)).write_text("words")
    Path(os.fsdecode(raw + b"/\xff\xff.txt")).write_text("words")
    ids = [one.id for one in read(tmp_path)[0]]
    assert sorted(ids) == sorted(["报告.txt", "报告.txt~", "\\xff\\xff.txt"])


def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="is empty"):
        read(tmp_path)
    made(tmp_path, a_DOT_png=b"\x89PNG\0", b_DOT_txt="")
    with pytest.raises(AppError, match=r"None of the 2 files .*a.png: binary; b.txt: empty"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["gone", "a\0b"])
def test_an_input_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="cannot be read"):
        read(tmp_path / name)


def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AppError, match="pipe or a device"):
        read(tmp_path / "pipe")


def test_one_file_that_cannot_be_read_is_an_error_and_no_job(tmp_path: Path) -> None:
    made(tmp_path, a_DOT_pdf=b"no PDF", b_DOT_txt="  ", c_DOT_pdf=pdf([column(["Printed"])]))
    for name, told in (("a.pdf", "damaged"), ("b.txt", "no text")):
        with pytest.raises(AppError, match=told):
            read(tmp_path / name)
    assert [one.content for one in read(tmp_path / "c.pdf")[0]] == ["[page 1]\n\nPrinted"]
    with pytest.raises(AppError, match="no table"):
        read(tmp_path / "c.pdf", column="text")


# --- tables --------------------------------------------------------------------------------------

MAILS = 'id,text,note\nm1,"a, ""quoted""\nmail",x\n\nm2,风扇,\nm3,  ,\nm4\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gbk"])
def test_rows_of_a_csv_file_are_items(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "mails.csv").write_bytes(MAILS.encode(encoding))
    items, _ = read(tmp_path / "mails.csv", id_column="id")
    assert [(one.id, one.content, one.source) for one in items] == [
        ("m1", 'a, "quoted"\nmail', "mails.csv row 2"),
        ("m2", "风扇", "mails.csv row 4"),
        ("m3", None, "mails.csv row 5"),
        ("m4", None, "mails.csv row 6"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "how"),
    [
        ("a.csv", "id;mail\n1;x, y\n", {"column": "mail"}),
        ("a.csv", "sep=;\nid;mail\n1;x, y\n", {"column": "2"}),
        ("a.tsv", "id\tmail\n1\tx, y\n", {"column": "mail"}),
        ("a.csv", 'mail\n"x, y"\n', {}),
        ("a.csv", 'nr,正文\n1,"x, y"\n', {}),
    ],
)
def test_the_form_of_a_table_is_found_out(
    name: str, content: str, how: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    assert [one.content for one in read(tmp_path / name, **how)[0]] == ["x, y"]


@pytest.mark.parametrize(
    ("content", "how", "told"),
    [
        ("a,b\n1,2\n", {}, "--column NAME"),
        ("a,b\n1,2\n", {"column": "c"}, "“a”, “b”"),
        ("a,a\n1,2\n", {"column": "a"}, "--column 1"),
        ("a,b\n1,2\n", {"column": "a", "id_column": "c"}, "--id"),
        ("\n\n", {"column": "a"}, "no rows"),
        ("a,b\n1,2\n", {"column": "3"}, "no column “3”"),
    ],
)
def test_mistakes_with_columns_are_told(
    content: str, how: dict[str, str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(AppError, match=told):
        read(tmp_path / "a.csv", **how)


def test_a_quote_that_is_never_closed_takes_no_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.batch.documents.tables.CELL_CHARS_MAX", 1000)
    (tmp_path / "a.csv").write_text('text\nok\n"open\n' + "more\n" * 1000)
    with pytest.raises(AppError, match="without its pair"):
        read(tmp_path / "a.csv")


def test_rows_of_a_spreadsheet_are_items(tmp_path: Path) -> None:
    rows = [("id", "text")] + [(number, f"mail {number} " + "x" * 400) for number in range(5000)]
    (tmp_path / "a.xlsx").write_bytes(xlsx({"S": rows}))
    items, _ = read(tmp_path / "a.xlsx", column="text", id_column="id")
    assert [one.id for one in items] == [str(number) for number in range(5000)]
    assert items[-1].content == rows[-1][1]
    first = next(iter(read_input(tmp_path / "a.xlsx")))  # and leaves the reading process
    assert first.source == "a.xlsx row 2"
    with pytest.raises(AppError, match="no column"):
        read(tmp_path / "a.xlsx", column="other")


# --- lines of JSON -------------------------------------------------------------------------------


def lines(folder: Path, *rows: object, name: str = "a.jsonl", encoding: str = "utf-8") -> Path:
    texts = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in rows]
    (folder / name).write_bytes(("\n".join(texts) + "\n").encode(encoding))
    return folder / name


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gbk"])
def test_lines_of_json_are_items(encoding: str, tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        {"id": "a", "text": "风扇坏了，请派人检查", "n": 1},
        "",
        {"id": 7, "text": "two"},
        {"text": "three"},
        encoding=encoding,
    )
    assert [(one.id, one.content, one.kind) for one in read(path)[0]] == [
        ("a", "风扇坏了，请派人检查", "text"),
        ("7", "two", "text"),
        ("line 4", "three", "text"),
    ]


def test_bad_lines_are_told_in_their_place(tmp_path: Path) -> None:
    path = lines(
        tmp_path, {"id": "a", "text": "x"}, "{", "[1]", {"id": "b", "text": 5}, {"id": "c"}, "null"
    )
    assert [(one.id, one.reason is None) for one in read(path)[0]] == [
        ("a", True),
        ("line 2", False),
        ("line 3", False),
        ("b", False),
        ("c", False),
        ("line 6", False),
    ]


def test_the_key_is_named_or_asked_for(tmp_path: Path) -> None:
    path = lines(tmp_path, {"key": "k", "mail": "x"})
    (one,) = read(path, column="mail", id_column="key")[0]
    assert (one.id, one.content) == ("k", "x")
    with pytest.raises(AppError, match="“key”, “mail”"):
        read(path)
    with pytest.raises(AppError, match="no key “other”"):
        read(path, column="other")


REQUEST = {
    "custom_id": "r1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": [{"role": "user", "content": "hi"}]},
}


def test_openai_requests_are_items_as_they_stand(tmp_path: Path) -> None:
    text = json.dumps(REQUEST)
    (one,) = read(lines(tmp_path, text))[0]
    assert (one.id, one.kind, one.content) == ("r1", "request", text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": "GET"}, "POST"),
        ({"url": "https://example.com/v1/chat/completions"}, "no path"),
        ({"url": 5}, "no path"),
        ({"body": "text"}, "no JSON object"),
        ({"body": {"stream": True}}, "stream"),
        ({"custom_id": 5}, "custom_id"),
        ({"custom_id": None}, "lacks `custom_id`"),
    ],
)
def test_a_request_that_is_wrong_is_told(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    items, _ = read(lines(tmp_path, REQUEST, REQUEST | {"custom_id": "r2"} | change))
    assert items[0].reason is None
    assert items[1].reason is not None
    assert told in items[1].reason.seen
    assert items[1].kind == "request"


def test_a_line_longer_than_any_text_is_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("streams", "json_lines"):
        monkeypatch.setattr(f"workhorse.batch.documents.{module}.LINE_BYTES_MAX", 100)
    path = lines(tmp_path, {"text": "a"}, {"text": "x" * 1000}, {"text": "b"})
    assert [one.content for one in read(path)[0]] == ["a", None, "b"]


# --- what reads is missing, or harmed ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("a.pdf", "pypdfium2"),
        ("a.docx", "mammoth"),
        ("a.html", "selectolax"),
        ("a.xlsx", "python-calamine"),
        ("a.txt", "charset-normalizer"),
    ],
)
def test_a_missing_library_is_told_with_the_command(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes("风扇".encode("gbk"))
    for module in ("apart", "text"):
        monkeypatch.setattr(f"workhorse.batch.documents.{module}.find_spec", lambda _name: None)
    with pytest.raises(AppError, match=package) as told:
        read(tmp_path)
    assert "pip install 'workhorse[documents]'" in told.value.next_step.en


def test_a_document_that_kills_its_reader_takes_nobody_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, a_DOT_html="<p>one", b_DOT_html="<p>two", c_DOT_html="<p>three")
    child = made(tmp_path / "child", deadly_DOT_py=DEADLY) / "deadly.py"
    monkeypatch.setattr(apart_module, "COMMAND", ("-P", str(child)))
    items, _ = read(tmp_path, accept=["*.html"])
    assert [(one.id, one.content) for one in items] == [
        ("a.html", "one"),
        ("b.html", None),
        ("c.html", "three"),
    ]
    assert items[1].reason is not None
    assert "signal 11" in items[1].reason.seen


DEADLY = """
import os, signal
from workhorse.batch.documents import child, markup
read = markup.markdown_of
def deadly(page):
    if "two" in page:
        os.kill(os.getpid(), signal.SIGSEGV)
    return read(page)
markup.markdown_of = deadly
child.main()
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [(-24, "s of computing"), (-9, "memory ran out"), (-6, "signal 6"), (1, "code 1")],
)
def test_how_a_reader_ended_is_told(code: int, told: str) -> None:
    assert told in apart_module.why_it_ended(code).seen


@pytest.mark.parametrize(("limit", "value"), [("CPU_S", "1"), ("MEMORY_BYTES", "2**28")])
def test_endless_documents_meet_a_limit(
    limit: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = "    text = page\n    while True: text += page if LIMIT == 'MEMORY_BYTES' else ''\n"
    source = (
        "from workhorse.batch.documents import child, markup\n"
        f"LIMIT = '{limit}'\nchild.{limit} = {value}\n"
        f"def endless(page):\n    page = page * 1000\n{grows}"
        "markup.markdown_of = endless\nchild.main()\n"
    )
    made(tmp_path, a_DOT_html="<p>one" * 100, endless_DOT_py=source)
    monkeypatch.setattr(apart_module, "COMMAND", ("-P", str(tmp_path / "endless.py")))
    (item,) = read(tmp_path, accept=["*.html"])[0]
    assert item.reason is not None
    assert ("computing" if limit == "CPU_S" else "memory") in item.reason.seen
