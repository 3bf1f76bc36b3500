"""Writes safetensors files and checkpoints for tests; shares no code with the reader."""

import json
import struct
from pathlib import Path

BITS = {"F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "U8": 8, "I32": 32, "I64": 64}
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def elements(shape: tuple[int, ...]) -> int:
    """How many values a shape has."""
    count = 1
    for size in shape:
        count *= size
    return count


def safetensors(tensors: Tensors, *, data: bool = True) -> bytes:
    """A file with these tensors (name -> type and shape); its data is zeros, or left out."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = elements(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + (bytes(at) if data else b"")


def llama_config(**more: object) -> dict[str, object]:
    """The config.json of a small Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        **more,
    }


def llama_tensors(layers: int = 2, dtype: str = "BF16", prefix: str = "model.") -> Tensors:
    """The tensors that belong to `llama_config`."""
    tensors: Tensors = {
        f"{prefix}embed_tokens.weight": (dtype, (1000, 512)),
        f"{prefix}norm.weight": (dtype, (512,)),
        "lm_head.weight": (dtype, (1000, 512)),
    }
    for layer in range(layers):
        at = f"{prefix}layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": (dtype, (512,)),
            f"{at}post_attention_layernorm.weight": (dtype, (512,)),
            f"{at}self_attn.q_proj.weight": (dtype, (512, 512)),
            f"{at}self_attn.k_proj.weight": (dtype, (128, 512)),
            f"{at}self_attn.v_proj.weight": (dtype, (128, 512)),
            f"{at}self_attn.o_proj.weight": (dtype, (512, 512)),
            f"{at}mlp.gate_proj.weight": (dtype, (1024, 512)),
            f"{at}mlp.up_proj.weight": (dtype, (1024, 512)),
            f"{at}mlp.down_proj.weight": (dtype, (512, 1024)),
        }
    return tensors


def checkpoint(
    config: dict[str, object] | None = None, tensors: Tensors | None = None, shards: int = 1
) -> dict[str, bytes]:
    """The files of a checkpoint by name."""
    tensors = llama_tensors() if tensors is None else tensors
    files = {"config.json": json.dumps(config or llama_config()).encode()}
    if shards == 1:
        return {**files, "model.safetensors": safetensors(tensors)}
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        files[file] = safetensors(part)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode()}


def write_all(folder: Path, files: dict[str, bytes]) -> Path:
    """Write the files into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
