"""The first question to an engine that speaks OpenAI's API alone, and its answer. Pure."""

from collections.abc import Mapping
from typing import Any

from workhorse.engines.report import Question
from workhorse.engines.verify import (
    GOLDEN_PROMPT,
    GOLDEN_TOKENS,
    bad_answer,
    judge_answer,
    judge_embedding,
)
from workhorse.records import Finding, Plan


def first_question(plan: Plan) -> Question:
    """The golden prompt: greedy and past the end of text; of an embedding model one vector."""
    if plan.embeddings:
        return Question("/v1/embeddings", {"model": plan.model_name, "input": GOLDEN_PROMPT})
    return Question(
        "/v1/completions",
        {
            "model": plan.model_name,
            "prompt": GOLDEN_PROMPT,
            "max_tokens": GOLDEN_TOKENS,
            "temperature": 0,
            "seed": 1,
            "ignore_eos": True,
            # Not by log probabilities: on a CPU vLLM compiles C++ for the first that are asked for.
            "return_token_ids": True,
        },
    )


def judge(plan: Plan, answer: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Findings as `verify` has them; by letters where the engine tells no tokens."""
    if plan.embeddings:
        return judge_embedding(answer)
    try:
        choice, used = answer["choices"][0], answer.get("usage") or {}
        text = str(choice.get("text") or "")
        pieces = choice.get("token_ids") or text
    except (KeyError, IndexError, TypeError, AttributeError):
        return (bad_answer("verify.answer_empty", "is empty", "为空", str(answer)),)
    return judge_answer(
        {
            "content": text,
            "tokens": tuple(map(str, pieces)),
            "tokens_evaluated": used.get("prompt_tokens"),
        }
    )
