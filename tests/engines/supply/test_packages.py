"""What pip cannot fetch: the cause and one step."""

import zipfile
from pathlib import Path

import pytest

from workhorse.engines.supply.packages import pip_failed, run_pip
from workhorse.engines.supply.source import fetch_source, source_tree
from workhorse.engines.supply.toolchain import packaged_toolchain
from workhorse.errors import AppError
from workhorse.knowledge.engine_sources import llamacpp_source
from workhorse.models.fetch import no_progress
from workhorse.text import same

SOURCE = llamacpp_source()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip sees an index on a closed port and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_network")
def test_no_network(tmp_path: Path) -> None:
    with pytest.raises(AppError) as refused:
        source_tree(tmp_path / "work", SOURCE, no_progress)
    assert "llama-cpp-python 0.3.36 cannot be had" in refused.value.what.en
    assert "engine install" in refused.value.next_step.en
    assert not (tmp_path / "work" / "source").exists()


@pytest.mark.usefixtures("no_network")
def test_no_network_for_the_compiler(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="cannot be had"):
        packaged_toolchain(tmp_path / "tools", no_progress)
    assert list((tmp_path / "tools").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "words", "step"),
    [
        (["ERROR: Could not install: [Errno 28] No space left on device"], "No space", "Free some"),
        (
            ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."],
            "not the file that is pinned",
            "another mirror",
        ),
        (
            ["WARNING: Retrying after connection broken by NewConnectionError", "ERROR: No match"],
            "No match",
            "Connect to the network",
        ),
        (["", "something odd"], "something odd", "Mend that"),
        ([], "no reason given", "Mend that"),
    ],
)
def test_why_pip_failed(said: list[str], words: str, step: str) -> None:
    error = pip_failed(same("It"), said)
    assert words in error.what.en
    assert step in error.next_step.en


def test_another_file_than_the_pinned_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip checks the hash; a pip that does not is found out."""

    def careless(arguments: list[str], *_: object) -> None:
        (Path(arguments[-1]) / "llama_cpp_python-0.3.36.tar.gz").write_bytes(b"other")

    monkeypatch.setattr("workhorse.engines.supply.source.run_pip", careless)
    with pytest.raises(AppError, match="no file with the hash"):
        fetch_source(tmp_path, SOURCE, no_progress)


def test_a_package_with_another_hash_than_the_pinned_one(tmp_path: Path) -> None:
    wheel = tmp_path / "nothing_here-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("nothing_here-1.dist-info/METADATA", "Name: nothing_here\nVersion: 1\n")
        zipped.writestr("nothing_here-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        zipped.writestr("nothing_here-1.dist-info/RECORD", "")
    lock = tmp_path / "some.lock"
    lock.write_text(f"nothing_here==1 --hash=sha256:{'0' * 64}\n")
    install = ["install", "--no-index", "--find-links", str(tmp_path), "--require-hashes"]
    with pytest.raises(AppError, match="not the file that is pinned") as refused:
        run_pip(
            [*install, "--target", str(tmp_path / "t"), "-r", str(lock)], same("It"), no_progress
        )
    assert "another mirror" in refused.value.next_step.en
    assert not (tmp_path / "t").exists()


def test_what_a_user_set_for_other_installs_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pinned.txt").write_text("ziglang==0.0.1\n")
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nuser = true\nconstraint = {tmp_path}/pinned.txt\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    wheel = tmp_path / "nothing_here-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("nothing_here.py", "")
        zipped.writestr("nothing_here-1.dist-info/METADATA", "Name: nothing_here\nVersion: 1\n")
        zipped.writestr("nothing_here-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        zipped.writestr("nothing_here-1.dist-info/RECORD", "")
    install = ["install", "--no-index", "--no-deps", "--target", str(tmp_path / "t"), str(wheel)]
    run_pip(install, same("It"), no_progress)
    assert (tmp_path / "t" / "nothing_here.py").is_file()


def test_pip_is_asked_and_its_words_are_kept(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="no such option"):
        run_pip(["download", "--no-such-option"], same("It"), no_progress)
