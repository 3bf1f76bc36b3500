"""What the user asked for, and the settings to try for it, best first."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from workhorse.plan.memory import Layout
from workhorse.records import EngineBuild, Model, Reason
from workhorse.text import Text

Purpose = Literal["chat", "long", "batch"]

# A service that fills memory to the brim dies on the first surprise.
HEADROOM = 0.2
SMALLEST_CONTEXT_TOKENS = 2048
# Shorter than this, a document that needs `long` would not fit: weights leave the card first.
SMALLEST_LONG_CONTEXT_TOKENS = 16384

# What each use wants of context and slots, where the user does not say. Long documents: what a
# book needs. Batch: most documents are a few pages, and more streams at a time give more in all.
_PURPOSES: dict[Purpose, tuple[int, int]] = {
    "chat": (8192, 4),
    "long": (131072, 1),
    "batch": (4096, 8),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; `None` where the plan may decide.

    `headroom` is the share of each device that stays free; `least_bits` the fewest bits a weight
    that advice may name.
    """

    context_tokens: int | None = None
    slots: int | None = None
    purpose: Purpose | None = None
    headroom: float = HEADROOM
    least_bits: float = 4.0


def context_for(model: Model, wish: Wish) -> int:
    """Tokens of one slot's context, before memory is looked at."""
    wanted = _PURPOSES[wish.purpose or "chat"][0]
    return wish.context_tokens or min(model.context_trained_tokens or wanted, wanted)


def slots_for(wish: Wish) -> int:
    """Requests at a time, before memory is looked at."""
    return wish.slots or _PURPOSES[wish.purpose or "chat"][1]


def shares_kv(model: Model, build: EngineBuild) -> bool:
    """Whether the slots' KV is one pool of which each may use its own share.

    With a cache for each slot llama.cpp decodes only slots of consecutive numbers together
    (`split_equal`, llama-batch.cpp, commit 0c1e570): two clients in slots 0 and 2 read all weights
    twice, and get no more than one. A pool needs a limit for each slot, which newer builds have.
    """
    plain = not model.pooling and not any(a is not None and a.side for a in model.attention)
    return plain and {"--kv-unified", "--kv-unified-per-slot"} <= set(build.knows)


def layouts(
    model: Model,
    wish: Wish,
    batch_tokens: int,
    *,
    shared_kv: bool = False,
    flash_attention: bool = True,
) -> Iterator[Layout]:
    """Settings to try, best first: what is given up, in the order users miss it least.

    A smaller KV type, fewer slots, a shorter context; never below what the user asked. Without
    flash attention the KV stays F16: the engine refuses to start with a quantised one.
    """
    context = context_for(model, wish)
    slots = wish.slots or _PURPOSES[wish.purpose or "chat"][1]
    for layout in _smaller(context, slots, wish):
        if layout.kv_type_k != "f16" and not flash_attention:
            layout = replace(layout, kv_type_k="f16", kv_type_v="f16")
        if layout.kv_type_k == "f16" or quantised_kv_fits(model):
            yield Layout(
                layout.context_tokens,
                layout.slots,
                layout.kv_type_k,
                layout.kv_type_v,
                flash_attention=flash_attention,
                micro_batch_tokens=batch_tokens,
                shared_kv=shared_kv and layout.slots > 1,
            )


def _smaller(context: int, slots: int, wish: Wish) -> Iterator[Layout]:
    for kv_type in ("f16", "q8_0"):
        yield Layout(context, slots, kv_type, kv_type)
    while wish.slots is None and slots > 1:
        slots //= 2
        yield Layout(context, slots, "q8_0", "q8_0")
    least = SMALLEST_CONTEXT_TOKENS
    if wish.purpose == "long":
        least = SMALLEST_LONG_CONTEXT_TOKENS
    while wish.context_tokens is None and context > least:
        context = max(context // 2, least)
        yield Layout(context, slots, "q8_0", "q8_0")


def quantised_kv_fits(model: Model) -> bool:
    """False when a head's row is no whole number of Q8_0 blocks: the engine refuses to start."""
    return all(
        a.key_size % 32 == 0 and a.value_size % 32 == 0 for a in model.attention if a is not None
    )


def layout_reasons(layout: Layout, model: Model, wish: Wish) -> tuple[Reason, ...]:
    """Why this context, these slots and this KV type."""
    asked = Text("As asked.", "按用户要求。")
    kv = {
        "f16": Text("Full precision: there is room.", "空间足够，保持全精度。"),
        "q8_0": Text("Halves the KV cache: the room is short.", "空间不足，KV 缓存减半。"),
    }
    context = asked if wish.context_tokens else _context_words(layout, model, wish)
    slots = asked if wish.slots else _slots_words(layout, wish)
    return (
        Reason("context", str(layout.context_tokens), context),
        Reason("slots", str(layout.slots), slots),
        Reason("kv", layout.kv_type_k, kv.get(layout.kv_type_k, asked)),
        flash_reason(on=layout.flash_attention),
    )


def flash_reason(*, on: bool) -> Reason:
    """Why flash attention is on, or left off."""
    if on:
        because = Text(
            "Less scratch memory, and quantised KV needs it; the golden prompt checks it.",
            "节省临时内存，量化 KV 也依赖它；启动时由标准提示词验证。",
        )
    else:
        because = Text(
            "This build has not shown on a card yet that its flash attention is right.",
            "该构建尚未在显卡上证明其 flash attention 结果正确。",
        )
    return Reason("flash attention", "on" if on else "off", because)


def _context_words(layout: Layout, model: Model, wish: Wish) -> Text:
    trained, trained_zh = model.context_trained_tokens or "an unknown length", "未知"
    if model.context_trained_tokens:
        trained_zh = str(model.context_trained_tokens)
    if layout.context_tokens < context_for(model, wish):
        return Text(
            f"What fits; the model was trained for {trained}.",
            f"按剩余空间取值；模型训练长度为 {trained_zh}。",
        )
    use = {
        "chat": Text("Enough for chat", "足够对话使用"),
        "long": Text("For long documents: as long as fits", "用于长文档：尽量取长"),
        "batch": Text("Enough for documents of a few pages", "足够处理几页的文档"),
    }[wish.purpose or "chat"]
    return Text(
        f"{use.en}; the model was trained for {trained}.",
        f"{use.zh}；模型训练长度为 {trained_zh}。",
    )


def _slots_words(layout: Layout, wish: Wish) -> Text:
    usual = _PURPOSES[wish.purpose or "chat"][1]
    if layout.slots < usual:
        return Text(
            f"Fewer than the usual {usual}: the room is short. Further requests wait.",
            f"空间不足，少于通常的 {usual} 个；其余请求排队。",
        )
    if wish.purpose == "long":
        return Text(
            "One long document at a time: its KV cache takes the room of many chats.",
            "一次处理一篇长文档：其 KV 缓存相当于许多对话。",
        )
    if wish.purpose == "batch":
        return Text(
            "Many documents at a time: more tokens a second in all, fewer for each.",
            "同时处理多篇文档：总吞吐更高，单篇更慢。",
        )
    return Text(
        "Requests answered at the same time; the rest wait.", "同时应答的请求数，其余排队。"
    )
