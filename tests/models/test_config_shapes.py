"""Models of which only the config.json is there: published shapes and their published sizes."""

import json
from pathlib import Path

import pytest
from checkpoint_builder import llama_config, write_all

from workhorse.models.read import read_model
from workhorse.records import Model

DELTA = {
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip

# (class, layers, width, heads, KV heads, head size, feed-forward, vocabulary, tied, more, 10^9
# parameters: of the card, or summed up from the published geometry where the card rounds). Shapes:
# config.json of each model by way of litgpt, slime and transformers 5.24, 2026-11.
PUBLISHED = {
    "Qwen2.5-7B": ("Qwen2", 28, 3584, 28, 4, 128, 18944, 152064, False, {}, 7.61),
    "Qwen3-4B": ("Qwen3", 36, 2560, 32, 8, 128, 9728, 151936, True, {}, 4.02),
    "Llama-3.1-70B": ("Llama", 80, 8192, 64, 8, 128, 28672, 128256, False, {}, 70.6),
    "Llama-3.2-1B": ("Llama", 16, 2048, 32, 8, 64, 8192, 128256, True, {}, 1.24),
    "Mistral-Nemo": ("Mistral", 40, 5120, 32, 8, 128, 14336, 131072, False, {}, 12.2),
    "GLM-4-9B-0414": ("Glm4", 40, 4096, 32, 2, 128, 13696, 151552, False, {}, 9.4),
    "phi-4": ("Phi3", 40, 5120, 40, 10, 128, 17920, 100352, False, {}, 14.7),
    "Gemma-3-1b": ("Gemma3", 26, 1152, 4, 1, 256, 6912, 262144, True, {}, 1.0),
    "Qwen3-30B-A3B": (
        "Qwen3Moe", 48, 2048, 32, 4, 128, 6144, 151936, False,
        {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}, 30.5,
    ),
    "Mixtral-8x7B": (
        "Mixtral", 32, 4096, 32, 8, 128, 14336, 32000, False,
        {"num_local_experts": 8, "num_experts_per_tok": 2}, 46.7,
    ),
    "Qwen3-Next-80B": (
        "Qwen3Next", 48, 2048, 16, 2, 256, 5120, 151936, False,
        {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
         "shared_expert_intermediate_size": 512, "linear_num_value_heads": 32, **DELTA}, 79.7,
    ),
    "Qwen3.5-27B": (
        "Qwen3_5", 64, 5120, 24, 4, 256, 17408, 248320, False,
        {"linear_num_value_heads": 48, **DELTA}, 26.9,
    ),
    "GLM-4.5-Air": (
        "Glm4Moe", 46, 4096, 96, 8, 128, 10944, 151552, False,
        {"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True}, 106.8,
    ),
    "GLM-4.7-Flash": (
        "Glm4MoeLite", 47, 2048, 20, 20, 256, 10240, 154880, False,
        {"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 768,
         "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
         "v_head_dim": 256}, 30.0,
    ),
    "gpt-oss-20b": (
        "GptOss", 24, 2880, 64, 8, 64, 2880, 201088, False,
        {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128}, 20.9,
    ),
    "Gemma-4-26B-A4B": (
        "Gemma4", 30, 2816, 16, 8, 256, 2112, 262144, True,
        {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
         "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
         "sliding_window": 1024,
         "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5}, 25.2,
    ),
}  # fmt: skip


def published(name: str, folder: Path) -> Model:
    kind, layers, width, heads, kv_heads, size, wide, vocabulary, tied, more, _ = PUBLISHED[name]
    config = llama_config(
        architectures=[f"{kind}ForCausalLM"], num_hidden_layers=layers, hidden_size=width,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=size,
        intermediate_size=wide, vocab_size=vocabulary, tie_word_embeddings=tied, **more,
    )  # fmt: skip
    raw = json.dumps(config).encode()
    return read_model(write_all(folder / name, {"config.json": raw}), environment={})


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_were_published(name: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    assert model.parameters / 1e9 == pytest.approx(PUBLISHED[name][-1], rel=0.01)
    assert model.known


def test_layers_of_gemma_4_differ(tmp_path: Path) -> None:
    model = published("Gemma-4-26B-A4B", tmp_path)
    narrow, full = model.attention[0], model.attention[5]
    assert narrow is not None and full is not None
    assert (narrow.kv_heads, narrow.key_size, narrow.window_tokens) == (8, 256, 1024)
    assert (full.kv_heads, full.key_size, full.window_tokens) == (2, 512, None)
    names = {tensor.name for tensor in model.tensors}
    assert "blk.0.attn_v.weight" in names and "blk.5.attn_v.weight" not in names
    assert {"blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_gate_inp.scale"} <= names
