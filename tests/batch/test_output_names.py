"""Names of result files: none leads out, none is another one's, each can be written."""

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.batch.output.names import NAME_BYTES_MAX, SafeNames


@pytest.mark.parametrize(
    ("item_id", "path"),
    [
        ("handbook/fans.pdf", "handbook/fans.pdf.md"),
        ("报告/风扇.docx", "报告/风扇.docx.md"),
        ("/etc/passwd", "etc/passwd.md"),
        ("a/../../b", "a/b.md"),
        ("..", "item.md"),
        ("", "item.md"),
        ("C:\\Windows\\win.ini", "C_/Windows/win.ini.md"),
        ("con", "_con.md"),
        ("aux.txt", "_aux.txt.md"),
        (".hidden", "_hidden.md"),
        ('a<b>:"|?*\n', "a_b_______.md"),
        ("dots...", "dots.md"),
        ("cafe\u0301", "café.md"),
        ("half\ud800", "half_.md"),
    ],
)
def test_an_id_becomes_a_path(item_id: str, path: str) -> None:
    assert SafeNames().path_for(item_id, ".md") == path


def test_the_same_name_twice_and_in_other_letters() -> None:
    names = SafeNames(reserved=("results.jsonl",))
    ids = ["a", "A", "a", "a~2", "results.jsonl", "RESULTS.JSONL"]
    assert [names.path_for(one) for one in ids] == [
        "a",
        "A~2",
        "a~3",
        "a~2~2",
        "results.jsonl~2",
        "RESULTS.JSONL~3",
    ]


def test_a_file_is_no_folder_of_another() -> None:
    names = SafeNames()
    assert [names.path_for(one) for one in ("a", "a/b", "c/d", "c")] == ["a", "a~2/b", "c/d", "c~2"]


def test_long_names_stay_apart() -> None:
    names = SafeNames()
    first, second = (names.path_for("风" * 300 + end, ".md") for end in "ab")
    assert first != second
    assert all(
        len(one.encode()) <= NAME_BYTES_MAX and one.endswith(".md") for one in (first, second)
    )


@given(st.lists(st.text(alphabet="aA./\\~2é\0\n:风 " + chr(0xD800)) | st.text(), max_size=30))
def test_any_ids_give_files_that_can_all_be_written(ids: list[str]) -> None:
    names = SafeNames()
    paths = [names.path_for(one, ".md") for one in ids]
    assert len({one.casefold() for one in paths}) == len(paths)
    for one in paths:
        assert not PurePosixPath(one).is_absolute()
        parts = one.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert all(len(part.encode()) <= 255 and not part.startswith(".") for part in parts)
    folders = {str(parent).casefold() for one in paths for parent in PurePosixPath(one).parents}
    assert not folders & {one.casefold() for one in paths}


def test_they_are_written_in_fact(tmp_path: Path) -> None:
    names = SafeNames()
    for one in ("a", "a/b", "A/b", "风" * 200, "x/" * 100 + "y"):
        path = tmp_path / names.path_for(one, ".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(one)
    assert sum(len(files) for _, _, files in os.walk(tmp_path)) == 5
