"""libgomp for a system that has none: found, fetched, refused."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from workhorse.engines import openmp
from workhorse.errors import AppError
from workhorse.knowledge.packaged_libraries import PackagedLibrary, packaged_library

CONTENT = b"\x7fELF, or so it says"


@pytest.fixture
def bare_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system without libgomp and a virtual environment of its own; that one's folder."""
    prefix = tmp_path / "venv"
    prefix.mkdir()
    monkeypatch.setattr(openmp, "system_has_openmp", lambda: False)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return prefix


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., PackagedLibrary]:
    """Puts a small wheel where pip looks and makes it the known one, changed as told."""

    def publish(**changes: str) -> PackagedLibrary:
        shelf = tmp_path / "shelf"
        shelf.mkdir()
        wheel = shelf / "tinyomp-1.0-py3-none-manylinux2014_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            about = "tinyomp-1.0.dist-info"
            archive.writestr("tinyomp.libs/libgomp-1234.so", CONTENT)
            archive.writestr(
                f"{about}/METADATA", "Metadata-Version: 2.1\nName: tinyomp\nVersion: 1.0\n"
            )
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        library = PackagedLibrary(
            name=openmp.LIBRARY,
            architecture="x86_64",
            package="tinyomp",
            version="1.0",
            platform="manylinux2014_x86_64",
            member="tinyomp.libs/libgomp-1234.so",
            wheel_sha256=sha256(wheel.read_bytes()).hexdigest(),
            licence="none",
            source="this test",
            date="2026-11-30",
        )
        known = replace(library, **changes)
        monkeypatch.setattr(openmp, "packaged_library", lambda _name, _architecture: known)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        return known

    return publish


def test_nothing_is_fetched_where_the_system_has_it(
    bare_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openmp, "system_has_openmp", lambda: True)
    assert openmp.ensure_openmp() is None
    assert openmp.openmp_library_dir() is None
    assert list(bare_system.iterdir()) == []


def test_missing_and_not_installed(bare_system: Path) -> None:
    assert openmp.openmp_library_dir() is None


def test_it_is_fetched_once(
    bare_system: Path,
    packaged: Callable[..., PackagedLibrary],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    packaged()
    folder = openmp.ensure_openmp()
    assert folder == bare_system / "lib/workhorse-openmp" == openmp.openmp_library_dir()
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["libgomp.so.1"]
    assert (folder / openmp.LIBRARY).read_bytes() == CONTENT
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))  # a second fetch would fail
    assert openmp.ensure_openmp() == folder


@pytest.mark.parametrize(
    "changes",
    [{"wheel_sha256": "0" * 64}, {"version": "2.0"}, {"platform": "manylinux2014_aarch64"}],
    ids=lambda changes: str(*changes),
)
def test_another_wheel_than_the_known_one_is_refused(
    bare_system: Path, packaged: Callable[..., PackagedLibrary], changes: dict[str, str]
) -> None:
    packaged(**changes)
    with pytest.raises(AppError) as caught:
        openmp.ensure_openmp()
    assert "libgomp.so.1" in caught.value.what.en
    assert "apt-get install libgomp1" in caught.value.next_step.zh
    assert openmp.openmp_library_dir() is None


def test_a_folder_that_cannot_be_written(
    bare_system: Path, packaged: Callable[..., PackagedLibrary]
) -> None:
    packaged()
    (bare_system / "lib").write_text("in the way", encoding="utf-8")
    with pytest.raises(AppError, match="apt-get install libgomp1"):
        openmp.ensure_openmp()


def test_a_processor_that_no_package_knows(
    bare_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(AppError, match="riscv64"):
        openmp.ensure_openmp()


def test_the_engine_loads_the_packaged_library(data_dir: Path) -> None:
    """The real wheel and the real engine: it takes our copy before the system's."""
    library = packaged_library(openmp.LIBRARY, os.uname().machine)
    assert library is not None
    folder = data_dir / f"test-{library.package}-{library.version}"
    if not (folder / openmp.LIBRARY).is_file():
        openmp.fetch(library, folder)
    done = subprocess.run(
        [sys.executable, "-c", "import xllamacpp; print(open('/proc/self/maps').read())"],
        env={"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.split()[-1] for line in done.stdout.splitlines() if "libgomp" in line}
    assert loaded == {str(folder / openmp.LIBRARY)}
