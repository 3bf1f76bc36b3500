"""Why each setting of a plan for vLLM or LMDeploy is what it is. Pure."""

from workhorse.plan.kept import Layout
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Model, Pool, Reason, Stored
from workhorse.text import Text
from workhorse.units import show_bytes, show_share

_ASKED = Text("As asked.", "按用户要求。")


def reasons(
    model: Model,
    stored: Stored,
    pool: Pool,
    layout: Layout,
    wish: Wish,
    build: EngineBuild,
    *,
    on_card: bool,
) -> tuple[Reason, ...]:
    """One a setting, in the order in which they were decided."""
    found = [
        Reason("dtype", pool.dtype, _dtype(stored, pool, on_card=on_card)),
        Reason("context", str(layout.context_tokens), _context(model, wish)),
        Reason("slots", str(layout.slots), _ASKED if wish.slots else _slots(on_card=on_card)),
        Reason("kv", pool.kv_dtype, _kv(pool)),
        Reason("pool", show_bytes(pool.kv_bytes), _pool(pool, build)),
    ]
    if pool.attention is not None:
        found.append(Reason("attention", pool.attention, _attention(pool)))
    if not on_card:
        eager = Text(
            "Compiling for the CPU needs a C++ compiler here and half a minute at each start.",
            "为 CPU 编译需要本机有 C++ 编译器，且每次启动多半分钟。",
        )
        found.append(Reason("compilation", "off", eager))
    return tuple(found)


def _dtype(stored: Stored, pool: Pool, *, on_card: bool) -> Text:
    if stored.dtype == pool.dtype:
        return Text("As the file has it.", "与文件一致。")
    if on_card and pool.dtype == "float16":
        return Text(
            f"The file has {stored.dtype or 'packed weights'}; cards before Ampere compute in "
            "float16.",
            f"文件为 {stored.dtype or '量化权重'}；Ampere 之前的显卡以 float16 计算。",
        )
    return Text("Half the bytes of float32.", "字节数为 float32 的一半。")


def _context(model: Model, wish: Wish) -> Text:
    if wish.context_tokens:
        return _ASKED
    trained = model.context_trained_tokens
    return Text(
        f"Of one request; the model was trained for {trained or 'an unknown length'}.",
        f"单个请求的长度；模型训练长度为 {trained or '未知'}。",
    )


def _slots(*, on_card: bool) -> Text:
    if on_card:
        return Text(
            "Requests computed together; they share the pool by pages, the rest wait.",
            "同时计算的请求数，按页共用缓存，其余排队。",
        )
    return Text(
        "Requests computed together; more would wait for one another on a CPU.",
        "同时计算的请求数；CPU 上再多只会互相等待。",
    )


def _kv(pool: Pool) -> Text:
    if pool.kv_dtype == "auto":
        return Text("As the arithmetic: there is room.", "与计算类型一致：空间足够。")
    return Text("Halves the KV cache: the room is short.", "空间不足，KV 缓存减半。")


def _pool(pool: Pool, build: EngineBuild) -> Text:
    if pool.memory_share is None:
        return Text(
            "One for all requests: what they need at full length.",
            "所有请求共用：按满长计算。",
        )
    share = show_share(pool.memory_share)
    if build.engine == "lmdeploy":
        return Text(
            f"{share} of what is free beside the weights; the rest of the card stays free.",
            f"占权重之外空闲显存的 {share}；其余留空。",
        )
    return Text(
        f"What is left of {share} of the card once weights and scratch are in.",
        f"显卡的 {share} 扣除权重与临时内存之后的部分。",
    )


def _attention(pool: Pool) -> Text:
    if pool.attention == "XFORMERS":
        return Text(
            "The last of vLLM that uses Volta's tensor cores; without prefix cache.",
            "vLLM 中最后一个能用上 Volta 张量核心的实现；没有前缀缓存。",
        )
    return Text(
        "The one that computes on this card; it uses no tensor cores there.",
        "该显卡上可用的实现；在其上不使用张量核心。",
    )
