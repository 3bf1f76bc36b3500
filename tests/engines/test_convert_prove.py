"""`convert --prove`: what is compared with what, on the real engine; and what F16 cannot hold.

The converter here copies ready files and notes what it was asked for; the real one runs in
test_weights_end_to_end.py.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_checkpoint import write_checkpoint, write_gguf

from workhorse.cli import convert_gguf, main
from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.models.gguf import read_gguf, read_header_of
from workhorse.models.gguf_maker.finite import infinite_in
from workhorse.models.gguf_maker.job import Converter, prepare
from workhorse.models.gguf_maker.origin import Origin, origin_of

COPIES = """
import os, shutil, sys
model, out = sys.argv[1], sys.argv[sys.argv.index('--outfile') + 1]
kind = sys.argv[sys.argv.index('--outtype') + 1]
folder = os.path.dirname(os.path.realpath(os.path.join(model, 'model.safetensors')))
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, 'asked'), 'a') as asked:
    print(os.path.basename(folder), kind, file=asked)
shutil.copy(os.path.join(here, kind + '.gguf'), out)
"""


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    write_checkpoint(folder / "Tiny")
    ready = folder / "converter"
    ready.mkdir()
    (ready / "script.py").write_text(COPIES)
    write_gguf(ready / "bf16.gguf")
    write_gguf(ready / "f16.gguf", half=True)
    return folder


@pytest.fixture
def place(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint `Tiny` of BF16, and a converter that has a file ready of each type."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    ready = tmp_path / "converter"
    there = Converter(Path(sys.executable), ready / "script.py", "abc")
    monkeypatch.setattr(convert_gguf, "ready_converter", lambda _: there)
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    return tmp_path


def set_value(path: Path, tensor: str, value: float) -> None:
    """Another first number in an F32 tensor of a GGUF file."""
    found = next(t for t in read_gguf(path).tensors if t.name == tensor)
    with path.open("r+b") as file:
        file.seek(found.offset_bytes)
        file.write(np.float32(value).tobytes())


def asked(place: Path) -> list[str]:
    return (place / "converter" / "asked").read_text().splitlines()


@pytest.mark.real
def test_a_converted_checkpoint_is_compared_with_its_original(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(place / "Tiny"), "--prove", "--json", "--threads", "1"]
    assert main(words) == EXIT_GOOD
    proof = json.loads(capsys.readouterr().out)["proof"]
    assert asked(place) == ["Tiny-FP16 f16", "Tiny bf16"]
    assert (proof["original"], proof["original_type"]) == (str(place / "Tiny"), "bf16")
    assert proof["converted"] == str(place / "Tiny-FP16")
    assert proof["tokens"] > 500
    assert 0 < proof["kl_max"] < 0.01
    # Nothing is left of the two GGUF files.
    assert {path.name for path in place.iterdir()} <= {"Tiny", "Tiny-FP16", "converter", "home"}


@pytest.mark.real
@pytest.mark.parametrize(
    ("value", "said"), [(40.0, "values were lost"), (3.0e3, "infinity or NaN")]
)
def test_a_model_that_computes_otherwise_is_told_and_stays(
    value: float, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 40: of one input, 3000: so large that the engine's own F16 overflows while it computes.
    set_value(place / "converter" / "f16.gguf", "blk.0.ffn_norm.weight", value)
    assert main(["convert", str(place / "Tiny"), "--prove", "--lang", "en"]) == EXIT_NO
    told = capsys.readouterr()
    assert said in " ".join((told.out + told.err).split())
    assert "Converted" in told.out  # the report comes whatever the proof says
    assert (place / "Tiny-FP16" / "model.safetensors").exists()


@pytest.mark.real
def test_a_gguf_of_a_converted_checkpoint_is_compared_with_the_original(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(place / "Tiny")]) == EXIT_GOOD
    capsys.readouterr()
    words = ["convert", str(place / "Tiny-FP16"), "--to", "gguf", "--prove", "--lang", "en"]
    assert main(words) == EXIT_GOOD
    assert asked(place) == ["Tiny-FP16 f16", "Tiny bf16"]
    told = "".join(capsys.readouterr().out.split())
    assert f"Comparedwith{place / 'Tiny'}(BF16)" in told


def test_a_file_of_the_checkpoints_own_values_is_not_compared(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(place / "Tiny"), "--to", "gguf", "--prove", "--lang", "en"]
    assert main(words) == EXIT_GOOD
    assert "nothing to compare" in capsys.readouterr().out
    assert asked(place) == ["Tiny bf16"]


@pytest.mark.real
def test_a_proof_that_did_not_come_about_is_made_by_the_same_command(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(place / "Tiny"), "--prove", "--json", "--lang", "en"]
    ready = place / "converter" / "f16.gguf"
    ready.rename(place / "away")
    assert main(words) != EXIT_GOOD
    told = capsys.readouterr()
    first = json.loads(told.out)["conversion"]
    assert first["target"] == str(place / "Tiny-FP16")
    assert f"{place / 'Tiny-FP16'} stays" in told.err
    (place / "away").rename(ready)
    assert main(words) == EXIT_GOOD
    told = capsys.readouterr()
    assert json.loads(told.out)["conversion"] == first
    assert json.loads(told.out)["proof"]["kl_max"] < 0.01
    # Another original is no reason to take what is there.
    os.utime(place / "Tiny" / "model.safetensors", (1, 1))
    assert main(words) != EXIT_GOOD
    assert "is there already" in capsys.readouterr().err


def test_the_original_is_the_one_that_the_report_names(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = place / "Tiny", place / "Tiny-FP16"
    assert main(["convert", str(source)]) == EXIT_GOOD
    capsys.readouterr()
    assert origin_of(made) == Origin(source, "bf16")
    assert origin_of(source) == Origin(source, "bf16")
    order = prepare(str(made), None, None)
    assert (order.type, order.target.name) == ("f16", "Tiny-FP16-F16.gguf")
    source.rename(place / "moved")
    assert origin_of(made) == Origin(made, "f16")
    for document in (b"", b"[]", b'{"source": 3}', b'{"source": "../moved"}', b"\xff" * 9):
        (made / "conversion.json").write_bytes(document)
        assert origin_of(made) == Origin(made, "f16")


@pytest.mark.parametrize(
    ("kind", "largest", "count"),
    [("f16", np.inf, 2), ("f16", np.nan, 2), ("f16", 65504.0, 0), ("q8_0", 1e7, 2),
     ("q8_0", 65504.0, 0)],
)  # fmt: skip
def test_infinite_values_of_a_file_are_counted(
    kind: str, largest: float, count: int, tmp_path: Path
) -> None:
    values = np.ones((70, 64), np.float32)
    values[3, 40] = values[69, 63] = largest
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "qwen3")
    right = np.ones((2, 64), np.float16)
    writer.add_tensor("right.weight", right)
    if kind == "f16":
        writer.add_tensor("wrong.weight", values.astype(np.float16))
    else:
        with np.errstate(all="ignore"):
            raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("wrong.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header_of(tmp_path / "one.gguf")
    found = infinite_in(tmp_path / "one.gguf", header.tensors, lambda *_: None)
    assert found == ({"wrong.weight": count} if count else {})


def test_a_value_that_became_infinite_is_named_and_leaves_no_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp's converter makes infinity of values above 65504 and says nothing."""
    ready = place / "converter" / "f16.gguf"
    tensor = next(t for t in read_gguf(ready).tensors if t.type == "f16")
    with ready.open("r+b") as file:
        file.seek(tensor.offset_bytes)
        file.write(b"\x00\x7c")
    words = ["convert", str(place / "Tiny"), "--to", "gguf", "--type", "f16", "--lang", "en"]
    assert main(words) == EXIT_NO
    said = capsys.readouterr().err
    assert tensor.name in said
    assert "--type bf16" in said
    assert not os.path.lexists(place / "Tiny-F16.gguf")
    assert not list(place.glob("*.part"))
