"""What an engine with one pool of KV did, against what was planned. Pure."""

import re

from workhorse.engines.report import Observed
from workhorse.engines.verify import nothing_reported
from workhorse.records import Finding, Plan, Pool
from workhorse.text import Text


def judge(plan: Plan, seen: Observed, *, title: str) -> tuple[Finding, ...]:
    """Findings of the log: device, arithmetic, attention, context and room for the requests."""
    pool = plan.pool
    if pool is None or seen.says_nothing:
        return (nothing_reported(),)
    found = [
        *_device(plan, seen, title),
        *_arithmetic(pool, seen, title),
        *_attention(pool, seen, title),
        *_context(plan, seen, title),
        *_room(plan, seen, title),
    ]
    return tuple(found)


def _device(plan: Plan, seen: Observed, title: str) -> tuple[Finding, ...]:
    if seen.device != "cpu" or plan.gpu_index is None:
        return ()
    return (
        Finding(
            code="verify.layers_on_cpu",
            level="blocker",
            seen=Text(
                f"{title} computes on the CPU, planned was {plan.device}.",
                f"{title} 在 CPU 上运行，而方案为 {plan.device}。",
            ),
            why=Text(
                "Its environment has no code for cards, or it sees none: many times slower.",
                "其环境不含显卡代码或未检测到显卡：速度会慢很多倍。",
            ),
            remedy=Text(
                "Check `nvidia-smi`, and install the environment for this card.",
                "请检查 `nvidia-smi`，并为该显卡安装对应环境。",
            ),
            source="engine log: KV cache",
            command=f"workhorse engine install {plan.engine.engine}",
        ),
    )


def _arithmetic(pool: Pool, seen: Observed, title: str) -> tuple[Finding, ...]:
    if seen.dtype is None or seen.dtype == pool.dtype:
        return ()
    return (
        Finding(
            code="verify.dtype_differs",
            level="warning",
            seen=Text(
                f"{title} computes in {seen.dtype}, planned was {pool.dtype}.",
                f"{title} 以 {seen.dtype} 计算，而方案为 {pool.dtype}。",
            ),
            why=Text(
                "The range and the speed differ: in float16 some models overflow.",
                "数值范围与速度不同：部分模型在 float16 下会溢出。",
            ),
            remedy=Text(
                "Compare a few answers with another engine.", "请与其他引擎的回答对比几条。"
            ),
            source="engine log: dtype",
        ),
    )


def _attention(pool: Pool, seen: Observed, title: str) -> tuple[Finding, ...]:
    if pool.attention is None or seen.attention is None or same_backend(pool.attention, seen):
        return ()
    return (
        Finding(
            code="verify.attention_differs",
            level="warning",
            seen=Text(
                f"{title} uses the attention backend {seen.attention}, planned was "
                f"{pool.attention}.",
                f"{title} 使用的注意力后端是 {seen.attention}，而方案为 {pool.attention}。",
            ),
            why=Text(
                "It chose another way for this card: prompts may be slower than forecast.",
                "引擎为该卡换了实现：提示处理可能慢于预测。",
            ),
            remedy=Text(
                "Measure it (`workhorse bench`), or take another engine.",
                "请实测（`workhorse bench`），或换用其他引擎。",
            ),
            source="engine log: attention backend",
            evidence=seen.fell_back[:3],
        ),
    )


def same_backend(planned: str, seen: Observed) -> bool:
    """Whether the log's name means the planned one: `XFormers` is `XFORMERS`."""
    said = re.sub(r"[^a-z0-9]", "", (seen.attention or "").lower())
    wanted = re.sub(r"[^a-z0-9]", "", planned.lower())
    return said in wanted or wanted in said


def _context(plan: Plan, seen: Observed, title: str) -> tuple[Finding, ...]:
    fewer = seen.slots is not None and seen.slots < plan.slots
    shorter = seen.context_tokens is not None and seen.context_tokens < plan.context_tokens
    if not fewer and not shorter:
        return ()
    slots, context = seen.slots or plan.slots, seen.context_tokens or plan.context_tokens
    return (
        Finding(
            code="verify.slots_differ",
            level="warning",
            seen=Text(
                f"{title} takes {slots} requests of {context} tokens, planned were {plan.slots} "
                f"of {plan.context_tokens}.",
                f"{title} 可同时处理 {slots} 个请求（各 {context} 词元），"
                f"方案为 {plan.slots} 个（各 {plan.context_tokens}）。",
            ),
            why=Text("Longer prompts will be refused.", "更长的提示词会被拒绝。"),
            remedy=Text(
                "Start with --slots 1 or a smaller --context.",
                "请用 --slots 1 或更小的 --context。",
            ),
            source="engine log: max model len, max_num_seqs",
        ),
    )


def _room(plan: Plan, seen: Observed, title: str) -> tuple[Finding, ...]:
    if seen.kv_tokens is None or seen.kv_tokens >= plan.slots * plan.context_tokens:
        return ()
    full = seen.kv_tokens // max(1, plan.context_tokens)
    return (
        Finding(
            code="verify.pool_small",
            level="note",
            seen=Text(
                f"{title} has room for {seen.kv_tokens} tokens: {full} requests of "
                f"{plan.context_tokens} at a time, planned were {plan.slots}.",
                f"{title} 的 KV 可容纳 {seen.kv_tokens} 词元：同时 {full} 个 "
                f"{plan.context_tokens} 词元的请求，方案为 {plan.slots} 个。",
            ),
            why=Text(
                "Shorter requests share the room; full ones wait or are computed anew.",
                "较短的请求可共用空间；满长请求会等待或被重新计算。",
            ),
            remedy=Text(
                "Ask for less: a smaller --context or --slots.",
                "请减小 --context 或 --slots。",
            ),
            source="engine log: KV cache size",
        ),
    )
