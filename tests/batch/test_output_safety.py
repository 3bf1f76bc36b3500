"""Nothing of anybody else's is overwritten, and a file appears whole or not at all."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from result_items import FORMS, ITEMS, names_in, record, write

from workhorse.batch.item import Item
from workhorse.batch.job import OutputForm
from workhorse.batch.output import check_output, claim_output, write_output
from workhorse.errors import AppError
from workhorse.text import same


@pytest.mark.parametrize("form", FORMS)
def test_another_jobs_results_stay(form: OutputForm, tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, form, ITEMS)
    write(path, form, ITEMS)  # its own, again
    with pytest.raises(AppError, match="the results of job abc"):
        write(path, form, ITEMS, record("other"))
    with pytest.raises(AppError, match="the results of job abc"):
        check_output(path, form)
    write(path, form, ITEMS, record("other"), replace=True)
    check_output(path, form, job_id="other")


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_results_stays_too(form: OutputForm, tmp_path: Path) -> None:
    path = tmp_path / "out"
    if form == "folder":
        path.mkdir()
        check_output(path, form)  # empty: nothing is lost
        (path / "thesis.md").write_text("mine")
    else:
        path.write_text("mine")
    with pytest.raises(AppError, match="--overwrite"):
        check_output(path, form)


def test_a_claim_keeps_the_place_before_there_is_a_result(tmp_path: Path) -> None:
    claim_output(tmp_path / "new" / "out.csv", "csv", "abc")
    assert names_in(tmp_path / "new") == [".out.csv.job"]
    with pytest.raises(AppError, match="job abc"):
        claim_output(tmp_path / "new" / "out.csv", "csv", "other")


@pytest.mark.parametrize(("form", "is_folder"), [("jsonl", True), ("folder", False)])
def test_a_file_is_no_folder(form: OutputForm, is_folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir() if is_folder else path.write_text("mine")
    with pytest.raises(AppError, match="is not a"):
        check_output(path, form, replace=True)


def test_a_device_is_no_output() -> None:
    with pytest.raises(AppError, match="not a file"):
        check_output(Path("/dev/full"), "jsonl", replace=True)


# --- whole or not at all -------------------------------------------------------------------------


def breaking() -> Iterator[Item]:
    yield ITEMS[0]
    raise AppError(BREAK, BREAK)


BREAK = same("the ledger broke")


@pytest.mark.parametrize("form", FORMS)
def test_what_was_there_stays_when_the_writing_breaks_off(form: OutputForm, tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, form, ITEMS)
    file = path / "results.jsonl" if form == "folder" else path
    before, names = file.read_bytes(), names_in(tmp_path)
    with pytest.raises(AppError, match="the ledger broke"):
        write_output(path, form, breaking(), record())
    assert file.read_bytes() == before
    assert names_in(tmp_path) == names


def test_a_full_disk_is_told_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_output(tmp_path / "out.jsonl", "jsonl", "abc")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workhorse.batch.output.place.os.fsync", full)
    with pytest.raises(AppError, match="The disk is full") as told:
        write(tmp_path / "out.jsonl", "jsonl", ITEMS)
    assert "batch resume" in told.value.next_step.en
    assert names_in(tmp_path) == [".out.jsonl.job"]


def test_results_can_be_read_like_any_file_of_the_user(tmp_path: Path) -> None:
    os.umask(before := os.umask(0o022))
    path = tmp_path / "out.jsonl"
    write(path, "jsonl", ITEMS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~before


def test_a_name_as_long_as_a_name_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 249 + ".jsonl")
    write(path, "jsonl", ITEMS)
    assert path.exists()


def test_a_folder_that_was_not_empty_loses_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "thesis.pdf").write_text("mine")
    (path / "results.jsonl").write_text('{"file": "thesis.pdf"}\n')
    write(path, "folder", ITEMS, replace=True)
    write(path, "folder", ITEMS)
    assert (path / "thesis.pdf").read_text() == "mine"
