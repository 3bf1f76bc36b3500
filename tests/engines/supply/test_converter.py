"""llama.cpp's converter is there whole or not at all; the real one: test_weights_end_to_end.py."""

import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from workhorse.engines.supply import converter as supply
from workhorse.engines.supply.converter import converter
from workhorse.errors import AppError
from workhorse.knowledge.engine_sources import llamacpp_source
from workhorse.text import Text

SOURCE = replace(llamacpp_source(), tree="vendor/llama.cpp")
FILES = {
    "convert_hf_to_gguf.py": "print('converting')",
    "conversion/base.py": "",
    "gguf-py/gguf/__init__.py": "",
    "gguf-py/tests/test_it.py": "",
    "src/llama.cpp": "int main",
    "LICENSE": "MIT",
}


class Told:
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, words: Text) -> None:
        self.stages.append(words.en)

    def progress(self, done: int, total: int | None) -> None:
        pass


@pytest.fixture
def pip_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What pip is told; it fails as often as the first entry says."""
    runs: list[list[str]] = []

    def fetched(folder: Path, *_: object) -> Path:
        archive = folder / "source.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for name, text in FILES.items():
                (tmp_path / "one").write_text(text)
                packed.add(tmp_path / "one", f"package-1/{SOURCE.tree}/{name}")
        return archive

    def run(arguments: Sequence[str], *_: object) -> None:
        runs.append(list(arguments))

    monkeypatch.setattr(supply, "fetch_source", fetched)
    monkeypatch.setattr(supply, "run_pip", run)
    return runs


def test_it_is_made_once_with_its_own_files_alone(
    pip_runs: list[list[str]], tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    told = Told()
    found = converter(tools, SOURCE, told)
    assert found.script.read_text() == "print('converting')"
    assert found.python.exists()
    root = found.script.parent
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == FILES.keys() - {"gguf-py/tests/test_it.py", "src/llama.cpp"}
    assert len(told.stages) == 2
    assert converter(tools, SOURCE, Told()) == found
    assert len(pip_runs) == 1
    assert [path.name for path in (tools / "converter").iterdir() if path.name != ".lock"] == [
        SOURCE.commit
    ]


def test_without_a_local_version_the_index_of_pytorch_is_asked_as_well(
    pip_runs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(arguments: Sequence[str], *_: object) -> None:
        pip_runs.append(list(arguments))
        if "--extra-index-url" not in arguments:
            raise AppError(Text("no torch", "无 torch"), Text("wait", "等待"))

    monkeypatch.setattr(supply, "run_pip", run)
    assert converter(tmp_path, SOURCE, Told()).python.exists()
    assert ["--extra-index-url" in arguments for arguments in pip_runs] == [False, True]


def test_what_cannot_be_fetched_leaves_nothing(
    pip_runs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        raise AppError(Text("no network", "无网络"), Text("wait", "等待"))

    monkeypatch.setattr(supply, "run_pip", run)
    with pytest.raises(AppError, match="no network"):
        converter(tmp_path, SOURCE, Told())
    assert [path.name for path in (tmp_path / "converter").iterdir()] == [".lock"]
    assert pip_runs == []
