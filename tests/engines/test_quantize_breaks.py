"""Quantising with the real library: its importance matrix, broken runs, full disks, lying files."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoint import write_gguf

from workhorse.cli import main
from workhorse.engines.openmp import ensure_openmp
from workhorse.errors import EXIT_FAILED, EXIT_USAGE, AppError
from workhorse.models.gguf import read_gguf
from workhorse.models.quantize import library
from workhorse.models.quantize.calibration import users_text
from workhorse.models.quantize.imatrix_file import read_imatrix
from workhorse.models.quantize.job import Ground, Wish, importance, quantize
from workhorse.models.quantize.quality_store import QualityStore, fingerprint
from workhorse.models.quantize.work import died
from workhorse.text import Text

REFERENCE = json.loads(Path(__file__).with_name("imatrix_reference.json").read_text())
TEXT = "".join(
    f"{i}: {i * i % 97} plus {i % 13} 等于多少？ The answer is left open.\n" for i in range(160)
)


class Silent:
    def stage(self, words: Text) -> None:
        pass

    def progress(self, done: int, total: int | None) -> None:
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def ground(data: Path) -> Ground:
    environment = {"GOMP_SPINCOUNT": "1000"}
    if folder := ensure_openmp():
        environment["LD_LIBRARY_PATH"] = str(folder)
    return Ground(data, environment)


def test_the_importance_matrix_is_that_of_llama_imatrix(
    model: Path, text: Path, tmp_path: Path
) -> None:
    """And one that was broken off and gone on with is the same as one made at once."""
    corpus, read = users_text(text), read_gguf(model)
    first, _ = importance(read, corpus, Wish(model, chunks_max=2), ground(tmp_path), Silent(), 1)
    assert read_imatrix(first).chunks == 2
    path, resumed = importance(read, corpus, Wish(model), ground(tmp_path), Silent(), 2)
    assert (path, resumed) == (first, 2)
    found = read_imatrix(path)
    assert (found.chunks, found.chunk_tokens) == (REFERENCE["chunks"], 512)
    assert sorted(found.of) == sorted(REFERENCE["sums"])
    for name, (total, first_values) in REFERENCE["sums"].items():
        sums = found.of[name].sums
        assert float(sums.sum(dtype=np.float64)) == pytest.approx(total, rel=1e-3), name
        assert sums[0, :4].tolist() == pytest.approx(first_values, rel=1e-2), name
        assert found.of[name].counts.tolist() == [REFERENCE["chunks"] * 512]


def test_what_was_lost_is_measured_and_kept(model: Path, text: Path, tmp_path: Path) -> None:
    wish = Wish(model, "Q8_0", tmp_path / "q8.gguf", calibration=text, chunks_max=1, held=text)
    done = quantize(wish, ground(tmp_path), Silent())
    quality = done.quality
    assert quality is not None
    assert quality.calibrated_on == quality.text == "text.txt"
    said = b"quantize.imatrix.dataset" + struct.pack("<IQ", 8, 8) + b"text.txt"
    assert said in (tmp_path / "q8.gguf").read_bytes()
    assert 0 < quality.kl_mean < 0.05
    assert quality.same_top > 0.9
    store = QualityStore(tmp_path / "quality-1.sqlite")
    assert store.of_file(tmp_path / "q8.gguf") == quality
    assert store.of_file(model) is None
    assert quality.parent_fingerprint == fingerprint(model)
    with (tmp_path / "q8.gguf").open("ab") as file:
        file.write(b"another file")
    assert store.of_file(tmp_path / "q8.gguf") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b" \n\n", "it is empty"),
        (b"far too short", "tokens; 512 at least are needed"),
        (b"GGUF\0\0\0\0", "it is no plain text"),
    ],
)
def test_texts_that_do_not_do(content: bytes, said: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    wish = Wish(model, output=tmp_path / "o.gguf", calibration=path)
    with pytest.raises(AppError, match=said) as error:
        quantize(wish, ground(tmp_path / "data"), Silent())
    assert error.value.exit_code == EXIT_USAGE
    assert not list((tmp_path / "data").rglob("*.gguf"))
    assert not (tmp_path / "o.gguf").exists()


def test_a_damaged_matrix_in_the_cache_is_made_anew(
    model: Path, text: Path, tmp_path: Path
) -> None:
    corpus, read = users_text(text), read_gguf(model)
    wish = Wish(model, chunks_max=1)
    path, _ = importance(read, corpus, wish, ground(tmp_path), Silent(), 1)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    assert importance(read, corpus, wish, ground(tmp_path), Silent(), 1) == (path, 0)
    assert path.read_bytes() == good


def test_a_model_with_numbers_that_are_none_is_refused(
    model: Path, text: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    raw = bytearray(model.read_bytes())
    tensor = next(t for t in read_gguf(model).tensors if t.name == "blk.1.ffn_up.weight")
    size = tensor.n_bytes // int(np.prod(tensor.shape))
    raw[tensor.offset_bytes : tensor.offset_bytes + size] = b"\xff" * size
    broken.write_bytes(raw)
    for wish in (
        Wish(broken, output=tmp_path / "o.gguf", weighted=False, proof=False),
        Wish(broken, output=tmp_path / "o.gguf", calibration=text, proof=False),
    ):
        with pytest.raises(AppError, match="finite"):
            quantize(wish, ground(tmp_path / "data"), Silent())
        assert not list(tmp_path.glob("o.gguf*"))


# Kills itself at the n-th thing that it does: a file opened, renamed, removed, a process started.
KILLED = """
import os, signal, sys
from workhorse.cli import main
left = int(sys.argv[1])
def event(name, _):
    global left
    if name.startswith(("open", "os.", "subprocess.")):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
main  # imported: counting begins with the work
from workhorse.models.quantize import job
sys.addaudithook(event)
main(["quantize", *sys.argv[2:]])
print(-left)
"""


def test_killed_at_any_point_it_leaves_no_file_under_the_name(
    model: Path, text: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "WORKHORSE_HOME": str(tmp_path / "home")}
    target = tmp_path / "o.gguf"
    words = [str(model), "--output", str(target), "--calibration", str(text), "--chunks", "1"]
    words += ["--no-proof", "--json"]

    def run(at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(at), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)

    whole = run(-1)
    assert whole.returncode == 0, whole.stderr
    events = int(whole.stdout.splitlines()[-1]) - 1
    good = target.read_bytes()
    for sixth in range(1, 7):
        target.unlink(missing_ok=True)
        killed = run(max(1, events * sixth // 7))
        assert killed.returncode == -9, killed.stderr
        assert not target.exists() or target.read_bytes() == good
    target.unlink(missing_ok=True)
    assert run(-1).returncode == 0
    assert target.read_bytes() == good
    assert not list(tmp_path.glob("*.part"))


def test_a_full_disk_is_said_before_and_while_it_writes(model: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace here")
    unaware = tmp_path / "unaware.py"
    unaware.write_text(
        "import shutil, sys\n"
        "from types import SimpleNamespace\n"
        "from workhorse.cli import main\n"
        "if sys.argv[1] == 'unaware':\n"
        "    shutil.disk_usage = lambda _: SimpleNamespace(free=1 << 40)\n"
        "sys.exit(main(['quantize', *sys.argv[2:]]))\n"
    )
    for how, said in (("aware", "are needed"), ("unaware", "The disk is full")):
        words = f"{model} --type Q8_0 --no-imatrix --no-proof --output {small}/o.gguf --lang en"
        command = (
            f"mount -t tmpfs -o size=200k none {small} && {sys.executable} {unaware} {how} {words};"
            f" code=$?; find {small} -type f; exit $code"
        )
        done = subprocess.run([*inside, command], capture_output=True, text=True, timeout=600)
        assert done.returncode == EXIT_FAILED
        assert said in done.stderr
        assert done.stdout == ""


def test_a_library_that_is_laid_out_otherwise_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library.load()
    monkeypatch.setattr(library, "GGML_OBJECT_BYTES", 40)
    with pytest.raises(library.LibraryUnknown, match="ggml_tensor"):
        library.load()


def test_an_old_cpu_and_spent_memory_are_named() -> None:
    assert "AVX2" in died(-4, "").what.en
    assert "memory ran out" in died(-9, "").what.en
    assert "libgomp.so.1" in died(1, "ImportError: libgomp.so.1: no such file\n").what.en


def test_no_model_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert main(["quantize", str(tmp_path / "m.gguf")]) != 0
    assert main(["quantize", str(tmp_path / "nowhere.gguf")]) != 0
    assert main(["quantize", str(tmp_path)]) != 0
    assert capsys.readouterr().err.count("→") == 3
