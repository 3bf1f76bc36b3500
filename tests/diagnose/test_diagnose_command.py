"""`workhorse diagnose` as its user meets it: files, pipes, units, and the usual mistakes."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE

NO_LIBGOMP = (
    "starting\nllama-server: error while loading shared libraries: libgomp.so.1:"
    " cannot open shared object file: No such file or directory\n"
)
HEALTHY = (
    "0.00.001 I main: llama backend init\n0.00.002 I srv: listening on http://127.0.0.1:8080\n"
)


def diagnose(
    *words: str, home: Path, text: str = "", path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; `path` is put before PATH."""
    searched = os.environ["PATH"] if path is None else f"{path}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "workhorse", "diagnose", *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "WORKHORSE_HOME": str(home), "PATH": searched, "LC_ALL": "C.UTF-8"},
    )


def journalctl(folder: Path, script: str) -> Path:
    """A `journalctl` that does what `script` says."""
    folder.mkdir()
    program = folder / "journalctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def test_a_file_with_a_known_cause_says_no_and_shows_the_line(tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(NO_LIBGOMP)
    done = diagnose(str(log), home=tmp_path)
    assert done.returncode == EXIT_NO, done.stderr
    assert "OpenMP library is missing" in done.stdout
    assert "2: llama-server: error while loading" in done.stdout
    assert "apt-get install libgomp1" in done.stdout


def test_json_is_one_verdict(tmp_path: Path) -> None:
    done = diagnose("-", "--json", home=tmp_path, text=NO_LIBGOMP)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "engine.libgomp_missing"
    assert finding["level"] == "cause"
    assert finding["confidence"] >= 0.9


def test_a_healthy_pipe_is_good(tmp_path: Path) -> None:
    done = diagnose("-", home=tmp_path, text=HEALTHY)
    assert done.returncode == EXIT_GOOD, done.stdout
    assert "Nothing in it points to a trouble" in done.stdout


def test_chinese(tmp_path: Path) -> None:
    done = diagnose("-", "--lang", "zh", home=tmp_path, text=NO_LIBGOMP)
    assert "缺少引擎所需的 OpenMP 库" in done.stdout


def test_the_last_line_of_one_log_does_not_run_into_the_next(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text(HEALTHY.rstrip("\n"))
    second.write_text(NO_LIBGOMP.splitlines()[1])
    done = diagnose(str(first), str(second), "--json", home=tmp_path)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["evidence"][0].startswith(f"{second}:1: llama-server")


def test_no_log_named_reads_the_newest_engine_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "engine-1.log").write_text(HEALTHY)
    (logs / "engine-2.log").write_text(NO_LIBGOMP)
    os.utime(logs / "engine-1.log", (1, 1))
    done = diagnose(home=tmp_path)
    assert done.returncode == EXIT_NO
    assert "engine-2.log" in done.stdout


def test_no_log_yet(tmp_path: Path) -> None:
    done = diagnose(home=tmp_path)
    assert done.returncode == EXIT_FAILED
    assert "no engine log" in done.stderr
    assert "workhorse diagnose LOG" in done.stderr


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_what_cannot_be_read_is_one_sentence(name: str, tmp_path: Path) -> None:
    done = diagnose(str(tmp_path / name), home=tmp_path)
    assert done.returncode == EXIT_FAILED
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_binary_noise_is_told_to_be_no_text(tmp_path: Path) -> None:
    log = tmp_path / "noise"
    log.write_bytes(bytes(range(256)) * 4000)
    done = diagnose(str(log), home=tmp_path)
    assert done.returncode == EXIT_FAILED, done.stdout
    assert "is no text" in done.stderr


def test_zeros_in_a_log_do_not_hide_its_cause(tmp_path: Path) -> None:
    """A machine that lost power leaves blocks of zeros in its logs."""
    log = tmp_path / "kern.log"
    log.write_bytes(bytes(9000) + b"\n" + NO_LIBGOMP.encode())
    done = diagnose(str(log), home=tmp_path)
    assert done.returncode == EXIT_NO, done.stderr


def test_an_empty_log_is_told_to_be_empty(tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.touch()
    done = diagnose(str(log), home=tmp_path)
    assert done.returncode == EXIT_GOOD
    assert "The log is empty" in done.stdout


def test_a_packed_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "syslog.2.gz"
    log.write_bytes(gzip.compress(NO_LIBGOMP.encode()))
    done = diagnose(str(log), home=tmp_path)
    assert done.returncode == EXIT_NO, done.stderr
    assert "2: llama-server: error while loading" in done.stdout


def test_a_pipe_without_a_dash_is_read(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "engine-1.log").write_text(HEALTHY)
    read_end, write_end = os.pipe()
    os.write(write_end, NO_LIBGOMP.encode())  # there before anybody looks
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "workhorse", "diagnose"],
            stdin=pipe,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "WORKHORSE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        )
    assert done.returncode == EXIT_NO, done.stdout


def test_a_file_given_as_standard_input_is_read(tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(NO_LIBGOMP)
    with log.open() as file:
        done = subprocess.run(
            [sys.executable, "-m", "workhorse", "diagnose"],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "WORKHORSE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        )
    assert done.returncode == EXIT_NO, done.stderr


def test_a_unit_is_read_from_the_journal(tmp_path: Path) -> None:
    path = journalctl(tmp_path / "bin", f"test \"$8\" = llm && printf '%s' '{NO_LIBGOMP}'")
    done = diagnose("--unit", "llm", home=tmp_path, path=path)
    assert done.returncode == EXIT_NO, done.stderr
    assert "OpenMP" in done.stdout


@pytest.mark.parametrize("script", ["echo '-- No entries --'", "echo broken >&2; exit 1", "exit 0"])
def test_a_unit_without_a_journal(script: str, tmp_path: Path) -> None:
    path = journalctl(tmp_path / "bin", script)
    done = diagnose("--unit", "nosuch", home=tmp_path, path=path)
    assert done.returncode == EXIT_FAILED
    assert "nosuch" in done.stderr
    assert "systemctl status nosuch" in done.stderr


def test_a_log_and_a_unit_are_too_much(tmp_path: Path) -> None:
    done = diagnose("x.log", "--unit", "llm", home=tmp_path)
    assert done.returncode == EXIT_USAGE


def test_a_machine_that_is_none_is_told_before_the_log_is_read(tmp_path: Path) -> None:
    done = diagnose("-", "--machine", str(tmp_path / "none.json"), home=tmp_path, text=HEALTHY)
    assert done.returncode == EXIT_FAILED
    assert "none.json" in done.stderr
    assert "--machine" in done.stderr
