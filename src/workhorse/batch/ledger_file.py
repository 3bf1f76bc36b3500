"""The SQLite file of all jobs: its tables, its transactions, what its errors mean to people.

A commit is in the system's hands, not yet on the disk (`synchronous = NORMAL` with a write-ahead
log): a killed process loses nothing, and ten thousand quick items do not wait for ten thousand
writes. A power cut loses at most what came after the last `settle`, whole items each: they are
asked again.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workhorse.errors import AppError
from workhorse.text import Text

SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    whole INTEGER NOT NULL,             -- 0: its items are still being added, it is not shown
    document TEXT NOT NULL,             -- the Job, JSON
    state TEXT NOT NULL,
    cancelling INTEGER NOT NULL DEFAULT 0,
    created_unix_s REAL NOT NULL,
    ended_unix_s REAL,                  -- NULL: it has not
    extra TEXT NOT NULL,                -- JSON
    report BLOB
);
CREATE TABLE IF NOT EXISTS item (
    key INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,            -- its place in the input
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    kind TEXT NOT NULL,
    media_type TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due_unix_s REAL NOT NULL DEFAULT 0, -- not before
    owner TEXT,                         -- who has leased it
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    requests INTEGER NOT NULL DEFAULT 0,
    reason TEXT,                        -- the Reason, JSON
    result BLOB,                        -- the Result, JSON, packed
    UNIQUE (job, number),
    UNIQUE (job, id)
);
CREATE INDEX IF NOT EXISTS item_by_state ON item (job, state, number, due_unix_s);
CREATE TABLE IF NOT EXISTS content (item INTEGER PRIMARY KEY, packed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS step (
    item INTEGER NOT NULL,
    name TEXT NOT NULL,
    packed BLOB NOT NULL,               -- what was answered
    UNIQUE (item, name)
);
"""
# Others write for milliseconds; a laden disk may take its time.
BUSY_TIMEOUT_S = 60.0
LOG_BYTES_KEPT = 64 * 2**20


class LedgerFile:
    """One connection to the file, made when it is first used; threads take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for one query; read its rows before the block ends."""
        with self._turn, explained(self.path):
            yield self._opened()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection in a transaction, which ends with the block, whole or not at all."""
        with self._turn, explained(self.path):
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                raise

    def settle(self) -> None:
        """Have all that was committed on the disk, where a power cut does not reach it."""
        with self.reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def close(self) -> None:
        """Close the file; it is opened again when it is used again."""
        with self._turn:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # Documents are nobody else's business; SQLite makes its file readable to all.
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}").fetchall()
                connection.executescript(SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What SQLite and the system say of the file, as an `AppError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise _trouble(path, getattr(error, "sqlite_errorname", ""), error) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise _trouble(path, "SQLITE_FULL" if full else "", error) from error


def _trouble(path: Path, name: str, error: Exception) -> AppError:
    what = Text(
        f"The ledger of jobs, {path}, cannot be used: {error}.",
        f"任务台账 {path} 无法使用：{error}。",
    )
    if name.startswith("SQLITE_FULL") or name in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"):
        return AppError(
            what,
            Text(
                "Free space on its disk, then `workhorse batch resume`: nothing is lost.",
                "请腾出磁盘空间，然后运行 `workhorse batch resume`：数据不会丢失。",
            ),
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return AppError(
            what,
            Text(
                "Another program holds the file: end it, then `workhorse batch resume`.",
                "另一个程序占用着该文件：请结束它，然后运行 `workhorse batch resume`。",
            ),
        )
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return AppError(
            what,
            Text(
                "Move it away, or bring it back from a backup; without it the jobs in it are gone.",
                "请将其移走，或从备份恢复；没有该文件，其中的任务将丢失。",
            ),
        )
    return AppError(
        what,
        Text(
            "Make the file and its folder writable to you, then `workhorse batch resume`.",
            "请确保您对该文件及其目录有写权限，然后运行 `workhorse batch resume`。",
        ),
    )
