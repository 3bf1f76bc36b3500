"""What was measured on this machine, kept beside what had been forecast (SQLite)."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_line
from workhorse.errors import AppError
from workhorse.plan.rehearsed import Rehearsed
from workhorse.plan.speed import Experience, Setup
from workhorse.records import Forecast, Measurement
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
# Columns that later versions added; a store of an earlier one gets them when it is opened.
ADDED_COLUMNS = {
    "low_tokens_per_s": "REAL",  # the interval that was promised
    "high_tokens_per_s": "REAL",
    "forecast": "TEXT",  # the whole Forecast, JSON: streams, prompts, loading, terms
}
INSERT = """
INSERT INTO measurement (taken_at, model_name, quantisation, engine, pages, threads,
    predicted_tokens_per_s, measured_tokens_per_s, prefill_tokens_per_s,
    low_tokens_per_s, high_tokens_per_s, document, forecast)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT = """
SELECT model_name, quantisation, engine, pages, threads,
    predicted_tokens_per_s, measured_tokens_per_s, prefill_tokens_per_s,
    low_tokens_per_s, high_tokens_per_s
FROM measurement WHERE predicted_tokens_per_s IS NOT NULL ORDER BY id DESC LIMIT ?
"""
REHEARSALS = """
CREATE TABLE IF NOT EXISTS rehearsal (
    id INTEGER PRIMARY KEY,
    taken_at TEXT NOT NULL,             -- ISO 8601, UTC
    model_name TEXT NOT NULL,
    document TEXT NOT NULL              -- the Rehearsed, JSON
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
                there = {row[1] for row in connection.execute("PRAGMA table_info(measurement)")}
                for column, kind in ADDED_COLUMNS.items():
                    if column not in there:
                        connection.execute(f"ALTER TABLE measurement ADD COLUMN {column} {kind}")
                connection.execute(REHEARSALS)
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

    def add(
        self, experience: Experience, measurement: Measurement, forecast: Forecast | None = None
    ) -> None:
        """Keep a measurement and the forecast that it checks."""
        setup = experience.setup
        with self._open() as connection, connection:
            connection.execute(
                INSERT,
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
                    experience.low_tokens_per_s,
                    experience.high_tokens_per_s,
                    to_line(measurement),
                    None if forecast is None else to_line(forecast),
                ),
            )

    def experiences(self) -> tuple[Experience, ...]:
        """The latest forecasts with what was measured, newest first; empty without a store."""
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute(SELECT, (LEARN_FROM_LATEST,)).fetchall()
        return tuple(
            Experience(name, quantisation, Setup(engine, pages, threads), *figures)
            for name, quantisation, engine, pages, threads, *figures in rows
        )

    def add_rehearsed(self, rehearsed: Rehearsed, taken_at: str) -> None:
        """Keep what twins said of a model."""
        with self._open() as connection, connection:
            connection.execute(
                "INSERT INTO rehearsal (taken_at, model_name, document) VALUES (?, ?, ?)",
                (taken_at, rehearsed.model_name, to_line(rehearsed)),
            )

    def rehearsed(self) -> tuple[Rehearsed, ...]:
        """What twins said of models, newest first; empty without a store.

        What an older version wrote in another form is passed over: a rehearsal is quickly had.
        """
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute(
                "SELECT document FROM rehearsal ORDER BY id DESC LIMIT ?", (LEARN_FROM_LATEST,)
            ).fetchall()
        found = []
        for (document,) in rows:
            with suppress(AppError):
                found.append(from_json(Rehearsed, document, what=str(self.path)))
        return tuple(found)
