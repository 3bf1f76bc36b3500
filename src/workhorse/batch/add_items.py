"""Puts the items of a new job into the ledger, a few at a time, however long reading them takes."""

import sqlite3
from collections.abc import Iterable

from workhorse.batch.item import NewItem
from workhorse.batch.ledger_file import LedgerFile
from workhorse.batch.rows import clean, content_bytes, encoded, packed
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text
from workhorse.units import MIB

# One transaction for a job of thousands would keep everybody else from writing while its
# documents are read: so it comes in parts, and is shown when it is whole.
PART_ITEMS, PART_BYTES = 200, 8 * MIB


def add_items(file: LedgerFile, job: int, items: Iterable[NewItem]) -> int:
    """All items of job number `job`, which is whole then; how many.

    Raises `AppError` for two of one id and for none at all.
    """
    part: list[tuple[NewItem, bytes | None]] = []
    size_bytes = number = 0
    for item in items:
        content = None if item.content is None else packed(content_bytes(item.content))
        part.append((item, content))
        size_bytes += 0 if content is None else len(content)
        if len(part) >= PART_ITEMS or size_bytes >= PART_BYTES:
            _add_part(file, job, number, part)
            number += len(part)
            part, size_bytes = [], 0
    _add_part(file, job, number, part)
    number += len(part)
    if not number:
        raise nothing_in_it()
    with file.writing() as connection:
        connection.execute("UPDATE job SET whole = 1 WHERE number = ?", (job,))
    return number


def _add_part(
    file: LedgerFile, job: int, first: int, part: list[tuple[NewItem, bytes | None]]
) -> None:
    with file.writing() as connection:
        for number, (item, content) in enumerate(part, first):
            _add_one(connection, job, number, item, content)


def _add_one(
    connection: sqlite3.Connection, job: int, number: int, item: NewItem, content: bytes | None
) -> None:
    reason = None if item.reason is None else encoded(item.reason)
    state = "waiting" if item.reason is None else "failed"
    try:
        key = connection.execute(
            "INSERT INTO item (job, number, id, source, kind, media_type, state, reason) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(job, number, clean(item.id), clean(item.source), item.kind),
                *(clean(item.media_type), state, reason),
            ),
        ).lastrowid
    except sqlite3.IntegrityError as error:
        raise _twice(item) from error
    if content is not None:
        connection.execute("INSERT INTO content VALUES (?, ?)", (key, content))


def nothing_in_it() -> AppError:
    """The input has no items."""
    return AppError(
        Text("There is nothing in the input to work on.", "输入中没有可处理的内容。"),
        Text("Give a folder or a file with documents in it.", "请指定包含文档的文件夹或文件。"),
        exit_code=EXIT_USAGE,
    )


def _twice(item: NewItem) -> AppError:
    shown = clean(item.id)[:80]
    return AppError(
        Text(
            f"Two items of the input have the id {shown!r}; the second is {item.source}.",
            f"输入中有两项的 id 都是 {shown!r}；第二项为 {item.source}。",
        ),
        Text(
            "Give each its own: results are told apart by it.",
            "请为每项指定不同的 id：结果以它区分。",
        ),
        exit_code=EXIT_USAGE,
    )
