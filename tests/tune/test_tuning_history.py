"""What is kept of trials, and what keeps two tunings apart."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bed import fake_server, given

from workhorse.errors import EXIT_NO, AppError
from workhorse.text import Text
from workhorse.tune.history import Circumstances, History, Tuner, one_at_a_time, who_tunes
from workhorse.tune.resume import about, refuse_beside_tuning, standing
from workhorse.tune.trial import Change, Pair, Trial
from workhorse.units import GIB

SLOWER = Trial(
    1, Change("threads", "1"), (), (Pair(90.0, 100.0), Pair(91.0, 100.0)), "worse", 0.905,
    None, 0.8, 4.2, Text("Slower.", "更慢。"),
)  # fmt: skip
DIED = replace(SLOWER, number=2, pairs=(), outcome="crashed", ratio=None)
THEN = Circumstances("2026-11-30T00:00:00+00:00", "0", None, 0.1, None)


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "deep" / "tuning.sqlite")


def test_trials_come_back_as_they_were_the_bad_ones_too(tmp_path: Path, history: History) -> None:
    wanted = given(fake_server(tmp_path))
    assert history.latest() is None
    assert not history.path.exists()  # looking does not make one
    tuning = history.begin(about(wanted), wanted, "2026-11-30T00:00:00+00:00")
    for trial in (SLOWER, DIED):
        history.add(tuning, trial, replace(THEN, plan=wanted.plan))
    assert history.trials(tuning) == (SLOWER, DIED)
    assert history.latest(about(wanted).model, "decode") == tuning
    assert history.latest(about(wanted).model, "total") is None
    with closing(sqlite3.connect(history.path)) as connection:
        rows = connection.execute("SELECT variable, value, outcome, ratio FROM trial").fetchall()
    assert rows == [("threads", "1", "worse", 0.905), ("threads", "1", "crashed", None)]


def test_the_same_again_goes_on_and_anything_else_begins_anew(
    tmp_path: Path, history: History
) -> None:
    wanted = given(fake_server(tmp_path))
    first = standing(wanted, history)
    history.add(first.tuning, SLOWER, THEN)
    again = standing(replace(wanted, history=()), history)
    assert (again.tuning, again.trials, again.note) == (first.tuning, (SLOWER,), None)

    memory = replace(wanted.machine.memory, total_bytes=64 * GIB)
    larger = replace(wanted, machine=replace(wanted.machine, memory=memory))
    moved = standing(larger, history)
    assert moved.trials == ()
    assert moved.note is not None
    assert "memory: 32 GiB → 64 GiB" in moved.note.en

    build = replace(wanted.plan.engine, version="llama-server 2")
    for other, words in (
        (replace(wanted, plan=replace(wanted.plan, engine=build)), "builds have changed"),
        (replace(wanted, constraints=replace(wanted.constraints, slots=2)), "something else"),
    ):
        standing(wanted, history)  # the one that the next is compared with
        anew = standing(other, history)
        assert anew.trials == ()
        assert anew.note is not None
        assert words in anew.note.en


def test_what_had_tried_everything_is_not_gone_on_with(tmp_path: Path, history: History) -> None:
    wanted = given(fake_server(tmp_path))
    first = standing(wanted, history)
    history.finish(first.tuning, "2026-11-30T00:00:00+00:00")
    second = standing(wanted, history)
    assert second.tuning.number != first.tuning.number
    assert second.note is not None
    assert "tried everything" in second.note.en


def test_what_another_version_wrote_begins_anew(tmp_path: Path, history: History) -> None:
    wanted = given(fake_server(tmp_path))
    first = standing(wanted, history)
    with closing(sqlite3.connect(history.path)) as connection, connection:
        connection.execute("UPDATE tuning SET given = '{}'")
    assert history.latest() is None
    assert standing(wanted, history).tuning.number != first.tuning.number


def test_a_history_that_is_no_database_is_named_and_left_alone(history: History) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(AppError, match=r"tuning\.sqlite, cannot be used"):
        history.latest()
    assert history.path.read_bytes().startswith(b"not a database")


def test_next_tokens_are_kept_for_the_quality_of_later_trials(
    tmp_path: Path, history: History
) -> None:
    tuning = standing(given(fake_server(tmp_path)), history).tuning
    assert history.likely(tuning) == ()
    history.keep_likely(tuning, [{7: 0.5, 9: 0.25}])
    assert history.likely(tuning) == ({7: 0.5, 9: 0.25},)


def test_one_tunes_at_a_time_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "tuning.lock"
    script = (
        "import sys; from pathlib import Path; from workhorse.tune.history import one_at_a_time\n"
        f"with one_at_a_time(Path({str(lock)!r})):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(AppError, match=f"process {other.pid}") as refused, one_at_a_time(lock):
            pass
        assert refused.value.exit_code == EXIT_NO
        assert who_tunes(lock) == Tuner(other.pid)
        with pytest.raises(AppError, match=f"process {other.pid}") as refused:
            refuse_beside_tuning(lock)
        assert refused.value.exit_code == EXIT_NO
        assert f"kill {other.pid}" in refused.value.next_step.en
        other.kill()
        other.wait()
    refuse_beside_tuning(lock)
    with one_at_a_time(lock):
        assert who_tunes(lock) == Tuner(os.getpid())
    # Whoever comes next is not told to stop a process that may be another by then.
    assert lock.read_bytes() == b""
