"""Reads what OpenAI's routes answer: the text, why it ended, what it took. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workhorse.batch.item import Usage
from workhorse.batch.task import Answer, NotValid
from workhorse.guard.garbage import is_garbage

# So much of an answer is looked at for one token over and over.
LOOKED_AT_BYTES, WORTH_A_LOOK_BYTES = 2048, 64


def read_answer(body: bytes) -> Answer:
    """A whole response; raises `NotValid` for what is none."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(body) from error
    if not isinstance(document, dict):
        raise not_json(body)
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return Answer(
            text=_text_of(choices[0]), finish=_words(choices[0].get("finish_reason")), body=document
        )
    if isinstance(document.get("data"), list):
        return Answer(text="", finish=None, body=document)
    raise not_json(body)


def check_sane(answer: Answer) -> None:
    """Raise `NotValid` for one token over and over, as a model with NaN in its weights says it."""
    data = answer.text.encode("utf-8", "replace")[:LOOKED_AT_BYTES]
    if len(data) >= WORTH_A_LOOK_BYTES and is_garbage([bytes((one,)) for one in data]):
        raise NotValid(
            f"The answer is no text: {answer.text[:40]!r}.",
            f"回答不是有效文本：{answer.text[:40]!r}。",
        )


def usage_of(document: Mapping[str, Any]) -> Usage:
    """What a response says that it took, in the words of any route; 0 where it does not say."""
    told = document.get("usage")
    if not isinstance(told, dict):
        return Usage(requests=1)
    details = told.get("prompt_tokens_details", told.get("input_tokens_details"))
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(told.get("prompt_tokens", told.get("input_tokens"))),
        cached_tokens=_count(cached),
        output_tokens=_count(told.get("completion_tokens", told.get("output_tokens"))),
        requests=1,
    )


def vectors_of(answer: Answer) -> Sequence[Sequence[float]]:
    """The vectors of an embedding's answer, in the order of its texts; raises `NotValid`."""
    try:
        rows = sorted(answer.body["data"], key=lambda one: int(one["index"]))
        found = [[float(value) for value in one["embedding"]] for one in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise NotValid("The answer holds no vectors.", "回答中没有向量。") from error
    return found


def not_json(body: bytes) -> NotValid:
    """The complaint about an answer that is no response of OpenAI's form."""
    shown = body[:60].decode(errors="replace")
    return NotValid(
        f"The answer is not OpenAI's JSON: {shown!r}.", f"回答不是 OpenAI 格式的 JSON：{shown!r}。"
    )


def _text_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    found = message.get("content") if isinstance(message, dict) else choice.get("text")
    return _words(found) or ""


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**40 else 0
