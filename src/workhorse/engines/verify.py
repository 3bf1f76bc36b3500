"""Proof before "ready": the log against the plan, and an answer that is text. Pure judgement."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workhorse.engines.llamacpp_log import EngineReport
from workhorse.records import Finding, Plan
from workhorse.text import Text
from workhorse.units import show_bytes

# More than 64 tokens: from there on llama.cpp multiplies prompts in FP16 on older cards, where
# overflow shows (llama.cpp's CUDA sources, commit 0c1e570, 2026-10-01).
GOLDEN_PROMPT = (
    "The little town lies between a river and a hill. Every morning the baker opens the shop at "
    "six, the school bell rings at eight, and at noon the market fills with people who buy bread, "
    "apples and flowers. In the evening the lamps are lit along the water, and the old men sit on "
    "the bench by the bridge and tell each other the same stories. On Sunday the children go up "
    "the hill, because from there they can see the sea. One day a stranger came to the town and "
    "asked the baker:"
)
GOLDEN_TOKENS = 24
GOLDEN_PROMPT_MIN_TOKENS = 65

# What a model that ranks is asked to put in order.
RANKED_QUERY = "When does the baker open the shop?"
RANKED_DOCUMENTS = ("Every morning the baker opens at six.", "Lamps are lit along the water.")
# llama-server's score for a document that it has no result for (server-context.cpp, 2026-11).
NO_SCORE = -1e6

# A healthy model may say a word twice; one token filling three quarters of the answer is the
# pattern of NaN logits ("GGGG", "!!!!").
REPEATED_SHARE = 0.75
# Share of characters that no script has: replacement marks and control characters.
UNREADABLE_SHARE = 0.3
# The engine rounds its figures and adds alignment; beyond that the plan was wrong.
MEMORY_TOLERANCE = 0.1


def golden_request() -> dict[str, Any]:
    """The body for llama-server's /completion: greedy, past the end of text, tokens returned."""
    return {
        "prompt": GOLDEN_PROMPT,
        "n_predict": GOLDEN_TOKENS,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }


def judge_answer(answer: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Findings about the golden prompt's answer; empty when it reads like text."""
    text = str(answer.get("content") or "")
    tokens: Sequence[int] = answer.get("tokens") or ()
    evaluated = int(answer.get("tokens_evaluated") or 0)
    if not text.strip():
        return (bad_answer("verify.answer_empty", "is empty", "为空", text),)
    if tokens and Counter(tokens).most_common(1)[0][1] >= REPEATED_SHARE * len(tokens):
        return (bad_answer("verify.answer_repeats", "repeats one token", "重复同一个词元", text),)
    unreadable = sum(1 for c in text if c == "\ufffd" or (ord(c) < 32 and c not in "\n\t\r"))
    if unreadable > UNREADABLE_SHARE * len(text):
        return (bad_answer("verify.answer_not_text", "is not text", "不是文本", text),)
    if evaluated < GOLDEN_PROMPT_MIN_TOKENS:
        words, words_zh = f"used {evaluated} prompt tokens", f"只用了 {evaluated} 个提示词元"
        return (bad_answer("verify.prompt_cut", words, words_zh, text),)
    return ()


def judge_embedding(answer: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Findings about an embedding model's first answer; empty for a vector of finite numbers."""
    try:
        vector = [float(number) for number in answer["data"][0]["embedding"]]
    except (KeyError, IndexError, TypeError, ValueError):
        vector = []
    if vector and all(math.isfinite(number) for number in vector) and any(vector):
        return ()
    return (bad_answer("verify.embedding_bad", "is no vector", "不是向量", str(answer)[:40]),)


def ranking_request() -> dict[str, Any]:
    """The body for llama-server's /v1/rerank: one question, two documents."""
    return {"query": RANKED_QUERY, "documents": list(RANKED_DOCUMENTS)}


def judge_ranking(answer: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Findings about the first order of documents; empty when each has a finite score."""
    try:
        scores = {int(one["index"]): float(one["relevance_score"]) for one in answer["results"]}
    except (KeyError, TypeError, ValueError):
        scores = {}
    finite = all(math.isfinite(score) and score > NO_SCORE for score in scores.values())
    if finite and sorted(scores) == list(range(len(RANKED_DOCUMENTS))):
        return ()
    return (bad_answer("verify.ranking_bad", "has no scores", "没有分数", str(answer)[:40]),)


def bad_answer(code: str, words: str, words_zh: str, text: str) -> Finding:
    """The blocker for an answer that no healthy model gives."""
    shown = text[:40]
    return Finding(
        code=code,
        level="blocker",
        seen=Text(
            f"The answer to the golden prompt {words}: {shown!r}.",
            f"标准提示词的回答{words_zh}：{shown!r}。",
        ),
        why=Text(
            "The engine runs but computes nonsense: numbers overflow, a kernel is wrong for this "
            "hardware, or the file is damaged.",
            "引擎虽在运行但结果错误：数值溢出、内核与硬件不匹配，或文件损坏。",
        ),
        remedy=Text(
            "Check the model file's hash; try another quant (F16 or Q8_0) or another engine build. "
            "A model with random weights needs --skip-golden.",
            "请核对模型文件哈希；换一种量化（F16 或 Q8_0）或换引擎构建。"
            "随机权重的测试模型请加 --skip-golden。",
        ),
        source="golden prompt",
    )


def judge_log(plan: Plan, report: EngineReport) -> tuple[Finding, ...]:
    """The engine's own report against the plan: layers, slots, context, memory."""
    if not report.buffers and report.slots is None:
        return (nothing_reported(),)
    return (*judge_offload(plan, report), *judge_slots(plan, report), *judge_memory(plan, report))


def nothing_reported() -> Finding:
    """A warning when the log says nothing of the load: the plan is then not checked."""
    return Finding(
        code="verify.nothing_reported",
        level="warning",
        seen=Text(
            "The engine's log says nothing of buffers and slots.", "引擎日志没有缓冲区和槽位信息。"
        ),
        why=Text(
            "Whether it runs as planned cannot be checked; a full disk also looks like this.",
            "无法核对是否按方案运行；磁盘写满时也会如此。",
        ),
        remedy=Text(
            "Check the free space of the data folder, or use a newer llama-server.",
            "请检查数据目录的剩余空间，或使用更新的 llama-server。",
        ),
        source="engine log",
    )


def judge_offload(plan: Plan, report: EngineReport) -> tuple[Finding, ...]:
    """A blocker when layers that the plan put on the GPU are on the CPU.

    Buffers decide, not the `offloaded` line: a build with RPC prints that line without any GPU.
    """
    if plan.gpu_layers == 0:
        return ()
    devices = r"CUDA\d+|RPC\d+\[.+\]" if plan.rpc else r"CUDA\d+"
    cards = {
        device: n // len(together)
        for (named, kind), n in report.buffers.items()
        for together in (members(named),)
        for device in together
        if kind == "model" and re.fullmatch(devices, device)
    }
    used = len(plan.layer_split) if plan.rpc else len(plan.gpu_indexes)
    on_gpu, offloaded = sum(cards.values()), report.offloaded_layers
    every_layer = offloaded is None or offloaded >= plan.gpu_layers
    if every_layer and len(cards) >= max(1, used):
        return ()
    return (
        Finding(
            code="verify.layers_on_cpu",
            level="blocker",
            seen=Text(
                f"{offloaded or 0} of {plan.layers} layers are on {len(cards)} GPUs "
                f"({show_bytes(on_gpu)} of weights), planned {plan.gpu_layers} on "
                f"{max(1, used)}.",
                f"{plan.layers} 层中有 {offloaded or 0} 层在 {len(cards)} 块显卡上"
                f"（权重 {show_bytes(on_gpu)}），计划为 {plan.gpu_layers} 层、"
                f"{max(1, used)} 块显卡。",
            ),
            why=Text(
                "The engine fell back to the CPU in silence: many times slower.",
                "引擎悄悄退回 CPU 运行，速度会慢很多倍。",
            ),
            remedy=Text(
                "Check `nvidia-smi`, and that the build has code for this card; then start again.",
                "请检查 `nvidia-smi` 以及构建是否支持该显卡，然后重新启动。",
            ),
            source="engine log: model buffers and `offloaded n/m`",
        ),
    )


def members(device: str) -> list[str]:
    """The cards that a buffer lies on: of a tensor split it is `Meta(CUDA0,CUDA1)`.

    As ggml-backend-meta.cpp names it (llama.cpp 0c1e57098, 2026-10-01).
    """
    found = re.fullmatch(r"Meta\((.+)\)", device)
    return [device] if found is None else found[1].split(",")


def judge_slots(plan: Plan, report: EngineReport) -> tuple[Finding, ...]:
    """A warning when the engine made other slots or a shorter context than planned."""
    slots, context = report.slots, report.slot_context_tokens
    if slots is None or context is None:
        return ()
    if slots == plan.slots and context >= plan.context_tokens:
        return ()
    return (
        Finding(
            code="verify.slots_differ",
            level="warning",
            seen=Text(
                f"The engine made {slots} slots of {context} tokens, planned {plan.slots} of "
                f"{plan.context_tokens}.",
                f"引擎建立了 {slots} 个槽位（各 {context} 词元），"
                f"计划为 {plan.slots} 个（各 {plan.context_tokens}）。",
            ),
            why=Text("Longer prompts will be refused.", "更长的提示词会被拒绝。"),
            remedy=Text(
                "Start with --slots 1 or a smaller --context.",
                "请用 --slots 1 或更小的 --context。",
            ),
            source="engine log: n_slots, n_ctx_slot",
        ),
    )


def judge_memory(plan: Plan, report: EngineReport) -> tuple[Finding, ...]:
    """A note when the engine's buffers differ from the budget by more than a tenth."""
    # A table that is read from the disk is a mapped model buffer too.
    kinds = {
        "weights": "model", "tables": "model", "kv": "kv", "state": "rs", "compute": "compute",
        "output": "output",
    }  # fmt: skip
    planned = sum(line.n_bytes for line in plan.budget if line.item in kinds)
    printed = sum(report.kind_bytes(kind) for kind in set(kinds.values()))
    if not printed or abs(printed - planned) <= MEMORY_TOLERANCE * planned:
        return ()
    return (
        Finding(
            code="verify.memory_differs",
            level="note",
            seen=Text(
                f"The engine's buffers take {show_bytes(printed)}, the plan said "
                f"{show_bytes(planned)}.",
                f"引擎缓冲区共 {show_bytes(printed)}，计划为 {show_bytes(planned)}。",
            ),
            why=Text("The memory forecast is off for this model.", "该模型的内存预测有偏差。"),
            remedy=Text("Leave more headroom on small machines.", "小内存机器请多留余量。"),
            source="engine log: buffer sizes",
        ),
    )
