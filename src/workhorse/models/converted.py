"""Turns a checkpoint's tensors into those that its GGUF file would have, one file after another."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from workhorse.errors import AppError
from workhorse.knowledge.checkpoints import CheckpointKind, layer_tensor_names, model_tensor_names
from workhorse.models.config_json import Config
from workhorse.models.header import TENSORS_MAX
from workhorse.models.refusals import damaged, shown, unsupported
from workhorse.models.safetensors import RawTensor
from workhorse.plan.quant_mix import layer_of, tensor_bytes
from workhorse.records import Tensor
from workhorse.text import Text

LAYERS_MAX = 512  # LLAMA_MAX_LAYERS, src/llama-hparams.h of llama.cpp
EXPERTS_MAX = 4096  # LLAMA_MAX_EXPERTS is 1,024 (2026-10); more is a hostile name
# Experts lie one by one in a checkpoint: Kimi K2 has 140,000 tensors with their scales. At this
# bound a hostile checkpoint costs some ten seconds.
SOURCE_TENSORS_MAX = 300_000

_LAYER = re.compile(r"layers\.(\d{1,4})\.(.+)", re.ASCII)
_EXPERT = re.compile(r"(.*\bexperts)\.(\d{1,5})\.(.+)", re.ASCII)
_MTP_LAYER = re.compile(r"mtp\.layers\.(\d{1,2})\.(.+)", re.ASCII)
# Names of which the last part is no `weight` or `bias`.
_WHOLE_NAMES = {
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
_MTP_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
# Towers for images and sound go to a file of their own (mmproj); the rest is no weight.
_ELSEWHERE = (
    "visual.", "vision_tower.", "vision_model.", "vision_encoder.", "vision_embed_tokens.",
    "multi_modal_projector.", "multimodal_projector.", "mm_projector.", "audio_tower.",
    "audio_encoder.", "embed_vision.", "embed_audio.", "patch_merger.", "aligner.", "talker.",
    "token2wav.", "code2wav.", "image_newline", "connector.",
)  # fmt: skip
_NO_WEIGHTS = (
    ".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias", ".weight_scale_inv",
    ".weight_scale", ".input_scale", ".scale", ".k_scale", ".v_scale", ".activation_scale",
)  # fmt: skip
_PACKED = (".qweight", ".qzeros", ".weight_packed", ".absmax", ".quant_map", ".g_idx", ".SCB")
# Two-dimensional weights that a converter leaves in F32 (prepare_tensors, conversion/base.py).
_SMALL = ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "indexer.proj")
_TYPES = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f32"}


@dataclass(slots=True)
class _Making:
    """A GGUF tensor in the making; `shape` in GGUF's order without the experts."""

    shape: tuple[int, ...]
    type: str
    experts: int = 0


class Conversion:
    """Takes the tensors of all files of a checkpoint and gives those of its GGUF file."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._name = config.name
        self._kind = config.kind or CheckpointKind((), "")
        self._layers = config.needed("num_hidden_layers", "n_layer", "n_layers")
        if self._layers > LAYERS_MAX:
            raise damaged(
                self._name, f"it claims {self._layers} layers", f"声称有 {self._layers} 层"
            )
        self._made: dict[str, _Making] = {}
        self._shards: dict[str, int] = {}  # rows of a table that is spread over several tensors
        self.layers = self._layers
        self.unknown = 0  # tensors of which the GGUF name is not known
        self._seen = 0

    def add(self, tensors: Iterable[RawTensor]) -> None:
        """The tensors of one file."""
        for raw in tensors:
            self._seen += 1
            self._add(raw)
            if len(self._made) > TENSORS_MAX or self._seen > SOURCE_TENSORS_MAX:
                raise damaged(self._name, "it has too many tensors", "张量过多")

    def tensors(self) -> tuple[Tensor, ...]:
        """What a converter would write before it is quantised, offsets from the first one."""
        done, offset = [], 0
        self._add_rope_factors()
        for name in sorted(self._made, key=lambda name: (layer_of(name), name)):
            making = self._made[name]
            shape = (*making.shape, making.experts) if making.experts else making.shape
            n_bytes = tensor_bytes(making.type, shape)
            done.append(Tensor(name, making.type, shape, n_bytes, offset))
            offset += n_bytes
        if "token_embd.weight" not in self._made:
            raise self._without_embedding()
        return tuple(done)

    def _without_embedding(self) -> AppError:
        if self._config.kind is not None:
            return damaged(self._name, "its token embedding is missing", "缺少词嵌入张量")
        arch = shown(self._config.architecture[:80]) or "it"
        return unsupported(
            self._name,
            f"{arch} names its tensors in a way that this version does not know",
            f"{arch} 的张量命名方式是本版本不认识的",
            Text("Take a GGUF file of the model.", "请改用该模型的 GGUF 文件。"),
        )

    def _add_rope_factors(self) -> None:
        """The small table that a converter makes from the scaling of Llama 3 and Gemma 4."""
        values = self._config.values
        scaling = values.get("rope_scaling") or values.get("rope_parameters") or {}
        kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
        heads = self._config.count("num_attention_heads") or 1
        size = self._config.count("global_head_dim", "head_dim")
        size = size or self._config.needed("hidden_size", "n_embd") // heads
        if (kind == "llama3" or self._kind.gguf == "gemma4") and size >= 2:
            self._make("rope_freqs.weight", (size // 2,), "f32")

    def _add(self, raw: RawTensor) -> None:
        if raw.name.endswith(_PACKED):
            raise unsupported(
                self._name,
                f"its weights are packed (“{shown(raw.name)}”), which llama.cpp does not convert",
                f"其权重为打包格式（“{shown(raw.name)}”），llama.cpp 无法转换",
                Text("Take the original model, or a GGUF file.", "请改用原始模型或 GGUF 文件。"),
            )
        name = _plain(raw.name)
        if name.startswith(_ELSEWHERE) or not raw.shape or 0 in raw.shape:
            return
        if name.endswith(_NO_WEIGHTS) and not name.endswith(tuple(_WHOLE_NAMES)):
            return
        name = self._mtp(name)
        match = _LAYER.match(name)
        if match is None:
            stem, ending = _ending(name)
            tied = self._config.values.get("tie_word_embeddings") is True
            if stem == "lm_head" and (self._kind.drops_head or tied):
                return
            known = model_tensor_names().get(stem)
            if not name.startswith("mtp."):
                self._put(known, raw, raw.shape, ending, name)
            return
        layer, rest = int(match[1]), match[2]
        if layer >= self._layers and self._kind.mtp == "none":
            return
        if layer >= LAYERS_MAX:
            raise damaged(self._name, f"it has a layer {layer}", f"含有第 {layer} 层")
        self.layers = max(self.layers, layer + 1)
        if ".ngram_embedding.shard_" in rest:
            self._add_table(raw)
            return
        if "ple_embedding." in rest:  # the constants of its hash become metadata
            return
        self._add_to_layer(raw, layer, rest)

    def _mtp(self, name: str) -> str:
        """Layers of multi-token prediction that lie apart come after the last layer."""
        if self._kind.mtp != "apart" or not name.startswith("mtp."):
            return name
        match = _MTP_LAYER.match(name)
        if match is not None:
            return f"layers.{self._layers + int(match[1])}.{match[2]}"
        stem, ending = _ending(name.removeprefix("mtp."))
        if stem not in _MTP_NAMES:
            return name
        return f"layers.{self._layers}.{_MTP_NAMES[stem]}.{ending}"

    def _add_to_layer(self, raw: RawTensor, layer: int, rest: str) -> None:
        match = _EXPERT.match(rest)
        expert = None
        if match is not None:
            rest, expert = f"{match[1]}.{match[3]}", int(match[2])
            if expert >= EXPERTS_MAX:
                raise damaged(self._name, f"it has an expert {expert}", f"含有第 {expert} 个专家")
        stem, ending = _ending(rest)
        prefix = f"blk.{layer}."
        if rest in _WHOLE_NAMES:
            self._put(prefix + _WHOLE_NAMES[rest], raw, raw.shape, "", rest)
            return
        if self._add_parts(raw, prefix, stem, ending):
            return
        if stem == "post_attention_layernorm":
            known: str | None = self._kind.ffn_norm
        else:
            known = layer_tensor_names().get(stem)
        full = None if known is None else prefix + known
        shape = raw.shape
        if known in ("ssm_conv1d", "ple_conv1d"):
            shape = tuple(size for size in shape if size > 1) or (1,)
        self._put(full, raw, shape, ending, f"{prefix}{rest}", expert=expert)

    def _add_parts(self, raw: RawTensor, prefix: str, stem: str, ending: str) -> bool:
        """Tensors that a converter takes apart; False for all others."""
        shape, config = raw.shape, self._config
        if stem == "self_attn.kv_b_proj" and len(shape) == 2:
            heads = config.needed("num_attention_heads")
            nope, value = config.needed("qk_nope_head_dim"), config.needed("v_head_dim")
            self._put(f"{prefix}attn_k_b", raw, (heads, shape[1], nope), ending, stem)
            self._put(f"{prefix}attn_v_b", raw, (heads, value, shape[1]), ending, stem)
        elif stem == "linear_attn.in_proj_qkvz" and len(shape) == 2:
            gate = config.needed("linear_num_value_heads") * config.needed("linear_value_head_dim")
            self._put(f"{prefix}attn_qkv", raw, (max(1, shape[0] - gate), shape[1]), ending, stem)
            self._put(f"{prefix}attn_gate", raw, (gate, shape[1]), ending, stem)
        elif stem == "self_attn.indexer.index_qk_proj" and len(shape) == 2:
            query = config.needed("indexer_n_heads") * config.needed("indexer_head_dim")
            rest = (max(1, shape[0] - query), shape[1])
            self._put(f"{prefix}indexer.q_proj", raw, (query, shape[1]), ending, stem)
            self._put(f"{prefix}indexer.k_proj", raw, rest, ending, stem)
        elif stem.endswith("experts.gate_up_proj") and not self._kind.fused_experts:
            self._add_gate_and_up(raw, prefix, ending)
        elif stem.endswith("experts.down_proj") and self._kind.gguf == "gpt-oss":
            turned = (shape[0], shape[2], shape[1]) if len(shape) == 3 else shape
            turned = turned if ending == "weight" else shape
            self._add_stacked(raw, f"{prefix}ffn_down_exps", ending, turned)
        else:
            return False
        return True

    def _add_gate_and_up(self, raw: RawTensor, prefix: str, ending: str) -> None:
        """Gate and up of all experts in one tensor; rows first or, in gpt-oss, last."""
        shape = raw.shape
        if self._kind.gguf == "gpt-oss" and ending == "weight" and len(shape) == 3:
            shape = (shape[0], shape[2], shape[1])
        if len(shape) < 2 or shape[1] % 2:
            raise damaged(
                self._name,
                f"“{shown(raw.name)}” has the shape {list(shape)}",
                f"“{shown(raw.name)}”的形状为 {list(shape)}",
            )
        half = (shape[0], shape[1] // 2, *shape[2:])
        for part in ("gate", "up"):
            self._add_stacked(raw, f"{prefix}ffn_{part}_exps", ending, half)

    def _add_stacked(self, raw: RawTensor, full: str, ending: str, shape: tuple[int, ...]) -> None:
        """A tensor of all experts; blocks of MXFP4 hold 32 values in 16 bytes."""
        if ending == "scales":
            return
        if ending == "blocks" and len(shape) == 4:
            self._make(f"{full}.weight", (shape[2] * 32, shape[1], shape[0]), "mxfp4")
            return
        self._put(full, raw, shape, "bias" if ending == "bias" else "weight", full)

    def _add_table(self, raw: RawTensor) -> None:
        """One part of the n-gram table: the rows add up."""
        name = "per_layer_token_embd.weight"
        rows = self._shards.get(name, 0) + raw.shape[0]
        self._shards[name] = rows
        self._made.pop(name, None)
        self._make(name, (math.prod(raw.shape[1:]), rows), self._type(raw))

    def _put(
        self,
        known: str | None,
        raw: RawTensor,
        shape: tuple[int, ...],
        ending: str,
        plain: str,
        *,
        expert: int | None = None,
    ) -> None:
        if known is None:
            self.unknown += 1
        full = plain if known is None else f"{known}.{ending}" if ending else known
        self._make(full, tuple(reversed(shape)), self._type(raw, full, shape), expert)

    def _type(self, raw: RawTensor, full: str = "", shape: tuple[int, ...] = (2, 2)) -> str:
        stem = full.rpartition(".")[0].partition(".")[2].partition(".")[2]
        if len(shape) < 2 or full.endswith("_norm.weight") or stem in _SMALL:
            return "f32"
        if full and not full.endswith(".weight"):
            return "f32"
        return _TYPES.get(raw.dtype, "bf16")

    def _make(
        self, full: str, shape: tuple[int, ...], type_name: str, expert: int | None = None
    ) -> None:
        if not 0 < math.prod(shape) < 2**63 or len(shape) > 4 or not full.isprintable():
            raise damaged(
                self._name,
                f"“{shown(full)}” has the shape {list(shape)}",
                f"“{shown(full)}”的形状为 {list(shape)}",
            )
        making = self._made.setdefault(full, _Making(shape, type_name))
        if making.shape != shape or (expert is None and making.experts):
            raise damaged(
                self._name,
                f"“{shown(full)}” is there in two shapes",
                f"“{shown(full)}”有两种形状",
            )
        if expert is not None:
            making.experts = max(making.experts, expert + 1)


def _plain(name: str) -> str:
    """The name without what makers put before it."""
    for prefix in ("model.language_model.", "language_model.model.", "thinker.model."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    for prefix in ("language_model.", "thinker.", "model.text_model.", "model.", "text_model."):
        name = name.removeprefix(prefix)
    return name


def _ending(name: str) -> tuple[str, str]:
    """A name and what stands behind its last dot: `weight`, `bias` and such; else `weight`."""
    stem, _, ending = name.rpartition(".")
    if ending in ("weight", "bias"):
        return stem, ending
    for word in ("blocks", "scales", "bias"):  # gpt-oss: `down_proj_blocks`
        if ending.endswith(f"_{word}") and ".experts." in f".{name}":
            return name.removesuffix(f"_{word}"), word
    return name, "weight"
