"""A checkpoint as it lies on the disk: what engines of safetensors have to hold."""

import json
import struct
from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.models.read import local_checkpoint
from workhorse.models.stored import read_stored, stored_shape

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def checkpoint(folder: Path, tensors: dict[str, tuple[str, int]], **config: object) -> Path:
    """`tensors`: name -> type and bytes."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    header, at = {}, 0
    size = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4}
    for name, (kind, n_bytes) in tensors.items():
        offsets = [at, at + n_bytes]
        header[name] = {"dtype": kind, "shape": [n_bytes // size[kind]], "data_offsets": offsets}
        at += n_bytes
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return folder


def test_plain_weights_count_in_the_type_that_they_are_loaded_in(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"a": ("BF16", 800), "b": ("F32", 400)})
    stored = read_stored(folder)
    assert (stored.dtype, stored.method, stored.bits) == ("bfloat16", None, None)
    assert stored.classes == ("Qwen3ForCausalLM",)
    assert stored.weight_bytes("float16") == 800 + 200
    assert stored.weight_bytes("float32") == 1600 + 400
    shape = stored_shape(stored)
    assert (shape.layers, shape.format, shape.context_trained_tokens) == (2, "safetensors", 2048)


@pytest.mark.parametrize(
    ("config", "method", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", 4),
        ({"quant_method": "awq", "w_bit": 4}, "awq", 4),
        ({"quant_method": "fp8"}, "fp8", 8),
        ({}, "unknown", None),
    ],
)
def test_packed_weights_are_known_by_their_config(
    tmp_path: Path, config: dict[str, object], method: str, bits: int | None
) -> None:
    tensors = {"q": ("I32", 400), "s": ("F16", 100)}
    folder = checkpoint(tmp_path / "m", tensors, quantization_config=config)
    stored = read_stored(folder)
    assert (stored.method, stored.bits) == (method, bits)
    assert stored.weight_bytes("float16") == 500
    assert stored_shape(stored).layers == 2


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"a": ("BF16", 8)})
    (folder / "model.safetensors").unlink()
    with pytest.raises(AppError, match="no weights"):
        read_stored(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(AppError, match="no config"):
        read_stored(folder)


def test_a_folder_with_both_means_the_gguf_file_unless_told_otherwise(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m", {"a": ("BF16", 8)})
    assert local_checkpoint(folder) == folder
    assert local_checkpoint(folder / "model.safetensors") == folder
    (folder / "m-Q4_K_M.gguf").write_bytes(b"GGUF")
    assert local_checkpoint(folder) is None
    assert local_checkpoint(folder, first=True) == folder
    assert local_checkpoint(folder / "m-Q4_K_M.gguf") is None
    assert local_checkpoint("hf:owner/name") is None
    assert local_checkpoint(tmp_path / "none") is None
