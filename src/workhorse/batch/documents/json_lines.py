"""Lines of JSON as items: texts under a key, or requests as OpenAI's Batch API takes them; pure.

A line that is neither becomes an item that cannot be read, in its place, so that one bad line out
of thousands stops nothing and is told.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from workhorse.batch.documents.refusal import Unreadable, shown, wrong_input
from workhorse.batch.documents.tables import USUAL_COLUMNS
from workhorse.batch.item import NewItem

LINE_BYTES_MAX = 64 * 2**20
ID_CHARS_MAX = 512
# OpenAI's API reference, Batch, "The request input object" (2026-11).
REQUEST_KEYS = ("custom_id", "method", "url", "body")


def items_of_lines(
    lines: Iterable[bytes], column: str | None, id_column: str | None, where: str
) -> Iterator[NewItem]:
    """An item a line that is not empty. The first line that is JSON tells what they are.

    `lines` are of UTF-8, each cut off behind LINE_BYTES_MAX. AppError: no line has the key.
    """
    key: str | None = None
    requests = False
    for number, raw in enumerate(lines, 1):
        line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if not line.strip():
            continue
        source = f"{where} line {number}"
        try:
            found = _object(line)
            if key is None and not requests:
                requests = column is None and "custom_id" in found and "body" in found
                key = None if requests else _key(found, column, where)
            if requests:
                yield _request(found, line, number, source)
            else:
                yield _text(found, key or "", id_column, number, source)
        except Unreadable as error:
            yield NewItem(id=f"line {number}", source=source, reason=error.reason)


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise Unreadable(
            f"The line is longer than {LINE_BYTES_MAX // 2**20} MiB.",
            f"该行超过 {LINE_BYTES_MAX // 2**20} MiB。",
        )
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = shown(str(error))
        raise Unreadable(f"The line is no JSON: {why}.", f"该行不是 JSON：{why}。") from error
    if not isinstance(found, dict):
        raise Unreadable("The line is no JSON object.", "该行不是 JSON 对象。")
    return found


def _key(found: dict[str, Any], column: str | None, where: str) -> str:
    keys = list(found)
    if column is not None and column in found:
        return column
    texts = [key for key in keys if isinstance(found[key], str)]
    usual = next((key for key in USUAL_COLUMNS if key in texts), None)
    if column is None and (usual or len(keys) == 1):
        return usual or keys[0]
    listed = ", ".join(f"“{shown(key)[:60]}”" for key in keys[:30]) or "—"
    if column is None:
        raise wrong_input(
            f"The objects of {where} have the keys {listed}.",
            f"{where} 中对象的键有：{listed}。",
            "Say which of them has the texts: --column NAME.",
            "请用 --column 键名 指定文本所在的键。",
        )
    raise wrong_input(
        f"The objects of {where} have no key “{shown(column)}”. They have: {listed}.",
        f"{where} 中的对象没有键 “{shown(column)}”，现有：{listed}。",
        "Name one of them with --column.",
        "请用 --column 指定其中一个。",
    )


def _text(
    found: dict[str, Any], key: str, id_column: str | None, number: int, source: str
) -> NewItem:
    named = found.get(id_column or "id")
    plain = isinstance(named, str | int) and not isinstance(named, bool)
    item_id = str(named)[:ID_CHARS_MAX] if plain and str(named).strip() else f"line {number}"
    text = found.get(key)
    if isinstance(text, str) and text.strip():
        return NewItem(id=item_id, source=source, content=text)
    quoted = shown(key)
    what = "no text" if not isinstance(text, str) else "an empty text"
    what_zh = "没有文本" if not isinstance(text, str) else "文本为空"
    reason = Unreadable(f"There is {what} under “{quoted}”.", f"“{quoted}” 下{what_zh}。").reason
    return NewItem(id=item_id, source=source, reason=reason)


def _request(found: dict[str, Any], line: bytes, number: int, source: str) -> NewItem:
    named = found.get("custom_id")
    good = isinstance(named, str) and 0 < len(named) <= ID_CHARS_MAX
    item_id = str(named) if good else f"line {number}"
    wrong = _wrong(found, good)
    if wrong is not None:
        return NewItem(id=item_id, source=source, kind="request", reason=wrong.reason)
    return NewItem(
        id=item_id,
        source=source,
        kind="request",
        content=line.decode().strip(),
        media_type="application/json",
    )


def _wrong(found: dict[str, Any], good_id: bool) -> Unreadable | None:
    missing = [key for key in REQUEST_KEYS if found.get(key) is None]
    if missing:
        listed = ", ".join(f"`{key}`" for key in missing)
        return Unreadable(f"The request lacks {listed}.", f"请求缺少 {listed}。")
    if not good_id:
        return Unreadable(
            f"Its `custom_id` is no text of 1 to {ID_CHARS_MAX} characters.",
            f"`custom_id` 不是 1 到 {ID_CHARS_MAX} 个字符的文本。",
        )
    if found["method"] != "POST":
        return Unreadable("Its `method` is not “POST”.", "`method` 不是 “POST”。")
    url = found["url"]
    if not isinstance(url, str) or not url.startswith("/v1/"):
        return Unreadable(
            "Its `url` is no path such as “/v1/chat/completions”.",
            "`url` 不是 “/v1/chat/completions” 这样的路径。",
        )
    if not isinstance(found["body"], dict):
        return Unreadable("Its `body` is no JSON object.", "`body` 不是 JSON 对象。")
    if found["body"].get("stream"):
        return Unreadable(
            "Its body asks for a stream, which a batch cannot take.",
            "请求体要求流式输出，批处理不支持。",
        )
    return None
