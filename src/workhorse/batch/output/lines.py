"""What stands in an output for one item: a line of JSON, a row of cells, OpenAI's line; pure."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from workhorse.batch.item import Cause, Item, Reason
from workhorse.text import Language

Where = Literal["output", "error"]
# Why a request has no response, as OpenAI's API reference names it (Batch, "The request output
# object", 2026-11); what it has no name for keeps ours.
_OPENAI_CODES: Mapping[Cause, str] = {
    "cancelled": "batch_cancelled",
    "no answer": "request_timeout",
}
# Cells that a spreadsheet would compute; the wide ones in Chinese and Japanese ones too. OWASP,
# "CSV Injection" (2026-11).
_COMPUTED = tuple("=+-@\t\r\n＝＋－＠")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?\s?%?")
ALWAYS = ("id", "source", "status")
AFTER = ("error", "notes")
FIELDS_MAX = 60


def json_line(item: Item, **more: Any) -> bytes:
    """An item as JSON: `text` or `value` where it has a result, `error` where it has none."""
    found: dict[str, Any] = {"id": item.id, "source": item.source, "status": item.state}
    result = item.result
    if result is not None and result.text is not None:
        found["text"] = result.text
    if result is not None and result.value is not None:
        found["value"] = result.value
    found["error"] = _error(item)
    if result is not None and result.notes:
        found["notes"] = list(result.notes)
    found |= more
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _error(item: Item) -> dict[str, str] | None:
    if item.result is not None:
        return None
    reason = _reason(item)
    return {"cause": reason.cause, "message": reason.seen, "message_zh": reason.seen_zh}


def _reason(item: Item) -> Reason:
    if item.reason is not None:
        return item.reason
    return Reason(cause="cancelled", seen="It was not done yet.", seen_zh="尚未处理。")


def openai_line(item: Item, job_id: str) -> tuple[Where, bytes]:
    """The line of OpenAI's output file, or of its error file, for an item of any kind.

    A response that is not 200 stands in the error file, with `error` null, as OpenAI has it.
    """
    response = _response(item, job_id)
    error = None
    if response is None:
        reason = _reason(item)
        code = _OPENAI_CODES.get(reason.cause, reason.cause.replace(" ", "_"))
        error = {"code": code, "message": reason.seen}
    line = {
        "id": f"batch_req_{job_id}_{item.number}",
        "custom_id": item.id,
        "response": response,
        "error": error,
    }
    good = response is not None and response.get("status_code") == 200
    return "output" if good else "error", json.dumps(line).encode() + b"\n"


def _response(item: Item, job_id: str) -> dict[str, Any] | None:
    if item.result is None:
        return None
    value = item.result.value
    if item.kind == "request":
        return value if isinstance(value, dict) else None
    content = item.result.text if item.result.text is not None else json.dumps(value)
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {
        "prompt_tokens": item.usage.prompt_tokens,
        "completion_tokens": item.usage.output_tokens,
        "total_tokens": item.usage.prompt_tokens + item.usage.output_tokens,
    }
    name = f"{job_id}-{item.number}"
    body = {"id": name, "object": "chat.completion", "choices": [choice], "usage": usage}
    return {"status_code": 200, "request_id": name, "body": body}


def fields_of(
    definition: Mapping[str, Any], options: Mapping[str, Any], seen: Iterable[Item]
) -> list[str]:
    """The keys of the results that get a column each: the schema's, then what results have."""
    schemas = [definition.get("schema"), *options.values()]
    names: dict[str, None] = {}
    for schema in schemas:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if isinstance(properties, Mapping):
            names |= dict.fromkeys(map(str, properties))
    for item in seen:
        value = item.result.value if item.result is not None and item.kind == "text" else None
        if isinstance(value, dict):
            names |= dict.fromkeys(map(str, value))
    return list(names)[:FIELDS_MAX]


def heads(fields: Sequence[str]) -> list[str]:
    """The head of a table of results."""
    own = [f"result.{name}" if name in (*ALWAYS, "result", *AFTER) else name for name in fields]
    return [*ALWAYS, "result", *own, *AFTER]


def cells(item: Item, fields: Sequence[str], language: Language) -> list[str]:
    """The row of an item; what has a column of its own is not in `result` again."""
    result = item.result
    value = result.value if result is not None else None
    rest, own = value, [""] * len(fields)
    if item.kind == "request":
        rest = _answer_of(value)
    elif isinstance(value, dict):
        own = [_cell(value[name]) if name in value else "" for name in fields]
        rest = {name: one for name, one in value.items() if name not in fields} or None
    text = result.text if result is not None and result.text is not None else _cell(rest)
    reason = None if result is not None else _reason(item)
    told = "" if reason is None else reason.seen_zh if language == "zh" else reason.seen
    notes = "; ".join(result.notes) if result is not None else ""
    return [item.id, item.source, item.state, text, *own, told, notes]


def _answer_of(value: Any) -> Any:
    """What the model said in a response; the whole of it where it is no chat."""
    try:
        said = value["body"]["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return value
    return said if isinstance(said, str) else value


def _cell(value: Any) -> str:
    """A value as a person reads it: a list of words as words, anything deeper as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return "; ".join(map(_cell, value))
    return json.dumps(value, ensure_ascii=False)


def defused(cell: str) -> str:
    """A cell that a spreadsheet shows and does not compute: `=cmd…` gets a `'` before it."""
    plain = cell.replace("\0", "")
    if plain.startswith(_COMPUTED) and not _NUMBER.fullmatch(plain):
        return f"'{plain}"
    return plain
