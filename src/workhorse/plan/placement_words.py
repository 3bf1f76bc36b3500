"""Why the weights lie where they do, and what was not taken, in words."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workhorse.plan.memory import CUDA_CONTEXT_BYTES, Layout, device_bytes
from workhorse.plan.weights import Weights
from workhorse.records import Gpu, Machine, Model, Reason, Rejected
from workhorse.text import Text
from workhorse.units import show_bytes, show_share

if TYPE_CHECKING:
    from workhorse.plan.placement import Placement

# Quants that publishers offer and the bits that each takes a weight, from llama.cpp's own table
# (tools/quantize/README.md, Llama 3.1 8B, commit 0c1e570, 2026-10-01).
QUANTS = (
    ("Q8_0", 8.50), ("Q6_K", 6.56), ("Q5_K_M", 5.70), ("Q4_K_M", 4.89), ("IQ4_XS", 4.46),
    ("Q3_K_M", 4.00), ("IQ3_XXS", 3.25), ("Q2_K", 3.16), ("IQ2_XXS", 2.38),
)  # fmt: skip
# That table counts the weights' file; the nominal width is what `4 bits` means to people.
NOMINAL_BITS = {"Q3_K_M": 3.0}


def too_large(layout: Layout, needed_bytes: int, room_bytes: int, gpus: Sequence[Gpu]) -> Rejected:
    """Settings that need more than the devices can give."""
    where = ", ".join(f"GPU {gpu.index}" for gpu in gpus) or "RAM"
    needed, room = show_bytes(needed_bytes), show_bytes(room_bytes)
    return Rejected(
        f"{layout.slots} × {layout.context_tokens} tokens, KV {layout.kv_type_k}",
        Text(
            f"{needed} needed, {room} to give on {where}.",
            f"需要 {needed}，{where} 可用 {room}。",
        ),
    )


def smaller_quant(
    model: Model, weights: Weights, rooms: Sequence[int], least_bits: float
) -> tuple[Rejected, ...]:
    """The best smaller quant that the cards would hold whole, as an option; () when none does."""
    named = fitting_quant(model, weights, rooms, least_bits)
    if named is None:
        return ()
    name, n_bytes = named
    size = show_bytes(n_bytes)
    return (
        Rejected(
            f"{model.name} in {name}",
            Text(
                f"About {size} of weights would fit the cards whole, many times faster; it is "
                "another file.",
                f"约 {size} 权重可全部放入显卡，会快很多倍；但需另一个模型文件。",
            ),
        ),
    )


def fitting_quant(
    model: Model, weights: Weights, rooms: Sequence[int], least_bits: float
) -> tuple[str, int] | None:
    """The largest quant below the present one whose weights take at most 85 % of the cards.

    `rooms`: what each may hold; the rest is for KV and buffers. None: none of at least
    `least_bits` bits does.
    """
    room_bytes = sum(max(0, room - CUDA_CONTEXT_BYTES) for room in rooms)
    parameters = model.parameters
    held = model.weight_bytes - weights.tables
    share = held / max(model.weight_bytes, 1)
    now_bits = model.weight_bytes * 8 / max(parameters, 1)
    for name, bits in QUANTS:
        n_bytes = int(parameters * share * bits / 8)
        allowed = NOMINAL_BITS.get(name, bits) >= least_bits
        if allowed and bits < now_bits * 0.95 and n_bytes <= 0.85 * room_bytes:
            return name, n_bytes
    return None


def cannot_split() -> Rejected:
    """The build cannot spread layers over cards."""
    return Rejected(
        "--tensor-split",
        Text(
            "This engine build cannot spread layers over several cards.",
            "此引擎构建不支持把各层分到多块显卡。",
        ),
    )


def experts_beside(layers: int, *, can: bool) -> Rejected:
    """Experts in main memory were not enough, or the build cannot do it."""
    if not can:
        because = Text(
            "This engine build cannot leave experts in main memory.",
            "此引擎构建不支持把专家权重留在内存。",
        )
    else:
        because = Text(
            "Even with every expert in main memory the rest does not fit the cards.",
            "即使所有专家都放在内存，其余部分仍放不下显卡。",
        )
    return Rejected(f"--n-cpu-moe {layers}", because)


def layers_beside(gpus: Sequence[Gpu]) -> Rejected:
    """Not one layer fits a card, or main memory lacks the room for the others."""
    where = ", ".join(f"GPU {gpu.index}" for gpu in gpus)
    return Rejected(
        f"layers on {where}",
        Text(
            "Not one layer fits beside the buffers, or main memory has no room for the others.",
            "除缓冲区外连一层也放不下，或内存放不下其余各层。",
        ),
    )


def device_name(placed: "Placement") -> str:
    """The devices that read weights, as setups and tables call them: one card, several, RAM."""
    names = Counter(card.gpu.name for card in placed.cards)
    words = [name if n == 1 else f"{n} × {name}" for name, n in names.items()]
    if not words or placed.cut.weights_in_ram:
        words.append("RAM")
    return " + ".join(words)


def placement_reasons(machine: Machine, model: Model, placed: "Placement") -> tuple[Reason, ...]:
    """Why the model lies where it does."""
    found = [_device_reason(machine, model, placed)]
    cut = placed.cut
    if len(cut.counts) > 1:
        found.append(_split_reason(placed))
    if cut.expert_layers:
        found.append(
            Reason(
                "experts in RAM",
                f"{cut.expert_layers}/{cut.layers}",
                Text(
                    "The fewest layers whose experts have to leave the cards: a token reads only "
                    "a few experts, so they are the cheapest to read from main memory.",
                    "必须离开显卡的最少层数：每个词元只读取少数专家，放在内存代价最小。",
                ),
            )
        )
    if placed.sizes.weights.tables:
        found.append(_tables_reason(placed))
    return tuple(found)


def _device_reason(machine: Machine, model: Model, placed: "Placement") -> Reason:
    size, every = show_bytes(model.weight_bytes), model.layers + 1
    names = device_name(placed)
    if placed.cards and not placed.cut.weights_in_ram:
        because = Text(
            f"All {every} layers fit {names}: {size} of weights.",
            f"全部 {every} 层可放入 {names}：权重 {size}。",
        )
    elif placed.cards:
        because = _beside_words(size, every, placed)
    elif machine.gpus:
        because = Text(
            f"No GPU that this engine can use holds the model: {size} of weights in main memory.",
            f"没有此引擎可用且放得下模型的显卡：{size} 权重放在内存。",
        )
    else:
        because = Text(
            f"There is no GPU: {size} of weights in main memory.",
            f"本机没有显卡：{size} 权重放在内存。",
        )
    return Reason("device", ", ".join(placed.devices) or "RAM", because)


def _beside_words(size: str, every: int, placed: "Placement") -> Text:
    cut, held = placed.cut, placed.cut.gpu_layers
    what = Text(f"{held} of {every} layers are on cards", f"{every} 层中 {held} 层在显卡上")
    if held == every:
        what = Text(
            f"All {every} layers are on cards, without the experts of {cut.expert_layers}",
            f"全部 {every} 层在显卡上，其中 {cut.expert_layers} 层的专家除外",
        )
    return Text(
        f"{what.en}; the rest of {size} of weights is in main memory. The smallest KV, one slot "
        "and the shortest context would not make it fit whole.",
        f"{what.zh}；{size} 权重的其余部分在内存。即使用最小的 KV、一个槽位和最短上下文也放不下。",
    )


def _split_reason(placed: "Placement") -> Reason:
    shares = [
        device_bytes(placed.lines, device) / card.room_bytes
        for card, device in zip(placed.cards, placed.devices, strict=True)
    ]
    tightest = placed.devices[shares.index(max(shares))]
    filled = show_share(max(shares))
    return Reason(
        "layer split",
        ",".join(map(str, placed.cut.counts)),
        Text(
            f"Whole layers, each card filled to about the same share of its room; {tightest} is "
            f"the tightest ({filled} of what it may take).",
            f"按整层划分，各卡填充比例相近；{tightest} 最紧（已用可用量的 {filled}）。",
        ),
    )


def _tables_reason(placed: "Placement") -> Reason:
    size = show_bytes(placed.sizes.weights.tables)
    if placed.cut.lazy:
        because = Text(
            f"{size} are read by row, on demand; rows in use stay in the page cache.",
            f"{size} 的表按行按需读取，常用行留在页缓存中。",
        )
    else:
        because = Text(
            f"{size} are read by row and held in main memory.",
            f"{size} 的表按行读取，常驻内存。",
        )
    return Reason("tables", "disk" if placed.cut.lazy else "RAM", because)
