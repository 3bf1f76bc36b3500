"""The tensors of a model of which only the config.json is there, by its architecture's shapes."""

from collections.abc import Iterator

from workhorse.knowledge.checkpoints import CheckpointKind
from workhorse.models.config_json import Config
from workhorse.models.converted import LAYERS_MAX
from workhorse.models.refusals import damaged, shown, unsupported
from workhorse.models.safetensors import RawTensor
from workhorse.text import Text

Shapes = Iterator[tuple[str, tuple[int, ...]]]

# Architectures whose attention norms each head's Q and K (transformers, models/*/modeling_*.py).
_QK_NORM = (
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
    "gemma3",
    "qwen3next",
    "qwen35",
    "qwen35moe",
)
_QKV_BIAS = ("qwen2", "qwen2moe", "qwen2vl", "gpt-oss", "glm4moe")
_FOUR_NORMS = {
    "gemma2": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "gemma3": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
}
_WHOLE = (".bias", "_bias", "_blocks", "A_log", "scale")  # names without `.weight` behind them
_FUSED_GATE_UP = ("phi3", "glm4")
_KNOWN = (
    "llama", "mistral3", "qwen2", "qwen2vl", "qwen2moe", "qwen3", "qwen3moe", "qwen3vl",
    "qwen3vlmoe", "qwen3next", "qwen35", "qwen35moe", "gemma2", "gemma3", "glm4", "glm4moe",
    "deepseek2", "gpt-oss", "phi3", "gemma4",
)  # fmt: skip


def tensors_of_config(config: Config) -> Iterator[RawTensor]:
    """Every tensor of the model that `config` describes, without multi-token prediction.

    Sources: the modules of huggingface/transformers, 2026-11. AppError for an architecture whose
    shapes config.json alone does not give.
    """
    kind = config.kind
    if kind is None or kind.gguf not in _KNOWN:
        arch = shown(config.architecture[:80])
        raise unsupported(
            config.name,
            f"of {arch or 'its architecture'} the shapes do not follow from it alone",
            f"仅凭它无法得知 {arch or '该架构'} 的张量形状",
            Text(
                "Put the safetensors files beside it, or take a GGUF file of the model.",
                "请把 safetensors 文件放在旁边，或使用该模型的 GGUF 文件。",
            ),
        )
    shaped = (_Gemma4 if kind.gguf == "gemma4" else _Shaped)(config, kind)
    return (RawTensor(name, "BF16", shape, 0) for name, shape in shaped.all())


class _Shaped:
    """The sizes of one config and the shapes that they make."""

    def __init__(self, config: Config, kind: CheckpointKind) -> None:
        self.config, self.arch, self.kind = config, kind.gguf, kind
        self.width = config.needed("hidden_size")
        self.layers = config.needed("num_hidden_layers")
        if self.layers > LAYERS_MAX:
            raise damaged(
                config.name, f"it claims {self.layers} layers", f"声称有 {self.layers} 层"
            )
        self.heads = config.count("num_attention_heads") or kind.heads or 1
        self.kv_heads = config.count("num_key_value_heads") or kind.kv_heads or self.heads
        self.size = config.count("head_dim") or kind.head_size or self.width // self.heads
        self.experts = config.count("num_local_experts", "num_experts", "n_routed_experts") or 0
        self.types = config.layer_types()

    def all(self) -> Shapes:
        """Name and shape of each tensor, as PyTorch has them."""
        vocabulary = self.config.needed("vocab_size")
        yield "model.embed_tokens.weight", (vocabulary, self.width)
        yield "model.norm.weight", (self.width,)
        if self.config.values.get("tie_word_embeddings", self.arch.startswith("gemma")) is not True:
            yield "lm_head.weight", (vocabulary, self.width)
        for layer in range(self.layers):
            for name, shape in self._layer(layer):
                ending = "" if name.endswith(_WHOLE) else ".weight"
                yield f"model.layers.{layer}.{name}{ending}", shape

    def _layer(self, layer: int) -> Shapes:
        yield "input_layernorm", (self.width,)
        yield "post_attention_layernorm", (self.width,)
        for name in _FOUR_NORMS.get(self.arch, ()):
            yield name, (self.width,)
        if self.kind.attention == "mla":
            yield from self._latent()
        elif self.kind.attention == "delta_net" and self._is_recurrent(layer):
            yield from self._delta_net()
        else:
            yield from self._attention()
        if self.experts and layer >= (self.config.count("first_k_dense_replace") or 0):
            yield from self._experts()
        else:
            size = self.config.needed("intermediate_size")
            if self.arch in _FUSED_GATE_UP:
                yield "mlp.gate_up_proj", (2 * size, self.width)
            else:
                yield "mlp.gate_proj", (size, self.width)
                yield "mlp.up_proj", (size, self.width)
            yield "mlp.down_proj", (self.width, size)

    def _is_recurrent(self, layer: int) -> bool:
        if self.types is not None and len(self.types) == self.layers:
            return self.types[layer] == "linear_attention"
        return (layer + 1) % (self.config.count("full_attention_interval") or 4) != 0

    def _attention(self) -> Shapes:
        query, kv = self.heads * self.size, self.kv_heads * self.size
        gated = (
            2 if self.kind.attention == "delta_net" else 1
        )  # Q carries a gate as large as itself
        if self.arch == "phi3":
            yield "self_attn.qkv_proj", (query + 2 * kv, self.width)
        else:
            yield "self_attn.q_proj", (gated * query, self.width)
            yield "self_attn.k_proj", (kv, self.width)
            yield "self_attn.v_proj", (kv, self.width)
        yield "self_attn.o_proj", (self.width, query)
        if self.arch in _QKV_BIAS or self.config.values.get("attention_bias") is True:
            yield "self_attn.q_proj.bias", (query,)
            yield "self_attn.k_proj.bias", (kv,)
            yield "self_attn.v_proj.bias", (kv,)
        if self.arch == "gpt-oss":
            yield "self_attn.o_proj.bias", (self.width,)
            yield "self_attn.sinks", (self.heads,)
        if self.arch in _QK_NORM or self.config.values.get("use_qk_norm") is True:
            yield "self_attn.q_norm", (self.size,)
            yield "self_attn.k_norm", (self.size,)

    def _latent(self) -> Shapes:
        config = self.config
        rank, rope = config.needed("kv_lora_rank"), config.needed("qk_rope_head_dim")
        key = config.needed("qk_nope_head_dim") + rope
        value = config.needed("v_head_dim")
        query = config.count("q_lora_rank")
        if query:
            yield "self_attn.q_a_proj", (query, self.width)
            yield "self_attn.q_a_layernorm", (query,)
            yield "self_attn.q_b_proj", (self.heads * key, query)
        else:
            yield "self_attn.q_proj", (self.heads * key, self.width)
        yield "self_attn.kv_a_proj_with_mqa", (rank + rope, self.width)
        yield "self_attn.kv_a_layernorm", (rank,)
        yield "self_attn.kv_b_proj", (self.heads * (key - rope + value), rank)
        yield "self_attn.o_proj", (self.width, self.heads * value)

    def _delta_net(self) -> Shapes:
        config = self.config
        key_heads = config.needed("linear_num_key_heads")
        value_heads = config.needed("linear_num_value_heads")
        key = key_heads * config.needed("linear_key_head_dim")
        value = value_heads * config.needed("linear_value_head_dim")
        if self.arch == "qwen3next":
            yield "linear_attn.in_proj_qkvz", (2 * key + 2 * value, self.width)
            yield "linear_attn.in_proj_ba", (2 * value_heads, self.width)
        else:
            yield "linear_attn.in_proj_qkv", (2 * key + value, self.width)
            yield "linear_attn.in_proj_z", (value, self.width)
            yield "linear_attn.in_proj_a", (value_heads, self.width)
            yield "linear_attn.in_proj_b", (value_heads, self.width)
        yield "linear_attn.conv1d", (2 * key + value, 1, config.needed("linear_conv_kernel_dim"))
        yield "linear_attn.A_log", (value_heads,)
        yield "linear_attn.dt_bias", (value_heads,)
        yield "linear_attn.norm", (config.needed("linear_value_head_dim"),)
        yield "linear_attn.out_proj", (self.width, value)

    def _experts(self) -> Shapes:
        config, experts = self.config, self.experts
        size = config.needed("moe_intermediate_size", "intermediate_size")
        if self.arch == "gpt-oss":
            yield from self._packed_experts(size)
            return
        yield "mlp.gate", (experts, self.width)
        if self.arch == "glm4moe" or config.values.get("topk_method") == "noaux_tc":
            yield "mlp.gate.e_score_correction_bias", (experts,)
        yield "mlp.experts.gate_proj", (experts, size, self.width)
        yield "mlp.experts.up_proj", (experts, size, self.width)
        yield "mlp.experts.down_proj", (experts, self.width, size)
        shared = config.count("shared_expert_intermediate_size") or size * (
            config.count("n_shared_experts") or 0
        )
        if shared:
            yield "mlp.shared_experts.gate_proj", (shared, self.width)
            yield "mlp.shared_experts.up_proj", (shared, self.width)
            yield "mlp.shared_experts.down_proj", (self.width, shared)
        if config.count("shared_expert_intermediate_size"):
            yield "mlp.shared_expert_gate", (1, self.width)

    def _packed_experts(self, size: int) -> Shapes:
        """gpt-oss is published with its experts in MXFP4: 32 values in 16 bytes."""
        experts = self.experts
        yield "mlp.router", (experts, self.width)
        yield "mlp.router.bias", (experts,)
        yield "mlp.experts.gate_up_proj_blocks", (experts, 2 * size, self.width // 32, 16)
        yield "mlp.experts.down_proj_blocks", (experts, self.width, size // 32, 16)
        yield "mlp.experts.gate_up_proj_bias", (experts, 2 * size)
        yield "mlp.experts.down_proj_bias", (experts, self.width)


class _Gemma4(_Shaped):
    """Layers with and without a window have heads of their own; some have no K and V at all."""

    def all(self) -> Shapes:
        """Name and shape of each tensor, with the embeddings of each layer where there are any."""
        yield from super().all()
        if beside := self.config.count("hidden_size_per_layer_input"):
            rows = self.config.count("vocab_size_per_layer_input", "vocab_size") or 0
            yield "model.embed_tokens_per_layer.weight", (rows, beside * self.layers)
            shape = (beside * self.layers, self.width)
            yield "model.per_layer_model_projection.weight", shape
            yield "model.per_layer_projection_norm.weight", (beside,)

    def _layer(self, layer: int) -> Shapes:
        shares_kv = layer >= self.layers - (self.config.count("num_kv_shared_layers") or 0)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{name}_layernorm", (self.width,)
        yield "layer_scalar", (1,)
        yield from self._heads(layer, shares_kv)
        wide = self.config.values.get("use_double_wide_mlp") is True and shares_kv
        size = self.config.needed("intermediate_size") * (2 if wide else 1)
        yield "mlp.gate_proj", (size, self.width)
        yield "mlp.up_proj", (size, self.width)
        yield "mlp.down_proj", (self.width, size)
        if self.experts:
            yield from self._experts()
        if beside := self.config.count("hidden_size_per_layer_input"):
            yield "per_layer_input_gate", (beside, self.width)
            yield "per_layer_projection", (self.width, beside)
            yield "post_per_layer_input_norm", (self.width,)

    def _heads(self, layer: int, shares_kv: bool) -> Shapes:
        types = self.types or []
        full = layer >= len(types) or types[layer] == "full_attention"
        size, kv_heads = self.size, self.kv_heads
        if full:
            size = self.config.count("global_head_dim") or size
            kv_heads = self.config.count("num_global_key_value_heads") or kv_heads
        yield "self_attn.q_proj", (self.heads * size, self.width)
        yield "self_attn.q_norm", (size,)
        yield "self_attn.o_proj", (self.width, self.heads * size)
        if not shares_kv:
            yield "self_attn.k_proj", (kv_heads * size, self.width)
            yield "self_attn.k_norm", (size,)
        if not shares_kv and not (full and self.config.values.get("attention_k_eq_v") is True):
            yield "self_attn.v_proj", (kv_heads * size, self.width)

    def _experts(self) -> Shapes:
        size = self.config.needed("moe_intermediate_size", "expert_intermediate_size")
        for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1"):
            yield name, (self.width,)
        yield "post_feedforward_layernorm_2", (self.width,)
        yield "router.proj", (self.experts, self.width)
        yield "router.scale", (self.width,)
        yield "router.per_expert_scale", (self.experts,)
        yield "experts.gate_up_proj", (self.experts, 2 * size, self.width)
        yield "experts.down_proj", (self.experts, self.width, size)
