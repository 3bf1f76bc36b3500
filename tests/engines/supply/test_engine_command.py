"""`workhorse engine` as a user types it, in both languages, with every mistake."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builds_made import ANSWERS, DIES, made_build, manifest_of, packed
from fake_clang import container

from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER
from workhorse.engines.supply.manifest import read_manifest, write_manifest


@pytest.fixture
def home(tmp_path: Path, real_model: Path) -> Path:
    """A data folder that has the embedded model and nothing else."""
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    (models / real_model.name).symlink_to(real_model)
    return tmp_path / "home"


def workhorse(home: Path, *words: str, language: str = "en") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workhorse", *words],
        env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": language},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_build_from_its_install_to_its_removal(home: Path, tmp_path: Path) -> None:
    made_build(tmp_path / "made")
    archive = packed(tmp_path / "made", tmp_path / "made.tar.gz")
    done = workhorse(home, "engine", "install", str(archive), "--name", "mine")
    assert done.returncode == 0, done.stderr
    assert "workhorse up --engine mine" in done.stdout
    assert "runs here and answers" in done.stderr

    listed = json.loads(workhorse(home, "engine", "list", "--json").stdout)
    assert [row["manifest"]["name"] for row in listed["builds"]] == ["mine"]
    assert listed["builds"][0]["proven_at"].startswith("20")
    assert "mine" in workhorse(home, "engine", "list").stdout

    again = workhorse(home, "engine", "install", str(archive), "--name", "mine")
    assert again.returncode == 2
    assert "There is a build 'mine' already" in again.stderr

    verdict = workhorse(home, "engine", "verify", "--json")
    assert verdict.returncode == 0, verdict.stderr
    codes = [finding["code"] for finding in json.loads(verdict.stdout)["mine"]["findings"]]
    assert codes[-1] == "engine.answers"

    plan = workhorse(home, "up", "--engine", "mine", "--dry-run", "--json")
    assert plan.returncode == 0, plan.stderr
    program = str(home / "engines" / "mine" / "bin" / "llama-server")
    assert json.loads(plan.stdout)["launch"]["argv"][0] == program

    removed = workhorse(home, "engine", "remove", "mine", language="zh")
    assert removed.returncode == 0, removed.stderr
    assert "已删除 mine" in removed.stdout
    assert [path.name for path in (home / "engines").iterdir()] == [".lock"]


def test_cublas_goes_with_the_last_build_that_needs_it(home: Path) -> None:
    engines = home / "engines"
    for name in ("a", "b"):
        library = engines / name / "bin" / "libggml-cuda.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(container(70))
        program = library.with_name("llama-server")
        program.write_text(ANSWERS)
        program.chmod(0o755)
        write_manifest(engines / name, manifest_of(engines / name, name=name))
    (engines / CUBLAS_FOLDER).mkdir()
    (engines / CUBLAS_FOLDER / "libcublas.so.12").write_bytes(bytes(100_000))
    assert "sm_70, compute_70" in workhorse(home, "engine", "list").stdout
    assert workhorse(home, "engine", "remove", "a").returncode == 0
    assert (engines / CUBLAS_FOLDER).is_dir()
    done = workhorse(home, "engine", "remove", "b", "--json")
    assert json.loads(done.stdout)["freed_bytes"] > 100_000
    assert [path.name for path in engines.iterdir()] == [".lock"]


def test_one_that_dies_is_not_installed(home: Path, tmp_path: Path) -> None:
    made_build(tmp_path / "made", DIES)
    done = workhorse(home, "engine", "install", str(tmp_path / "made"))
    assert done.returncode == 1
    assert "SIGILL" in done.stderr
    assert "→" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in (home / "engines").iterdir()] == [".lock"]


def test_one_for_another_cpu_is_never_started(home: Path, tmp_path: Path) -> None:
    made_build(tmp_path / "made", DIES, needs_flags=("no_such_instruction",))
    done = workhorse(home, "engine", "install", str(tmp_path / "made"))
    assert done.returncode == 3
    assert "no_such_instruction" in done.stderr
    assert "--cpu" in done.stderr


def test_a_build_that_was_altered(home: Path, tmp_path: Path) -> None:
    made_build(home / "engines" / "made", DIES, name="made")
    (home / "engines" / "made" / "bin" / "llama-server").write_text("#!/bin/sh\n")
    done = workhorse(home, "engine", "verify", "made", language="zh")
    assert done.returncode == 3
    assert "与记录不符" in done.stdout
    assert workhorse(home, "engine", "remove", "made").returncode == 0


def test_a_record_that_cannot_be_read_stops_no_other_check(home: Path) -> None:
    made_build(home / "engines" / "made", name="made")
    (home / "engines" / "broken").mkdir()
    done = workhorse(home, "engine", "verify", "--json")
    assert done.returncode == 3
    codes = {k: [f["code"] for f in v["findings"]] for k, v in json.loads(done.stdout).items()}
    assert codes["broken"] == ["engine.record-unreadable"]
    assert codes["made"][-1] == "engine.answers"
    assert workhorse(home, "engine", "remove", "broken").returncode == 0


def test_one_that_stopped_answering_is_told_and_stays(home: Path) -> None:
    made_build(home / "engines" / "made", DIES, name="made")
    done = workhorse(home, "engine", "verify")
    assert done.returncode == 3
    assert "SIGILL" in done.stdout
    assert read_manifest(home / "engines" / "made").name == "made"


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["list", "x"], "takes no name", 2),
        (["install"], "takes one folder, archive or address", 2),
        (["install", "a", "b"], "takes one folder, archive or address", 2),
        (["install", "/no/such/file"], "does not exist", 2),
        (["install", "http://127.0.0.1:9/a.tar.gz"], "SHA-256", 2),
        (["install", "x", "--sha256", "12"], "not a SHA-256", 2),
        (["install", "x", "--cpu", "avx2"], "--cpu only goes with", 2),
        (["build", "x"], "by --name", 2),
        (["build", "--cpu", "z80"], "none of native, x64", 2),
        (["build", "--cpu", "avx", "avx2", "--name", "x"], "one --cpu only", 2),
        (["build", "--name", "../x"], "cannot be called", 2),
        (["build", "--jobs", "0"], "at least 1", 2),
        (["build", "--compiler", "magic"], "cannot be", 2),
        (["build", "--gpu", "sm_35"], "No code can be made for 'sm_35'", 2),
        (["build", "--gpu", "sm_70", "--option", "magic"], "cannot be", 2),
        (["build", "--option", "force-mmq"], "go with --gpu", 2),
        (["build", "--no-cublas"], "go with --gpu", 2),
        (["install", "x", "--gpu", "sm_70"], "--gpu only goes with", 2),
        (["verify", "--no-cublas"], "--no-cublas only goes with", 2),
        (["verify", "none"], "no engine build 'none'", 2),
        (["verify", "--tools"], "--tools only goes with", 2),
        (["remove"], "needs a name", 2),
        (["remove", "none"], "no engine build 'none'", 2),
        (["paint"], "cannot be", 2),
    ],
)
def test_wrong_usage(tmp_path: Path, words: list[str], said: str, code: int) -> None:
    done = workhorse(tmp_path, "engine", *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("engines/.part-*"))


def test_nothing_is_there(tmp_path: Path) -> None:
    listed = workhorse(tmp_path, "engine", "list")
    assert listed.returncode == 0
    assert "There is no engine build" in listed.stdout
    done = workhorse(tmp_path, "engine", "verify", language="zh")
    assert (done.returncode, done.stdout) == (0, "没有任何构建。\n")
    assert json.loads(workhorse(tmp_path, "engine", "verify", "--json").stdout) == {}
    done = workhorse(tmp_path, "up", "--engine", "none", "--dry-run")
    assert done.returncode == 1
    assert "does not exist" in done.stderr


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    done = workhorse(tmp_path, "engine", "build", "--compiler", "packaged")
    assert done.returncode == 1
    assert "cannot be had" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    listed = json.loads(workhorse(tmp_path, "engine", "list", "--json").stdout)
    assert listed["builds"] == []
    assert workhorse(tmp_path, "engine", "remove", "--tools").returncode == 0
    assert {path.name for path in tmp_path.rglob("*")} <= {"engines", ".lock", "logs"}


def test_no_space(tmp_path: Path) -> None:
    """A file system of a few pages: the compiler's 1 GB do not fit."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("a small file system needs root and unshare")
    small = tmp_path / "small"
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=4m none {small} && "
        f"exec {sys.executable} -m workhorse engine build --compiler packaged"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env={**os.environ, "WORKHORSE_HOME": str(small / "home"), "WORKHORSE_LANG": "en"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "mount" in done.stderr and "denied" in done.stderr:
        pytest.skip("this container may not mount")
    assert done.returncode == 1
    assert "more are needed" in done.stderr
