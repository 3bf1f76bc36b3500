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
from workhorse.records import Tensor

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


def requantised(tensors: Sequence[Tensor], mix: QuantMix, shape: Shape) -> tuple[Tensor, ...]:
    """The tensors as a file of that kind would have them, offsets from the first one.

    Types that are blocks already stay unless they are the source's own: only F32, F16 and BF16
    are quantised, as the engine does without being told otherwise. Without an importance matrix,
    as llama-quantize itself decides; publishers' own mixes (names with UD, XL) differ.
    """
    place, made = _Places(tensors, shape), {}
    for tensor in sorted(tensors, key=lambda t: (layer_of(t.name), t.name)):
        made[tensor.name] = place.type_of(tensor, mix)
    offset, out = 0, []
    for tensor in tensors:
        n_bytes = tensor_bytes(made[tensor.name], tensor.shape)
        out.append(replace(tensor, type=made[tensor.name], n_bytes=n_bytes, offset_bytes=offset))
        offset += -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(out)


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

    def __init__(self, tensors: Sequence[Tensor], shape: Shape) -> None:
        self._shape = shape
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
        return _fitting(found, tensor.shape[0])

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


def _fitting(type_name: str, row: int) -> str:
    if row % quant(type_name).block_elements == 0:
        return type_name
    instead = fallbacks().get(type_name, type_name)
    return instead if row % quant(instead).block_elements == 0 else "f16"
