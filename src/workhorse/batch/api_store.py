"""The files and batches of OpenAI's API on disk: an SQLite file, and a folder of what they hold.

A file's content lies under the id that we gave it. What a client calls its file is kept beside,
and is never part of a path.
"""

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from workhorse.batch.api_record import Batch, StoredFile
from workhorse.errors import AppError
from workhorse.sqlite_file import opened
from workhorse.text import Text

INDEX = "index-1.sqlite"  # the number: of the tables' form
CONTENT = "content"
# What the smallest file takes of the disk and of the index, for a limit in bytes to bound both.
LEAST_BYTES = 64 * 1024
BUSY_TIMEOUT_S = 10.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
    id TEXT PRIMARY KEY,                        -- those that came later are greater
    owner TEXT NOT NULL,                        -- the name of a key; '': nobody's
    purpose TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    expires_unix_s REAL NOT NULL,
    document TEXT NOT NULL                      -- a `StoredFile`
);
CREATE INDEX IF NOT EXISTS file_owner ON file (owner);
CREATE TABLE IF NOT EXISTS batch (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    over INTEGER NOT NULL,
    created_unix_s REAL NOT NULL,
    document TEXT NOT NULL                      -- a `Batch`
);
CREATE INDEX IF NOT EXISTS batch_over ON batch (over);
"""


def new_id(prefix: str, now_unix_s: float) -> str:
    """An id that sorts after those that were given before: a page goes on after one that is gone.

    Microseconds have 13 hexadecimal digits until the year 2112.
    """
    return f"{prefix}{int(now_unix_s * 1e6):013x}{secrets.token_hex(6)}"


class ApiStore:
    """The files and batches below `folder`. Any thread of any process may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_folder(self) -> None:
        """Have the folder; AppError when it cannot be made."""
        try:
            self._content()
        except OSError as error:
            raise unusable(self.folder, error) from error

    # files

    def path(self, file_id: str) -> Path:
        """Where a file's content lies; only for an id that we gave."""
        return self._content() / file_id

    def add_file(self, file: StoredFile) -> None:
        """Keep a file whose content is in its place."""
        with self._open() as connection:
            _insert(connection, file)

    def file(self, file_id: str) -> StoredFile | None:
        """One file; None: there is none of that id."""
        with self._open() as connection:
            row = connection.execute("SELECT document FROM file WHERE id = ?", (file_id,))
            found = row.fetchone()
        return None if found is None else _file(found[0])

    def files(
        self,
        owner: str | None,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int,
        oldest_first: bool = False,
    ) -> tuple[list[StoredFile], bool]:
        """A page of an owner's files (None: everybody's), and whether there are more."""
        order, than = ("ASC", ">") if oldest_first else ("DESC", "<")
        with self._open() as connection:
            rows = connection.execute(
                "SELECT document FROM file WHERE (?1 IS NULL OR owner = ?1) "  # noqa: S608 (ours)
                f"AND (?2 IS NULL OR purpose = ?2) AND (?3 IS NULL OR id {than} ?3) "
                f"ORDER BY id {order} LIMIT ?4",
                (owner, purpose, after, limit + 1),
            ).fetchall()
        return [_file(row[0]) for row in rows[:limit]], len(rows) > limit

    def held_bytes(self, owner: str) -> tuple[int, int]:
        """What the files of an owner, and of everybody, count as."""
        sums = "SELECT total(max(size_bytes, ?)) FROM file"
        with self._open() as connection:
            own = connection.execute(f"{sums} WHERE owner = ?", (LEAST_BYTES, owner)).fetchone()
            every = connection.execute(sums, (LEAST_BYTES,)).fetchone()
        return int(own[0]), int(every[0])

    def drop_file(self, file_id: str) -> None:
        """Forget a file, and delete what it holds."""
        with self._open() as connection:
            connection.execute("DELETE FROM file WHERE id = ?", (file_id,))
        self.path(file_id).unlink(missing_ok=True)

    # batches

    def add_batch(self, batch: Batch, most_unfinished: int) -> bool:
        """Keep a new batch; False where its owner has so many unfinished ones already."""
        document = msgspec.json.encode(batch).decode()
        row = (batch.id, batch.owner, batch.over, batch.created_unix_s, document)
        with self._open() as connection:
            # Counted and added in one statement: two requests at once see each other.
            added = connection.execute(
                "INSERT INTO batch (id, owner, over, created_unix_s, document) "
                "SELECT ?1, ?2, ?3, ?4, ?5 WHERE ?6 > "
                "(SELECT count(*) FROM batch WHERE owner = ?2 AND NOT over)",
                (*row, most_unfinished),
            )
            return added.rowcount == 1

    def batch(self, batch_id: str) -> Batch | None:
        """One batch; None: there is none of that id."""
        with self._open() as connection:
            return _one_batch(connection, batch_id)

    def batches(
        self, owner: str | None, *, after: str | None = None, limit: int
    ) -> tuple[list[Batch], bool]:
        """A page of an owner's batches (None: everybody's), the newest first; are there more?"""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT document FROM batch WHERE (?1 IS NULL OR owner = ?1) "
                "AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
                (owner, after, limit + 1),
            ).fetchall()
        return [_batch(row[0]) for row in rows[:limit]], len(rows) > limit

    def unfinished(self) -> tuple[Batch, ...]:
        """The batches that are not over, the oldest first."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT document FROM batch WHERE NOT over ORDER BY id"
            ).fetchall()
        return tuple(_batch(row[0]) for row in rows)

    def change(
        self, batch_id: str, how: Callable[[Batch], Batch], files: Iterable[StoredFile] = ()
    ) -> Batch:
        """Change a batch, and keep the files that come with it: both or neither."""
        with self._open() as connection:
            before = _one_batch(connection, batch_id)
            if before is None:
                raise KeyError(batch_id)
            after = how(before)
            connection.execute(
                "UPDATE batch SET over = ?, document = ? WHERE id = ?",
                (after.over, msgspec.json.encode(after).decode(), batch_id),
            )
            for file in files:
                _insert(connection, file)
        return after

    # upkeep

    def sweep(self, now_unix_s: float, keep_s: float) -> None:
        """Delete files whose time is over, and batches that ended so long ago."""
        with self._open() as connection:
            old = connection.execute(
                "SELECT id FROM file WHERE expires_unix_s <= ?", (now_unix_s,)
            ).fetchall()
            connection.execute(
                "DELETE FROM batch WHERE over AND created_unix_s <= ?", (now_unix_s - keep_s,)
            )
        for (file_id,) in old:
            self.drop_file(file_id)

    def sweep_unknown(self) -> None:
        """Delete what a service that was killed left half written; only while none writes."""
        with self._open() as connection:
            known = {row[0] for row in connection.execute("SELECT id FROM file")}
        try:
            for path in self._content().iterdir():
                if path.name not in known:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise unusable(self.folder, error) from error

    def _content(self) -> Path:
        folder = self.folder / CONTENT
        # What people asked is nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """One transaction that writes, or reads what stands."""
        path = self.folder / INDEX
        try:
            if not path.exists():
                self._content()
            found = opened(path, SCHEMA, private=True, timeout_s=BUSY_TIMEOUT_S)
            with closing(found) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise unusable(self.folder, error) from error


def _insert(connection: sqlite3.Connection, file: StoredFile) -> None:
    document = msgspec.json.encode(file).decode()
    connection.execute(
        "INSERT INTO file (id, owner, purpose, size_bytes, expires_unix_s, document) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (file.id, file.owner, file.purpose, file.size_bytes, file.expires_unix_s, document),
    )


def _one_batch(connection: sqlite3.Connection, batch_id: str) -> Batch | None:
    row = connection.execute("SELECT document FROM batch WHERE id = ?", (batch_id,)).fetchone()
    return None if row is None else _batch(row[0])


def _file(document: str) -> StoredFile:
    return msgspec.json.decode(document, type=StoredFile)


def _batch(document: str) -> Batch:
    return msgspec.json.decode(document, type=Batch)


def unusable(folder: Path, error: Exception) -> AppError:
    """The files cannot be kept or read."""
    return AppError(
        Text(
            f"The files of batches in {folder} cannot be used: {error}.",
            f"无法使用 {folder} 中的批处理文件：{error}。",
        ),
        Text(
            "See that the disk has room and that the service may write there.",
            "请确认磁盘有空间，且服务可写入该目录。",
        ),
        speaker="gateway",
    )
