"""Headers from wherever a model is: here, on a server, in parts."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import file_server
from gguf_builder import U32, llama

from workhorse.errors import AppError
from workhorse.models.gguf import read_gguf
from workhorse.rehearse.skeleton import write_skeleton
from workhorse.rehearse.source import metadata, model_parts
from workhorse.rehearse.twin import make_twin
from workhorse.rehearse.twin_file import write_twin
from workhorse.units import MIB


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_skeleton_and_twin_of_a_model_on_a_server_are_those_of_the_file(tmp_path: Path) -> None:
    file = llama(layers=6).tensor("output.weight", (64, 2**17), 8)  # 8.5 MiB of weights
    local = file.write(tmp_path / "model.gguf")
    made = []
    with file_server(files={"/model.gguf": local.read_bytes()}) as server:
        for reference in (str(local), server.url("/model.gguf")):
            folder = tmp_path / str(len(made))
            folder.mkdir()
            with model_parts(reference) as parts:
                skeleton = write_skeleton(parts, folder)
                twin = folder / "twin.gguf"
                layers = make_twin(read_gguf(local), (1, 4))
                write_twin(parts[0], layers, "llama", 6, twin, lambda _: None)
            made.append((skeleton.read_bytes(), twin.read_bytes()))
        assert made[0] == made[1]
        assert server.sent_bytes < 8 * MIB  # no weights


def test_all_parts_of_a_split_model_have_their_skeleton(tmp_path: Path) -> None:
    whole = llama(layers=2)
    for number, tensors in enumerate((whole.tensors[:3], whole.tensors[3:])):
        part = replace(whole, tensors=list(tensors), keys=list(whole.keys) if not number else [])
        part.key("split.no", U32, number).key("split.count", U32, 2)
        part.key("split.tensors.count", U32, len(whole.tensors))
        part.write(tmp_path / f"model-{number + 1:05d}-of-00002.gguf")
    first = tmp_path / "model-00001-of-00002.gguf"
    (tmp_path / "out").mkdir()
    with model_parts(str(tmp_path / "model-00002-of-00002.gguf")) as parts:
        skeleton = write_skeleton(parts, tmp_path / "out")
        twin = make_twin(read_gguf(first), (0,))
        write_twin(parts[0], twin, "llama", 2, tmp_path / "twin.gguf", lambda _: None)
    assert replace(read_gguf(skeleton), path="") == replace(read_gguf(first), path="")
    copied = read_gguf(tmp_path / "twin.gguf")
    assert copied.layers == 1
    assert copied.weight_bytes == twin.n_bytes


def test_a_repository_without_a_file_has_no_header() -> None:
    with pytest.raises(AppError, match="no GGUF file"), model_parts("hf:owner/name", {}):
        pass


def test_every_key_keeps_its_bytes(tmp_path: Path) -> None:
    path = llama(layers=3).write(tmp_path / "model.gguf")
    with model_parts(str(path)) as (part,):
        keys = metadata(part)
        assert b"".join(key.raw for key in keys) in part.header_bytes()
        assert {key.name for key in keys} == set(part.header.values)
        assert next(key for key in keys if key.name == "llama.block_count").number == 3
