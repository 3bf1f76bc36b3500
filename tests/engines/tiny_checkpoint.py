"""A Qwen3-shaped model of two layers that any engine can load: as safetensors and as GGUF.

The weights are random but the same in both. Only printable letters have an output row, so an
answer is text, if without sense, and no answer ends by itself.
"""

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FEED = 2, 128, 4, 2, 64, 256
CONTEXT_TOKENS = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "intermediate_size": FEED,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "bos_token_id": 256,
    "eos_token_id": 258,
}


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = [], 256
    for byte in range(256):
        if byte in plain:
            letters.append(chr(byte))
        else:
            letters.append(chr(extra))
            extra += 1
    return letters


def rounded(value: float) -> int:
    """The upper half of a float: its bfloat16."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def tensors() -> Iterator[tuple[str, str, tuple[int, ...], list[int]]]:
    """Each tensor: its name in a checkpoint, in a GGUF file, its shape, its bfloat16 values."""
    chance = random.Random(13)

    def matrix(rows: int, columns: int, spread: float) -> list[int]:
        return [rounded(chance.gauss(0, spread)) for _ in range(rows * columns)]

    def ones(size: int) -> list[int]:
        return [rounded(1.0)] * size

    yield (
        "model.embed_tokens.weight",
        "token_embd",
        (VOCABULARY, WIDTH),
        matrix(VOCABULARY, WIDTH, 1.0),
    )
    for layer in range(LAYERS):
        for name, short, rows, columns in (
            ("self_attn.q_proj", "attn_q", HEADS * HEAD, WIDTH),
            ("self_attn.k_proj", "attn_k", KV_HEADS * HEAD, WIDTH),
            ("self_attn.v_proj", "attn_v", KV_HEADS * HEAD, WIDTH),
            ("self_attn.o_proj", "attn_output", WIDTH, HEADS * HEAD),
            ("mlp.gate_proj", "ffn_gate", FEED, WIDTH),
            ("mlp.up_proj", "ffn_up", FEED, WIDTH),
            ("mlp.down_proj", "ffn_down", WIDTH, FEED),
        ):
            full, packed = f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{short}"
            yield full, packed, (rows, columns), matrix(rows, columns, 0.15)
        for name, short, size in (
            ("self_attn.q_norm", "attn_q_norm", HEAD),
            ("self_attn.k_norm", "attn_k_norm", HEAD),
            ("input_layernorm", "attn_norm", WIDTH),
            ("post_attention_layernorm", "ffn_norm", WIDTH),
        ):
            yield f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{short}", (size,), ones(size)
    yield "model.norm.weight", "output_norm", (WIDTH,), ones(WIDTH)
    head = matrix(VOCABULARY, WIDTH, 0.5)
    for token in range(VOCABULARY):
        if not 32 <= token < 127:
            head[token * WIDTH : (token + 1) * WIDTH] = [0] * WIDTH
    yield "lm_head.weight", "output", (VOCABULARY, WIDTH), head


def write_checkpoint(folder: Path) -> Path:
    """The model as its makers would publish it; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, _, shape, values in tensors():
        first = len(data)
        data += struct.pack(f"<{len(values)}H", *values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [first, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 258}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def tokenizer() -> dict[str, object]:
    """A token a byte, no merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": 256 + n, "content": word, "special": True, **flags} for n, word in enumerate(SPECIAL)
    ]
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def write_gguf(path: Path, *, ranks: bool = False, half: bool = False) -> Path:
    """The same model as a GGUF file in F32, or its matrices in F16 (`half`); the file.

    With a head that scores if it `ranks`.
    """
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters = byte_letters()
    writer.add_token_list([*letters, *SPECIAL])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIAL))
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])  # llama.cpp wants at least one
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for _, name, shape, values in tensors():
        bits = numpy.array(values, dtype=numpy.uint32) << 16
        numbers = bits.view(numpy.float32).reshape(shape)
        narrow = half and len(shape) > 1
        writer.add_tensor(f"{name}.weight", numbers.astype("float16") if narrow else numbers)
    if ranks:
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(["yes", "no"])
        head = numpy.random.default_rng(13).normal(0, 0.1, (2, WIDTH)).astype(numpy.float32)
        writer.add_tensor("cls.output.weight", head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
