"""Whether a candidate may be measured: its log against its plan, and what it answers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from workhorse.records import Finding, Plan
from workhorse.run.ask import ask_engine
from workhorse.text import Text
from workhorse.tune.side import Side
from workhorse.tune.trial import Outcome

LOG_LINES = 2000  # at either end; a load of llama.cpp writes about 200

# Findings about the log that say: this engine is not the one that was to be tried.
VOID = ("verify.slots_differ", "verify.layers_on_cpu")

# What changes where and when the same arithmetic is done, and not the arithmetic: greedy answers
# have to stay the same. With other threads, batches, KV types or kernels rounding may differ.
SAME_ARITHMETIC = frozenset({"numa", "load", "spin"})

# llama.cpp 0c1e570, llama-kv-cache.cpp (2026-10-01).
KV_IN_LOG = re.compile(r"\bK \((\w+)\):.*\bV \((\w+)\):")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate was not measured, or not to its end."""

    outcome: Outcome
    why: Text


@dataclass(frozen=True, slots=True)
class Proof:
    """What an engine answered first, and what speaks against it; None: nothing."""

    words: str
    failure: Failure | None


async def prove(side: Side, *, golden: bool) -> Proof:
    """Judge an engine that is ready. AppError when it does not answer at all."""
    plan, process = side.plan, side.running
    lines = process.log_ends(LOG_LINES)
    void = void_findings(side.adapter.judge(plan, lines))
    if void is None and not kv_as_planned(plan, lines):
        void = Text(
            f"The engine's log does not say that its KV is {plan.kv_type_k} and {plan.kv_type_v}.",
            f"引擎日志中的 KV 类型不是 {plan.kv_type_k} 和 {plan.kv_type_v}。",
        )
    if void is not None:
        return Proof("", Failure("refused", void))
    question = side.adapter.first_question(plan)
    answer = await ask_engine(process, question.path, question.body)
    found = side.adapter.judge_answer(plan, answer) if golden else ()
    words = words_of(answer)
    return Proof(words, Failure("wrong output", found[0].seen) if found else None)


def void_findings(findings: Sequence[Finding]) -> Text | None:
    """The first finding by which the engine is another one than was planned; None: it is that."""
    return next((f.seen for f in findings if f.level == "blocker" or f.code in VOID), None)


def kv_as_planned(plan: Plan, lines: Sequence[str]) -> bool:
    """False when the log names other types of KV than the plan; one that names none is right."""
    told = [found.groups() for line in lines if (found := KV_IN_LOG.search(line))]
    planned = (plan.kv_type_k, plan.kv_type_v)
    return not told or planned in [(k.lower(), v.lower()) for k, v in told]


def words_of(answer: Mapping[str, object]) -> str:
    """The text of an answer in llama-server's form or OpenAI's."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(first, dict):
        return str(first.get("text") or "")
    return str(answer.get("content") or "")


def other_words(variables: Collection[str], own: str, incumbent: str) -> Failure | None:
    """The failure of a candidate that must answer as the incumbent does, and does not."""
    if own == incumbent or not SAME_ARITHMETIC.issuperset(variables):
        return None
    place = next((i for i, (a, b) in enumerate(zip(own, incumbent, strict=False)) if a != b), 0)
    here, there = own[place : place + 30], incumbent[place : place + 30]
    return Failure(
        "wrong output",
        Text(
            f"The same arithmetic gave another answer: {here!r} where the incumbent says "
            f"{there!r}.",
            f"相同的运算给出不同的回答：{here!r}，而原方案为 {there!r}。",
        ),
    )
