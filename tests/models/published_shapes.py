"""Headers of published models, made from their published shapes: no weights, a few kB each.

Widths, heads and layers are those of the models' `config.json`; tensor names and shapes are what
llama.cpp (commit 0c1e57098) loads: it accepts every one of these files. The vocabulary is left
out (`tokenizer.ggml.model` = `none`), only its size counts for memory.
"""

from dataclasses import dataclass, field

import gguf_builder as g
from gguf_builder import Gguf

MATRIX_TYPES = {
    "f16": g.F16_TENSOR,
    "q8_0": g.Q8_0_TENSOR,
    "q4_0": g.Q4_0_TENSOR,
    "q4_k": g.Q4_K_TENSOR,
    "mxfp4": g.MXFP4_TENSOR,
}


@dataclass
class Experts:
    """The mixture of experts of a model."""

    count: int
    used: int
    width: int
    shared_width: int = 0
    dense_first: int = 0  # layers before the first mixture


@dataclass
class Delta:
    """The gated delta net of the Qwen hybrids; key heads, value heads and one size for both."""

    key_heads: int
    value_heads: int
    size: int = 128
    interval: int = 4


@dataclass
class Latent:
    """Multi-head latent attention."""

    query_rank: int | None
    rank: int
    plain: int  # of a query or key head, without position
    rotated: int
    value: int


@dataclass
class Published:
    """A model as published."""

    arch: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    forward: int
    tied: bool = False
    type: str = "q4_k"
    window: int | None = None
    experts: Experts | None = None
    delta: Delta | None = None
    latent: Latent | None = None
    draft: int = 0
    extra: dict[str, tuple[int, object]] = field(default_factory=dict)

    def header(self) -> Gguf:
        """The file without its weights."""
        return Maker(self).make()


class Maker:
    """Writes the keys and tensors of one model in the engine's words."""

    def __init__(self, shape: Published) -> None:
        self.s = shape
        self.file = Gguf().key("general.architecture", g.STR, shape.arch)

    def make(self) -> Gguf:
        """All keys and tensors."""
        s = self.s
        self.keys()
        self.matrix("token_embd", s.width, s.vocabulary)
        self.vector("output_norm", s.width)
        if not s.tied:
            self.matrix("output", s.width, s.vocabulary)
        for layer in range(s.layers + s.draft):
            self.layer(layer)
        return self.file

    def key(self, name: str, value: float, kind: int = g.U32) -> None:
        """A key of the architecture."""
        self.file.key(f"{self.s.arch}.{name}", kind, value)

    def matrix(self, name: str, *shape: int) -> None:
        """A weight of the model's type; a row that is no whole number of blocks takes Q8_0, F16."""
        kinds = [MATRIX_TYPES[self.s.type], g.Q8_0_TENSOR, g.F16_TENSOR]
        kind = next(k for k in kinds if shape[0] % g.BYTES[k][0] == 0)
        self.file.tensor(f"{name}.weight", shape, kind)

    def vector(self, name: str, *shape: int, ending: str = ".weight") -> None:
        """A weight that stays F32."""
        self.file.tensor(name + ending, shape)

    def keys(self) -> None:
        """What llama.cpp asks of every architecture here."""
        s = self.s
        self.file.key("tokenizer.ggml.model", g.STR, "none")
        for name, value in (
            ("vocab_size", s.vocabulary),
            ("context_length", 131072),
            ("embedding_length", s.width),
            ("block_count", s.layers + s.draft),
            ("feed_forward_length", s.forward),
            ("attention.head_count", s.heads),
            ("attention.head_count_kv", 1 if s.latent else s.kv_heads),
        ):
            self.key(name, value)
        self.key("attention.layer_norm_rms_epsilon", 1e-6, g.F32)
        if s.latent:
            self.latent_keys(s.latent)
        else:
            self.key("attention.key_length", s.head)
            self.key("attention.value_length", s.head)
        if s.window:
            self.key("attention.sliding_window", s.window)
        if s.draft:
            self.key("nextn_predict_layers", s.draft)
        if s.experts:
            self.expert_keys(s.experts)
        if s.delta:
            self.delta_keys(s.delta)
        for name, (kind, value) in s.extra.items():
            if isinstance(value, list):
                self.file.list(f"{s.arch}.{name}", kind, value)
            else:
                self.file.key(f"{s.arch}.{name}", kind, value)

    def latent_keys(self, latent: Latent) -> None:
        """MLA as the engine stores it: one key head of rank + rotated."""
        self.key("attention.key_length", latent.rank + latent.rotated)
        self.key("attention.value_length", latent.rank)
        self.key("attention.key_length_mla", latent.plain + latent.rotated)
        self.key("attention.value_length_mla", latent.value)
        self.key("attention.kv_lora_rank", latent.rank)
        if latent.query_rank:
            self.key("attention.q_lora_rank", latent.query_rank)
        self.key("rope.dimension_count", latent.rotated)

    def expert_keys(self, experts: Experts) -> None:
        """Counts and widths of the experts."""
        self.key("expert_count", experts.count)
        self.key("expert_used_count", experts.used)
        self.key("expert_feed_forward_length", experts.width)
        self.key("leading_dense_block_count", experts.dense_first)
        if experts.shared_width:
            self.key("expert_shared_count", max(experts.shared_width // experts.width, 1))
            self.key("expert_shared_feed_forward_length", experts.shared_width)
        self.key("expert_weights_scale", 1.0, g.F32)
        self.key("expert_gating_func", 2)

    def delta_keys(self, delta: Delta) -> None:
        """The state of a gated delta net in the words of Mamba."""
        self.key("ssm.conv_kernel", 4)
        self.key("ssm.inner_size", delta.value_heads * delta.size)
        self.key("ssm.state_size", delta.size)
        self.key("ssm.time_step_rank", delta.value_heads)
        self.key("ssm.group_count", delta.key_heads)
        self.key("full_attention_interval", delta.interval)
        self.key("rope.dimension_count", 64)
        self.file.list(f"{self.s.arch}.rope.dimension_sections", g.I32, [11, 11, 10, 0])

    def layer(self, layer: int) -> None:
        """Attention or recurrence, then the feed-forward part."""
        s, blk = self.s, f"blk.{layer}."
        self.vector(blk + "attn_norm", s.width)
        draft = layer >= s.layers
        if s.delta and not draft and (layer + 1) % s.delta.interval:
            self.delta_net(blk, s.delta)
        elif s.latent:
            self.latent_attention(blk, s.latent)
        else:
            self.attention(blk)
        norms = {
            "gemma2": ("post_attention_norm", "ffn_norm", "post_ffw_norm"),
            "gemma3": ("post_attention_norm", "ffn_norm", "post_ffw_norm"),
            "glm4": ("post_attention_norm", "ffn_norm", "post_ffw_norm"),
            "glm4moe": ("post_attention_norm",),
            "gpt-oss": ("post_attention_norm",),
            "qwen35": ("post_attention_norm",),
            "qwen35moe": ("post_attention_norm",),
            "qwen3next": ("post_attention_norm",),
        }
        for name in norms.get(s.arch, ("ffn_norm",)):
            self.vector(blk + name, s.width)
        if s.experts and layer >= s.experts.dense_first:
            self.mixture(blk, s.experts)
        else:
            self.dense(blk)
        if draft:
            self.matrix(blk + "nextn.eh_proj", 2 * s.width, s.width)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                self.vector(f"{blk}nextn.{name}", s.width)

    def attention(self, blk: str) -> None:
        """Queries, keys, values and output, with what each family adds."""
        s = self.s
        queries, keys = s.heads * s.head, s.kv_heads * s.head
        if s.arch == "phi3":
            self.matrix(blk + "attn_qkv", s.width, queries + 2 * keys)
        else:
            self.matrix(blk + "attn_q", s.width, queries * (2 if s.delta else 1))
            self.matrix(blk + "attn_k", s.width, keys)
            self.matrix(blk + "attn_v", s.width, keys)
        self.matrix(blk + "attn_output", queries, s.width)
        if s.arch in ("qwen2", "glm4moe", "gpt-oss"):
            for name, size in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
                self.vector(blk + name, size, ending=".bias")
        if s.arch == "gpt-oss":
            self.vector(blk + "attn_output", s.width, ending=".bias")
            self.vector(blk + "attn_sinks", s.heads)
        if s.arch in ("qwen3", "qwen3moe", "gemma3") or s.delta:
            self.vector(blk + "attn_q_norm", s.head)
            self.vector(blk + "attn_k_norm", s.head)

    def latent_attention(self, blk: str, latent: Latent) -> None:
        """Queries by way of a low rank where there is one, keys and values out of the latent."""
        s, head = self.s, latent.plain + latent.rotated
        if latent.query_rank:
            self.matrix(blk + "attn_q_a", s.width, latent.query_rank)
            self.vector(blk + "attn_q_a_norm", latent.query_rank)
            self.matrix(blk + "attn_q_b", latent.query_rank, s.heads * head)
        else:
            self.matrix(blk + "attn_q", s.width, s.heads * head)
        self.matrix(blk + "attn_kv_a_mqa", s.width, latent.rank + latent.rotated)
        self.vector(blk + "attn_kv_a_norm", latent.rank)
        self.matrix(blk + "attn_k_b", latent.plain, latent.rank, s.heads)
        self.matrix(blk + "attn_v_b", latent.rank, latent.value, s.heads)
        self.matrix(blk + "attn_output", s.heads * latent.value, s.width)

    def delta_net(self, blk: str, delta: Delta) -> None:
        """A gated delta net layer."""
        s = self.s
        values, keys = delta.value_heads * delta.size, delta.key_heads * delta.size
        self.matrix(blk + "attn_qkv", s.width, 2 * keys + values)
        self.matrix(blk + "attn_gate", s.width, values)
        self.vector(blk + "ssm_conv1d", 4, 2 * keys + values)
        self.vector(blk + "ssm_dt", delta.value_heads, ending=".bias")
        self.vector(blk + "ssm_a", delta.value_heads, ending="")
        if s.arch == "qwen3next":
            self.matrix(blk + "ssm_ba", s.width, 2 * delta.value_heads)
        else:
            self.matrix(blk + "ssm_beta", s.width, delta.value_heads)
            self.matrix(blk + "ssm_alpha", s.width, delta.value_heads)
        self.vector(blk + "ssm_norm", delta.size)
        self.matrix(blk + "ssm_out", values, s.width)

    def dense(self, blk: str) -> None:
        """Gate, up and down; one matrix for gate and up in two families."""
        s = self.s
        if s.arch in ("phi3", "glm4"):
            self.matrix(blk + "ffn_up", s.width, 2 * s.forward)
        else:
            self.matrix(blk + "ffn_gate", s.width, s.forward)
            self.matrix(blk + "ffn_up", s.width, s.forward)
        self.matrix(blk + "ffn_down", s.forward, s.width)

    def mixture(self, blk: str, experts: Experts) -> None:
        """Router, experts, and the shared expert."""
        s = self.s
        self.vector(blk + "ffn_gate_inp", s.width, experts.count)
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            self.matrix(blk + name, s.width, experts.width, experts.count)
        self.matrix(blk + "ffn_down_exps", experts.width, s.width, experts.count)
        if s.arch == "gpt-oss":
            self.vector(blk + "ffn_gate_inp", experts.count, ending=".bias")
            for name, size in (
                ("ffn_gate_exps", experts.width),
                ("ffn_up_exps", experts.width),
                ("ffn_down_exps", s.width),
            ):
                self.vector(blk + name, size, experts.count, ending=".bias")
        if s.arch == "glm4moe":
            self.vector(blk + "exp_probs_b", experts.count, ending=".bias")
        if experts.shared_width:
            if s.delta:
                self.vector(blk + "ffn_gate_inp_shexp", s.width)
            self.matrix(blk + "ffn_gate_shexp", s.width, experts.shared_width)
            self.matrix(blk + "ffn_up_shexp", s.width, experts.shared_width)
            self.matrix(blk + "ffn_down_shexp", experts.shared_width, s.width)


# Positional: layers, width, heads, KV heads, head size, vocabulary, feed-forward width. From the
# models' config.json files (2024-2026).
PUBLISHED: dict[str, Published] = {
    "Qwen2.5-0.5B": Published("qwen2", 24, 896, 14, 2, 64, 151936, 4864, tied=True, type="q8_0"),
    "Qwen2.5-7B": Published("qwen2", 28, 3584, 28, 4, 128, 152064, 18944),
    "Qwen3-0.6B": Published("qwen3", 28, 1024, 16, 8, 128, 151936, 3072, tied=True, type="f16"),
    "Qwen3-8B": Published("qwen3", 36, 4096, 32, 8, 128, 151936, 12288),
    "Qwen3-30B-A3B": Published(
        "qwen3moe", 48, 2048, 32, 4, 128, 151936, 6144, experts=Experts(128, 8, 768)
    ),
    "Qwen3-Next-80B-A3B": Published(
        "qwen3next", 48, 2048, 16, 2, 256, 151936, 5120,
        experts=Experts(512, 10, 512, 512), delta=Delta(16, 32),
    ),
    "Qwen3.5-0.8B": Published(
        "qwen35", 24, 1024, 8, 2, 256, 248320, 3584, tied=True, type="q8_0", delta=Delta(16, 16)
    ),
    "Qwen3.5-27B": Published("qwen35", 64, 5120, 24, 4, 256, 248320, 17408, delta=Delta(16, 48)),
    "Qwen3.5-35B-A3B": Published(
        "qwen35moe", 40, 2048, 16, 2, 256, 248320, 512,
        experts=Experts(256, 8, 512, 512), delta=Delta(16, 32),
    ),
    "Llama-3.1-8B": Published("llama", 32, 4096, 32, 8, 128, 128256, 14336),
    "Llama-3.2-1B": Published("llama", 16, 2048, 32, 8, 64, 128256, 8192, tied=True, type="f16"),
    "Llama-3.3-70B": Published("llama", 80, 8192, 64, 8, 128, 128256, 28672),
    "Mistral-7B-v0.3": Published("llama", 32, 4096, 32, 8, 128, 32768, 14336, type="q8_0"),
    "Mixtral-8x7B": Published(
        "llama", 32, 4096, 32, 8, 128, 32000, 14336, experts=Experts(8, 2, 14336)
    ),
    "Gemma-2-9B": Published(
        "gemma2", 42, 3584, 16, 8, 256, 256000, 14336, tied=True, window=4096
    ),
    "Gemma-3-1B": Published("gemma3", 26, 1152, 4, 1, 256, 262144, 6912, tied=True, window=512),
    "Gemma-3-12B": Published("gemma3", 48, 3840, 16, 8, 256, 262208, 15360, tied=True, window=1024),
    "GLM-4-9B-0414": Published("glm4", 40, 4096, 32, 2, 128, 151552, 13696),
    "GLM-4.5-Air": Published(
        "glm4moe", 46, 4096, 96, 8, 128, 151552, 10944, draft=1,
        experts=Experts(128, 8, 1408, 1408, dense_first=1),
    ),
    "GLM-4.7-Flash": Published(
        "deepseek2", 47, 2048, 20, 20, 256, 154880, 10240,
        experts=Experts(64, 4, 1536, 1536, dense_first=1), latent=Latent(768, 512, 192, 64, 256),
    ),
    "DeepSeek-V2-Lite": Published(
        "deepseek2", 27, 2048, 16, 16, 192, 102400, 10944,
        experts=Experts(64, 6, 1408, 2816, dense_first=1), latent=Latent(None, 512, 128, 64, 128),
    ),
    "DeepSeek-V3": Published(
        "deepseek2", 61, 7168, 128, 128, 192, 129280, 18432,
        experts=Experts(256, 8, 2048, 2048, dense_first=3), latent=Latent(1536, 512, 128, 64, 128),
    ),
    "gpt-oss-20b": Published(
        "gpt-oss", 24, 2880, 64, 8, 64, 201088, 2880, type="mxfp4", window=128,
        experts=Experts(32, 4, 2880),
    ),
    "phi-4": Published("phi3", 40, 5120, 40, 10, 128, 100352, 17920),
}  # fmt: skip
