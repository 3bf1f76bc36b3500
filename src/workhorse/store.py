"""What was measured on this machine, kept beside what had been forecast (SQLite)."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import to_line
from workhorse.errors import AppError
from workhorse.plan.speed import Experience, Setup
from workhorse.records import Measurement
from workhorse.text import Text

SCHEMA = """
CREATE TABLE IF NOT EXISTS measurement (
    id INTEGER PRIMARY KEY,
    taken_at TEXT NOT NULL,             -- ISO 8601, UTC
    model_name TEXT NOT NULL,
    quantisation TEXT NOT NULL,
    engine TEXT NOT NULL,
    pages TEXT NOT NULL,
    threads INTEGER NOT NULL,
    predicted_tokens_per_s REAL,        -- by constants alone; NULL: there was no forecast
    measured_tokens_per_s REAL NOT NULL,
    prefill_tokens_per_s REAL,          -- measured
    document TEXT NOT NULL              -- the Measurement, JSON
)
"""
# Machines change (a DIMM, a BIOS setting): only the latest measurements teach the forecast.
LEARN_FROM_LATEST = 20


@dataclass(frozen=True, slots=True)
class Store:
    """The measurements of one installation, in the SQLite file `path`."""

    path: Path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=5)) as connection:
                connection.execute(SCHEMA)
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise AppError(
                Text(
                    f"The store {self.path} cannot be used: {error}.",
                    f"数据文件 {self.path} 无法使用：{error}。",
                ),
                Text(
                    "Move it away; the next start makes a new one, without what it had learned.",
                    "请把它移走；下次启动会新建，但会丢失已学到的数据。",
                ),
            ) from error

    def add(self, experience: Experience, measurement: Measurement) -> None:
        """Keep a measurement and the forecast that it checks."""
        setup = experience.setup
        with self._open() as connection, connection:
            connection.execute(
                "INSERT INTO measurement (taken_at, model_name, quantisation, engine, pages, "
                "threads, predicted_tokens_per_s, measured_tokens_per_s, prefill_tokens_per_s, "
                "document) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    measurement.conditions.when,
                    experience.model_name,
                    experience.quantisation,
                    setup.engine,
                    setup.pages,
                    setup.threads,
                    experience.predicted_tokens_per_s,
                    experience.measured_tokens_per_s,
                    experience.prefill_tokens_per_s,
                    to_line(measurement),
                ),
            )

    def experiences(self) -> tuple[Experience, ...]:
        """The latest forecasts with what was measured, newest first; empty without a store."""
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute(
                "SELECT model_name, quantisation, engine, pages, threads, "
                "predicted_tokens_per_s, measured_tokens_per_s, prefill_tokens_per_s "
                "FROM measurement "
                "WHERE predicted_tokens_per_s IS NOT NULL ORDER BY id DESC LIMIT ?",
                (LEARN_FROM_LATEST,),
            ).fetchall()
        return tuple(
            Experience(name, quantisation, Setup(engine, pages, threads), *figures)
            for name, quantisation, engine, pages, threads, *figures in rows
        )
