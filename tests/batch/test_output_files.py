"""Results out: every form, every item in its place, every text whole."""

import csv
import json
from pathlib import Path

import pytest
from python_calamine import load_workbook
from result_items import BROKEN, ITEMS, item, names_in, record, write

from workhorse.batch.item import Result, Usage
from workhorse.errors import AppError


def test_a_line_an_item_in_the_order_of_the_input(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.jsonl"
    done = write(path, "jsonl", ITEMS)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == [
        {
            "id": "b.txt",
            "source": "b.txt",
            "status": "done",
            "text": "Zusammenfassung: 风扇",
            "error": None,
            "notes": ["repaired"],
        },
        {
            "id": "a.txt",
            "source": "a.txt",
            "status": "failed",
            "error": {
                "cause": "no answer",
                "message": "HTTP 500, 3 times",
                "message_zh": "HTTP 500，共 3 次",
            },
        },
        {
            "id": "c.txt",
            "source": "c.txt",
            "status": "done",
            "value": {"people": ["Wang", "Li"], "place": "=1+1", "more": 1},
            "error": None,
        },
        {
            "id": "d.txt",
            "source": "d.txt",
            "status": "cancelled",
            "error": {
                "cause": "cancelled",
                "message": "It was not done yet.",
                "message_zh": "尚未处理。",
            },
        },
    ]
    assert "风扇" in path.read_text("utf-8")
    assert (done.items, done.failed, done.files) == (4, 2, (path,))


HEAD = ["id", "source", "status", "result", "people", "place", "more", "error", "notes"]
ROWS = [
    ["b.txt", "b.txt", "done", "Zusammenfassung: 风扇", "", "", "", "", "repaired"],
    ["a.txt", "a.txt", "failed", "", "", "", "", "HTTP 500, 3 times", ""],
    ["c.txt", "c.txt", "done", "", "Wang; Li", "=1+1", "1", "", ""],
    ["d.txt", "d.txt", "cancelled", "", "", "", "", "It was not done yet.", ""],
]


def test_a_table_that_excel_opens_and_computes_nothing_of(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write(path, "csv", ITEMS)
    assert path.read_bytes().startswith(b"\xef\xbb\xbfid,source")
    with path.open(encoding="utf-8-sig", newline="") as file:
        found = list(csv.reader(file))
    assert found == [
        HEAD,
        *[[("'" + one if one == "=1+1" else one) for one in row] for row in ROWS],
    ]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"),
        ("+49 30 1234", "'+49 30 1234"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("\t=1", "'\t=1"),
        ("＝1＋1", "'＝1＋1"),
        ("- a list", "'- a list"),
        ("-17.5", "-17.5"),
        ("+3 %", "+3 %"),
        ("a\0b", "ab"),
        ("a=b", "a=b"),
    ],
)
def test_a_formula_is_a_text(text: str, cell: str, tmp_path: Path) -> None:
    write(tmp_path / "out.csv", "csv", [item(0, text, result=Result(text=text))])
    with (tmp_path / "out.csv").open(encoding="utf-8-sig", newline="") as file:
        _, row = csv.reader(file)
    assert (row[0], row[3]) == (cell, cell)


def test_a_workbook_with_every_text_whole(tmp_path: Path) -> None:
    long = "风扇=" * 20_000 + "𝄞" * 20_000
    odd = "a\x0bb_x0041_\ud800"
    items = [
        *ITEMS,
        item(4, "e.txt", result=Result(text=long)),
        item(5, "f", result=Result(text=odd)),
    ]
    done = write(tmp_path / "out.xlsx", "xlsx", items)
    book = load_workbook(tmp_path / "out.xlsx")
    head, *rows = book.get_sheet_by_name("results").to_python()
    assert head == HEAD
    assert rows[:4] == ROWS
    assert rows[4][3].startswith("风扇=风扇=")
    assert rows[4][3].endswith(f"[{len(long)} characters; the whole text: sheet “long texts”]")
    assert rows[5][3].startswith("a")
    assert "_x0041_" in rows[5][3]
    _, *pieces = book.get_sheet_by_name("long texts").to_python()
    assert "".join(piece[3] for piece in pieces) == long
    assert {(piece[0], piece[1]) for piece in pieces} == {("e.txt", "result")}
    assert all(len(piece[3].encode("utf-16-le")) // 2 <= 32_767 for piece in pieces)
    assert "1 texts" in done.notes[0].en
    assert names_in(tmp_path) == [".out.xlsx.job", "out.xlsx"]


def test_a_sheet_that_is_full_goes_on_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.batch.output.sheet.ROWS_MAX", 3)
    items = [item(n, str(n), result=Result(text=f"t{n}")) for n in range(5)]
    write(tmp_path / "out.xlsx", "xlsx", items)
    book = load_workbook(tmp_path / "out.xlsx")
    found = [
        row[0]
        for name in ("results", "results 2", "results 3")
        for row in book.get_sheet_by_name(name).to_python()[1:]
    ]
    assert found == ["0", "1", "2", "3", "4"]


def test_texts_too_long_for_a_cell_are_told_with_csv(tmp_path: Path) -> None:
    done = write(tmp_path / "out.csv", "csv", [item(0, "a", result=Result(text="x" * 40_000))])
    assert "1 rows" in done.notes[0].en


def test_a_file_an_item(tmp_path: Path) -> None:
    code = "# coding: gbk\r\ns = '风扇'\r\n"
    items = [
        *ITEMS,
        item(
            4,
            "src/a.py",
            media_type="text/x-python; charset=gbk",
            result=Result(text=code, file=True),
        ),
        item(5, "x.pdf", result=Result(text="translated", file=True)),
        item(
            6,
            "u.txt",
            media_type="text/plain; charset=gbk",
            result=Result(text="\U0001f600", file=True),
        ),
        item(7, "../../etc/passwd", result=Result(text="safe")),
        item(8, "B.TXT", result=Result(text="other letters")),
    ]
    root = tmp_path / "out"
    write(root, "folder", items)
    lines = [json.loads(line) for line in (root / "results.jsonl").read_text("utf-8").splitlines()]
    assert [line.get("file") for line in lines] == [
        "b.txt.md",
        None,
        "c.txt.json",
        None,
        "src/a.py",
        "x.pdf.md",
        "u.txt",
        "etc/passwd.md",
        "B.TXT~2.md",
    ]
    assert lines[1]["error"]["cause"] == "no answer"
    assert (root / "src/a.py").read_bytes() == code.encode("gbk")
    assert (root / "u.txt").read_text("utf-8") == "\U0001f600"
    assert "gbk lacks" in lines[6]["file_note"]
    assert json.loads((root / "c.txt.json").read_text("utf-8"))["people"] == ["Wang", "Li"]
    assert not (tmp_path / "etc").exists()


def test_a_folder_after_a_retry_has_what_is_true_now(tmp_path: Path) -> None:
    root = tmp_path / "out"
    write(root, "folder", [item(0, "a", result=Result(text="one")), ITEMS[1]])
    (root / "mine.txt").write_text("not the job's")
    write(
        root, "folder", [item(0, "a", reason=BROKEN), item(1, "a.txt", result=Result(text="two"))]
    )
    assert names_in(root) == [".workhorse-job", "a.txt.md", "mine.txt", "results.jsonl"]


def test_a_link_in_the_folder_leads_nothing_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "b.md").write_text("mine")
    write(root, "folder", [])
    (root / "sub").symlink_to(outside)
    with pytest.raises(AppError, match="leads out"):
        write(root, "folder", [item(0, "sub/a", result=Result(text="x"))])
    (root / "b.md").symlink_to(outside / "b.md")
    write(root, "folder", [item(0, "b", result=Result(text="x"))])
    assert names_in(outside) == ["b.md"]
    assert (outside / "b.md").read_text() == "mine"


# --- OpenAI's files ------------------------------------------------------------------------------

BODY = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [], "usage": None}
GOOD = {"status_code": 200, "request_id": "r-1", "body": BODY}
BAD = {"status_code": 400, "request_id": "r-2", "body": {"error": {"message": "too long"}}}


def test_openais_output_and_error_file_as_they_are_documented(tmp_path: Path) -> None:
    items = [
        item(0, "r1", kind="request", result=Result(value=GOOD)),
        item(1, "r2", kind="request", result=Result(value=BAD)),
        item(2, "r3", kind="request", reason=BROKEN),
        item(3, "r4", kind="request", state="cancelled"),
    ]
    done = write(tmp_path / "out.jsonl", "openai", items)
    assert (tmp_path / "out.jsonl").read_text() == (
        '{"id": "batch_req_abc_0", "custom_id": "r1", "response": {"status_code": 200, '
        '"request_id": "r-1", "body": {"id": "chatcmpl-1", "object": "chat.completion", '
        '"choices": [], "usage": null}}, "error": null}\n'
    )
    assert (tmp_path / "out.errors.jsonl").read_text() == (
        '{"id": "batch_req_abc_1", "custom_id": "r2", "response": {"status_code": 400, '
        '"request_id": "r-2", "body": {"error": {"message": "too long"}}}, "error": null}\n'
        '{"id": "batch_req_abc_2", "custom_id": "r3", "response": null, "error": '
        '{"code": "request_timeout", "message": "HTTP 500, 3 times"}}\n'
        '{"id": "batch_req_abc_3", "custom_id": "r4", "response": null, "error": '
        '{"code": "batch_cancelled", "message": "It was not done yet."}}\n'
    )
    assert done.files == (tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl")
    write(tmp_path / "out.jsonl", "openai", items[:1])  # after a retry nothing is wrong any more
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_a_document_has_an_openai_line_too(tmp_path: Path) -> None:
    one = item(0, "a", result=Result(text="short"), usage=Usage(prompt_tokens=9, output_tokens=3))
    write(tmp_path / "out.jsonl", "openai", [one])
    body = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "short"}
    assert body["usage"]["total_tokens"] == 12


def test_a_request_in_a_table_shows_its_answer(tmp_path: Path) -> None:
    message = {"choices": [{"message": {"role": "assistant", "content": "hello"}}]}
    items = [
        item(0, "r1", kind="request", result=Result(value=GOOD | {"body": message})),
        item(1, "r2", kind="request", result=Result(value=BAD)),
    ]
    write(tmp_path / "out.csv", "csv", items, record())
    with (tmp_path / "out.csv").open(encoding="utf-8-sig", newline="") as file:
        head, one, two = csv.reader(file)
    assert head == ["id", "source", "status", "result", "error", "notes"]
    assert one[3] == "hello"
    assert json.loads(two[3]) == BAD
