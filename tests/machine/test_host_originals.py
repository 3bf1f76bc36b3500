"""The kept originals: after kills at every step, restarts, and with a file that is not sound."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from host_tree import (
    BOOT_ID,
    CHANGING,
    GOVERNOR_0,
    NUMA,
    SWAPPINESS,
    Kernel,
    changed,
    changes,
    endings,
    grow,
    settings,
)
from workhorse.errors import AppError
from workhorse.machine import host_journal
from workhorse.machine.host import apply, undo
from workhorse.machine.host_journal import JOURNAL, locked, read_journal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return grow(tmp_path / "root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "host"


# ---------------------------------------------------------------- killed


def run_and_kill(work: Callable[..., object], step: int) -> bool:
    """Run `work` in a child that is killed before its step `step`; True when it was."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(act: Callable[..., object]) -> Callable[..., object]:
            def either(*args: object) -> object:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return act(*args)

            return either

        class Counting(Kernel):
            def __call__(self, path: Path, value: str) -> None:
                counted(super().__call__)(path, value)

        code = 1
        try:
            os.fsync, os.replace = counted(os.fsync), counted(os.replace)  # type: ignore[assignment]
            work(write=Counting())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0
    return killed


def test_killed_at_any_step_of_apply_undo_restores_all(tmp_path: Path) -> None:
    steps = 0
    while True:
        root, folder = grow(tmp_path / f"root{steps}"), tmp_path / f"state{steps}"
        before, wanted = settings(root), changes(root)
        killed = run_and_kill(partial(apply, root, folder, wanted), steps)
        assert killed or changed(root)
        undo(root, folder, write=Kernel())
        assert settings(root) == before, f"killed before step {steps}"
        assert read_journal(folder) is None
        if not killed:
            break
        steps += 1
    # Each of the eight writes, and the journal's own steps before each setting.
    assert steps > len(CHANGING) + 3 * len({c.knob for c in wanted})


def test_before_each_setting_the_originals_are_synced_in_their_place(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves: the file's content and its name are on the disk by then."""
    steps: list[str] = []
    sync, replace, kernel = os.fsync, os.replace, Kernel()
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (steps.append("name"), replace(*names)))
    wanted = changes(root)
    apply(root, folder, wanted, write=lambda *what: (steps.append("set"), kernel(*what)))
    tries = " ".join(steps).split("sync name sync set")
    assert len(tries) == 1 + len({change.knob for change in wanted})
    assert all(set(between.split()) <= {"set"} for between in tries[1:])


def test_killed_at_any_step_of_undo_the_next_one_restores_all(tmp_path: Path) -> None:
    steps = 0
    while True:
        root, folder = grow(tmp_path / f"root{steps}"), tmp_path / f"state{steps}"
        before = settings(root)
        apply(root, folder, changes(root), write=Kernel())
        killed = run_and_kill(partial(undo, root, folder), steps)
        undo(root, folder, write=Kernel())
        assert settings(root) == before, f"killed before step {steps}"
        assert read_journal(folder) is None
        if not killed:
            break
        steps += 1
    assert steps > 4


def test_killed_and_applied_again_the_first_originals_count(root: Path, folder: Path) -> None:
    before, wanted = settings(root), changes(root)
    assert run_and_kill(partial(apply, root, folder, wanted), 16)
    assert settings(root) != before
    apply(root, folder, changes(root), write=Kernel())
    assert changed(root)
    undo(root, folder, write=Kernel())
    assert settings(root) == before


def test_a_full_disk_in_the_middle_leaves_what_undo_needs(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, sync, calls = settings(root), os.fsync, 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(host_journal.os, "fsync", full)
        with pytest.raises(AppError, match="No space left") as caught:
            apply(root, folder, changes(root), write=Kernel())
    assert "Free some space" in caught.value.next_step.en
    assert settings(root) != before
    undo(root, folder, write=Kernel())
    assert settings(root) == before


# ---------------------------------------------------------------- restarted


def restart(root: Path) -> None:
    """The machine's next start: another id, and the values of the start."""
    grow(root)
    (root / BOOT_ID).write_text("22222222-2222-2222-2222-222222222222\n")


def test_what_a_restart_reset_is_seen_and_not_written(root: Path, folder: Path) -> None:
    apply(root, folder, changes(root), write=Kernel())
    restart(root)
    kernel = Kernel()
    outcomes = undo(root, folder, write=kernel)
    assert {o.ending for o in outcomes} == {"as it was"}
    assert all(o.why is not None and "restart" in o.why.en for o in outcomes)
    assert kernel.written == [] and read_journal(folder) is None


def test_after_a_restart_only_what_differs_is_written(root: Path, folder: Path) -> None:
    apply(root, folder, changes(root), write=Kernel())
    restart(root)
    (root / SWAPPINESS).write_text("10\n")  # something sets it at every start
    (root / NUMA).unlink()  # a kernel without it
    kernel = Kernel()
    outcomes = endings(undo(root, folder, write=kernel))
    assert outcomes[SWAPPINESS] == "restored" and outcomes[NUMA] == "as it was"
    assert kernel.written == [("swappiness", "60")] and read_journal(folder) is None


def test_a_file_that_is_away_without_a_restart_is_waited_for(root: Path, folder: Path) -> None:
    apply(root, folder, changes(root), write=Kernel())
    governor = root / GOVERNOR_0
    governor.rename(governor.with_suffix(".offline"))  # its CPU was taken offline
    assert endings(undo(root, folder, write=Kernel()))[GOVERNOR_0] == "failed"
    governor.with_suffix(".offline").rename(governor)
    assert endings(undo(root, folder, write=Kernel()))[GOVERNOR_0] == "restored"
    assert read_journal(folder) is None


# ---------------------------------------------------------------- the kept file


ORIGINAL = (
    '{"stored_at":"2026-11-30T00:00:00+00:00","machine_id":null,"originals":'
    '[{"knob":"%s","path":"%s","value":"%s","ours":["10"],"boot_id":null}]}'
)
UNSOUND = {
    "empty": "",
    "no JSON": "\x00\xff",
    "cut": ORIGINAL[:60],
    "deep": "[" * 100_000,
    "a list": "[]",
    "another form": '{"originals": 3}',
    "unknown setting": ORIGINAL % ("shell", SWAPPINESS, "60"),
    "another file": ORIGINAL % ("swappiness", "etc/passwd", "60"),
    "out of its folder": ORIGINAL % ("governor", GOVERNOR_0.replace("policy0", ".."), "60"),
    "only suggested": ORIGINAL % ("huge_pages", "proc/sys/vm/nr_hugepages", "60"),
    "two lines": ORIGINAL % ("swappiness", SWAPPINESS, "60\\n1"),
    "a long value": ORIGINAL % ("swappiness", SWAPPINESS, "6" * 65),
}


@pytest.mark.parametrize("document", UNSOUND.values(), ids=UNSOUND)
def test_a_broken_journal_stops_all_and_is_left(root: Path, folder: Path, document: str) -> None:
    folder.mkdir(parents=True)
    (folder / JOURNAL).write_text(document, encoding="utf-8", errors="surrogateescape")
    before, kernel = settings(root), Kernel()
    wanted = changes(root)
    for act in (lambda: apply(root, folder, wanted, write=kernel),
                lambda: undo(root, folder, force=True, write=kernel)):  # fmt: skip
        with pytest.raises(AppError, match="original") as caught:
            act()
        assert str(folder / JOURNAL) in caught.value.what.zh
    assert settings(root) == before and kernel.written == []
    assert (folder / JOURNAL).read_text(encoding="utf-8") == document


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_journal_that_is_no_plain_file(root: Path, folder: Path, kind: str) -> None:
    folder.mkdir(parents=True)
    journal = folder / JOURNAL
    if kind == "link":
        (folder / "elsewhere").write_text(ORIGINAL % ("swappiness", SWAPPINESS, "60"))
        journal.symlink_to("elsewhere")
    elif kind == "pipe":
        os.mkfifo(journal)
    else:
        journal.mkdir()
    with pytest.raises(AppError, match="cannot be used"):
        undo(root, folder, write=Kernel())


def test_another_machines_originals_are_not_used(root: Path, folder: Path) -> None:
    apply(root, folder, changes(root), write=Kernel())
    (root / "etc/machine-id").write_text("b" * 32)
    before = settings(root)
    with pytest.raises(AppError, match="another machine") as caught:
        undo(root, folder, force=True, write=Kernel())
    assert caught.value.exit_code == 3
    with pytest.raises(AppError, match="another machine"):
        apply(root, folder, changes(root), write=Kernel())
    assert settings(root) == before and read_journal(folder) is not None


@pytest.mark.parametrize("place", ["a file", "proc"])
def test_a_folder_that_cannot_be_written_changes_nothing(
    root: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "plain").write_text("")
    folder = tmp_path / "plain" / "host" if place == "a file" else Path("/proc/sys/host")
    before, kernel = settings(root), Kernel()
    with pytest.raises(AppError, match="cannot be kept") as caught:
        apply(root, folder, changes(root), write=kernel)
    assert "WORKHORSE_HOME" in caught.value.next_step.en
    assert settings(root) == before and kernel.written == []


def test_two_at_once(root: Path, folder: Path) -> None:
    """The second is told so, and the first goes on undisturbed."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(path: Path, value: str) -> None:
        inside.set()
        assert go_on.wait(300)
        Kernel()(path, value)

    first = threading.Thread(target=lambda: apply(root, folder, changes(root), write=slow))
    first.start()
    try:
        assert inside.wait(300)
        for act in (apply, undo):
            arguments = (root, folder, changes(root)) if act is apply else (root, folder)
            with pytest.raises(AppError, match="Another"):
                act(*arguments, write=Kernel())  # type: ignore[operator]
    finally:
        go_on.set()
        first.join()
    assert changed(root)


def test_a_planted_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(AppError), locked(folder):
        pass
    assert not (tmp_path / "victim").exists()
