"""Models as their makers publish them: safetensors, config.json, and what becomes of them."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import gguf
import pytest
from checkpoint_builder import (
    Tensors,
    checkpoint,
    llama_config,
    llama_tensors,
    safetensors,
    write_all,
)
from checkpoint_reading import GOLDEN, read, refusal
from file_server import FileServer
from hub_server import publish_hf, publish_ms

from workhorse.knowledge.checkpoints import (
    checkpoint_kinds,
    layer_tensor_names,
    model_tensor_names,
)
from workhorse.knowledge.quant_mixes import quant_mixes
from workhorse.models.gguf import read_gguf
from workhorse.models.safetensors import read_safetensors
from workhorse.records import Attention
from workhorse.units import MIB

# ---------------------------------------------------------------- the whole way


def test_a_checkpoint_is_the_gguf_that_it_would_become(tmp_path: Path) -> None:
    model = read(write_all(tmp_path / "tiny", checkpoint()), quant="Q8_0")
    assert (model.format, model.architecture, model.name) == ("safetensors", "llama", "tiny")
    assert (model.layers, model.heads, model.embedding_size) == (2, 8, 512)
    assert (model.vocabulary, model.context_trained_tokens) == (1000, 4096)
    assert model.attention == (Attention(2, 64, 64),) * 2
    names = {tensor.name: tensor for tensor in model.tensors}
    assert len(names) == 21 and names["blk.1.ffn_down.weight"].shape == (1024, 512)
    assert names["blk.0.attn_norm.weight"].type == "f32"
    assert model.quantisation == "q8_0"
    assert (
        model.weight_bytes
        == sum(n // 32 * 34 for n in (512_000, 512_000, *(262_144, 65_536, 65_536, 262_144) * 2))
        + 6 * 524_288 // 32 * 34
        + 5 * 2048
    )
    assert model.size_error_share is not None


def test_four_bits_unless_said_otherwise(tmp_path: Path) -> None:
    folder = write_all(tmp_path / "tiny", checkpoint())
    assert read(folder).quantisation == "q4_k"
    assert read(folder, quant="bf16").quantisation == "bf16"
    assert "no quantisation that sizes are known of" in refusal(folder, quant="Q9_X")


@pytest.mark.parametrize("file", ["", "model.safetensors.index.json", "config.json"])
def test_shards_add_up(tmp_path: Path, file: str) -> None:
    whole = read(write_all(tmp_path / "one", checkpoint()))
    folder = write_all(tmp_path / "three", checkpoint(shards=3))
    parts = read(folder / file)
    assert parts.tensors == whole.tensors
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "1 of the 3 files of the model are missing" in refusal(folder / file)


def test_config_json_alone(tmp_path: Path) -> None:
    full = read(write_all(tmp_path / "full", checkpoint()))
    alone = write_all(tmp_path / "alone", {"config.json": checkpoint()["config.json"]})
    for reference in (alone, alone / "config.json"):
        assert read(reference).tensors == full.tensors


def test_a_single_safetensors_file(tmp_path: Path) -> None:
    folder = write_all(tmp_path / "a", checkpoint())
    assert read(folder / "model.safetensors").tensors == read(folder).tensors
    (folder / "config.json").unlink()
    assert "neither a GGUF file nor a config.json" in refusal(folder / "model.safetensors")


def test_from_hubs_and_addresses(server: FileServer, tmp_path: Path) -> None:
    template = json.dumps({"chat_template": "{{ messages }}"}).encode()
    files = {**checkpoint(shards=3), "tokenizer_config.json": template, "README.md": b"#"}
    local = read(write_all(tmp_path / "three", files))
    hub = read("hf:maker/Tiny", publish_hf(server, "maker/Tiny", files))
    assert hub.tensors == local.tensors and hub.path == "hf:maker/Tiny"
    assert hub.chat_template == local.chat_template == "{{ messages }}"
    sent = server.sent_bytes
    assert read("ms:maker/Tiny", publish_ms(server, "maker/Tiny", files)).tensors == hub.tensors
    assert server.sent_bytes - sent < 4 * MIB
    for name, content in files.items():
        server.files[f"/plain/{name}"] = content
    server.requests.clear()
    assert read(server.url("/plain/config.json")).tensors == hub.tensors
    assert sum(".safetensors" in path for path, _ in server.requests) == 4, "index and shards"
    index = server.url("/plain/model.safetensors.index.json")
    assert read(index).tensors == hub.tensors


def test_a_quantisation_behind_the_name_of_a_checkpoint(server: FileServer) -> None:
    environment = publish_hf(server, "maker/Tiny", checkpoint())
    assert read("maker/Tiny:Q8_0", environment).quantisation == "q8_0"


def test_weights_are_not_fetched(server: FileServer) -> None:
    config = llama_config(num_hidden_layers=40, hidden_size=2048, intermediate_size=8192)
    tensors = {"model.embed_tokens.weight": ("BF16", (20_000, 2048))}
    environment = publish_hf(server, "maker/Big", checkpoint(config, tensors))
    read("maker/Big", environment)
    assert server.sent_bytes < MIB


# ---------------------------------------------------------------- kinds of layers


def test_experts_are_stacked(tmp_path: Path) -> None:
    config = llama_config(
        architectures=["Qwen3MoeForCausalLM"], num_experts=4, num_experts_per_tok=2, head_dim=64
    )
    tensors = llama_tensors()
    for layer in range(2):
        at = f"model.layers.{layer}.mlp."
        for part in ("gate", "up", "down"):
            shape = tensors.pop(f"{at}{part}_proj.weight")[1]
            for expert in range(4):
                tensors[f"{at}experts.{expert}.{part}_proj.weight"] = ("F8_E4M3", shape)
                tensors[f"{at}experts.{expert}.{part}_proj.weight_scale_inv"] = ("F32", (4, 4))
        tensors[f"{at}gate.weight"] = ("BF16", (4, 512))
    model = read(write_all(tmp_path / "moe", checkpoint(config, tensors)), quant="Q4_0")
    named = {tensor.name: tensor for tensor in model.tensors}
    assert named["blk.0.ffn_down_exps.weight"].shape == (1024, 512, 4)
    assert named["blk.0.ffn_gate_inp.weight"].type == "f32"
    assert (model.experts, model.experts_used) == (4, 2)
    assert not any("scale" in name for name in named)


def test_latent_attention(tmp_path: Path) -> None:
    config = llama_config(
        architectures=["DeepseekV3ForCausalLM"], n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=256, first_k_dense_replace=1, q_lora_rank=256, kv_lora_rank=128,
        qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, n_shared_experts=1,
        num_nextn_predict_layers=1,
    )  # fmt: skip
    model = read(write_all(tmp_path / "mla", {"config.json": json.dumps(config).encode()}))
    named = {tensor.name: tensor for tensor in model.tensors}
    assert named["blk.0.attn_k_b.weight"].shape == (64, 128, 8)
    assert named["blk.0.attn_v_b.weight"].shape == (128, 64, 8)
    assert "blk.0.attn_kv_b.weight" not in named
    assert model.attention[0] == Attention(1, 160, 0)


def test_delta_nets_beside_attention(tmp_path: Path) -> None:
    config = GOLDEN["qwen35"]["config"]
    model = read(write_all(tmp_path / "gdn", {"config.json": json.dumps(config).encode()}))
    kinds = [attention is not None for attention in model.attention]
    assert kinds == [False, False, False, True] * 3
    assert sum(state is not None for state in model.recurrent) == 9


def test_layers_of_multi_token_prediction_come_last(tmp_path: Path) -> None:
    config = llama_config(
        architectures=["Qwen3_5MoeForConditionalGeneration"], num_experts=4,
        num_experts_per_tok=2, head_dim=64, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=32, linear_value_head_dim=32, linear_conv_kernel_dim=4,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    tensors = llama_tensors(prefix="model.language_model.")
    moved: Tensors = {}
    for name, value in tensors.items():
        if "layers.1." in name:
            moved[f"mtp.layers.0.{name.partition('layers.1.')[2]}"] = value
    moved["mtp.fc.weight"] = ("BF16", (512, 1024))
    moved["mtp.norm.weight"] = ("BF16", (512,))
    moved["model.language_model.layers.1.mlp.experts.gate_up_proj"] = ("BF16", (4, 512, 512))
    moved["model.language_model.layers.1.mlp.experts.down_proj"] = ("BF16", (4, 512, 256))
    moved["model.language_model.layers.0.linear_attn.conv1d.weight"] = ("BF16", (256, 1, 4))
    moved["model.language_model.layers.0.linear_attn.A_log"] = ("F32", (4,))
    model = read(write_all(tmp_path / "mtp", checkpoint(config, {**tensors, **moved})))
    named = {tensor.name: tensor for tensor in model.tensors}
    assert (model.layers, model.draft_layers) == (3, 1)
    assert named["blk.2.nextn.eh_proj.weight"].shape == (1024, 512)
    assert named["blk.2.ffn_up.weight"].shape == (512, 1024)
    assert named["blk.1.ffn_gate_exps.weight"].shape == (512, 256, 4)
    assert named["blk.1.ffn_down_exps.weight"].shape == (256, 512, 4)
    assert named["blk.0.ssm_conv1d.weight"].shape == (4, 256)
    assert named["blk.0.ssm_a"].shape == (4,)


def test_sparse_attention_and_a_table_of_n_grams(tmp_path: Path) -> None:
    config = llama_config(
        architectures=["Qwen4ExpForCausalLM"], head_dim=64, linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=32, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, layer_types=["linear_attention", "full_attention"], hc_count=4,
        indexer_n_heads=2, indexer_head_dim=32, indexer_budget=64, indexer_compress_ratio=4,
        ple_layer_ids=[1], ngram_size=3, ple_conv_kernel_size=4,
    )  # fmt: skip
    tensors = llama_tensors()
    at = "model.layers.1.self_attn.indexer."
    tensors[f"{at}index_qk_proj.weight"] = ("BF16", (96, 512))
    for shard in range(3):
        name = f"model.layers.0.ple.ple_embedding.ngram_embedding.shard_{shard}.weight"
        tensors[name] = ("BF16", (100 + shard, 160))
    tensors["model.layers.0.ple.ple_embedding.layer_multipliers"] = ("I64", (3,))
    model = read(write_all(tmp_path / "exp", checkpoint(config, tensors)))
    named = {tensor.name: tensor for tensor in model.tensors}
    assert named["per_layer_token_embd.weight"].shape == (160, 303)
    assert named["blk.1.indexer.q_proj.weight"].shape == (512, 64)
    assert named["blk.1.indexer.k_proj.weight"].shape == (512, 32)
    assert model.attention[0] is None and model.attention[1] is not None
    assert not any("multipliers" in name for name in named)


def test_a_nested_text_config_and_other_towers(tmp_path: Path) -> None:
    inner = llama_config(sliding_window=512)
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner}
    inner.pop("architectures")
    tensors: Tensors = {
        f"model.language_model.{name.removeprefix('model.')}": value
        for name, value in llama_tensors().items()
        if name != "lm_head.weight"
    }
    tensors["model.vision_tower.encoder.layers.0.mlp.fc1.weight"] = ("BF16", (64, 64))
    model = read(write_all(tmp_path / "vl", checkpoint(outer, tensors)))
    assert model.architecture == "gemma3"
    assert all("vision" not in tensor.name for tensor in model.tensors)
    assert model.attention[0] is not None and model.attention[0].window_tokens == 512


def test_an_unknown_architecture_is_read_from_its_tensors(tmp_path: Path) -> None:
    config = llama_config(architectures=["NobodyKnowsForCausalLM"], model_type="nobody_knows")
    tensors = llama_tensors()
    tensors["model.layers.0.strange.weight"] = ("BF16", (512, 512))
    model = read(write_all(tmp_path / "new", checkpoint(config, tensors)))
    known = read(write_all(tmp_path / "old", checkpoint()))
    assert model.architecture == "nobody_knows"
    assert {tensor.name for tensor in model.tensors} - {
        tensor.name for tensor in known.tensors
    } == {"blk.0.strange.weight"}
    assert (model.size_error_share or 0) > (known.size_error_share or 0)


def test_an_unknown_architecture_with_names_of_its_own(tmp_path: Path) -> None:
    config = llama_config(architectures=["BertModel"], model_type="bert")
    tensors: Tensors = {"embeddings.word_embeddings.weight": ("F32", (1000, 512))}
    said = refusal(write_all(tmp_path / "bert", checkpoint(config, tensors)))
    assert "BertModel names its tensors in a way" in said


def test_an_embedding_model(tmp_path: Path) -> None:
    files = {**checkpoint(), "modules.json": b"[]"}
    assert read(write_all(tmp_path / "embed", files)).pooling


# ---------------------------------------------------------------- against the engine's own tools


@pytest.mark.real
def test_the_embedded_model_is_foretold_to_the_tensor(real_model: Path, tmp_path: Path) -> None:
    """SmolLM2-135M as its publisher quantised it, against its config.json alone."""
    config = llama_config(
        num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True,
    )  # fmt: skip
    folder = write_all(tmp_path / "m", {"config.json": json.dumps(config).encode()})
    foretold = read(folder, quant="Q4_1")
    real = read_gguf(real_model)
    if "SmolLM2-135M" not in real_model.name:
        pytest.skip("another model was chosen for the tests")
    assert {(t.name, t.type, t.shape, t.n_bytes) for t in foretold.tensors} == {
        (t.name, t.type, t.shape, t.n_bytes) for t in real.tensors
    }
    assert foretold.attention == real.attention
    assert foretold.file_bytes == pytest.approx(real.file_bytes, rel=0.01)


@pytest.mark.parametrize("shape", GOLDEN)
def test_types_are_those_that_llama_quantize_chooses(shape: str, tmp_path: Path) -> None:
    """`quantised.json`: llama-quantize --dry-run of llama.cpp 0c1e57098 on the same tensors."""
    config = json.dumps(GOLDEN[shape]["config"]).encode()
    path = write_all(tmp_path / "m", {"config.json": config})
    for file, chosen in GOLDEN[shape]["chosen"].items():
        tensors = read(path, quant=file).tensors
        types = Counter(tensor.type for tensor in tensors)
        lines = "".join(f"{t.name} {t.type}\n" for t in sorted(tensors, key=lambda t: t.name))
        digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
        assert {**types, "digest": digest} == chosen, file


LLAMA_3_1_8B = llama_config(
    num_hidden_layers=32, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
    num_key_value_heads=8, vocab_size=128256, rope_scaling={"rope_type": "llama3"},
)  # fmt: skip


# The IQ3 rows were made with an importance matrix, which the rules here do without.
PUBLISHED = [mix.name for mix in quant_mixes().values() if mix.bits and mix.name[:3] != "IQ3"]


@pytest.mark.parametrize("file", PUBLISHED)
def test_bits_are_those_that_were_published(file: str, tmp_path: Path) -> None:
    """Of Llama 3.1 8B, tools/quantize/README.md of llama.cpp."""
    folder = write_all(tmp_path / "m", {"config.json": json.dumps(LLAMA_3_1_8B).encode()})
    model = read(folder, quant=file)
    bits = model.weight_bytes * 8 / model.parameters
    assert bits == pytest.approx(quant_mixes()[file].bits, rel=0.002)


NEWER = {
    "qwen4exp",
    "deepseek32",
    "glm-dsa",
    "gemma4",
    "mistral3",
    "qwen35",
    "qwen35moe",
    "qwen3vlmoe",
    "qwen3next",
}


@pytest.mark.parametrize("arch", sorted({kind.gguf for kind in checkpoint_kinds().values()}))
def test_names_are_those_of_the_gguf_package(arch: str) -> None:
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if arch not in numbers:
        assert arch in NEWER
        pytest.skip("newer than the package")
    theirs = gguf.get_tensor_name_map(numbers[arch], 1)
    kind = next(kind for kind in checkpoint_kinds().values() if kind.gguf == arch)
    compared = 0
    for ours, name in (
        *((f"model.{config}", name) for config, name in model_tensor_names().items()),
        *((f"model.layers.0.{c}", f"blk.0.{name}") for c, name in layer_tensor_names().items()),
        ("model.layers.0.post_attention_layernorm", f"blk.0.{kind.ffn_norm}"),
    ):
        found = theirs.get_name(ours)
        if found is not None and "embed_tokens" not in ours:
            assert found == name, ours
            compared += 1
    assert compared > 10


def test_tensors_are_those_of_the_safetensors_package() -> None:
    package = pytest.importorskip("safetensors")
    raw = safetensors(llama_tensors(layers=3))
    theirs = {
        name: (tensor["dtype"], tuple(tensor["shape"]), len(tensor["data"]))
        for name, tensor in package.deserialize(raw)
    }
    ours = read_safetensors(lambda offset, size: raw[offset : offset + size], len(raw), name="m")
    assert {t.name: (t.dtype, t.shape, t.n_bytes) for t in ours} == theirs
