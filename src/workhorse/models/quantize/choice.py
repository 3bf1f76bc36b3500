"""Which type each tensor of a quantised file gets, and whether such a file is advisable. Pure."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.knowledge.quant_mixes import QuantMix, quant_mixes
from workhorse.knowledge.quants import quants
from workhorse.plan.quant_mix import (
    ALIGNMENT_BYTES,
    Shape,
    fitting,
    layer_of,
    requantised,
    tensor_bytes,
)
from workhorse.records import Model, Tensor
from workhorse.text import Text
from workhorse.units import show_bytes

# Below it a weight takes more work to unpack than a card without Ampere's units saves by reading
# less, and small models lose sense (llama.cpp's tables: +0.66 perplexity at Q3_K_M, 2026-11).
BITS_LEAST = 4.0
OLD_CARDS_BELOW = (8, 0)
WHOLE = ("f32", "f16", "bf16")
# What llama.cpp computes with and never stores weights as: its quantiser ends the process.
_NO_WEIGHTS = ("f64", "q8_1", "q8_k")
# `ggml_quantize_requires_imatrix` (ggml/src/ggml.c, commit 0c1e57098): it ends the process without.
WEIGHTED_ONLY = ("iq2_xxs", "iq2_xs", "iq1_s")


@dataclass(frozen=True, slots=True)
class Override:
    """A tensor type for every tensor whose name `pattern` is found in."""

    pattern: str
    type: str


def offered() -> tuple[str, ...]:
    """The kinds of file that can be made, best first."""
    return tuple(name for name, mix in quant_mixes().items() if mix.base not in WHOLE)


def mix_named(name: str) -> QuantMix:
    """The kind of file called `name`, in any case; AppError with those that there are."""
    found = quant_mixes().get(name.upper())
    if found is None or found.base in WHOLE:
        listed = ", ".join(offered())
        raise AppError(
            Text(f"There is no quantisation {name[:40]!r}.", f"没有名为 {name[:40]!r} 的量化。"),
            Text(f"Choose one of: {listed}.", f"可选：{listed}。"),
            exit_code=EXIT_USAGE,
        )
    return found


def override_of(word: str) -> Override:
    """`PATTERN=TYPE` as the user gives it; AppError for what is neither."""
    pattern, equals, type_name = word.rpartition("=")
    known = sorted(
        kind.name for kind in quants().values() if kind.scales and kind.name not in _NO_WEIGHTS
    )
    try:
        re.compile(pattern)
        right = bool(pattern and equals) and type_name.lower() in known
    except re.error:
        right = False
    if not right:
        listed = ", ".join(known)
        raise AppError(
            Text(
                f"{word[:80]!r} names no tensors and type.",
                f"{word[:80]!r} 不是“张量=类型”的形式。",
            ),
            Text(
                f"Write it as ffn_down=q6_k; the types: {listed}.",
                f"请写成 ffn_down=q6_k 的形式；可用类型：{listed}。",
            ),
            exit_code=EXIT_USAGE,
        )
    return Override(pattern, type_name.lower())


def tensors_of(
    model: Model, mix: QuantMix, overrides: Sequence[Override], *, weighted: bool
) -> tuple[Tensor, ...]:
    """The tensors as the new file has them, in the engine's order; AppError when there is nothing
    to do: weights that are quantised already, overrides that fit no tensor.
    """
    done = sum(t.n_bytes for t in model.tensors if t.type not in WHOLE)
    if done * 2 > model.weight_bytes:
        raise already(model)
    shape = Shape(
        model.layers + model.draft_layers,
        model.experts,
        model.heads,
        max((a.kv_heads for a in model.attention if a is not None), default=0),
        model.architecture,
    )
    made = requantised(model.tensors, mix, shape, weighted=weighted)
    found, used = [], set()
    for tensor, source in zip(made, model.tensors, strict=True):
        type_name = tensor.type
        if type_name != source.type:
            for override in overrides:
                if re.search(override.pattern, tensor.name):
                    type_name = fitting(override.type, tensor.shape[0])
                    used.add(override)
                    break
        n_bytes = tensor_bytes(type_name, tensor.shape)
        found.append(replace(tensor, type=type_name, n_bytes=n_bytes))
    refuse_overrides(overrides, used, found, weighted=weighted)
    return tuple(sorted(found, key=lambda tensor: (layer_of(tensor.name), tensor.name)))


def refuse_overrides(
    overrides: Sequence[Override],
    used: Collection[Override],
    tensors: Sequence[Tensor],
    *,
    weighted: bool,
) -> None:
    """AppError for one that fits no tensor, or whose type cannot be made without a matrix."""
    for override in overrides:
        if override not in used:
            some = ", ".join(
                sorted({re.sub(r"^blk\.\d+\.", "", t.name) for t in tensors if t.type not in WHOLE})
            )
            raise AppError(
                Text(
                    f"No tensor that is quantised has {override.pattern!r} in its name.",
                    f"待量化的张量中没有名称含 {override.pattern!r} 的。",
                ),
                Text(f"The names: {some[:300]}.", f"可用名称：{some[:300]}。"),
                exit_code=EXIT_USAGE,
            )
        if override.type in WEIGHTED_ONLY and not weighted:
            raise AppError(
                Text(
                    f"{override.type} cannot be made without an importance matrix.",
                    f"没有重要性矩阵无法生成 {override.type}。",
                ),
                Text("Leave --no-imatrix out.", "请去掉 --no-imatrix。"),
                exit_code=EXIT_USAGE,
            )


def size_of(tensors: Sequence[Tensor]) -> int:
    """Bytes that the weights take in the file."""
    return sum(-(-t.n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for t in tensors)


def already(model: Model) -> AppError:
    """The weights are blocks: quantising them once more loses twice."""
    kind = model.quantisation.upper()
    return AppError(
        Text(
            f"{model.path} is quantised already ({kind}): a second time loses quality twice.",
            f"{model.path} 已经量化（{kind}）：再次量化会造成双重质量损失。",
        ),
        Text(
            "Begin from the model's F16, BF16 or F32 file.",
            "请从该模型的 F16、BF16 或 F32 文件开始。",
        ),
    )


def refuse_few_bits(
    mix: QuantMix, least_bits: float | None, capabilities: Sequence[tuple[int, int]]
) -> None:
    """AppError for fewer than 4 bits a weight on cards before Ampere, unless asked for."""
    old = [capability for capability in capabilities if capability < OLD_CARDS_BELOW]
    bits = bits_of(mix)
    if not old or bits >= BITS_LEAST or (least_bits is not None and bits >= least_bits):
        return
    card = ".".join(map(str, min(old)))
    raise AppError(
        Text(
            f"{mix.name} has {bits:.1f} bits a weight; on a card of compute capability {card} "
            "fewer than 4 cost quality and gain hardly any speed.",
            f"{mix.name} 每权重 {bits:.1f} 位；在计算能力 {card} 的显卡上，低于 4 位损失质量，"
            "速度几乎没有提升。",
        ),
        Text(
            "Take Q4_K_S or IQ4_XS; if memory leaves no choice, ask for it with --bits 2.",
            "请改用 Q4_K_S 或 IQ4_XS；若内存确实不足，请加 --bits 2 明确要求。",
        ),
        exit_code=EXIT_NO,
    )


def bits_of(mix: QuantMix) -> float:
    """Bits a weight as published; of its base type where nobody has published them."""
    if mix.bits is not None:
        return mix.bits
    kind = next(kind for kind in quants().values() if kind.name == mix.base)
    return kind.block_bytes * 8 / kind.block_elements


def too_little_space(place: str, free_bytes: int, needed_bytes: int) -> AppError:
    """Before anything is written."""
    free, needed = show_bytes(free_bytes), show_bytes(needed_bytes)
    return AppError(
        Text(
            f"The disk of {place} has {free} left; {needed} are needed.",
            f"{place} 所在磁盘剩余 {free}，需要 {needed}。",
        ),
        Text(
            "Free some space, or choose another disk with --output.",
            "请清理磁盘空间，或用 --output 指定其他磁盘。",
        ),
    )


def computes_no_numbers(*, converted: bool) -> AppError:
    """A model's logits are infinite or NaN: its answers are noise."""
    if converted:
        return AppError(
            Text(
                "The new model computes infinity or NaN where the original computes numbers: "
                "values overflow in it.",
                "新模型在原模型正常之处算出无穷或 NaN：其中有数值溢出。",
            ),
            Text(
                "Do not serve it; use a GGUF file of BF16, or quantise that.",
                "请勿用于服务；请改用 BF16 的 GGUF 文件，或对其量化。",
            ),
            exit_code=EXIT_NO,
        )
    return AppError(
        Text(
            "The original computes infinity or NaN: it is damaged, or overflows as it is.",
            "原模型本身算出无穷或 NaN：文件已损坏，或其数值溢出。",
        ),
        Text(
            "Fetch it again; of an F16 file take the BF16 one.",
            "请重新下载；若是 F16 文件，请改用 BF16。",
        ),
        exit_code=EXIT_NO,
    )


def is_a_folder(path: str) -> AppError:
    """A checkpoint was named where a GGUF file is wanted."""
    return AppError(
        Text(f"{path} is a folder, and no GGUF file.", f"{path} 是目录，不是 GGUF 文件。"),
        Text(
            f"Make one of the checkpoint first: workhorse convert {path} --to gguf",
            f"请先将原始模型转换为 GGUF：workhorse convert {path} --to gguf",
        ),
        exit_code=EXIT_USAGE,
    )
