"""Files that must not stay: removed at the end, and after a kill by the next run."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workhorse.errors import AppError
from workhorse.rehearse import scratch as module
from workhorse.rehearse.scratch import check_room, check_sparse, scratch

HOLD = """
import sys, time
from pathlib import Path
from workhorse.rehearse.scratch import scratch
with scratch(Path(sys.argv[1])) as own:
    (own / "twin.gguf").write_bytes(b"x" * 1000)
    print(own, flush=True)
    sys.stdin.read()
"""


def test_what_was_written_is_gone_at_the_end(tmp_path: Path) -> None:
    with scratch(tmp_path / "here") as own:
        (own / "twin.gguf").write_bytes(b"x")
    assert list((tmp_path / "here").iterdir()) == []


def test_also_after_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch(tmp_path) as own:
        (own / "twin.gguf").write_bytes(b"x")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_it_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, really = [], os.open

    def interrupted(path: Any, *rest: Any, **named: Any) -> int:
        if not str(path).endswith(".lock"):
            return really(path, *rest, **named)
        made.append(path.parent.is_dir())
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch(tmp_path):
        pass
    assert made == [True] and list(tmp_path.iterdir()) == []


def test_after_a_kill_the_next_run_clears_but_leaves_the_living_alone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        with scratch(tmp_path) as own:
            assert own != theirs
            assert (theirs / "twin.gguf").exists()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert (theirs / "twin.gguf").exists()
    with scratch(tmp_path):
        assert not theirs.exists()


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 1)
    with pytest.raises(AppError, match="on the disk"):
        check_room(tmp_path, 10**18)


def test_a_file_system_without_holes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_sparse(tmp_path)
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setattr(module, "taken_by_hole", lambda _: module._PROBE_BYTES)
    with pytest.raises(AppError, match="sparse"):
        check_sparse(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(AppError), scratch(file / "below"):
        pass
