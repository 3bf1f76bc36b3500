"""The items of the jobs in the ledger: leased, answered step by step, ended once."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from workhorse.batch.item import ENDED, Item, Reason, Result, State, Usage
from workhorse.batch.ledger_file import LedgerFile
from workhorse.batch.rows import (
    ITEM_COLUMNS,
    JOB_COLUMNS,
    clean,
    encoded,
    figures,
    item_of,
    packed,
    unpacked,
)
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

PAGE = 500  # rows of items without their texts that are read at a time
SPENT = (
    "prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?, "
    "output_tokens = output_tokens + ?, requests = requests + ?"
)
OWN = "job = ? AND number = ? AND state = 'leased' AND owner = ?"
NEXT = f"""
SELECT {ITEM_COLUMNS} FROM item
WHERE job = ? AND state = 'waiting' AND due_unix_s <= ? ORDER BY number LIMIT 1
"""  # noqa: S608 (our own columns)


class Items:
    """The part of the ledger that a runner uses all the time."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def lease(self, job_id: str, owner: str, now_unix_s: float) -> Item | None:
        """The next item in the order of the input that is due, now `owner`'s; None: none is."""
        with self._file.writing() as connection:
            job = row_of(connection, job_id)[0]
            row = connection.execute(NEXT, (job, now_unix_s)).fetchone()
            if row is None:
                return None
            connection.execute(
                "UPDATE item SET state = 'leased', owner = ? WHERE key = ?", (owner, row[0])
            )
            leased = (*row[:6], "leased", *row[7:])
            return item_of(leased, _content(connection, row[0]), None)

    def due(self, job_id: str) -> float | None:
        """When the next waiting item is due, in Unix time; None: none waits."""
        with self._file.reading() as connection:
            found: float | None = connection.execute(
                "SELECT min(due_unix_s) FROM item WHERE job = ? AND state = 'waiting'",
                (row_of(connection, job_id)[0],),
            ).fetchone()[0]
            return found

    def remembered(self, job_id: str, number: int, step: str) -> bytes | None:
        """What was answered at a step of an item; None: nothing yet."""
        with self._file.reading() as connection:
            key = _key(connection, job_id, number)
            row = connection.execute(
                "SELECT packed FROM step WHERE item = ? AND name = ?", (key, step)
            ).fetchone()
        return None if row is None else unpacked(row[0])

    def remember(
        self, job_id: str, number: int, step: str, answer: bytes, usage: Usage | None = None
    ) -> None:
        """Keep an answer, and what it and the tries before it took, until the item is done."""
        data = packed(answer)
        with self._file.writing() as connection:
            key = _key(connection, job_id, number)
            connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?)", (key, step, data))
            if usage is not None:
                connection.execute(
                    f"UPDATE item SET {SPENT} WHERE key = ?",  # noqa: S608
                    (*figures(usage), key),
                )

    def finish(
        self, job_id: str, number: int, owner: str, result: Result, usage: Usage | None = None
    ) -> bool:
        """The item's result. False: it was no longer leased to `owner`, and nothing was changed."""
        data = packed(msgspec.json.encode(result))
        with self._file.writing() as connection:
            job = row_of(connection, job_id)[0]
            changed = connection.execute(
                f"UPDATE item SET state = 'done', owner = NULL, result = ?, {SPENT} WHERE {OWN}",  # noqa: S608
                (data, *figures(usage), job, number, owner),
            ).rowcount
            if changed:
                key = _key(connection, job_id, number)
                connection.execute("DELETE FROM step WHERE item = ?", (key,))
        return changed == 1

    def fail(
        self,
        job_id: str,
        number: int,
        owner: str,
        reason: Reason,
        usage: Usage | None = None,
        *,
        attempts: int | None = None,
    ) -> bool:
        """Why the item has no result; `attempts` None: as many as before. False as in `finish`."""
        with self._file.writing() as connection:
            job = row_of(connection, job_id)[0]
            changed = connection.execute(
                f"UPDATE item SET state = 'failed', owner = NULL, reason = ?, "  # noqa: S608
                f"attempts = coalesce(?, attempts), {SPENT} WHERE {OWN}",
                (encoded(reason), attempts, *figures(usage), job, number, owner),
            ).rowcount
        return changed == 1

    def give_back(
        self,
        job_id: str,
        number: int,
        owner: str,
        *,
        attempts: int,
        due_unix_s: float,
        usage: Usage | None = None,
    ) -> bool:
        """The item waits again, until `due_unix_s`. False as in `finish`."""
        with self._file.writing() as connection:
            job = row_of(connection, job_id)[0]
            changed = connection.execute(
                f"UPDATE item SET state = 'waiting', owner = NULL, attempts = ?, "  # noqa: S608
                f"due_unix_s = ?, {SPENT} WHERE {OWN}",
                (attempts, due_unix_s, *figures(usage), job, number, owner),
            ).rowcount
        return changed == 1

    def items(
        self, job_id: str, *, states: Sequence[State] = (), content: bool = False
    ) -> Iterator[Item]:
        """The items in the order of the input, one at a time in memory; no `states`: all.

        With their results; with their texts where `content` is wanted. It may be stopped and gone
        on with at any time; what changes meanwhile may be seen or not.
        """
        wanted = states or ("waiting", "leased", *ENDED)
        marks = ", ".join("?" * len(wanted))
        after = -1
        while True:
            with self._file.reading() as connection:
                job = row_of(connection, job_id)[0]
                rows = connection.execute(
                    f"SELECT {ITEM_COLUMNS} FROM item WHERE job = ? AND number > ? "  # noqa: S608
                    f"AND state IN ({marks}) ORDER BY number LIMIT {PAGE}",
                    (job, after, *wanted),
                ).fetchall()
            for row in rows:
                with self._file.reading() as connection:
                    text = _content(connection, row[0]) if content else None
                    found = connection.execute(
                        "SELECT result FROM item WHERE key = ?", (row[0],)
                    ).fetchone()
                yield item_of(row, text, None if found is None else found[0])
            if len(rows) < PAGE:
                return
            after = rows[-1][1]


def row_of(connection: sqlite3.Connection, job_id: str) -> tuple[Any, ...]:
    """The row of a job by its id, or by the beginning of it that no other has; or an `AppError`."""
    query = f"SELECT {JOB_COLUMNS} FROM job WHERE whole AND "  # noqa: S608
    job_id = clean(job_id)
    row: tuple[Any, ...] | None = connection.execute(query + "id = ?", (job_id,)).fetchone()
    if row is not None:
        return row
    rows = connection.execute(
        query + "substr(id, 1, length(?1)) = ?1 ORDER BY number DESC LIMIT 5", (job_id,)
    ).fetchall()
    if len(rows) == 1 and job_id:
        found: tuple[Any, ...] = rows[0]
        return found
    raise _no_job(job_id, [each[1] for each in rows] if job_id else [])


def _no_job(job_id: str, several: Sequence[str]) -> AppError:
    shown = job_id[:40]
    if several:
        what = Text(
            f"Several jobs begin with {shown!r}: {', '.join(several)}.",
            f"有多个任务以 {shown} 开头：{'、'.join(several)}。",
        )
    else:
        what = Text(f"There is no job {shown!r}.", f"没有任务 {shown}。")
    return AppError(
        what,
        Text("`workhorse batch status` lists them.", "`workhorse batch status` 可列出全部任务。"),
        exit_code=EXIT_USAGE,
    )


def _key(connection: sqlite3.Connection, job_id: str, number: int) -> int:
    found: int = connection.execute(
        "SELECT key FROM item WHERE job = ? AND number = ?", (row_of(connection, job_id)[0], number)
    ).fetchone()[0]
    return found


def _content(connection: sqlite3.Connection, key: int) -> bytes | None:
    row = connection.execute("SELECT packed FROM content WHERE item = ?", (key,)).fetchone()
    found: bytes | None = None if row is None else row[0]
    return found
