"""Opening one of our SQLite files. What goes wrong is told by who knows what is in it."""

import os
import sqlite3
from pathlib import Path

BUSY_TIMEOUT_S = 5.0  # another process writes


def opened(
    path: Path,
    schema: str,
    *,
    private: bool = False,
    many_at_once: bool = True,
    timeout_s: float = BUSY_TIMEOUT_S,
) -> sqlite3.Connection:
    """A connection to the file, which is made when it is not there, with these tables.

    `private`: nobody else may read a file that is made. `many_at_once`: readers do not wait for
    who writes (write-ahead log). Raises sqlite3.Error and OSError; nothing stays open then.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:  # SQLite makes its files readable to all
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=timeout_s)
    try:
        if many_at_once:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.executescript(schema)
    except BaseException:
        connection.close()
        raise
    return connection
