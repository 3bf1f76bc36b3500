"""A Qwen3-shaped BF16 checkpoint with random weights and the real Qwen tokenizer.

The tokenizer's tokens and merges come out of the vocabulary file in llama.cpp's source tree; shares
no code with the product.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FEED = 2, 256, 4, 2, 64, 512
# Of Qwen2 and Qwen3 (tokenizer.json of the published models).
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = 3  # token type of special tokens in GGUF files
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def read_values(raw: bytes) -> dict[str, Any]:
    """The texts and number lists of a GGUF file's header."""
    at = 24
    (count,) = struct.unpack_from("<Q", raw, 16)
    found: dict[str, Any] = {}

    def text() -> str:
        nonlocal at
        (size,) = struct.unpack_from("<Q", raw, at)
        at += 8 + size
        return raw[at - size : at].decode()

    for _ in range(count):
        key = text()
        (kind,) = struct.unpack_from("<I", raw, at)
        at += 4
        if kind == 8:
            found[key] = text()
        elif kind == 9:
            entry, length = struct.unpack_from("<IQ", raw, at)
            at += 12
            if entry == 8:
                found[key] = [text() for _ in range(length)]
            else:
                if entry == 5:
                    found[key] = struct.unpack_from(f"<{length}i", raw, at)
                at += _SIZES[entry] * length
        else:
            at += _SIZES[kind]
    return found


def tokenizer_json(vocabulary: bytes) -> dict[str, Any]:
    """The `tokenizer.json` that has the tokens of a vocabulary-only GGUF file."""
    values = read_values(vocabulary)
    tokens, merges = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    types = values["tokenizer.ggml.token_type"]
    special = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == CONTROL
    ]  # fmt: skip
    plain = {token: i for i, token in enumerate(tokens) if types[i] == 1}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}  # fmt: skip
    pattern = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated",
               "invert": False}  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, level]},
        "post_processor": level,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": plain,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "merges": merges},
    }  # fmt: skip


def config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": WIDTH,
        "intermediate_size": FEED,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    }


def tensor_shapes(vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (vocabulary, WIDTH)
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        yield place + "input_layernorm.weight", (WIDTH,)
        yield place + "post_attention_layernorm.weight", (WIDTH,)
        yield place + "self_attn.q_proj.weight", (HEADS * HEAD, WIDTH)
        yield place + "self_attn.k_proj.weight", (KV_HEADS * HEAD, WIDTH)
        yield place + "self_attn.v_proj.weight", (KV_HEADS * HEAD, WIDTH)
        yield place + "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD)
        yield place + "self_attn.q_norm.weight", (HEAD,)
        yield place + "self_attn.k_norm.weight", (HEAD,)
        yield place + "mlp.gate_proj.weight", (FEED, WIDTH)
        yield place + "mlp.up_proj.weight", (FEED, WIDTH)
        yield place + "mlp.down_proj.weight", (WIDTH, FEED)
    yield "model.norm.weight", (WIDTH,)


def write_qwen3(folder: Path, vocabulary: bytes) -> Path:
    """The checkpoint in `folder`, as the publisher's are laid out."""
    folder.mkdir()
    tokenizer = tokenizer_json(vocabulary)
    size = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    size = -(-size // 128) * 128
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "bos_token": None, "add_prefix_space": False,
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
        "<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    }))  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config(size)))
    dice, at = np.random.default_rng(7), 0
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    pieces = []
    for name, shape in tensor_shapes(size):
        if len(shape) == 1:
            values = np.ones(shape, np.float32)
        else:
            values = dice.normal(0, 0.05, shape).astype(np.float32)
        raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
        pieces.append(raw)
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(pieces)
    return folder
