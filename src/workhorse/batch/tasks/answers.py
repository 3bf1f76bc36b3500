"""What an answer has to be before a task takes it: whole, and not empty."""

from typing import Any

from workhorse.batch.item import Reason
from workhorse.batch.schema import Shape, without_thoughts
from workhorse.batch.task import Answer, ItemFailed, NotValid

# What a check returns for an answer that hit its limit, where the task asks for a shorter one.
CUT_OFF = None


def whole(answer: Answer) -> str:
    """The words of an answer; raises `NotValid` when it is empty or was cut off."""
    said = whole_or_cut(answer)
    if said is CUT_OFF:
        raise _cut(answer)
    return said


def whole_or_cut(answer: Answer) -> str | None:
    """The words of an answer, or CUT_OFF; raises `NotValid` when it is empty."""
    if answer.finish == "length":
        return CUT_OFF
    said = without_thoughts(answer.text)
    if not said:
        raise NotValid("The answer is empty.", "回答为空。")
    return said


def shaped(shape: Shape, answer: Answer) -> tuple[Any, bool]:
    """The value of a whole answer, and whether it was repaired; raises `NotValid`."""
    if answer.finish == "length":
        raise _cut(answer)
    return shape.read(answer.text)


def shaped_or_cut(shape: Shape, answer: Answer) -> tuple[Any, bool] | None:
    """The value of an answer, and whether it was repaired, or CUT_OFF; raises `NotValid`."""
    return CUT_OFF if answer.finish == "length" else shape.read(answer.text)


def answer_tokens(answer: Answer) -> int | None:
    """How many tokens an answer has, as the service counted them; None: it did not say."""
    usage = answer.body.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None


def no_text() -> ItemFailed:
    """The failure of a document without words."""
    return ItemFailed(
        Reason(cause="unreadable", seen="The document has no text.", seen_zh="文档中没有文字。")
    )


def _cut(answer: Answer) -> NotValid:
    count = answer_tokens(answer)
    after = f" after {count} tokens" if count else ""
    after_zh = f"（{count} 个 token）" if count else ""
    return NotValid(
        f"The answer was cut off{after}: it is longer than it was asked to be.",
        f"回答超出要求的长度而被截断{after_zh}。",
    )
