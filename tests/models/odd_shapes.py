"""Headers of models whose layers are unlike the others: shared KV, tables by row, RWKV."""

import gguf_builder as g
from gguf_builder import Gguf
from published_shapes import Delta, Experts, Maker, Published


def gemma3n() -> Gguf:
    """Gemma 3n E4B: the first 20 of 35 layers keep KV for all; a table of 256 a layer and token."""
    layers, table, streams, rank = 35, 256, 4, 64
    maker = Maker(
        Published("gemma3n", layers, 2048, 8, 2, 256, 262144, 16384, tied=True, window=512)
    )
    maker.keys()
    _tables(maker, table)
    maker.matrix("altup_proj", 2048, 2048, streams - 1)
    maker.matrix("altup_unembd_proj", 2048, 2048, streams - 1)
    for layer in range(layers):
        blk = f"blk.{layer}."
        _gemma_layer(maker, blk, 2, 256, 16384)
        _table_layer(maker, blk, table)
        maker.vector(blk + "altup_correct_coef", streams, streams)
        maker.vector(blk + "altup_correct_scale", 2048)
        maker.vector(blk + "altup_predict_coef", streams, streams * streams)
        maker.vector(blk + "altup_router", 2048, streams)
        maker.vector(blk + "altup_router_norm", 2048)
        maker.matrix(blk + "laurel_l", 2048, rank)
        maker.matrix(blk + "laurel_r", rank, 2048)
        maker.vector(blk + "laurel_post_norm", 2048)
    return maker.file


def gemma4(layers: int = 42, shared: int = 18, table: int = 256) -> Gguf:
    """Gemma 4's form: every sixth layer sees all with heads of 512, the last layers share KV."""
    narrow = [layer % 6 != 5 for layer in range(layers)]
    shape = Published("gemma4", layers, 2560, 8, 2, 512, 262144, 10240, tied=True, window=512)
    shape.extra = {
        "attention.key_length_swa": (g.U32, 256),
        "attention.value_length_swa": (g.U32, 256),
        "attention.shared_kv_layers": (g.U32, shared),
        "attention.sliding_window_pattern": (g.BOOL, narrow),
        "embedding_length_per_layer_input": (g.U32, table),
        "rope.dimension_count": (g.U32, 512),
        "rope.dimension_count_swa": (g.U32, 256),
    }
    maker = Maker(shape)
    maker.keys()
    _tables(maker, table)
    for layer in range(layers):
        blk = f"blk.{layer}."
        _gemma_layer(maker, blk, 2, 256 if narrow[layer] else 512, 10240)
        _table_layer(maker, blk, table)
        if layer == narrow.index(False):
            maker.vector("rope_freqs", 256)
    return maker.file


def _tables(maker: Maker, table: int) -> None:
    s = maker.s
    maker.matrix("token_embd", s.width, s.vocabulary)
    maker.vector("output_norm", s.width)
    maker.matrix("per_layer_token_embd", table * s.layers, s.vocabulary)
    maker.matrix("per_layer_model_proj", s.width, table * s.layers)
    maker.vector("per_layer_proj_norm", table)


def _gemma_layer(maker: Maker, blk: str, kv_heads: int, head: int, forward: int) -> None:
    width, heads = maker.s.width, maker.s.heads
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        maker.vector(blk + name, width)
    maker.matrix(blk + "attn_q", width, heads * head)
    maker.matrix(blk + "attn_k", width, kv_heads * head)
    maker.matrix(blk + "attn_v", width, kv_heads * head)
    maker.matrix(blk + "attn_output", heads * head, width)
    maker.vector(blk + "attn_q_norm", head)
    maker.vector(blk + "attn_k_norm", head)
    maker.matrix(blk + "ffn_gate", width, forward)
    maker.matrix(blk + "ffn_up", width, forward)
    maker.matrix(blk + "ffn_down", forward, width)


def _table_layer(maker: Maker, blk: str, table: int) -> None:
    maker.matrix(blk + "inp_gate", maker.s.width, table)
    maker.matrix(blk + "proj", table, maker.s.width)
    maker.vector(blk + "post_norm", maker.s.width)


def rwkv7(layers: int = 32, width: int = 2560) -> Gguf:
    """RWKV-7 World 2.9B: no attention at all."""
    ranks = {"decay": 96, "iclr": 96, "value_residual_mix": 64, "gate": 320}
    forward = 4 * width
    shape = Published("rwkv7", layers, width, 0, 0, 0, 65536, forward)
    shape.extra = {
        "wkv.head_size": (g.U32, 64),
        "attention.layer_norm_epsilon": (g.F32, 1e-5),
        **{f"attention.{name}_lora_rank": (g.U32, rank) for name, rank in ranks.items()},
    }
    maker = Maker(shape)
    maker.keys()
    for name in ("key_length", "value_length"):
        maker.file.without(f"rwkv7.attention.{name}")
    maker.matrix("token_embd", width, 65536)
    maker.matrix("output", width, 65536)
    for name in ("token_embd_norm", "output_norm"):
        maker.vector(name, width)
        maker.vector(name, width, ending=".bias")
    for layer in range(layers):
        blk = f"blk.{layer}."
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            maker.vector(blk + name, width)
            maker.vector(blk + name, width, ending=".bias")
        first = "iclr" if layer == 0 else "value_residual_mix"
        pairs = {"w": "decay", "a": "iclr", "v": first, "g": "gate"}
        for letter, name in pairs.items():
            if letter != "g":
                maker.vector(f"{blk}time_mix_{letter}0", width)
            maker.matrix(f"{blk}time_mix_{letter}1", width, ranks[name])
            maker.matrix(f"{blk}time_mix_{letter}2", ranks[name], width)
        maker.vector(blk + "time_mix_lerp_fused", width, 1, 1, 6)
        maker.vector(blk + "channel_mix_lerp_k", width, 1, 1)
        for name in ("k_k", "k_a", "r_k"):
            maker.vector(f"{blk}time_mix_{name}", width)
        for name in ("key", "value", "receptance", "output"):
            maker.matrix(f"{blk}time_mix_{name}", width, width)
        maker.matrix(blk + "channel_mix_key", width, forward)
        maker.matrix(blk + "channel_mix_value", forward, width)
    return maker.file


def mamba2(layers: int = 64, width: int = 2560) -> Gguf:
    """Mamba-2 2.7B."""
    inner, state, heads = 2 * width, 128, 2 * width // 64
    shape = Published("mamba2", layers, width, 0, 0, 0, 50288, 0)
    shape.extra = {
        "ssm.conv_kernel": (g.U32, 4),
        "ssm.inner_size": (g.U32, inner),
        "ssm.state_size": (g.U32, state),
        "ssm.time_step_rank": (g.U32, heads),
        "ssm.group_count": (g.U32, 1),
    }
    maker = Maker(shape)
    maker.keys()
    for name in ("key_length", "value_length"):
        maker.file.without(f"mamba2.attention.{name}")
    maker.matrix("token_embd", width, 50288)
    maker.matrix("output", width, 50288)
    maker.vector("output_norm", width)
    for layer in range(layers):
        blk = f"blk.{layer}."
        maker.vector(blk + "attn_norm", width)
        maker.matrix(blk + "ssm_in", width, 2 * inner + 2 * state + heads)
        maker.vector(blk + "ssm_conv1d", 4, inner + 2 * state)
        maker.vector(blk + "ssm_conv1d", inner + 2 * state, ending=".bias")
        maker.vector(blk + "ssm_dt", heads, ending=".bias")
        maker.vector(blk + "ssm_a", 1, heads, ending="")
        maker.vector(blk + "ssm_d", 1, heads, ending="")
        maker.vector(blk + "ssm_norm", inner, 1)
        maker.matrix(blk + "ssm_out", inner, width)
    return maker.file


def qwen4exp(layers: int = 48, width: int = 2560) -> Gguf:
    """Qwen3.8-Flash-Next's form: 36 delta-net and 12 sparse layers, a table of n-grams by row.

    Published: layers, width, experts, table, four streams. Assumed: heads, ranks, index sizes.
    """
    streams, rank, index, grams, hashes = 4, 64, 128, 3, 8
    rows, heads, head = 320_001_536, 16, 256
    shape = Published("qwen4exp", layers, width, heads, 2, head, 248320, 512)
    shape.experts, shape.delta = Experts(512, 10, 512, 512), Delta(16, 32)
    table_heads = (grams - 1) * hashes
    shape.extra = {
        "attention.indexer.head_count": (g.U32, 16),
        "attention.indexer.key_length": (g.U32, index),
        "attention.indexer.top_k": (g.U32, 2048),
        "attention.compress_ratios": (g.U32, [4] * layers),
        "hyper_connection.count": (g.U32, streams),
        "hyper_connection.low_rank": (g.U32, rank),
        "ple.layers": (g.U32, [0]),
        "ple.ngram_size": (g.U32, grams),
        "ple.heads_per_ngram": (g.U32, hashes),
        "ple.conv_kernel": (g.U32, 4),
        "ple.eos_token_id": (g.U32, 0),
        "ple.layer_multipliers": (g.U64, [1, 3, 5]),
        "ple.head_offsets": (g.U64, [n * (rows // table_heads) for n in range(table_heads)]),
        "ple.head_vocab_sizes": (g.U64, [rows // table_heads] * table_heads),
        "embedding_length_per_layer_input": (g.U32, width // table_heads),
    }
    maker = Maker(shape)
    maker.keys()
    maker.matrix("token_embd", width, 248320)
    maker.matrix("output", width, 248320)
    maker.matrix("per_layer_token_embd", width // table_heads, rows)
    maker.vector("output_hc_norm", width, streams)
    maker.matrix("output_hc_down", streams * width, rank)
    maker.matrix("output_hc_up", rank, streams * width)
    for layer in range(layers):
        blk = f"blk.{layer}."
        if (layer + 1) % 4:
            maker.delta_net(blk, shape.delta)
        else:
            maker.attention(blk)
            maker.matrix(blk + "indexer.q_proj", width, 16 * index)
            maker.matrix(blk + "indexer.k_proj", width, index)
            maker.vector(blk + "indexer.q_norm", index)
            maker.vector(blk + "indexer.k_norm", index)
        for part in ("attn", "ffn"):
            maker.vector(f"{blk}hc_{part}_norm", width, streams)
            maker.matrix(f"{blk}hc_{part}_down", streams * width, rank)
            maker.matrix(f"{blk}hc_{part}_up", rank, streams * width)
            maker.matrix(f"{blk}hc_{part}_inject", streams * width, streams)
        maker.mixture(blk, shape.experts)
    for name, size in (("key", streams * width), ("value", width)):
        maker.matrix(f"blk.0.ple_{name}", width, size)
    for name in ("key", "query", "conv"):
        maker.vector(f"blk.0.ple_norm_{name}", width, streams)
    maker.vector("blk.0.ple_conv1d", 4, streams * width)
    return maker.file


ODD = {
    "Gemma-3n-E4B": gemma3n,
    "Gemma-4 form, 18 shared": gemma4,
    "RWKV-7-2.9B": rwkv7,
    "Mamba-2-2.7B": mamba2,
    "Qwen3.8-Flash-Next form": qwen4exp,
}
