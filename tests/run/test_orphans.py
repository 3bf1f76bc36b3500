"""What a dead service left is ended; nothing else is, whatever has its process id by now."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from launches import lives

from workhorse.errors import AppError
from workhorse.run.live_processes import (
    MARKER_NAME,
    LiveProcess,
    birthplace,
    carrying,
    read_process,
)
from workhorse.run.orphans import end_all, end_orphans, left_behind
from workhorse.run.run_file import (
    ServiceFile,
    path_of,
    read_service_file,
    service_files,
    write_service_file,
)

SLEEP = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)\n"
    "time.sleep(600)",
)


@contextmanager
def running(command: tuple[str, ...] = SLEEP, marker: str | None = None) -> Iterator[LiveProcess]:
    """A process in a session of its own, with a marker in its environment or without."""
    env = {**os.environ, **({MARKER_NAME: marker} if marker else {})}
    with subprocess.Popen(
        command, env=env, start_new_session=True, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = read_process(process.pid)
            assert found is not None
            yield found
        finally:
            process.kill()


def dead_service() -> LiveProcess:
    """A process that has ended."""
    done = subprocess.Popen(["true"])
    ticks = int(Path(f"/proc/{done.pid}/stat").read_text().rpartition(")")[2].split()[19])
    done.wait()
    return LiveProcess(done.pid, ticks, None)


def service_file(**told: object) -> ServiceFile:
    file = ServiceFile(
        birthplace=birthplace(),
        service=dead_service(),
        host="127.0.0.1",
        port=8080,
        started_unix_s=1.0,
        marker="m" * 16,
        token="t" * 16,
    )
    return replace(file, **told)  # type: ignore[arg-type]


def test_a_file_comes_back_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    file = service_file(engines=(LiveProcess(1, 2, "/bin/x"),), config="/etc/horse.toml")
    write_service_file(folder, file)
    write_service_file(folder, replace(file, port=80))
    assert [one for _, one in service_files(folder)] == [replace(file, port=80), file]
    assert stat.S_IMODE(path_of(folder, 8080).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir() if path.suffix != ".json"] == []


def test_what_is_no_file_of_ours_is_passed_over(tmp_path: Path) -> None:
    for port, content in enumerate((b"", b"{}", b"\xff\xfe", b"[" * 100_000, b"{" + b" " * 2**21)):
        path_of(tmp_path, port).write_bytes(content)
    assert service_files(tmp_path) == []
    assert read_service_file(tmp_path / "service-9.json") is None
    assert end_orphans(tmp_path) == ()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(AppError, match=r"service-8080\.json cannot be written"):
        write_service_file(tmp_path / "run", service_file())


@pytest.mark.parametrize("command", [SLEEP, STUBBORN], ids=["mild", "stubborn"])
def test_the_engine_of_a_dead_service_is_ended(tmp_path: Path, command: tuple[str, ...]) -> None:
    marker = f"orphan-{os.getpid()}"
    with running(command, marker) as written, running(SLEEP, marker) as unwritten:
        file = service_file(marker=marker, engines=(written,))
        # It was started just now, so nothing of it can be older.
        file = replace(file, service=replace(file.service, start_ticks=written.start_ticks))
        write_service_file(tmp_path, file)
        orphans = left_behind(file, carrying(marker))
        assert {one.pid for one in orphans} == {written.pid, unwritten.pid}
        assert all(gone for _, gone in end_all(orphans, grace_s=0.5, after_kill_s=120.0))
        assert not lives(written.pid)
        assert not lives(unwritten.pid)


def test_the_next_start_finds_ends_and_forgets(tmp_path: Path) -> None:
    marker = f"next-{os.getpid()}"
    file = service_file(marker=marker)
    with running(SLEEP, marker) as left:
        write_service_file(tmp_path, file)
        (ended,) = end_orphans(tmp_path)
        assert (ended.process, ended.port, ended.gone) == (left, 8080, True)
        assert str(left.pid) in ended.told.en
        assert str(left.pid) in ended.told.zh
        assert not lives(left.pid)
    assert list(tmp_path.iterdir()) == []


def test_what_lives_or_was_born_elsewhere_is_left_alone(tmp_path: Path) -> None:
    marker = f"alive-{os.getpid()}"
    me = read_process(os.getpid())
    assert me is not None
    alive = service_file(marker=marker, service=me, port=1)
    elsewhere = service_file(marker=marker, birthplace="another host", port=2)
    with running(SLEEP, marker) as engine:
        for file in (alive, elsewhere):
            write_service_file(tmp_path, file)
        assert end_orphans(tmp_path) == ()
        assert lives(engine.pid)
    assert [file.port for _, file in service_files(tmp_path)] == [1, 2]
    assert [file.lives() for _, file in service_files(tmp_path)] == [True, None]


def test_a_process_that_is_not_ours_is_never_ended(tmp_path: Path) -> None:
    """Its id was written down, but the one that has it now is another."""
    with running() as stranger:
        write_service_file(tmp_path, service_file(engines=(stranger,)))
        assert end_orphans(tmp_path) == ()  # it has no marker
        assert lives(stranger.pid)


@pytest.mark.parametrize(
    "change",
    [{"start_ticks": 7}, {"executable": "/bin/other"}, {"executable": None}],
    ids=["start", "program", "unseen"],
)
def test_another_process_under_a_written_id_is_spared(change: dict[str, object]) -> None:
    written = LiveProcess(100, 50, "/bin/engine")
    file = service_file(service=LiveProcess(90, 5, None), engines=(written,))
    assert left_behind(file, [written]) == (written,)
    assert left_behind(file, [replace(written, **change)]) == ()  # type: ignore[arg-type]


def test_what_is_older_than_the_service_is_spared() -> None:
    file = service_file(service=LiveProcess(90, 50, None))
    assert left_behind(file, [LiveProcess(80, 49, None), LiveProcess(90, 50, None)]) == ()


def test_an_id_that_changed_hands_between_the_look_and_the_signal() -> None:
    with running() as stranger:
        was = replace(stranger, start_ticks=stranger.start_ticks - 1)
        assert end_all([was], grace_s=0.0, after_kill_s=0.0) == [(was, True)]
        assert lives(stranger.pid)


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    try:
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_process(process.pid) is None
    finally:
        process.wait()
