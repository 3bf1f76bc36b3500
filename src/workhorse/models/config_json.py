"""Reads a model's config.json into the metadata that its GGUF file would have."""

from collections.abc import Mapping
from typing import Any

import msgspec

from workhorse.errors import AppError
from workhorse.knowledge.checkpoints import CheckpointKind, checkpoint_kinds
from workhorse.models.header import KEPT_NUMBERS_MAX, Value
from workhorse.models.metadata import COUNT_MAX
from workhorse.models.refusals import damaged, shown, unsupported
from workhorse.text import Text
from workhorse.units import MIB

CONFIG_BYTES_MAX = MIB  # real ones have less than 100 kB; hostile JSON takes thirty times its size

# Weights packed in ways that llama.cpp does not convert, by `quantization_config.quant_method`.
PACKED = ("gptq", "awq", "bitsandbytes", "hqq", "aqlm", "exl2", "exl3", "eetq", "quip", "vptq")


class Config:
    """The values of a config.json, its text model's on top. Wrong types are AppErrors."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.name = name
        inner: Mapping[str, Any] = {}
        for key in ("text_config", "llm_config", "language_config", "thinker_config"):
            found = values.get(key)
            if isinstance(found, dict):
                inner = found
                break
        self.values: dict[str, Any] = {**values, **inner}
        names = values.get("architectures")
        first = names[0] if isinstance(names, list) and names else None
        self.architecture = first if isinstance(first, str) else ""
        self.model_type = shown(self._text("model_type")[:64])

    @property
    def kind(self) -> CheckpointKind | None:
        """What is known of its architecture."""
        return checkpoint_kinds().get(self.architecture)

    def count(self, *keys: str) -> int | None:
        """The first of `keys` that is there, a number from 0 to 2³² − 1."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= COUNT_MAX:
                raise damaged(self.name, f"{key} is not a count", f"{key} 不是计数值")
            return value
        return None

    def needed(self, *keys: str) -> int:
        """A number without which the model cannot be planned for."""
        value = self.count(*keys)
        if not value:
            raise damaged(self.name, f"{keys[0]} is missing", f"缺少 {keys[0]}")
        return value

    def layer_types(self) -> list[str] | None:
        """What each layer is (`full_attention`, `sliding_attention`, `linear_attention`)."""
        return self.words("layer_types")

    def words(self, key: str) -> list[str] | None:
        """A list of words, one a layer; None when there is none."""
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) > KEPT_NUMBERS_MAX:
            return None
        return [kind for kind in value if isinstance(kind, str)]

    def _text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""


def read_config(raw: bytes, name: str) -> Config:
    """The config of a model; AppError when it is none, or of a model that cannot be converted."""
    try:
        values = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, f"it is not JSON ({error})", f"不是 JSON（{error}）") from error
    if "num_hidden_layers" not in values and not any(isinstance(v, dict) for v in values.values()):
        raise unsupported(
            name,
            "it does not describe a language model",
            "它描述的不是语言模型",
            Text("Give the config.json of a model.", "请指定模型的 config.json。"),
        )
    config = Config(values, name)
    packing = config.values.get("quantization_config")
    method = packing.get("quant_method") if isinstance(packing, dict) else None
    if isinstance(method, str) and method.lower() in PACKED:
        raise _packed(name, method.upper())
    return config


def _packed(name: str, method: str) -> AppError:
    return unsupported(
        name,
        f"its weights are packed as {shown(method)}, which llama.cpp does not convert",
        f"其权重为 {shown(method)} 打包格式，llama.cpp 无法转换",
        Text(
            "Take the original model, or a GGUF file of it.",
            "请改用原始模型，或该模型的 GGUF 文件。",
        ),
    )


def gguf_values(config: Config, layers: int) -> dict[str, Value]:
    """The metadata that a converter would write, as far as plans need it.

    `layers` counts those of multi-token prediction that the converter keeps. Keys and rules:
    `set_gguf_parameters` of llama.cpp's conversion/*.py, commit 0c1e57098, 2026-10-01.
    """
    kind = config.kind
    arch = kind.gguf if kind is not None else config.model_type or "unknown"
    main = config.needed("num_hidden_layers", "n_layer", "n_layers")
    head_size = config.count("head_dim") or (kind.head_size if kind is not None else None)
    counts = {
        "block_count": layers,
        "context_length": config.count("max_position_embeddings", "n_positions"),
        "embedding_length": config.needed("hidden_size", "n_embd"),
        "feed_forward_length": config.count("intermediate_size"),
        "attention.head_count": config.count("num_attention_heads", "n_head")
        or (kind.heads if kind is not None else None),
        "attention.head_count_kv": config.count("num_key_value_heads")
        or (kind.kv_heads if kind is not None else None),
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "expert_count": config.count("num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": config.count(
            "num_experts_per_tok", "num_experts_per_token", "top_k_experts"
        ),
        "expert_feed_forward_length": config.count(
            "moe_intermediate_size",
            "expert_intermediate_size",
            *(("intermediate_size",) if arch == "gpt-oss" else ()),
        ),
        "expert_shared_count": config.count("n_shared_experts"),
        "expert_shared_feed_forward_length": config.count("shared_expert_intermediate_size"),
        "leading_dense_block_count": config.count("first_k_dense_replace"),
        "vocab_size": config.count("vocab_size"),
        "nextn_predict_layers": layers - main or None,
        "attention.shared_kv_layers": config.count("num_kv_shared_layers"),
        "embedding_length_per_layer_input": config.count("hidden_size_per_layer_input"),
        "hyper_connection.count": config.count("hc_count"),
    }
    values: dict[str, Value] = {
        f"{arch}.{key}": value for key, value in counts.items() if value is not None
    }
    values["general.architecture"] = arch
    values |= {f"{arch}.{key}": value for key, value in _window(config).items()}
    if kind is not None and kind.attention == "mla":
        values |= {f"{arch}.{key}": value for key, value in _latent(config).items()}
    if kind is not None and kind.attention == "delta_net":
        values |= {f"{arch}.{key}": value for key, value in _delta_net(config, layers).items()}
    if kind is not None:
        values |= {f"{arch}.{key}": value for key, value in _sparse(config).items()}
    if arch == "gemma4":
        values |= {f"{arch}.{key}": value for key, value in _gemma4(config, main).items()}
    return values


def _window(config: Config) -> dict[str, Value]:
    kind = config.kind
    window = config.count("sliding_window")
    if not window or (kind is not None and not kind.window):
        return {}
    values: dict[str, Value] = {"attention.sliding_window": window}
    types = config.layer_types()
    known = ("sliding_attention", "full_attention")
    if kind is None and types and all(layer in known for layer in types):
        values["attention.sliding_window_pattern"] = tuple(
            layer == "sliding_attention" for layer in types
        )
    return values


def _latent(config: Config) -> dict[str, Value]:
    """Multi-head latent attention: one KV head that holds the compressed K and V."""
    rank, rope = config.needed("kv_lora_rank"), config.needed("qk_rope_head_dim")
    values: dict[str, Value] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": config.needed("qk_nope_head_dim") + rope,
        "attention.value_length_mla": config.needed("v_head_dim"),
        "rope.dimension_count": rope,
    }
    if (query := config.count("q_lora_rank")) is not None:
        values["attention.q_lora_rank"] = query
    return values


def _delta_net(config: Config, layers: int) -> dict[str, Value]:
    value_heads = config.needed("linear_num_value_heads")
    values: dict[str, Value] = {
        "ssm.conv_kernel": config.needed("linear_conv_kernel_dim"),
        "ssm.state_size": config.needed("linear_key_head_dim"),
        "ssm.group_count": config.needed("linear_num_key_heads"),
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": config.needed("linear_value_head_dim") * value_heads,
        "full_attention_interval": config.count("full_attention_interval") or 4,
    }
    types = config.layer_types()
    if types is not None and len(types) <= layers:
        recurrent = [kind == "linear_attention" for kind in types]
        values["attention.recurrent_layers"] = (*recurrent, *[False] * (layers - len(recurrent)))
    return values


def _sparse(config: Config) -> dict[str, Value]:
    """Sparse attention that chooses by an index, and tables of n-grams beside the layers."""
    counts = {
        "attention.indexer.head_count": config.count("index_n_heads", "indexer_n_heads"),
        "attention.indexer.key_length": config.count("index_head_dim", "indexer_head_dim"),
        "attention.indexer.top_k": config.count("index_topk", "indexer_budget"),
        "ple.ngram_size": config.count("ngram_size"),
        "ple.conv_kernel": config.count("ple_conv_kernel_size"),
    }
    values: dict[str, Value] = {key: value for key, value in counts.items() if value is not None}
    chosen = config.words("indexer_types")
    if chosen:
        values["attention.indexer.types"] = tuple(kind == "full" for kind in chosen)
    ratio, types = config.count("indexer_compress_ratio"), config.layer_types()
    if ratio is not None and types is not None:
        values["attention.compress_ratios"] = tuple(
            ratio if kind == "full_attention" else 0 for kind in types
        )
    tables = config.values.get("ple_layer_ids")
    if isinstance(tables, list) and 0 < len(tables) <= KEPT_NUMBERS_MAX:
        layers = [layer for layer in tables if type(layer) is int and 0 < layer <= COUNT_MAX]
        values["ple.layers"] = tuple(layer - 1 for layer in layers)
    return values


def _gemma4(config: Config, layers: int) -> dict[str, Value]:
    """Layers with a window and layers without have heads of different size and number."""
    types = config.layer_types() or []
    if len(types) != layers:
        raise damaged(config.name, "layer_types does not fit", "layer_types 与层数不符")
    narrow = [kind == "sliding_attention" for kind in types]
    values: dict[str, Value] = {
        "attention.sliding_window_pattern": tuple(narrow),
        "embedding_length_per_layer_input": config.count("hidden_size_per_layer_input") or 0,
    }
    if config.values.get("use_double_wide_mlp") is True:
        own, width = (
            layers - (config.count("num_kv_shared_layers") or 0),
            config.needed("intermediate_size"),
        )
        values["feed_forward_length"] = tuple(
            width if layer < own else 2 * width for layer in range(layers)
        )
    size = config.count("head_dim")
    full = config.count("global_head_dim") or size
    for key, value in (("", full), ("_swa", size)):
        if value is not None:
            values[f"attention.key_length{key}"] = value
            values[f"attention.value_length{key}"] = value
    heads, wide = config.count("num_key_value_heads"), config.count("num_global_key_value_heads")
    if heads is not None and wide is not None:
        values["attention.head_count_kv"] = tuple(heads if yes else wide for yes in narrow)
    return values
