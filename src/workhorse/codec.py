"""Records to JSON and back.

Reading is strict: a wrong type or a missing field is an `AppError` that names the place, never
a half-filled record.
"""

from typing import TypeVar

import msgspec

from workhorse.errors import AppError
from workhorse.text import Text

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
