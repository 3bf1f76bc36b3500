"""What was measured of quantised files: one small SQLite file, by the files' fingerprints."""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_line
from workhorse.errors import AppError
from workhorse.plan.quality import Quality
from workhorse.sqlite_file import opened
from workhorse.text import Text
from workhorse.units import MIB

FILE = "quality-1.sqlite"  # the number: of the table's form
_SCHEMA = """
CREATE TABLE IF NOT EXISTS quality (
    fingerprint TEXT PRIMARY KEY,
    document TEXT NOT NULL              -- the Quality, JSON
)
"""


def fingerprint(path: Path) -> str:
    """A file's size, first and last MiB as one hash: quick for files of any size.

    Raises OSError. The header is in the first part, the last layer's weights in the last.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        head = os.pread(file.fileno(), MIB, 0)
        tail = os.pread(file.fileno(), MIB, max(0, size - MIB))
    return hashlib.sha256(size.to_bytes(8, "little") + head + tail).hexdigest()


@dataclass(frozen=True, slots=True)
class QualityStore:
    """The measurements in the SQLite file `path`; a store that is not there is empty."""

    path: Path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(opened(self.path, _SCHEMA, many_at_once=False)) as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise AppError(
                Text(
                    f"The store {self.path} cannot be used: {error}.",
                    f"数据文件 {self.path} 无法使用：{error}。",
                ),
                Text(
                    "Move it away; the next measurement makes a new one.",
                    "请把它移走；下次测量会新建。",
                ),
            ) from error

    def add(self, quality: Quality) -> None:
        """Keep a measurement; an earlier one of the same file goes."""
        with self._open() as connection, connection:
            connection.execute(
                "INSERT OR REPLACE INTO quality VALUES (?, ?)",
                (quality.fingerprint, to_line(quality)),
            )

    def all(self) -> tuple[Quality, ...]:
        """Every measurement; those of another form are passed over. AppError: no store."""
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute("SELECT document FROM quality ORDER BY rowid").fetchall()
        found = []
        for (document,) in rows:
            with suppress(AppError):
                found.append(from_json(Quality, document, what=str(self.path)))
        return tuple(found)

    def of_file(self, path: Path) -> Quality | None:
        """What was measured of this file; None: nothing, or it is not here."""
        if not self.path.exists():
            return None
        try:
            mark = fingerprint(path)
        except OSError:
            return None
        return next((found for found in self.all() if found.fingerprint == mark), None)
