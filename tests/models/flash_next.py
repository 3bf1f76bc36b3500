"""The header of a file of Qwen3.8-Flash-Next's shape, of the published size: no weights.

Shape: 48 layers, every fourth attention and the others gated delta net, width 2560 in four
streams, 512 experts of width 640 of which ten are used and one shared, an n-gram table of 160 by
320,001,536 (published August 2026; tensor names as llama.cpp's src/models/qwen4exp.cpp loads them,
commit 0c1e57098). Types: the table's is published (IQ4_NL); the others are chosen so that the files
have their published sizes. A width of 640 takes no K-quant, so that `down` has another type.
"""

from dataclasses import dataclass

import gguf_builder as g
from gguf_builder import Gguf

Q5_1, Q5_K, IQ3_XXS, IQ4_NL = 7, 13, 18, 20
g.BYTES.update({Q5_1: (32, 24), Q5_K: (256, 176), IQ3_XXS: (256, 98), IQ4_NL: (32, 18)})

ARCH = "qwen4exp"
LAYERS, WIDTH, STREAMS, LOW_RANK, VOCABULARY = 48, 2560, 4, 320, 248320
HEADS, KV_HEADS, HEAD = 24, 2, 256
KEY_HEADS, VALUE_HEADS, STATE = 16, 48, 128
EXPERTS, USED, EXPERT_WIDTH = 512, 10, 640
INDEX_HEADS, INDEX_HEAD = 4, 128
TABLE_WIDTH, TABLE_ROWS = 160, 320_001_536


@dataclass(frozen=True)
class Mix:
    """The types of a file: experts' gate and up (the first `wider` layers have others), down."""

    gate_up: int
    down: int
    others: int
    wide: int
    wider: int = 0


UD_Q4_K_XL = Mix(g.Q4_K_TENSOR, Q5_1, g.Q8_0_TENSOR, Q5_K, 8)  # 111.3 GB
UD_IQ3_XXS = Mix(IQ3_XXS, IQ4_NL, g.Q4_0_TENSOR, IQ3_XXS)  # about 55 GB without the table


def header(mix: Mix = UD_Q4_K_XL) -> Gguf:
    """The file without its weights."""
    file = Gguf().key("general.architecture", g.STR, ARCH)
    file.key("general.name", g.STR, "Qwen3.8-Flash-Next")
    file.key("tokenizer.ggml.model", g.STR, "none")
    for name, value in (
        ("vocab_size", VOCABULARY), ("context_length", 262144), ("embedding_length", WIDTH),
        ("block_count", LAYERS), ("attention.head_count", HEADS), ("feed_forward_length", 640),
        ("attention.head_count_kv", KV_HEADS), ("attention.key_length", HEAD),
        ("attention.value_length", HEAD), ("rope.dimension_count", 64),
        ("expert_count", EXPERTS), ("expert_used_count", USED),
        ("expert_feed_forward_length", EXPERT_WIDTH),
        ("expert_shared_feed_forward_length", EXPERT_WIDTH),
        ("ssm.conv_kernel", 4), ("ssm.inner_size", VALUE_HEADS * STATE),
        ("ssm.state_size", STATE), ("ssm.time_step_rank", VALUE_HEADS),
        ("ssm.group_count", KEY_HEADS), ("full_attention_interval", 4),
        ("hyper_connection.count", STREAMS), ("hyper_connection.low_rank", LOW_RANK),
        ("attention.indexer.head_count", INDEX_HEADS),
        ("attention.indexer.key_length", INDEX_HEAD), ("attention.indexer.top_k", 2048),
    ):  # fmt: skip
        file.key(f"{ARCH}.{name}", g.U32, value)
    file.key(f"{ARCH}.attention.layer_norm_rms_epsilon", g.F32, 1e-6)
    file.list(f"{ARCH}.rope.dimension_sections", g.I32, [11, 11, 10, 0])
    file.list(f"{ARCH}.attention.compress_ratios", g.I32, [4] * LAYERS)
    n_gram_keys(file)
    maker, wide = Maker(file, mix), STREAMS * WIDTH
    file.tensor("per_layer_token_embd.weight", (TABLE_WIDTH, TABLE_ROWS), IQ4_NL)
    maker.matrix("token_embd", WIDTH, VOCABULARY)
    maker.matrix("output", WIDTH, VOCABULARY)
    file.tensor("output_hc_norm.weight", (wide,))
    maker.matrix("output_hc_down", wide, LOW_RANK)
    maker.matrix("output_hc_up", LOW_RANK, wide)
    for layer in range(LAYERS):
        maker.layer(layer)
    return file


def n_gram_keys(file: Gguf) -> None:
    """Where the rows of the table are: two n-grams of eight heads."""
    heads = 16
    file.list(f"{ARCH}.ple.layers", g.U32, [0])
    for name, value in (
        ("ple.ngram_size", 3), ("ple.heads_per_ngram", 8), ("ple.conv_kernel", 4),
        ("ple.eos_token_id", 0), ("embedding_length_per_layer_input", TABLE_WIDTH),
    ):  # fmt: skip
        file.key(f"{ARCH}.{name}", g.U32, value)
    rows = TABLE_ROWS // heads
    file.list(f"{ARCH}.ple.layer_multipliers", g.U64, [1, 3, 5])
    file.list(f"{ARCH}.ple.head_offsets", g.U64, [n * rows for n in range(heads)])
    file.list(f"{ARCH}.ple.head_vocab_sizes", g.U64, [rows] * heads)


class Maker:
    """Writes the layers of one file."""

    def __init__(self, file: Gguf, mix: Mix) -> None:
        self.file, self.mix = file, mix

    def matrix(self, name: str, *shape: int, kind: int | None = None) -> None:
        """A weight that is multiplied."""
        self.file.tensor(f"{name}.weight", shape, self.mix.others if kind is None else kind)

    def layer(self, layer: int) -> None:
        """Residual streams, attention or recurrence, the table's part, experts."""
        blk, wide, file, matrix = f"blk.{layer}.", STREAMS * WIDTH, self.file, self.matrix
        for part in ("hc_attn", "hc_ffn"):
            file.tensor(f"{blk}{part}_norm.weight", (wide,))
            matrix(f"{blk}{part}_down", wide, LOW_RANK)
            matrix(f"{blk}{part}_up", LOW_RANK, wide)
            file.tensor(f"{blk}{part}_inject.weight", (wide, STREAMS))
        if (layer + 1) % 4:
            keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
            matrix(blk + "attn_qkv", WIDTH, 2 * keys + values)
            matrix(blk + "attn_gate", WIDTH, values)
            file.tensor(blk + "ssm_conv1d.weight", (4, 2 * keys + values))
            file.tensor(blk + "ssm_dt.bias", (VALUE_HEADS,))
            file.tensor(blk + "ssm_a", (VALUE_HEADS,))
            matrix(blk + "ssm_beta", WIDTH, VALUE_HEADS)
            matrix(blk + "ssm_alpha", WIDTH, VALUE_HEADS)
            file.tensor(blk + "ssm_norm.weight", (STATE,))
            matrix(blk + "ssm_out", values, WIDTH)
        else:
            matrix(blk + "attn_q", WIDTH, 2 * HEADS * HEAD)
            matrix(blk + "attn_k", WIDTH, KV_HEADS * HEAD)
            matrix(blk + "attn_v", WIDTH, KV_HEADS * HEAD)
            matrix(blk + "attn_output", HEADS * HEAD, WIDTH)
            for name, size in (
                ("attn_q_norm", HEAD), ("attn_k_norm", HEAD),
                ("indexer.q_norm", INDEX_HEAD), ("indexer.k_norm", INDEX_HEAD),
            ):  # fmt: skip
                file.tensor(f"{blk}{name}.weight", (size,))
            matrix(blk + "indexer.q_proj", WIDTH, INDEX_HEADS * INDEX_HEAD)
            matrix(blk + "indexer.k_proj", WIDTH, INDEX_HEAD)
        if layer == 0:
            matrix(blk + "ple_key", WIDTH, wide)
            matrix(blk + "ple_value", WIDTH, WIDTH)
            for name in ("norm_key", "norm_query", "norm_conv"):
                file.tensor(f"{blk}ple_{name}.weight", (wide,))
            file.tensor(blk + "ple_conv1d.weight", (4, wide))
        file.tensor(blk + "ffn_gate_inp.weight", (WIDTH, EXPERTS))
        gate_up = self.mix.wide if layer < self.mix.wider else self.mix.gate_up
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            matrix(blk + name, WIDTH, EXPERT_WIDTH, EXPERTS, kind=gate_up)
        matrix(blk + "ffn_down_exps", EXPERT_WIDTH, WIDTH, EXPERTS, kind=self.mix.down)
        file.tensor(blk + "ffn_gate_inp_shexp.weight", (WIDTH,))
        matrix(blk + "ffn_gate_shexp", WIDTH, EXPERT_WIDTH)
        matrix(blk + "ffn_up_shexp", WIDTH, EXPERT_WIDTH)
        matrix(blk + "ffn_down_shexp", EXPERT_WIDTH, WIDTH)
