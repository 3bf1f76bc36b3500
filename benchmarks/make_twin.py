"""Write a GGUF with the shape of a 1.1B Llama and random Q4_0 weights: speed without a download.

    python benchmarks/make_twin.py TOKENIZER.gguf OUT.gguf [--layers 24] [--seed 1]

The tokenizer and the chat template come from TOKENIZER.gguf (any GGUF whose tokenizer
llama.cpp knows). The same seed gives the same bytes. The words that such a model writes mean
nothing; bytes per token, shapes and kernels are those of a real model of this size.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

EMBEDDING = 2048
HEADS = 32
KV_HEADS = 4
FEED_FORWARD = 5632
CONTEXT_TOKENS = 8192

# Q4_0: 32 weights a block, an f16 scale and 16 bytes with two weights each; the weight is
# scale x (nibble - 8). Source: ggml-common.h, block_q4_0 (llama.cpp 0c1e570, 2026-10).
BLOCK_WEIGHTS = 32
BLOCK_BYTES = 18
NIBBLE_DEVIATION = 4.61  # of a nibble drawn evenly from 0..15


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write_twin(args.tokenizer, args.out, layers=args.layers, seed=args.seed)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.0f} MB")


def write_twin(tokenizer: Path, out: Path, *, layers: int, seed: int) -> None:
    """Write the twin to `out`; the file appears only when it is whole."""
    source = gguf.GGUFReader(tokenizer)
    vocabulary = len(source.fields["tokenizer.ggml.tokens"].data)
    partial = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(partial, "llama")
    add_header(writer, layers=layers, vocabulary=vocabulary)
    copy_tokenizer(source, writer)
    rng = np.random.default_rng(seed)
    for name, rows, columns in shapes(layers, vocabulary):
        if rows == 1:
            writer.add_tensor(name, np.ones(columns, dtype=np.float32))
        else:
            blocks = random_q4_0(rng, rows, columns, deviation(name, columns, layers))
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)


def add_header(writer: gguf.GGUFWriter, *, layers: int, vocabulary: int) -> None:
    """The hyperparameters of the shape."""
    writer.add_name(f"Random Llama twin, {layers} layers")
    writer.add_description("random weights: measures speed, means nothing")
    writer.add_vocab_size(vocabulary)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_block_count(layers)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Every `tokenizer.*` key, unchanged."""
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)


def shapes(layers: int, vocabulary: int) -> list[tuple[str, int, int]]:
    """Name, rows and columns of every tensor; one row marks a norm, kept in F32."""
    kv_size = EMBEDDING // HEADS * KV_HEADS
    tensors = [
        ("token_embd.weight", vocabulary, EMBEDDING),
        ("output_norm.weight", 1, EMBEDDING),
        ("output.weight", vocabulary, EMBEDDING),
    ]
    for layer in range(layers):
        one_layer = [
            ("attn_norm", 1, EMBEDDING),
            ("attn_q", EMBEDDING, EMBEDDING),
            ("attn_k", kv_size, EMBEDDING),
            ("attn_v", kv_size, EMBEDDING),
            ("attn_output", EMBEDDING, EMBEDDING),
            ("ffn_norm", 1, EMBEDDING),
            ("ffn_gate", FEED_FORWARD, EMBEDDING),
            ("ffn_up", FEED_FORWARD, EMBEDDING),
            ("ffn_down", EMBEDDING, FEED_FORWARD),
        ]
        tensors += [(f"blk.{layer}.{part}.weight", rows, cols) for part, rows, cols in one_layer]
    return tensors


def deviation(name: str, columns: int, layers: int) -> float:
    """The standard deviation of a tensor's weights.

    Most keep a product at the size of its input. The embedding is of size 1 and what the layers
    add to it is small, or the last token drowns and the model repeats one word for ever, which
    a check of the output takes for a broken engine.
    """
    if name == "token_embd.weight":
        return 1.0
    size = float(columns**-0.5)
    added = name.endswith(("attn_output.weight", "ffn_down.weight"))
    return size * (2 * layers) ** -0.5 if added else size


def random_q4_0(
    rng: np.random.Generator, rows: int, columns: int, weight_deviation: float
) -> NDArray[np.uint8]:
    """Valid random Q4_0 blocks, as bytes of shape (rows, columns / 32 x 18).

    Scales are finite and not denormal, which some CPUs compute 100 times slower. Their signs are
    random because nibbles average 7.5, not 8: with one sign all weights would lean one way, and
    so would every output.
    """
    blocks = columns // BLOCK_WEIGHTS
    sizes = weight_deviation / NIBBLE_DEVIATION * rng.uniform(0.5, 1.5, (rows, blocks))
    scales = (sizes * rng.choice((-1.0, 1.0), (rows, blocks))).astype(np.float16)
    if not np.all(np.abs(scales) >= np.finfo(np.float16).smallest_normal):
        raise ValueError("a scale is denormal")
    data = np.empty((rows, blocks, BLOCK_BYTES), dtype=np.uint8)
    data[..., :2] = scales[..., None].view(np.uint8)
    data[..., 2:] = rng.integers(0, 256, (rows, blocks, BLOCK_BYTES - 2), dtype=np.uint8)
    return data.reshape(rows, blocks * BLOCK_BYTES)


if __name__ == "__main__":
    main()
