"""The ledger keeps every item, ends each once, and loses none to whatever ends a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_rig import JOB, NOW_S, added, new_ledger, texts

from workhorse.batch.item import NewItem, Reason, Result, Usage
from workhorse.batch.job import Counts
from workhorse.batch.ledger import Ledger
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError

FAULT = Reason(cause="no answer", seen="HTTP 500: told to fail", seen_zh="HTTP 500: told to fail")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(tmp_path) as opened:
        yield opened


def test_items_come_in_the_order_of_the_input_and_each_ends_once(ledger: Ledger) -> None:
    job_id = added(ledger, texts(3))
    with ledger.held(job_id):
        first = ledger.lease(job_id, "me", NOW_S)
        second = ledger.lease(job_id, "me", NOW_S)
        assert first is not None and second is not None
        assert (first.number, first.content, second.number) == (0, "text 0", 1)
        assert not ledger.finish(job_id, 0, "another", Result(text="not mine"))
        assert ledger.finish(job_id, 0, "me", Result(text="a", notes=("short",)), Usage(requests=1))
        assert not ledger.finish(job_id, 0, "me", Result(text="b"))
        assert not ledger.fail(job_id, 0, "me", FAULT)
        assert not ledger.give_back(job_id, 0, "me", attempts=1, due_unix_s=NOW_S)
        assert ledger.give_back(job_id, 1, "me", attempts=1, due_unix_s=NOW_S + 60)
        third = ledger.lease(job_id, "me", NOW_S)
        assert third is not None and third.number == 2
        assert ledger.fail(job_id, 2, "me", FAULT, attempts=3)
        assert ledger.lease(job_id, "me", NOW_S) is None
        assert ledger.due(job_id) == NOW_S + 60
        again = ledger.lease(job_id, "me", NOW_S + 60)
        assert again is not None and (again.number, again.attempts) == (1, 1)
    done, waiting, failed = ledger.items(job_id, content=True)
    assert done.result == Result(text="a", notes=("short",)) and done.state == "done"
    assert (waiting.state, waiting.content) == ("waiting", "text 1")  # leased until the end
    assert (failed.reason, failed.attempts) == (FAULT, 3)
    assert ledger.usage(job_id) == Usage(requests=1)


def test_what_a_dead_runner_had_waits_again(ledger: Ledger) -> None:
    job_id = added(ledger, texts(2))
    assert ledger.lease(job_id, "dead", NOW_S) is not None
    with ledger.held(job_id):
        assert ledger.job(job_id).counts == Counts(waiting=2)
        mine = ledger.lease(job_id, "me", NOW_S)
        assert mine is not None and mine.number == 0
        assert not ledger.finish(job_id, 0, "dead", Result(text="late"))


def test_one_runner_a_job(ledger: Ledger, tmp_path: Path) -> None:
    job_id, other_id = added(ledger, texts(1)), added(ledger, texts(1))
    with new_ledger(tmp_path) as another:
        assert another.runner(job_id) is None
        with ledger.held(job_id):
            assert another.runner(job_id) == os.getpid()
            with pytest.raises(AppError, match=str(os.getpid())) as refused, another.held(job_id):
                pass
            assert refused.value.exit_code == EXIT_NO
            with another.held(other_id):
                pass
        with another.held(job_id[:5]):
            assert ledger.runner(job_id) == os.getpid()
    assert not list(tmp_path.glob("*.lock"))


def test_answers_are_remembered_until_the_item_is_done(ledger: Ledger) -> None:
    job_id = added(ledger, texts(2))
    with ledger.held(job_id):
        ledger.lease(job_id, "me", NOW_S)
        assert ledger.remembered(job_id, 0, "part 1") is None
        ledger.remember(job_id, 0, "part 1", b"first", Usage(prompt_tokens=5, requests=2))
        ledger.remember(job_id, 0, "part 1", b"second", Usage(prompt_tokens=1, requests=1))
    with ledger.held(job_id):
        assert ledger.remembered(job_id, 0, "part 1") == b"second"
        assert ledger.remembered(job_id, 1, "part 1") is None
        ledger.lease(job_id, "me", NOW_S)
        ledger.finish(job_id, 0, "me", Result(text="x"), Usage(output_tokens=7))
        assert ledger.remembered(job_id, 0, "part 1") is None
    assert ledger.usage(job_id) == Usage(prompt_tokens=6, output_tokens=7, requests=3)


@pytest.mark.parametrize("items", [[], [*texts(300), NewItem(id="7.txt", source="b/7.txt")]])
def test_no_job_of_nothing_or_of_two_items_with_one_id(
    ledger: Ledger, items: list[NewItem]
) -> None:
    with pytest.raises(AppError, match="b/7.txt" if items else "nothing") as refused:
        ledger.add(JOB, items, NOW_S)
    assert refused.value.exit_code == EXIT_USAGE
    assert ledger.jobs() == ()


def test_a_reading_that_fails_leaves_no_job(ledger: Ledger) -> None:
    def reading() -> Iterator[NewItem]:
        yield from texts(450)
        raise RuntimeError("the disk was pulled out")

    with pytest.raises(RuntimeError):
        ledger.add(JOB, reading(), NOW_S)
    assert ledger.jobs() == ()
    assert len(list(ledger.items(added(ledger, texts(2))))) == 2


def test_a_process_that_is_killed_while_it_adds_leaves_no_job(
    ledger: Ledger, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from job_rig import JOB, new_ledger, texts\n"
        "def slow():\n"
        "    yield from texts(450)\n"
        "    print('half', flush=True)\n"
        "    sys.stdin.read()\n"
        "with new_ledger(Path(sys.argv[1])) as ledger:\n"
        "    ledger.add(JOB, slow(), 0.0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as adding:
        assert adding.stdout is not None
        assert adding.stdout.readline() == b"half\n"
        # Its transactions are short: another job is added beside it, and both are kept apart.
        job_id = added(ledger, texts(1))
        assert [one.id for one in ledger.jobs()] == [job_id]
        adding.send_signal(signal.SIGKILL)
    second = added(ledger, texts(1))
    assert [one.id for one in ledger.jobs()] == [second, job_id]
    with ledger._file.reading() as connection:
        assert connection.execute("SELECT count(*) FROM item").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM content").fetchone() == (2,)


def test_jobs_are_found_by_the_beginning_of_their_ids(ledger: Ledger) -> None:
    with pytest.raises(AppError, match="no job 'zzz'") as refused:
        ledger.job("zzz")
    assert refused.value.exit_code == EXIT_USAGE
    ids = [added(ledger, texts(1)) for _ in range(60)]  # more than there are first letters
    assert [one.id for one in ledger.jobs()] == ids[::-1]
    assert ledger.job(ids[0]).counts == Counts(waiting=1)
    first = next(id_[0] for id_ in ids if sum(one[0] == id_[0] for one in ids) > 1)
    with pytest.raises(AppError, match="Several jobs"):
        ledger.job(first)
    with pytest.raises(AppError, match="no job ''"):
        ledger.job("")


def test_cancelled_at_once_where_nobody_runs_it(ledger: Ledger, tmp_path: Path) -> None:
    job_id = added(ledger, texts(2))
    with new_ledger(tmp_path) as another, ledger.held(job_id):
        another.cancel(job_id, NOW_S)
        assert ledger.is_cancelling(job_id)
        assert another.job(job_id).counts == Counts(waiting=2)  # that is its runner's to do
    ledger.cancel(job_id, NOW_S + 1)
    found = ledger.job(job_id)
    assert (found.state, found.ended_unix_s, found.cancelling) == ("cancelled", NOW_S + 1, False)
    assert found.counts == Counts(cancelled=2)
    assert all(one.reason and one.reason.cause == "cancelled" for one in ledger.items(job_id))


def test_what_failed_is_tried_again_when_it_can_be(ledger: Ledger) -> None:
    unreadable = NewItem(
        id="scan.pdf",
        source="scan.pdf",
        reason=Reason(cause="unreadable", seen="It has no text.", seen_zh="无文本。"),
    )
    job_id = added(ledger, [*texts(3), unreadable])
    assert ledger.job(job_id).counts == Counts(waiting=3, failed=1)
    with ledger.held(job_id):
        for number in range(3):
            ledger.lease(job_id, "me", NOW_S)
            ledger.fail(job_id, number, "me", FAULT, attempts=3)
    ledger.end(job_id, "done", NOW_S)
    assert ledger.retry(job_id, [1, 3]) == 1
    found = ledger.job(job_id)
    assert (found.state, found.ended_unix_s) == ("stopped", None)
    assert ledger.retry(job_id) == 2
    assert ledger.retry(job_id) == 0
    *again, left = ledger.items(job_id)
    assert [(one.state, one.attempts, one.reason) for one in again] == [("waiting", 0, None)] * 3
    assert left.state == "failed"


def test_a_full_disk_is_told_and_nothing_is_lost(ledger: Ledger) -> None:
    job_id = added(ledger, texts(50))
    with ledger._file.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}").fetchall()
    with ledger.held(job_id):
        ledger.lease(job_id, "me", NOW_S)
        incompressible = os.urandom(100_000)
        with pytest.raises(AppError, match=r"full.*resume"):
            ledger.remember(job_id, 0, "all", incompressible)
        with pytest.raises(AppError, match="full"):
            ledger.add(JOB, texts(5000), NOW_S)
        with ledger._file.reading() as connection:
            connection.execute(f"PRAGMA max_page_count = {pages * 100}").fetchall()
        ledger.remember(job_id, 0, "all", incompressible)
        assert ledger.remembered(job_id, 0, "all") == incompressible
    assert [one.id for one in ledger.jobs()] == [job_id]


def test_a_file_that_is_no_ledger_is_told(tmp_path: Path) -> None:
    (tmp_path / "batch-1.sqlite").write_bytes(b"This is a letter to my aunt. " * 40)
    with new_ledger(tmp_path) as ledger, pytest.raises(AppError, match="not a database"):
        ledger.jobs()


def test_names_and_texts_that_no_database_takes(ledger: Ledger) -> None:
    half = "\ud83d"
    items = [
        NewItem(id=f"{half}.txt", source=half, content=f"a{half}b\0c"),
        NewItem(id="\udcff.txt", source="x", content="'); DROP TABLE item; --"),
    ]
    job_id = added(ledger, items)
    first, second = ledger.items(job_id, content=True)
    assert first.id != second.id
    assert (first.content, second.content) == ("a?b\0c", "'); DROP TABLE item; --")


def test_items_are_read_while_they_change(ledger: Ledger, tmp_path: Path) -> None:
    """More than one page of them, by another process, with no transaction left open."""
    job_id = added(ledger, texts(1200))
    with new_ledger(tmp_path) as another, ledger.held(job_id):
        reading = another.items(job_id, content=True)
        assert next(reading).number == 0
        for number in range(100):
            ledger.lease(job_id, "me", NOW_S)
            ledger.finish(job_id, number, "me", Result(text=str(number)))
        assert [one.number for one in reading] == list(range(1, 1200))
        done = list(another.items(job_id, states=("done",)))
        assert [one.result.text for one in done if one.result] == [str(n) for n in range(100)]
