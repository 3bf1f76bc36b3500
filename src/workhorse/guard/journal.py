"""Alarms of the past, in the service's own SQLite file."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from workhorse.codec import from_json, to_line
from workhorse.errors import AppError
from workhorse.records import Alarm
from workhorse.sqlite_file import opened

SCHEMA = """
CREATE TABLE IF NOT EXISTS guard_alarm (
    code TEXT NOT NULL,
    subject TEXT NOT NULL,
    since_unix_s REAL NOT NULL,
    over_unix_s REAL,                   -- NULL: still so
    document TEXT NOT NULL,             -- the Alarm, JSON
    PRIMARY KEY (code, subject, since_unix_s)
)
"""
SAVE = """
INSERT INTO guard_alarm (code, subject, since_unix_s, over_unix_s, document)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (code, subject, since_unix_s)
DO UPDATE SET over_unix_s = excluded.over_unix_s, document = excluded.document
"""
KEPT = 1000
LATEST = "SELECT document FROM guard_alarm ORDER BY since_unix_s DESC LIMIT ?"


class Journal:
    """The only writer of its table. What fails here loses the past, never the service.

    Everything blocks: call it in a thread. Errors are sqlite3.Error or OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(opened(self.path, SCHEMA, private=True)) as connection:
            yield connection

    def save(self, alarms: Iterable[Alarm]) -> None:
        """Keep alarms, each in place of what was known of it; the oldest of many go."""
        rows = [
            (one.finding.code, one.subject, one.since_unix_s, one.over_unix_s, to_line(one))
            for one in alarms
        ]
        with self._open() as connection, connection:
            connection.executemany(SAVE, rows)
            connection.execute(
                "DELETE FROM guard_alarm WHERE rowid NOT IN "
                "(SELECT rowid FROM guard_alarm ORDER BY since_unix_s DESC LIMIT ?)",
                (KEPT,),
            )

    def latest(self, count: int) -> tuple[Alarm, ...]:
        """The latest alarms, newest first; none without a file.

        What another version wrote in another form is passed over.
        """
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute(LATEST, (count,)).fetchall()
        found = []
        for (document,) in rows:
            with suppress(AppError):
                found.append(from_json(Alarm, document, what=str(self.path)))
        return tuple(found)
