"""A published model's whole way: BF16 checkpoint, FP16, GGUF, importance matrix, 4 bits, served.

Skipped where the converter's packages cannot be had: PyTorch's CPU wheel (`+cpu`, pinned: one with
CUDA is never fetched) is on an index of its own, which the machine may not reach.
"""

import json
import os
import urllib.request
from pathlib import Path

import pytest
from qwen3_folder import write_qwen3
from served import DEADLINE_S, served

from workhorse.cli import main
from workhorse.engines.supply.converter import converter
from workhorse.engines.supply.source import fetch_source
from workhorse.engines.supply.unpack import unpack
from workhorse.errors import EXIT_GOOD, AppError
from workhorse.knowledge.engine_sources import llamacpp_source
from workhorse.models.gguf import read_gguf
from workhorse.text import Text

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

VOCABULARY = "ggml-vocab-qwen2.gguf"
# Some 700 tokens: one chunk.
HELD = "A server in the cellar answers questions. 地下室里的服务器回答问题。\n" * 40


@pytest.fixture(scope="module")
def vocabulary(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The real tokenizer in llama.cpp's source archive, kept once it was fetched."""
    kept = data_dir / "tools" / VOCABULARY
    if not kept.exists():
        folder = tmp_path_factory.mktemp("archive")
        archive = fetch_source(folder, llamacpp_source(), lambda done, total: None)
        inside = f"{llamacpp_source().tree}/models/{VOCABULARY}"
        unpack(archive, folder / "out", lambda p: VOCABULARY if p.endswith(inside) else None)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{VOCABULARY}.{os.getpid()}")
        part.write_bytes((folder / "out" / VOCABULARY).read_bytes())
        part.replace(kept)
    return kept.read_bytes()


class Silent:
    def stage(self, words: Text) -> None:
        pass

    def progress(self, done: int, total: int | None) -> None:
        pass


@pytest.fixture(scope="module")
def with_converter(data_dir: Path) -> None:
    try:
        converter(data_dir / "tools", llamacpp_source(), Silent())
    except AppError as error:
        if "cannot be had" not in error.what.en:
            raise
        pytest.skip(f"llama.cpp's converter: {error.what.en}")


@pytest.fixture
def home(
    data_dir: Path, with_converter: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A data folder of its own that shares the converter, which takes a minute to install."""
    made = tmp_path / "home"
    made.mkdir()
    (data_dir / "tools").mkdir(parents=True, exist_ok=True)
    (made / "tools").symlink_to(data_dir / "tools")
    monkeypatch.setenv("WORKHORSE_HOME", str(made))
    return made


def test_from_bf16_to_an_answer_in_four_bits(
    vocabulary: bytes, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_qwen3(tmp_path / "Tiny-Qwen3", vocabulary)
    assert main(["convert", str(source)]) == EXIT_GOOD
    f16 = tmp_path / "tiny-F16.gguf"
    capsys.readouterr()
    words = ["--to", "gguf", "--prove", "--json", "--output", str(f16)]
    assert main(["convert", f"{source}-FP16", *words]) == EXIT_GOOD
    told = json.loads(capsys.readouterr().out)
    assert told["made"]["architecture"] == "qwen3"
    assert told["proof"]["prompts"] == 12
    assert told["proof"]["original"] == str(source)
    assert told["proof"]["original_type"] == "bf16"
    assert told["proof"]["kl_mean"] < 0.001
    assert told["proof"]["same_top"] > 0.97
    model = read_gguf(f16)
    assert {tensor.type for tensor in model.tensors} == {"f16", "f32"}
    assert model.chat_template is not None

    held = tmp_path / "held.txt"
    held.write_text(HELD)
    words = ["--chunks", "1", "--held", str(held), "--json"]
    assert main(["quantize", str(f16), *words]) == EXIT_GOOD
    told = json.loads(capsys.readouterr().out)
    q4 = tmp_path / "tiny-Q4_K_M.gguf"
    assert told["target"] == str(q4)
    assert told["types"].keys() == {"q4_k", "q6_k", "f32"}
    assert told["imatrix_chunks"] == 1
    assert told["without_importance"] == ["token_embd.weight"]
    assert 0 < told["quality"]["kl_mean"] < 1
    assert told["quality"]["tokens"] == 255  # the second half of a chunk but for its last token
    # Nothing else is left beside them.
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"Tiny-Qwen3", "Tiny-Qwen3-FP16", f16.name, q4.name, "held.txt", "home"}

    assert main(["plan", "--compare", str(q4), str(f16), "--json"]) == EXIT_GOOD
    rows = {row["model_path"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[str(q4)]["measured"]["kl_mean"] == told["quality"]["kl_mean"]
    assert rows[str(f16)]["measured"] is None
    assert answer_of(q4, home)


def answer_of(model: Path, home: Path) -> str:
    """What the served model says."""
    words = ("--skip-golden", "--context", "512", "--slots", "1")
    with served(str(model), home / "said.txt", *words) as url:
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(
                {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            ).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            found: str = json.load(answer)["choices"][0]["message"]["content"]
            return found
