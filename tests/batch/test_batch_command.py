"""`workhorse batch` as it is typed, on the fake engine: from a folder of documents to results."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measured_speeds import CONDITIONS, measured

from running_fake import FakeEngine
from workhorse.batch.job import JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.cli import main
from workhorse.cli.batch_run import running_service
from workhorse.config import Places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE
from workhorse.store import Store

PATIENCE_S = 120.0
SHORT = ("--answer-tokens", "6")
Run = Callable[..., int]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of its own; the current folder has three documents in `papers`."""
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WORKHORSE_LANG", "en")
    here = tmp_path / "here"
    (here / "papers").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (here / "papers" / f"{name}.txt").write_text(f"{name} is a number. " * 20)
    monkeypatch.chdir(here)
    return tmp_path / "home"


def batch(*words: str) -> int:
    """The exit code of `workhorse batch WORDS`."""
    try:
        return main(["batch", *words])
    except SystemExit as end:  # argparse's own way for what cannot be typed
        return int(end.code or 0)


def ordered(url: str, *words: str) -> int:
    return batch("papers", "--template", "summary-short", "--url", url, *words)


def jobs(home: Path) -> tuple[JobRecord, ...]:
    with closing(Ledger(Places(home).batch)) as ledger:
        return ledger.jobs()


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_a_folder_becomes_a_file_of_results(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ordered(fake_engine(*SHORT), "--json", "--report", "report.md") == EXIT_GOOD
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["counts"]["done"] == 3
    assert report["usage"]["output_tokens"] == 3 * 6
    assert "resume" in said.err  # how to go on, before it is needed
    found = lines("papers.summary-short.jsonl")
    assert [one["id"] for one in found] == ["one.txt", "three.txt", "two.txt"]
    assert all(one["text"] for one in found)
    assert "summary-short" in Path("report.md").read_text()
    (record,) = jobs(home)
    assert record.state == "done"

    assert batch("status", record.id[:4], "--json") == EXIT_GOOD
    assert json.loads(capsys.readouterr().out)["counts"]["done"] == 3
    assert batch("status") == EXIT_GOOD
    assert record.id in capsys.readouterr().out


def test_results_are_not_written_over_and_nothing_is_asked_twice(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine(*SHORT)
    assert ordered(url) == EXIT_GOOD
    before = Path("papers.summary-short.jsonl").read_bytes()
    assert ordered(url) == EXIT_USAGE
    assert "--overwrite" in capsys.readouterr().err
    assert Path("papers.summary-short.jsonl").read_bytes() == before
    assert len(jobs(home)) == 1
    assert ordered(url, "--overwrite", "--set", "words=20") == EXIT_GOOD
    assert len(jobs(home)) == 2


def test_what_failed_is_told_and_tried_again(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = fake_engine("--error-rate", "1")
    assert ordered(bad, "--attempts", "1") == EXIT_FAILED
    assert "no answer" in capsys.readouterr().out
    assert {one["status"] for one in lines("papers.summary-short.jsonl")} == {"failed"}
    assert batch("retry", "--url", fake_engine(*SHORT)) == EXIT_GOOD
    assert all(one["text"] for one in lines("papers.summary-short.jsonl"))
    capsys.readouterr()
    assert batch("retry") == EXIT_FAILED  # no job has anything left to try


def test_a_job_file_and_words_beside_it(home: Path, fake_engine: FakeEngine) -> None:
    Path("job.toml").write_text(
        'input = "papers"\ntemplate = "summary-short"\noutput = "out.csv"\naccept = ["t*.txt"]\n'
    )
    assert batch("job.toml", "--url", fake_engine(*SHORT), "--streams", "2") == EXIT_GOOD
    assert len(Path("out.csv").read_text(encoding="utf-8-sig").splitlines()) == 3
    (record,) = jobs(home)
    assert record.job.pace.streams == 2


def test_openai_requests_are_sent_as_they_are(home: Path, fake_engine: FakeEngine) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    Path("asks.jsonl").write_text(json.dumps(line) + "\n")
    assert batch("asks.jsonl", "--url", fake_engine()) == EXIT_GOOD
    (answer,) = lines("asks.request.jsonl")
    assert answer["custom_id"] == "a"
    assert answer["response"]["status_code"] == 200


def test_a_folder_named_like_a_verb(home: Path, fake_engine: FakeEngine) -> None:
    Path("papers").rename("status")
    url = fake_engine(*SHORT)
    assert batch("./status", "--template", "summary-short", "--url", url) == EXIT_GOOD
    assert len(lines("status.summary-short.jsonl")) == 3


# --- forecast ------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_forecast_alone(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine(*SHORT)
    assert ordered(url, "--dry-run", "--json") == EXIT_GOOD
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["requests"]) == (3, 3)
    assert found["counted_documents"] == 3
    assert found["document_tokens"]["value"] > 60
    assert found["seconds"] is None  # nobody has measured this service
    assert jobs(home) == ()
    assert not Path("papers.summary-short.jsonl").exists()
    assert ordered(url, "--dry-run") == EXIT_GOOD
    assert "bench" in capsys.readouterr().out


def test_a_dry_run_says_no_where_a_days_hours_do_not_hold_the_work(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine(*SHORT)
    conditions = replace(CONDITIONS, url=url)
    slow = [measured(count, prefill=0.5, decode=0.1 * count) for count in (1, 4)]
    Store(Places(home).store).keep_bench(
        [replace(one, conditions=conditions) for one in slow], model_name="fake"
    )
    assert ordered(url, "--dry-run", "--window", "20:00-20:05") == EXIT_NO
    assert "20:00-20:05" in capsys.readouterr().out
    assert ordered(url, "--dry-run", "--window", "00:00-24:00") == EXIT_GOOD
    assert ordered(url, "--dry-run") == EXIT_GOOD


# --- stopped, gone on with, cancelled ------------------------------------------------------------


def started(url: str, home: Path, least_done: int) -> "subprocess.Popen[str]":
    """A job in a process of its own that has done so many documents and has more to do."""
    command = [sys.executable, "-m", "workhorse", "batch", "papers", "--url", url]
    process = subprocess.Popen(
        [*command, "--template", "summary-short", "--streams", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline_s:
            assert process.poll() is None, process.communicate()
            if any(one.counts.done >= least_done for one in jobs(home)):
                return process
            time.sleep(0.02)
        raise AssertionError("nothing was done")
    except BaseException:
        process.kill()
        process.communicate()
        raise


def test_ctrl_c_leaves_a_job_that_goes_on(home: Path, fake_engine: FakeEngine) -> None:
    for number in range(40):
        (Path("papers") / f"more-{number:02}.txt").write_text(f"More of {number}.")
    url = fake_engine(*SHORT, "--gap-ms", "60")
    process = started(url, home, 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    (record,) = jobs(home)
    assert record.state == "stopped"
    assert f"workhorse batch resume {record.id}" in said.splitlines()[-1]
    assert 0 < record.counts.done < record.counts.all == 43
    assert not Path("papers.summary-short.jsonl").exists()

    assert ordered(url) == EXIT_USAGE  # the same output: that job is to be gone on with
    assert batch("resume", "--url", fake_engine(*SHORT)) == EXIT_GOOD
    found = lines("papers.summary-short.jsonl")
    assert len({one["id"] for one in found}) == len(found) == 43
    assert batch("resume", record.id) == EXIT_GOOD  # done: its results are written again
    assert lines("papers.summary-short.jsonl") == found


def test_a_cancelled_job_keeps_what_is_done(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        (Path("papers") / f"more-{number:02}.txt").write_text(f"More of {number}.")
    process = started(fake_engine(*SHORT, "--gap-ms", "60"), home, 1)
    capsys.readouterr()
    assert batch("cancel") == EXIT_GOOD  # the one that runs it hears of it
    assert "papers.summary-short.jsonl" in capsys.readouterr().err
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    (record,) = jobs(home)
    assert record.state == "cancelled"
    found = lines("papers.summary-short.jsonl")
    assert len(found) == 43
    assert sum(one["status"] == "done" for one in found) == record.counts.done > 0
    capsys.readouterr()
    assert batch("cancel") == EXIT_FAILED
    assert "no job" in capsys.readouterr().err


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to work on"),
        (("papers",), "--template"),
        (("papers", "more"), "one input too many"),
        (("nothing", "--template", "summary-short"), "There is no nothing"),
        (("papers", "--template", "sumary-short"), "summary-short"),
        (("papers", "--template", "summary-short", "--set", "words=many"), "many"),
        (("papers", "--template", "summary-short", "--set", "words"), "OPTION=VALUE"),
        (("papers", "--template", "summary-short", "--window", "8-9"), "8-9"),
        (("papers", "--template", "summary-short", "--streams", "0"), "--streams"),
        (("papers", "--template", "summary-short", "--url", "ftp://x"), "ftp://x"),
        (("papers", "--template", "summary-short", "--column", "text"), "no columns"),
        (("papers/one.txt", "--template", "summary-short", "--accept", "*.md"), "--accept"),
        (("resume", "--template", "summary-short"), "--template"),
        (("status", "--url", "http://127.0.0.1:1"), "--url"),
        (("status", "--report", "x.md"), "one job"),
        (("status", "zzz"), "zzz"),
        (("cancel", "zzz"), "zzz"),
    ],
)
def test_each_mistake_is_one_error_and_nothing_is_kept(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], said: str,
) -> None:  # fmt: skip
    url = ("--url", fake_engine(*SHORT)) if {"--column", "--accept"} & {*words} else ()
    assert batch(*words, *url) == EXIT_USAGE
    told = capsys.readouterr().err
    assert said in told
    assert "→" in told
    assert jobs(home) == ()
    assert not list(Path().glob("*.jsonl"))


@pytest.mark.parametrize("verb", ["resume", "retry", "cancel"])
def test_there_is_no_job_to_go_on_with(
    home: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert batch(verb) == EXIT_FAILED
    assert "batch status" in capsys.readouterr().err


def test_without_a_service_there_is_one_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ordered("http://127.0.0.1:1") == EXIT_FAILED
    assert "workhorse up" in capsys.readouterr().err
    assert jobs(home) == ()


@pytest.mark.parametrize(
    ("ports", "port"), [((), 8080), ((9000,), 9000), ((9000, 8080), 8080), ((9000, 9000), 9000)]
)
def test_the_service_of_this_machine_is_found(
    home: Path, monkeypatch: pytest.MonkeyPatch, ports: tuple[int, ...], port: int
) -> None:
    files = [SimpleNamespace(url=f"http://127.0.0.1:{one}") for one in ports]
    monkeypatch.setattr("workhorse.up.outside.services", lambda _: files)
    assert running_service(Places(home)) == f"http://127.0.0.1:{port}"


def test_of_several_services_one_is_to_be_chosen(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [SimpleNamespace(url=f"http://127.0.0.1:{port}") for port in (9000, 9001)]
    monkeypatch.setattr("workhorse.up.outside.services", lambda _: files)
    assert batch("papers", "--template", "summary-short") == EXIT_USAGE
    assert "--url" in capsys.readouterr().err


def test_what_has_ended_is_not_told_to_end(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ordered(fake_engine(*SHORT)) == EXIT_GOOD
    (record,) = jobs(home)
    capsys.readouterr()
    assert batch("cancel", record.id) == EXIT_GOOD
    said = capsys.readouterr().err
    assert "has ended already" in said
    assert "within seconds" not in said
    assert jobs(home)[0].state == "done"


def test_the_start_says_how_many_of_all(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fake_engine(*SHORT)
    assert ordered(url) == EXIT_GOOD
    assert ": 3 documents, " in capsys.readouterr().err
    Path("papers/bad.docx").write_bytes(b"PK\x03\x04")
    assert ordered(url, "--overwrite") == EXIT_FAILED
    assert "3 of 4 documents to do (0 done, 1 failed)" in capsys.readouterr().err


def test_what_cannot_be_read_is_not_tried_again(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = fake_engine("--error-rate", "1"), fake_engine(*SHORT)
    assert ordered(bad, "--attempts", "1", "--output", "first.jsonl") == EXIT_FAILED
    Path("papers/bad.docx").write_bytes(b"PK\x03\x04")
    assert ordered(good) == EXIT_FAILED
    latest, _ = jobs(home)
    capsys.readouterr()
    assert batch("retry", latest.id, "--json") == EXIT_GOOD
    said = capsys.readouterr()
    assert "1 could not be read" in said.err
    assert json.loads(said.out)["counts"]["failed"] == 1
    assert batch("retry", "--url", good) == EXIT_GOOD  # the one before it has something to try
    assert all(one["text"] for one in lines("first.jsonl"))


def test_a_table_without_rows_has_no_forecast(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.csv").write_text("text,name\n")
    words = ("rows.csv", "--template", "summary-short", "--column", "text")
    assert batch(*words, "--url", fake_engine(*SHORT), "--dry-run") == EXIT_USAGE
    assert "nothing in the input" in capsys.readouterr().err


def test_a_job_that_runs_is_not_tried_again_beside(
    home: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ordered(fake_engine("--error-rate", "1"), "--attempts", "1") == EXIT_FAILED
    (record,) = jobs(home)
    with closing(Ledger(Places(home).batch)) as ledger, ledger.held(record.id):
        assert batch("retry", record.id) == EXIT_NO
        assert "runs already" in capsys.readouterr().err
        assert ledger.job(record.id).counts.failed == 3
