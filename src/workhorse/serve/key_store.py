"""The keys of an installation, in SQLite: digests and limits, never a secret."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import EXIT_NO, AppError
from workhorse.serve.keys import KeptKey, Key, KeyRing, digest_of, id_of, make_secret
from workhorse.sqlite_file import opened
from workhorse.text import Text

SCHEMA = """
CREATE TABLE IF NOT EXISTS key (
    id TEXT PRIMARY KEY,                -- the part of the secret that may be seen
    name TEXT NOT NULL,
    digest BLOB NOT NULL,               -- BLAKE2b of the secret
    rpm INTEGER,                        -- this and all below: NULL is no limit
    tpm INTEGER,
    concurrency INTEGER,
    models TEXT,                        -- names, one a line
    expires_unix_s REAL,
    priority TEXT NOT NULL,
    added_unix_s REAL NOT NULL,
    revoked_unix_s REAL                 -- NULL: in force
);
CREATE UNIQUE INDEX IF NOT EXISTS key_name ON key (name) WHERE revoked_unix_s IS NULL;
"""
SELECT = """
SELECT name, rpm, tpm, concurrency, models, expires_unix_s, priority,
    id, digest, added_unix_s, revoked_unix_s
FROM key ORDER BY added_unix_s, id
"""
INSERT = """
INSERT INTO key (id, name, digest, rpm, tpm, concurrency, models, expires_unix_s, priority,
    added_unix_s)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class KeyStore:
    """The keys in the SQLite file `path`; it need not exist."""

    path: Path

    def add(self, key: Key, now_unix_s: float) -> str:
        """Make a key and return its secret, which is nowhere else; AppError when it has one."""
        secret = make_secret()
        models = None if key.models is None else "\n".join(key.models)
        row = (
            *(id_of(secret), key.name, digest_of(secret), key.rpm, key.tpm, key.concurrency),
            *(models, key.expires_unix_s, key.priority, now_unix_s),
        )
        try:
            with self._open() as connection, connection:
                connection.execute(INSERT, row)
        except sqlite3.IntegrityError as error:
            raise AppError(
                Text(f"{key.name} has a key already.", f"{key.name} 已有密钥。"),
                Text(
                    f"Choose another name, or revoke it: workhorse keys revoke {key.name}",
                    f"请换一个名称，或先吊销：workhorse keys revoke {key.name}",
                ),
                exit_code=EXIT_NO,
            ) from error
        return secret

    def revoke(self, name: str, now_unix_s: float) -> None:
        """Let a key open nothing from now on; AppError when there is none of that name."""
        change = "UPDATE key SET revoked_unix_s = ? WHERE name = ? AND revoked_unix_s IS NULL"
        with self._open() as connection, connection:
            if connection.execute(change, (now_unix_s, name)).rowcount:
                return
        raise AppError(
            Text(f"No key in force is called {name}.", f"没有名为 {name} 的有效密钥。"),
            Text("`workhorse keys list` shows them.", "`workhorse keys list` 可列出全部密钥。"),
            exit_code=EXIT_NO,
        )

    def forget_all(self) -> int:
        """Delete every key, revoked ones too, so that none is asked for; how many there were."""
        with self._open() as connection, connection:
            return connection.execute("DELETE FROM key").rowcount

    def kept(self) -> tuple[KeptKey, ...]:
        """Every key, revoked ones too, the oldest first; none without a file."""
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute(SELECT).fetchall()
        found = []
        for name, rpm, tpm, concurrency, models, expires_unix_s, priority, *stored in rows:
            named = None if models is None else tuple(models.split("\n"))
            key = Key(name, rpm, tpm, concurrency, named, expires_unix_s, priority)
            found.append(KeptKey(key, *stored))
        return tuple(found)

    def ring(self) -> KeyRing:
        """The keys as they are now."""
        return KeyRing(self.kept())

    def file(self) -> tuple[int, int] | None:
        """Which file it is, by device and inode; None: there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(opened(self.path, SCHEMA, private=True)) as connection:
                yield connection
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise AppError(
                Text(
                    f"The keys in {self.path} cannot be used: {error}.",
                    f"无法使用 {self.path} 中的密钥：{error}。",
                ),
                Text(
                    "See that its disk has room and that you may write the file. One that is "
                    "damaged has to be moved away: then there are no keys.",
                    "请确认磁盘有空间且文件可写。文件若已损坏，只能移走：之后即没有任何密钥。",
                ),
            ) from error
