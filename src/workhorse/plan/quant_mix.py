"""The sizes that a model's tensors would have at another quantisation, by llama.cpp's own rules."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from workhorse.knowledge.quant_mixes import (
    Part,
    QuantMix,
    When,
    fallbacks,
    kept_names,
    mix_rules,
    quant_mixes,
)
from workhorse.knowledge.quants import quant
from workhorse.records import BudgetLine, Finding, Model, Tensor
from workhorse.text import Text
from workhorse.units import show_bytes

ALIGNMENT_BYTES = 32  # GGUF_DEFAULT_ALIGNMENT, ggml/include/gguf.h
_LAYER = re.compile(r"blk\.(\d+)\.", re.ASCII)
# `tensor_get_category` of llama-quant.cpp looks for these in a name, in this order.
_PARTS: tuple[tuple[str, Part], ...] = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "other"),
    ("ffn_gate", "other"),
    ("ffn_down", "ffn_down"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides its mix: layers with those of MTP, experts, heads that share K."""

    layers: int
    experts: int
    heads: int
    kv_heads: int
    architecture: str = ""


def find_mix(name: str) -> QuantMix | None:
    """The kind of file called `name` (`Q4_K_M`, in any case); None when it is not known."""
    return quant_mixes().get(name.upper())


def requantised(
    tensors: Sequence[Tensor], mix: QuantMix, shape: Shape, *, weighted: bool = False
) -> tuple[Tensor, ...]:
    """The tensors as a file of that kind would have them, offsets from the first one.

    Types that are blocks already stay unless they are the source's own: only F32, F16 and BF16
    are quantised, as the engine does without being told otherwise. As llama-quantize itself
    decides, `weighted` with an importance matrix; publishers' own mixes (names with UD, XL) differ.
    """
    place, made = _Places(tensors, shape, weighted=weighted), {}
    for tensor in sorted(tensors, key=lambda t: (layer_of(t.name), t.name)):
        made[tensor.name] = place.type_of(tensor, mix)
    offset, out = 0, []
    for tensor in tensors:
        n_bytes = tensor_bytes(made[tensor.name], tensor.shape)
        out.append(replace(tensor, type=made[tensor.name], n_bytes=n_bytes, offset_bytes=offset))
        offset += -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(out)


def as_estimates(model: Model, lines: Sequence[BudgetLine]) -> tuple[BudgetLine, ...]:
    """The lines of a budget; those of weights that are not made yet say so, with their band."""
    share = model.size_error_share
    if share is None:
        return tuple(lines)
    source = Text(
        f"worked out for a GGUF file that is not made yet, ±{share * 100:.0f} %",
        f"按尚未生成的 GGUF 文件推算，误差 ±{share * 100:.0f} %",
    )
    return tuple(
        replace(line, basis="estimated", source=source)
        if line.item in ("weights", "tables")
        else line
        for line in lines
    )


def not_made_yet(model: Model) -> Finding | None:
    """A note on a model that has yet to be converted; None for a GGUF file."""
    share = model.size_error_share
    if share is None:
        return None
    kind = model.quantisation.upper()
    size = show_bytes(model.weight_bytes)
    return Finding(
        code="model.not_converted",
        level="note",
        seen=Text(
            f"{model.name} is a checkpoint: {size} of weights is what a GGUF file, mostly {kind}, "
            f"would have, ±{share * 100:.0f} %.",
            f"{model.name} 是原始模型：{size} 是转换成以 {kind} 为主的 GGUF 文件后的权重大小，"
            f"误差 ±{share * 100:.0f} %。",
        ),
        why=Text(
            "The engine reads GGUF files; a publisher's own mix may be larger or smaller.",
            "引擎读取 GGUF 文件；发布者自己的量化组合可能更大或更小。",
        ),
        remedy=Text(
            "Plan with the GGUF file that you will use, or name another with --quant.",
            "请用将要使用的 GGUF 文件制定方案，或用 --quant 指定其他量化。",
        ),
        source="llama.cpp 0c1e57098: src/llama-quant.cpp",
    )


def tensor_bytes(type_name: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; rows are whole blocks."""
    kind = quant(type_name)
    row = -(-shape[0] // kind.block_elements) * kind.block_bytes
    return row * math.prod(shape[1:])


def layer_of(name: str) -> int:
    """The layer that a tensor belongs to; -1 for those of none."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


class _Places:
    """Where among its kind each tensor stands: some rules count layers as they come."""

    def __init__(self, tensors: Sequence[Tensor], shape: Shape, *, weighted: bool) -> None:
        self._shape, self._weighted = shape, weighted
        names = {tensor.name for tensor in tensors}
        self._tied = "output.weight" not in names
        self._values = sum(self._part(name) == "attn_v" for name in names)
        self._value = 0
        self._down = 0

    def type_of(self, tensor: Tensor, mix: QuantMix) -> str:
        """The type of the next tensor in the engine's order."""
        if not _is_quantised(tensor):
            return tensor.type
        if quant(mix.base).block_elements == 1:
            return mix.base
        part = self._part(tensor.name)
        found = self._by_rule(tensor, part, mix)
        if part == "attn_v" and found in ("q3_k", "q4_k") and self._is_70b():
            found = "q5_k"
        if part == "attn_v":
            self._value += 1
        if part == "ffn_down":
            self._down += 1
        return fitting(found, tensor.shape[0])

    def _part(self, name: str) -> Part:
        if name == "output.weight":
            return "head"
        if name in ("token_embd.weight", "per_layer_token_embd.weight"):
            return "head" if self._tied else "embedding"
        return next((part for word, part in _PARTS if word in name), "other")

    def _by_rule(self, tensor: Tensor, part: Part, mix: QuantMix) -> str:
        if part == "head" and tensor.shape[0] % quant(mix.base).block_elements:
            return "q8_0"
        for rule in mix_rules():
            if (
                rule.part == part
                and mix.name in rule.files
                and rule.weighted in (None, self._weighted)
                and self._holds(rule.when, tensor, part)
            ):
                return rule.type
        return mix.base

    def _holds(self, when: When, tensor: Tensor, part: Part) -> bool:
        shape = self._shape
        layers = self._values if part == "attn_v" else shape.layers
        at = self._value if part == "attn_v" else self._down
        if part == "ffn_down" and shape.experts > 1:
            at = layer_of(tensor.name)
        tests: dict[When, Callable[[], bool]] = {
            "always": lambda: True,
            "gqa4": lambda: shape.heads >= 4 * max(1, shape.kv_heads),
            "experts8": lambda: shape.experts == 8,
            "experts_not8": lambda: shape.experts != 8,
            "experts8_more_bits": lambda: shape.experts == 8 and more_bits(at, layers),
            "more_bits": lambda: more_bits(at, layers),
            "eighth": lambda: at < layers // 8,
            "sixteenth": lambda: at < layers // 16,
            "first2": lambda: at < 2,
            "first4": lambda: at < 4,
        }
        return tests[when]()

    def _is_70b(self) -> bool:
        """llama-quant gives the values of the 70B models more bits: eight heads share them."""
        shape = self._shape
        return (
            shape.layers == 80
            and shape.architecture in ("llama", "qwen2")
            and shape.heads != shape.kv_heads
        )


def more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third layer between (`use_more_bits`)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _is_quantised(tensor: Tensor) -> bool:
    return (
        sum(size > 1 for size in tensor.shape[1:]) > 0
        and tensor.name.endswith("weight")
        and not any(part in tensor.name for part in kept_names())
        and quant(tensor.type).block_elements == 1
    )


def fitting(type_name: str, row: int) -> str:
    """The type, or what takes its place where a row of `row` elements is not whole blocks of it."""
    if row % quant(type_name).block_elements == 0:
        return type_name
    instead = fallbacks().get(type_name, type_name)
    return instead if row % quant(instead).block_elements == 0 else "f16"
