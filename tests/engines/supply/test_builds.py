"""The folder of builds: whole or not there, several side by side, and nothing left behind."""

import shutil
import subprocess
from pathlib import Path

import pytest
from builds_made import made_build

from workhorse.engines.supply.builds import Builds, disk_bytes, processes_in
from workhorse.engines.supply.manifest import MANIFEST
from workhorse.errors import EXIT_USAGE, AppError


def kept(builds: Builds, name: str) -> None:
    with builds.alone(), builds.making() as scratch:
        manifest = made_build(scratch / "b", name=name)
        builds.keep(scratch / "b", manifest)


def test_several_side_by_side(tmp_path: Path) -> None:
    builds = Builds(tmp_path / "engines")
    assert builds.names() == []
    for name in ("b", "a"):
        kept(builds, name)
    found, damaged = builds.all()
    assert ([build.manifest.name for build in found], damaged) == (["a", "b"], [])
    assert builds.get("a").program.read_text().startswith("#!/bin/sh")
    builds.remove("a")
    assert builds.names() == ["b"]
    builds.remove("b")
    assert [path.name for path in builds.folder.iterdir()] == [".lock"]


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    kept(builds, "a")
    with pytest.raises(AppError, match="already") as refused:
        kept(builds, "a")
    assert refused.value.exit_code == EXIT_USAGE
    assert builds.get("a").manifest.name == "a"
    assert not list(tmp_path.glob(".part-*"))


def test_a_failure_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    kept(builds, "a")
    with pytest.raises(ZeroDivisionError), builds.alone(), builds.making() as scratch:
        made_build(scratch / "b", name="new")
        raise ZeroDivisionError
    assert builds.names() == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a"]


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    kept(builds, "a")
    (tmp_path / ".part-xyz" / "bin").mkdir(parents=True)
    with builds.alone():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a"]


def test_only_one_at_a_time(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    with (
        builds.alone(),
        pytest.raises(AppError, match="Another process"),
        Builds(tmp_path).alone(),
    ):
        pass
    with builds.alone():
        pass


def test_a_build_that_runs_is_not_removed(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    sleep = Path(shutil.which("sleep") or "").resolve()
    with builds.making() as scratch:
        builds.keep(scratch / "b", made_build(scratch / "b", sleep, name="busy"))
    with subprocess.Popen([builds.get("busy").program, "60"]) as engine:
        try:
            with pytest.raises(AppError, match=f"in use by process {engine.pid}"):
                builds.remove("busy")
            assert processes_in(tmp_path / "busy") == [engine.pid]
        finally:
            engine.kill()
    builds.remove("busy")
    assert builds.names() == []


def test_a_damaged_build_is_told_and_can_be_removed(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    kept(builds, "good")
    kept(builds, "bad")
    (tmp_path / "bad" / MANIFEST).write_text("{")
    found, damaged = builds.all()
    assert [build.manifest.name for build in found] == ["good"]
    assert len(damaged) == 1
    builds.remove("bad")
    assert builds.names() == ["good"]


def test_an_unknown_name_says_which_there_are(tmp_path: Path) -> None:
    builds = Builds(tmp_path)
    with pytest.raises(AppError, match="engine build"):
        builds.get("none")
    kept(builds, "a")
    for name in ("none", "", "..", "a/../a", ".lock"):
        with pytest.raises(AppError, match="There are: a"):
            builds.get(name)
        with pytest.raises(AppError, match="There are: a"):
            builds.remove(name)


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(AppError, match="cannot be written"), Builds(tmp_path / "file").alone():
        pass


def test_disk_use_counts_blocks(tmp_path: Path) -> None:
    assert disk_bytes(tmp_path / "none") == 0
    (tmp_path / "f").write_bytes(b"x" * 10_000)
    assert disk_bytes(tmp_path) >= 10_000
