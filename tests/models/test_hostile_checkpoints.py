"""Checkpoints that are damaged or hostile: one AppError each, and little memory."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_builder import checkpoint, llama_config, llama_tensors, safetensors, write_all
from checkpoint_reading import GOLDEN, read, refusal

from workhorse.errors import AppError
from workhorse.models.safetensors import read_safetensors
from workhorse.units import MIB


def header(entries: object) -> bytes:
    raw = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "an empty file"),
        (b"\x00" * 40, "zeros"),
        (b"<html>" + bytes(60), "web page"),
        (struct.pack("<Q", 2**63) + b"{" + bytes(60), "incomplete"),
        (header(b"{" * 2_000_000), "JSON is wrong"),
        (header(b'{"a":' + b"[" * 200_000), "JSON is wrong"),
        (header([1, 2]) + bytes(80), "not a GGUF model"),
        (header({"a": 5}) + bytes(80), "JSON is wrong"),
        (header(entry(dtype="Q99")) + bytes(80), "unknown type Q99"),
        (header(entry(shape=[-2])) + bytes(80), "JSON is wrong|has the shape"),
        (header(entry(shape=[3])) + bytes(80), "does not lie where"),
        (header(entry(data_offsets=[8, 16])) + bytes(80), "does not lie where"),
        (header(entry(shape=[2**62], data_offsets=[0, 2**64])) + bytes(80), "JSON|lie|incomplete"),
        (header(entry(shape=[1] * 5000)) + bytes(80), "has the shape"),
        (header(entry(shape=[2**20], data_offsets=[0, 2**22])), "incomplete"),
        (header({"x" * 5000: entry()["a"]}) + bytes(80), "has the shape"),
    ],
)
def test_safetensors_that_are_wrong(raw: bytes, expected: str, tmp_path: Path) -> None:
    files = {**checkpoint(), "model.safetensors": raw}
    said = refusal(write_all(tmp_path / "bad", files))
    assert any(word in said for word in expected.split("|")), said


def test_a_header_of_four_megabytes_of_tensors(tmp_path: Path) -> None:
    one = b'"%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
    raw = b"{" + b"".join(one % i for i in range(70_000))[:-1] + b"}"
    files = {**checkpoint(), "model.safetensors": header(raw)}
    assert "too many entries" in refusal(write_all(tmp_path / "bad", files))


@pytest.mark.parametrize(
    "entry_of",
    [
        lambda i: b'"n%d":[]' % i,
        lambda i: b'"n%d" :{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}' % (i, i, i + 1),
        lambda i: (
            b'"n%d":{"dtype":"U8","shape":[%s],"data_offsets":[0,0]}' % (i, b"1," * 99 + b"1")
        ),
    ],
)
def test_many_hostile_shards_do_not_add_up(
    entry_of: Callable[[int], bytes], tmp_path: Path
) -> None:
    raw = b"{" + b",".join(entry_of(i) for i in range(30_000))[: 4 * MIB - 20] + b"}"
    files, shards = checkpoint(), [f"model-{i:05d}-of-00003.safetensors" for i in range(3)]
    index = {"weight_map": {f"x{i}": shard for i, shard in enumerate(shards)}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    body = header(raw) + bytes(30_000)
    refusal(write_all(tmp_path / "bad", files | dict.fromkeys(shards, body)))


def test_more_tensors_than_any_checkpoint_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_all(tmp_path / "many", checkpoint())
    monkeypatch.setattr("workhorse.models.converted.SOURCE_TENSORS_MAX", 20)
    assert "too many tensors" in refusal(folder)


def test_mutated_safetensors_never_raise_anything_else(tmp_path: Path) -> None:
    raw = bytearray(safetensors(llama_tensors(layers=1), data=False)[:1500])
    chance = random.Random(5)
    for _ in range(400):
        wrong = bytearray(raw)
        for _ in range(chance.randint(1, 4)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        mutated = bytes(wrong)
        with pytest.raises(AppError):
            read_safetensors(lambda o, n, b=mutated: b[o : o + n], len(mutated), name="m")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 2**31}, "claims 2147483648 layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is not a count"),
        ({"num_hidden_layers": True}, "num_hidden_layers is not a count"),
        ({"hidden_size": -1}, "hidden_size is not a count"),
        ({"hidden_size": 0}, "hidden_size is missing"),
        ({"hidden_size": 2**32}, "hidden_size is not a count"),
        ({"vocab_size": 1e9}, "vocab_size is not a count"),
        ({"quantization_config": {"quant_method": "gptq"}}, "packed as GPTQ"),
        ({"num_attention_heads": []}, "num_attention_heads is not a count"),
        ({"rope_scaling": [1], "num_key_value_heads": "x"}, "num_key_value_heads is not a count"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_configs_that_are_wrong(
    changes: dict[str, object], expected: str, alone: bool, tmp_path: Path
) -> None:
    files = checkpoint(llama_config(**changes))
    if alone:
        del files["model.safetensors"]
    assert expected in refusal(write_all(tmp_path / "bad", files))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "not JSON"),
        (b"[" * 500_000, "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"{}", "does not describe a language model"),
        (b"x" * (2 * MIB), "too large"),
        (b'{"a":"' + b"\\u0000" * 150_000 + b'"}', "does not describe"),
    ],
)
def test_documents_that_are_no_config(raw: bytes, expected: str, tmp_path: Path) -> None:
    assert expected in refusal(write_all(tmp_path / "bad", {"config.json": raw}))


def test_an_index_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../../secret.safetensors", "b": "/etc/x.safetensors"}}
    files = {**checkpoint(shards=2), "model.safetensors.index.json": json.dumps(index).encode()}
    assert "no index of safetensors files" in refusal(write_all(tmp_path / "bad", files))


def test_tensors_with_hostile_names(tmp_path: Path) -> None:
    for name in (
        "model.layers.9999.mlp.up_proj.weight",
        "model.layers.0.mlp.experts.99999.up_proj.weight",
        "model.layers.0.\x1b[31m.weight",
        "model.layers.0.self_attn.q_proj.qweight",
    ):
        config = llama_config(num_experts=4, architectures=["Glm4MoeForCausalLM"])
        tensors = {**llama_tensors(), name: ("BF16", (8, 8))}
        refusal(write_all(tmp_path / str(len(name)), checkpoint(config, tensors)))


WRONG_VALUES = (None, -1, 0, 2**31, 2**70, 1.5, "x", True, [], {}, [1, "a"], [None] * 600, {"a": 1})


@pytest.mark.parametrize("shape", GOLDEN)
def test_any_value_of_a_config_may_be_wrong(shape: str, tmp_path: Path) -> None:
    chance = random.Random(shape)
    keys = [
        *GOLDEN[shape]["config"], "head_dim", "layer_types", "rope_scaling", "sliding_window",
        "num_nextn_predict_layers", "tie_word_embeddings", "text_config", "model_type",
        "quantization_config", "full_attention_interval", "num_experts",
    ]  # fmt: skip
    for _ in range(60):
        changes = {chance.choice(keys): chance.choice(WRONG_VALUES) for _ in range(2)}
        config = {**GOLDEN[shape]["config"], **changes}
        folder = write_all(tmp_path / "m", {"config.json": json.dumps(config).encode()})
        try:
            model = read(folder, quant="Q4_K_M")
        except AppError as error:
            assert error.what.en.isprintable()
        else:
            assert model.weight_bytes > 0 and model.layers > 0


def test_a_directory_with_nothing_in_it(tmp_path: Path) -> None:
    assert "neither a GGUF file nor a config.json" in refusal(tmp_path)
