"""What was measured on this machine, kept beside what had been forecast (SQLite)."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workhorse.codec import from_json, to_line
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.plan.rehearsed import Rehearsed
from workhorse.plan.speed import Experience, Setup
from workhorse.records import Attribution, Forecast, Measurement
from workhorse.sqlite_file import opened
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
    predicted_tokens_per_s REAL,        -- by constants alone; NULL: forecasts do not learn from it
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
RUNS = """
CREATE TABLE IF NOT EXISTS {table} (
    id INTEGER PRIMARY KEY,
    taken_at TEXT NOT NULL,             -- ISO 8601, UTC
    url TEXT NOT NULL,
    model_name TEXT,                    -- NULL: the service was not asked
    label TEXT,                         -- the user's own word for it
    document TEXT NOT NULL              -- JSON: a list of Measurement, or an Attribution
)
"""
Kind = Literal["bench", "up", "explain"]
TABLES: dict[Kind, str] = {"bench": "bench_run", "up": "measurement", "explain": "attribution"}
# `12` is a run of `bench`, `up-3` one of `up`, `explain-4` one of `explain`.
RUN_NAME = re.compile(r"(?:(up|explain)-)?([0-9]{1,18})")
LISTED = """
SELECT * FROM (SELECT 'bench', id, taken_at, url, model_name, label FROM bench_run
    ORDER BY id DESC LIMIT :most)
UNION ALL SELECT * FROM (SELECT 'up', id, taken_at, '', model_name, NULL FROM measurement
    ORDER BY id DESC LIMIT :most)
UNION ALL SELECT * FROM (SELECT 'explain', id, taken_at, url, model_name, label FROM attribution
    ORDER BY id DESC LIMIT :most)
ORDER BY 3 DESC, 2 DESC
"""
# Machines change (a DIMM, a BIOS setting): only the latest measurements teach the forecast.
LEARN_FROM_LATEST = 20

# A run with its raw times takes 50 KB (one stream) to 8 MB (1 to 256 streams, measured 2026-11).
RUNS_KEPT = 500
RUNS_KEPT_BYTES = 128 * 2**20
DOCUMENT_BYTES_MAX = 64 * 2**20  # a larger one is not ours, and reading it would take the memory


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in the store: how to name it, what it is of; `None`: not told."""

    name: str  # `12`; `up-3`: what a starting service measured itself at; `explain-4`
    kind: Kind
    when: str  # ISO 8601, UTC
    url: str | None
    model_name: str | None
    label: str | None


@dataclass(frozen=True, slots=True)
class Store:
    """The measurements of one installation, in the SQLite file `path`."""

    path: Path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(opened(self.path, SCHEMA, many_at_once=False)) as connection:
                there = {row[1] for row in connection.execute("PRAGMA table_info(measurement)")}
                for column, kind in ADDED_COLUMNS.items():
                    if column not in there:
                        connection.execute(f"ALTER TABLE measurement ADD COLUMN {column} {kind}")
                connection.execute(REHEARSALS)
                for table in (TABLES["bench"], TABLES["explain"]):
                    connection.execute(RUNS.format(table=table))
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
        self,
        experience: Experience,
        measurement: Measurement,
        forecast: Forecast | None = None,
        *,
        teaches: bool = True,
    ) -> None:
        """Keep a measurement and the forecast that it checks.

        `teaches`: later forecasts learn from it; False: it can only be read back, by `run`.
        """
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
                    experience.predicted_tokens_per_s if teaches else None,
                    experience.measured_tokens_per_s,
                    experience.prefill_tokens_per_s,
                    experience.low_tokens_per_s,
                    experience.high_tokens_per_s,
                    to_line(measurement),
                    None if forecast is None else to_line(forecast),
                ),
            )
            forget_oldest(connection, "measurement")

    def keep_bench(
        self,
        measurements: Sequence[Measurement],
        *,
        model_name: str | None = None,
        label: str | None = None,
    ) -> int:
        """Keep the measurements of one bench as a run; its number.

        `model_name` as the service calls it; None: as the plan does. The oldest runs go when
        there are more than `RUNS_KEPT` or they take more than `RUNS_KEPT_BYTES`.
        """
        if not measurements:
            raise ValueError("a run holds at least one measurement")
        conditions = measurements[0].conditions
        if model_name is None and conditions.plan is not None:
            model_name = conditions.plan.model_name
        row = (conditions.when, conditions.url, model_name, label, to_line(measurements))
        return self._keep("bench", row)

    def keep_attribution(self, found: Attribution, *, label: str | None = None) -> int:
        """Keep where a token's time went; its number."""
        row = (found.when, found.url, found.model_name, label, to_line(found))
        return self._keep("explain", row)

    def _keep(self, kind: Literal["bench", "explain"], row: tuple[str | None, ...]) -> int:
        table = TABLES[kind]
        with self._open() as connection, connection:
            kept = connection.execute(
                f"INSERT INTO {table} (taken_at, url, model_name, label, document) "  # noqa: S608 ours
                "VALUES (?, ?, ?, ?, ?)",
                row,
            )
            forget_oldest(connection, table)
            return int(kept.lastrowid or 0)

    def runs(self, most: int = RUNS_KEPT) -> tuple[StoredRun, ...]:
        """What can be read back, newest first, at most so many of a kind; empty without a store."""
        if not self.path.exists():
            return ()
        with self._open() as connection:
            rows = connection.execute(LISTED, {"most": most}).fetchall()
        return tuple(
            StoredRun(run_name(kind, number), kind, when, url or None, *told)
            for kind, number, when, url, *told in rows
        )

    def run(self, name: str) -> tuple[Measurement, ...]:
        """The measurements of one run of `bench` or `up`.

        Raises `AppError` when there is none of this name, or another version wrote it in a form
        that this one cannot read.
        """
        kind, document, what = self._document(name)
        if kind == "explain":
            raise no_such_run(name, self.path)
        if kind == "up":
            return (from_json(Measurement, document, what=what),)
        return from_json(tuple[Measurement, ...], document, what=what)

    def attribution(self, name: str) -> Attribution:
        """What `explain` found; raises like `run`."""
        kind, document, what = self._document(name)
        if kind != "explain":
            raise no_such_run(name, self.path)
        return from_json(Attribution, document, what=what)

    def _document(self, name: str) -> tuple[Kind, str | bytes, str]:
        match = RUN_NAME.fullmatch(name)
        if match is None or not self.path.exists():
            raise no_such_run(name, self.path)
        kind: Kind = "up" if match[1] == "up" else "explain" if match[1] else "bench"
        with self._open() as connection:
            found = connection.execute(
                f"SELECT document FROM {TABLES[kind]} WHERE id = ? AND length(document) <= ?",  # noqa: S608 ours
                (int(match[2]), DOCUMENT_BYTES_MAX),
            ).fetchone()
        if found is None:
            raise no_such_run(name, self.path)
        return kind, found[0], f"run {name} in {self.path}"

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


def forget_oldest(connection: sqlite3.Connection, table: str) -> None:
    """Delete the oldest rows beyond what is kept; the newest stays however large it is."""
    connection.execute(
        f"""
        DELETE FROM {table} WHERE id < (SELECT MAX(id) FROM {table}) AND id IN (
            SELECT id FROM (
                SELECT id, ROW_NUMBER() OVER latest AS place,
                    SUM(length(document)) OVER latest AS n_bytes
                FROM {table} WINDOW latest AS (ORDER BY id DESC))
            WHERE place > ? OR n_bytes > ?)
        """,  # noqa: S608 of TABLES
        (RUNS_KEPT, RUNS_KEPT_BYTES),
    )


def run_name(kind: Kind, number: int) -> str:
    """How a run is named."""
    return str(number) if kind == "bench" else f"{kind}-{number}"


def no_such_run(name: str, path: Path) -> AppError:
    """Nothing is kept under this name."""
    return AppError(
        Text(f"{path} has no run {name!r}.", f"{path} 中没有编号为 {name!r} 的测量。"),
        Text(
            "See the kept ones with `workhorse report --list`.",
            "用 workhorse report --list 查看已保存的测量。",
        ),
        exit_code=EXIT_USAGE,
    )
