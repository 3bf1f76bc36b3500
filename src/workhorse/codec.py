"""Records to JSON and back.

Reading is strict: a wrong type or a missing field is an `AppError` that names the place, never
a half-filled record.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from workhorse.errors import AppError
from workhorse.text import Text, same

R = TypeVar("R")


def to_json(record: object, *, indent: int = 2) -> str:
    """The record as one JSON document; keys in the record's own order, Chinese unescaped."""
    return msgspec.json.format(msgspec.json.encode(record), indent=indent).decode()


def to_line(record: object) -> str:
    """The record as one line of JSON, for stores and logs."""
    return msgspec.json.encode(record).decode()


def from_json(kind: type[R], document: str | bytes, *, what: str) -> R:
    """The record of type `kind` in `document`; `what` names the document in the error."""
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise AppError(
            Text(
                f"{what} is not a {kind.__name__} that this version can read: {error}.",
                f"{what} 不是本版本能读取的 {kind.__name__}：{error}。",
            ),
            Text(
                "Write it again with this version of workhorse.",
                "请用本版本的 workhorse 重新生成。",
            ),
        ) from error


# What msgspec says of a value (0.20, 2026-11), and the same for who wrote the file.
_AT = re.compile(r" - at `\$\.?(.*)`$")
_KINDS = {
    "int": Text("a whole number", "整数"),
    "float": Text("a number", "数字"),
    "bool": Text("true or false", "true 或 false"),
    "str": Text("a text in quotes", "带引号的文本"),
    "array": Text("an array", "数组"),
    "object": Text("a table", "表"),
}
_BOUNDS = {
    ">=": Text("at least", "不小于"),
    "<=": Text("at most", "不大于"),
    ">": Text("more than", "大于"),
    "<": Text("less than", "小于"),
}
_WORDS: tuple[tuple[str, Callable[[str, re.Match[str]], Text]], ...] = (
    (
        r"Object contains unknown field `(.*)`",
        lambda at, m: Text(
            f"there is no setting `{at}{'.' if at else ''}{m[1]}`",
            f"没有名为 `{at}{'.' if at else ''}{m[1]}` 的配置项",
        ),
    ),
    (
        r"Object missing required field `(.*)`",
        lambda at, m: Text(
            f"{f'`{at}`' if at else 'the file'} lacks its `{m[1]}`",
            f"{f'`{at}`' if at else '文件'} 缺少 `{m[1]}`",
        ),
    ),
    (
        r"Expected `(int|float|bool|str|array|object)(?: \| null)?`, got `.*`",
        lambda at, m: Text(f"`{at}` has to be {_KINDS[m[1]].en}", f"`{at}` 应为{_KINDS[m[1]].zh}"),
    ),
    (
        r"Expected `.*` (>=|<=|>|<) (\S+)",
        lambda at, m: Text(
            f"`{at}` has to be {_BOUNDS[m[1]].en} {m[2]}", f"`{at}` 应{_BOUNDS[m[1]].zh} {m[2]}"
        ),
    ),
    (
        r"Invalid enum value (.*)",
        lambda at, m: Text(f"`{at}` cannot be {m[1]}", f"`{at}` 不能是 {m[1]}"),
    ),
    (
        r"Expected `str` matching regex .*",
        lambda at, _: Text(f"`{at}` is not written as it has to be", f"`{at}` 的写法不正确"),
    ),
)


def mistake_in_words(said: str) -> Text:
    """What msgspec says of a file that a person wrote, in plain words where they are known."""
    place = _AT.search(said)
    at, what = (place[1], said[: place.start()]) if place else ("", said)
    for pattern, words in _WORDS:
        if match := re.fullmatch(pattern, what, re.DOTALL):
            return words(at, match)
    return same(said)
