"""Changing a host's settings and bringing them back: on a tree, and for real."""

import os
import random
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from host_tree import (
    CHANGING,
    DEFRAG,
    ENERGY_0,
    GOVERNOR_0,
    NUMA,
    SWAPPINESS,
    THP,
    Kernel,
    changed,
    changes,
    endings,
    grow,
    settings,
)
from workhorse.doctor.host import Change, advise
from workhorse.knowledge.host_settings import knobs, recommendations
from workhorse.machine.files import DirectoryFiles, PackedFiles
from workhorse.machine.host import apply, read_only, read_settings, undo, write_value
from workhorse.machine.host_journal import JOURNAL, read_journal
from workhorse.machine.probe import read_machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return grow(tmp_path / "root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "host"


# ---------------------------------------------------------------- reading


def test_every_setting_is_found_with_its_choices(root: Path) -> None:
    found = read_settings(DirectoryFiles(root))
    assert found[GOVERNOR_0] == "powersave\n"
    assert "performance" in found[GOVERNOR_0.replace("scaling_g", "scaling_available_g") + "s"]
    assert {NUMA, SWAPPINESS, THP, DEFRAG, "proc/self/limits"} < found.keys()


def test_old_kernels_keep_the_governor_with_the_cpu() -> None:
    path = "sys/devices/system/cpu/cpu13/cpufreq/scaling_governor"
    files = {path: "ondemand", "sys/devices/system/cpu/cpufreq/ondemand/up_threshold": "95"}
    assert read_settings(PackedFiles(files)) == {path: "ondemand"}


def test_what_stays_closed_to_root_is_told(root: Path) -> None:
    (root / SWAPPINESS).chmod(0o444)
    assert read_only(root, [SWAPPINESS, NUMA, "not/there"]) == {SWAPPINESS}


def test_a_setting_that_is_gone_does_not_become_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_value(tmp_path / "swappiness", "10")
    assert list(tmp_path.iterdir()) == []


def test_hostile_files_change_nothing_but_their_own_setting(root: Path) -> None:
    """Whatever the files hold, only sound values are changed, and to the values of the table."""
    clean = read_settings(DirectoryFiles(root))
    machine = read_machine(DirectoryFiles(root))
    hostile = ["", "\0", "[", "[]", "[a] [b]", "-1", "1e9", "9" * 9000, "é", "x" * 70, "a b", "%s",
               "[../x]", "always [madvise] never\n" * 500, "x\ny", "[" * 9]  # fmt: skip
    chance = random.Random(7)
    advised = set()
    for _ in range(300):
        texts = {p: chance.choice([t, t, *hostile]) for p, t in clean.items()}
        found = advise(machine, read_settings(PackedFiles(dict(texts))))
        assert len(found) == len(knobs())
        for change in (c for advice in found for c in advice.changes):
            assert change.path in clean and re.fullmatch(r"[A-Za-z0-9_+-]{1,64}", change.before)
            assert change.after in {r.value for r in recommendations() if r.knob == change.knob}
            advised.add(change.path)
    assert advised == CHANGING.keys()


# ---------------------------------------------------------------- there and back


def test_apply_and_undo(root: Path, folder: Path) -> None:
    before, kernel = settings(root), Kernel()
    outcomes = apply(root, folder, changes(root), write=kernel)
    assert endings(outcomes) == dict.fromkeys(CHANGING, "changed")
    assert changed(root)
    journal = read_journal(folder)
    assert journal is not None and {o.path for o in journal.originals} == CHANGING.keys()
    outcomes = undo(root, folder, write=kernel)
    assert settings(root) == before
    assert set(endings(outcomes).values()) <= {"restored", "as it was"}
    assert read_journal(folder) is None
    assert undo(root, folder, write=kernel) == ()


def test_the_originals_are_on_disk_before_the_first_write(root: Path, folder: Path) -> None:
    seen: list[dict[str, str]] = []

    def write(path: Path, value: str) -> None:
        journal = read_journal(folder)
        assert journal is not None
        seen.append({o.path: o.value for o in journal.originals})
        mine = next(o for o in journal.originals if str(path).endswith(o.path))
        assert value in mine.ours and mine.boot_id
        Kernel()(path, value)

    apply(root, folder, changes(root), write=write)
    assert len(seen) == len(CHANGING)
    assert all(originals.keys() == CHANGING.keys() for originals in seen)
    assert seen[0][ENERGY_0] == "balance_power"  # before the governor changed it


def test_first_originals_are_never_overwritten(root: Path, folder: Path) -> None:
    kernel = Kernel()
    apply(root, folder, changes(root), write=kernel)
    (root / SWAPPINESS).write_text("30\n")
    apply(root, folder, (Change("swappiness", SWAPPINESS, "30", "5"),), write=kernel)
    assert (root / SWAPPINESS).read_text() == "5\n"
    undo(root, folder, write=kernel)
    assert (root / SWAPPINESS).read_text() == "60\n"


def test_what_is_so_already_is_neither_written_nor_kept(root: Path, folder: Path) -> None:
    wanted = changes(root)
    kernel = Kernel()
    for path in (SWAPPINESS, NUMA):
        (root / path).write_text(CHANGING[path] + "\n")
    (outcome,) = apply(root, folder, [c for c in wanted if c.path == NUMA], write=kernel)
    assert outcome.ending == "as it was"
    assert kernel.written == [] and read_journal(folder) is None


def test_the_original_is_what_it_holds_now_and_not_what_was_shown(root: Path, folder: Path) -> None:
    shown = changes(root)
    (root / SWAPPINESS).write_text("45\n")
    apply(root, folder, shown, write=Kernel())
    undo(root, folder, write=Kernel())
    assert (root / SWAPPINESS).read_text() == "45\n"


def test_undo_of_one_setting_keeps_the_others(root: Path, folder: Path) -> None:
    before, kernel = settings(root), Kernel()
    apply(root, folder, changes(root), write=kernel)
    undo(root, folder, only=["swappiness"], write=kernel)
    journal = read_journal(folder)
    assert journal is not None and SWAPPINESS not in {o.path for o in journal.originals}
    assert settings(root)[SWAPPINESS] == "60" and settings(root)[NUMA] == "0"
    undo(root, folder, write=kernel)
    assert settings(root) == before


# ---------------------------------------------------------------- refusals and odd values


@pytest.mark.parametrize("stubborn", [NUMA, THP, GOVERNOR_0])
def test_one_that_fails_stops_no_other(root: Path, folder: Path, stubborn: str) -> None:
    before = settings(root)
    outcomes = apply(root, folder, changes(root), write=Kernel(refusing=(stubborn,)))
    failed = {o.path: o for o in outcomes if o.ending == "failed"}
    assert failed.keys() == {stubborn}
    why = failed[stubborn].why
    assert why is not None and "Operation not permitted" in why.en and "拒绝" in why.zh
    journal = read_journal(folder)
    assert journal is not None and stubborn not in {o.path for o in journal.originals}
    undo(root, folder, write=Kernel())
    assert settings(root) == before


def test_when_all_is_refused_nothing_is_kept(root: Path, folder: Path) -> None:
    outcomes = apply(root, folder, changes(root), write=Kernel(refusing=tuple(CHANGING)))
    assert set(endings(outcomes).values()) == {"failed"}
    assert read_journal(folder) is None


def test_a_value_that_the_kernel_alters_is_reported_and_restored(root: Path, folder: Path) -> None:
    def rounding(path: Path, value: str) -> None:
        path.write_text("7\n" if value == "10" else value + "\n")

    change = Change("swappiness", SWAPPINESS, "60", "10")
    (outcome,) = apply(root, folder, (change,), write=rounding)
    assert outcome.ending == "failed" and outcome.why is not None and "7" in outcome.why.en
    (outcome,) = undo(root, folder, write=rounding)
    assert outcome.ending == "restored" and (root / SWAPPINESS).read_text() == "60\n"


def test_a_write_that_does_nothing_is_a_failure(root: Path, folder: Path) -> None:
    change = Change("swappiness", SWAPPINESS, "60", "10")
    (outcome,) = apply(root, folder, (change,), write=lambda path, value: None)
    assert outcome.ending == "failed" and outcome.now == "60"


def test_what_somebody_else_set_is_left_without_force(root: Path, folder: Path) -> None:
    before, kernel = settings(root), Kernel()
    apply(root, folder, changes(root), write=kernel)
    (root / SWAPPINESS).write_text("33\n")
    outcomes = {o.path: o for o in undo(root, folder, write=kernel)}
    left = outcomes.pop(SWAPPINESS)
    assert left.ending == "left" and left.why is not None and "33" in left.why.en
    assert {o.ending for o in outcomes.values()} <= {"restored", "as it was"}
    assert (root / SWAPPINESS).read_text() == "33\n"
    journal = read_journal(folder)
    assert journal is not None and [o.value for o in journal.originals] == ["60"]
    undo(root, folder, force=True, write=kernel)
    assert settings(root) == before and read_journal(folder) is None


def test_what_cannot_be_restored_stays_kept(root: Path, folder: Path) -> None:
    before = settings(root)
    apply(root, folder, changes(root), write=Kernel())
    outcomes = undo(root, folder, write=Kernel(refusing=(NUMA,)))
    assert [o.path for o in outcomes if o.ending == "failed"] == [NUMA]
    journal = read_journal(folder)
    assert journal is not None and [o.path for o in journal.originals] == [NUMA]
    undo(root, folder, write=Kernel())
    assert settings(root) == before and read_journal(folder) is None


# ---------------------------------------------------------------- this machine


@contextmanager
def put_back(path: Path) -> Iterator[None]:
    """Whatever happens, the file ends with the value that it has now."""
    knob = next(k for k in knobs() if k.is_place(str(path).removeprefix("/")))
    original = knob.value_in(path.read_text())
    assert original is not None
    try:
        yield
    finally:
        if knob.value_in(path.read_text()) != original:
            path.write_text(original)


@pytest.mark.parametrize(
    ("name", "path", "values"),
    [
        ("swappiness", SWAPPINESS, ("41", "42")),
        ("thp_defrag", DEFRAG, ("defer+madvise", "madvise")),
    ],
)
def test_a_real_setting_there_and_back(
    name: str, path: str, values: tuple[str, str], tmp_path: Path
) -> None:
    place = Path("/") / path
    if os.geteuid() != 0 or not place.exists() or read_only(Path("/"), [path]):
        pytest.skip(f"{place} can only be changed by root on a host of its own")
    knob = next(k for k in knobs() if k.name == name)
    before = place.read_text()
    value = next(v for v in values if v != knob.value_in(before))
    with put_back(place):
        try:
            write_value(place, knob.value_in(before) or "")
        except OSError as error:
            pytest.skip(f"{place} refuses its own value: {error}")
        (outcome,) = apply(Path("/"), tmp_path, (Change(name, path, "", value),))
        assert outcome.ending == "changed" and knob.value_in(place.read_text()) == value
        (outcome,) = undo(Path("/"), tmp_path)
        assert outcome.ending == "restored" and place.read_text() == before
    assert read_journal(tmp_path) is None


READ_ONLY = """
import subprocess, sys
from pathlib import Path
from workhorse.machine.host import read_only, write_value
for words in (["--bind", "/proc/sys", "/proc/sys"], ["-o", "remount,bind,ro", "/proc/sys"]):
    if subprocess.run(["mount", *words], capture_output=True).returncode:
        sys.exit(77)
path = "proc/sys/vm/swappiness"
assert read_only(Path("/"), [path, "proc/self/limits"]) == {path, "proc/self/limits"}
try:
    write_value(Path("/") / path, "60")
except OSError:
    sys.exit(0)
sys.exit("it could be written")
"""


def test_a_read_only_mount_as_in_a_container_is_seen() -> None:
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("only root can make such a mount")
    command = [unshare, "--mount", sys.executable, "-c", READ_ONLY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("mounts are not allowed here")
    assert done.returncode == 0, done.stderr


def test_originals_are_readable_without_root_whatever_the_umask(root: Path, folder: Path) -> None:
    before = os.umask(0o077)
    try:
        apply(root, folder, changes(root), write=Kernel())
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (folder.parent, folder, folder / JOURNAL)]
    assert modes == [0o755, 0o755, 0o644]
