"""`workhorse convert --to gguf` around the converter: what goes in, and what is left when it fails.

The converter here is a script that does one thing; the real one runs in
test_weights_end_to_end.py.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_builder import checkpoint, write_all
from quantised_model import write_model

from workhorse.cli import main
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.gguf_maker.job import Converter, Made, make_gguf, prepare
from workhorse.models.gguf_maker.run_converter import converter_failed
from workhorse.text import Text

HEAD = (
    "import os, sys, shutil\nmodel, out = sys.argv[1], sys.argv[sys.argv.index('--outfile') + 1]\n"
)


WAITS = "import signal\nprint('Writing:  1%|', flush=True)\nsignal.pause()\n"


class Heard:
    def __init__(self) -> None:
        self.steps: list[tuple[int, int | None]] = []

    def stage(self, words: Text) -> None:
        pass

    def progress(self, done: int, total: int | None) -> None:
        self.steps.append((done, total))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = write_all(tmp_path / "Model", checkpoint(shards=2))
    (folder / "modeling_evil.py").write_text("open('sprung', 'w')")
    (folder / "pytorch_model.gguf").write_bytes(b"an old one")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def run(source: Path, script: str, target: Path | None = None, heard: Heard | None = None) -> Made:
    path = source.parent / "converter.py"
    path.write_text(HEAD + script)
    order = prepare(str(source), "f16", target)
    return make_gguf(order, Converter(Path(sys.executable), path, "abc"), heard or Heard())


def test_a_file_that_is_whole_gets_its_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converter sees the weights and the tokenizer, no code, no network, no way to either."""
    ready = write_model(tmp_path / "ready.gguf")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("HF_TOKEN", "secret")
    heard = Heard()
    done = run(
        source,
        f"print(sorted(os.listdir(model)), file=open({str(tmp_path / 'seen')!r}, 'w'))\n"
        f"print(sorted(os.environ), file=open({str(tmp_path / 'environment')!r}, 'w'))\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1'\n"
        "sys.stderr.write('Writing:  10%|#| 1/9\\rWriting:  70%|##| 7/9\\r')\n"
        f"shutil.copy({str(ready)!r}, out)\n",
        heard=heard,
    )
    assert Path(done.target) == tmp_path / "Model-F16.gguf"
    assert (done.type, done.architecture, done.converter) == ("f16", "qwen3", "abc")
    seen = (tmp_path / "seen").read_text()
    assert "model-00001-of-00002.safetensors" in seen
    assert "tokenizer.json" in seen
    assert ".py" not in seen
    assert ".gguf" not in seen
    environment = (tmp_path / "environment").read_text()
    assert "PYTHONPATH" not in environment
    assert "HF_TOKEN" not in environment
    assert (10, 100) in heard.steps
    assert (70, 100) in heard.steps
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sys.exit('no tokenizer here')", "no tokenizer here"),
        ("raise NotImplementedError('BPE pre-tokenizer was not recognized')", "not recognized"),
        ("raise OSError(28, 'No space left on device')", "the disk is full"),
        ("os.kill(os.getpid(), 9)", "memory ran out"),
        ("open(out, 'w').write('half a file')", "made.gguf"),
        ("pass", "made.gguf"),
    ],
)
def test_what_fails_leaves_nothing(script: str, said: str, source: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(AppError) as error:
        run(source, script)
    assert said in error.value.what.en
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "converter.py"])


def test_mistakes_are_told_before_anything_is_fetched(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    there = tmp_path / "there.gguf"
    there.write_bytes(b"mine")
    gone = write_all(tmp_path / "gone", checkpoint(shards=2))
    (gone / "model-00002-of-00002.safetensors").unlink()
    bare = write_all(tmp_path / "bare", checkpoint())
    (bare / "config.json").unlink()
    for words, said in (
        ([str(source), "--output", str(there)], "is there already"),
        ([str(source), "--output", str(tmp_path / "no" / "x.gguf")], "There is no folder"),
        ([str(source), "--on-overflow", "clamp"], "goes with --to fp16"),
        ([str(gone)], "model-00002-of-00002.safetensors"),
        ([str(bare)], "config.json"),
        ([str(tmp_path / "nothing")], "cannot be read"),
        ([str(there)], "is a GGUF file already"),
    ):
        assert main(["convert", *words, "--to", "gguf", "--lang", "en"]) != 0
        assert said in capsys.readouterr().err
    assert main(["convert", str(source), "--type", "f16", "--lang", "en"]) == EXIT_USAGE
    assert there.read_bytes() == b"mine"
    assert not (tmp_path / "home").exists()


def test_a_killed_command_takes_the_converter_with_it(source: Path, tmp_path: Path) -> None:
    """The process that no test may leave behind is the converter."""
    script = (
        "import pathlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_gguf_maker import WAITS, Killing, run\n"
        "run(pathlib.Path(sys.argv[2]), WAITS, heard=Killing())\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "Model-F16.gguf").exists()
    made = run(source, f"shutil.copy({str(write_model(tmp_path / 'ready.gguf'))!r}, out)")
    assert Path(made.target).exists()
    assert not list(tmp_path.glob("*.part"))


class Killing(Heard):
    """Kills its process when the converter has begun to write."""

    def progress(self, done: int, total: int | None) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGKILL)


def test_failures_are_one_sentence_and_one_step() -> None:
    error = converter_failed(1, ["Traceback", "ValueError: \x1b[31mred"])
    assert "\x1b" not in error.what.en
    error = converter_failed(1, ["ERROR:Model FooForCausalLM is not supported"])
    assert "FooForCausalLM" in error.what.en
    assert "GGUF" in error.next_step.en
    assert converter_failed(1, []).what.en
