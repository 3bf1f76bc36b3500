"""Items that are requests already: sent as they are, and the response kept as it came."""

import secrets
from typing import Any

import msgspec

from workhorse.batch.item import Item, Reason, Result
from workhorse.batch.task import ItemFailed
from workhorse.batch.tools import ItemTools

# What makes sense one answer at a time, without a stream.
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
)


class Line(msgspec.Struct):
    """One line of OpenAI's batch input."""

    url: str
    body: dict[str, Any]
    method: str = "POST"


async def pass_on(item: Item, tools: ItemTools) -> Result:
    """The response to the request in an item, a refusal too; raises `ItemFailed` without one.

    `value`: `status_code`, `request_id` and the `body`, as OpenAI's output files have them.
    """
    try:
        line = msgspec.json.decode(item.content.encode("utf-8", "replace"), type=Line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refused(
            f"The request cannot be read: {error}.", f"请求无法读取：{error}。"
        ) from error
    if line.method != "POST" or line.url not in PATHS:
        raise _refused(
            f"{line.method[:10]} {line.url[:80]} is nothing that a batch can ask.",
            f"批处理不支持 {line.method[:10]} {line.url[:80]}。",
        )
    reply = await tools.pass_on(line.url, line.body)
    try:
        body = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = {"error": {"message": reply.words, "code": reply.status}}
    request_id = reply.request_id or f"req_{secrets.token_hex(12)}"
    return Result(value={"status_code": reply.status, "request_id": request_id, "body": body})


def _refused(seen: str, seen_zh: str) -> ItemFailed:
    return ItemFailed(Reason(cause="refused", seen=seen, seen_zh=seen_zh))
