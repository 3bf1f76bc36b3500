"""`workhorse rehearse`, as a user runs and misuses it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_builder import llama

from workhorse.cli import main
from workhorse.errors import EXIT_FAILED


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real data folder must not learn from tests."""
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path / "home"
    signal.signal(signal.SIGTERM, before)


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "/no/such/model.gguf"]) == EXIT_FAILED
    assert "cannot be read" in capsys.readouterr().err


def test_a_full_disk_is_said_before_the_twins_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("workhorse.rehearse.scratch.FREE_AFTER_SHARE", 1.0)
    model = llama(layers=4).write(tmp_path / "model.gguf")
    assert main(["rehearse", str(model)]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "on the disk" in said
    assert "no dry run" in said  # of the embedded engine: memory by arithmetic


def test_an_engine_that_cannot_load_the_twin_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own_home: Path
) -> None:
    model = llama(layers=4).write(tmp_path / "model.gguf")  # no tokenizer that an engine knows
    assert main(["rehearse", str(model)]) == EXIT_FAILED
    assert "engine" in capsys.readouterr().err
    assert list((own_home / "rehearsals").iterdir()) == []


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_midway_it_takes_engines_and_twins_with_it(
    real_model: Path, own_home: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "workhorse", "rehearse", str(real_model), "--quick"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "WORKHORSE_LANG": "en"},
        text=True,
    ) as running:
        assert running.stderr is not None
        while "on the disk while this runs" not in running.stderr.readline():
            assert running.poll() is None
        running.send_signal(number)
        running.communicate(timeout=300)
    assert running.returncode == EXIT_FAILED
    assert list((own_home / "rehearsals").iterdir()) == []
