"""Every trial on this machine, whatever came of it, with its conditions (SQLite)."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_line
from workhorse.errors import EXIT_NO, AppError
from workhorse.records import Plan
from workhorse.sqlite_file import opened
from workhorse.text import Text
from workhorse.tune.given import Given
from workhorse.tune.quality import Likely
from workhorse.tune.tell import Tuned
from workhorse.tune.trial import Goal, Trial

SCHEMA = """
CREATE TABLE IF NOT EXISTS tuning (
    id INTEGER PRIMARY KEY,
    began_at TEXT NOT NULL,             -- ISO 8601, UTC
    finished_at TEXT,                   -- NULL: there is more to try
    model TEXT NOT NULL,                -- name, quant and bytes of the weights
    goal TEXT NOT NULL,
    about TEXT NOT NULL,                -- the About, JSON
    given TEXT NOT NULL,                -- the Given, JSON
    likely TEXT,                        -- next tokens of the plan's own weights, JSON
    result TEXT                         -- the latest Tuned, JSON
);
CREATE TABLE IF NOT EXISTS trial (
    tuning INTEGER NOT NULL REFERENCES tuning (id),
    number INTEGER NOT NULL,
    taken_at TEXT NOT NULL,
    variable TEXT NOT NULL,
    value TEXT NOT NULL,
    outcome TEXT NOT NULL,
    ratio REAL,                         -- candidate over incumbent
    low REAL, high REAL,                -- of the ratio
    took_s REAL NOT NULL,
    document TEXT NOT NULL,             -- the Trial, JSON
    conditions TEXT NOT NULL,           -- the Circumstances, JSON
    PRIMARY KEY (tuning, number)
);
"""
ADD = "INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
LATEST = """
SELECT id, began_at, finished_at, about, given FROM tuning
WHERE (?1 IS NULL OR model = ?1) AND (?2 IS NULL OR goal = ?2) ORDER BY id DESC LIMIT 1
"""
# More than any tuning can take in a year; a file that says otherwise is not ours.
MOST_TRIALS = 100_000


@dataclass(frozen=True, slots=True)
class About:
    """What a tuning holds for: with another of these its trials say nothing."""

    machine: dict[str, str]
    model: str
    goal: Goal
    asked: str  # constraints and variables, as they were asked for
    builds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What was so during one trial; None: not known."""

    taken_at: str
    workhorse: str
    plan: Plan | None  # the candidate's; None: there is none for the change
    other_cpus: float | None  # CPUs' worth of work of other processes
    divergence: float | None  # KL, in nats


@dataclass(frozen=True, slots=True)
class Tuning:
    """One tuning as it is kept."""

    number: int
    began_at: str
    finished_at: str | None
    about: About
    given: Given


@dataclass(frozen=True, slots=True)
class History:
    """The tunings of one installation, in the SQLite file `path`."""

    path: Path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with tables(self.path, SCHEMA) as connection:
            yield connection

    def begin(self, about: About, given: Given, began_at: str) -> Tuning:
        """A new tuning."""
        with self._open() as connection, connection:
            cursor = connection.execute(
                "INSERT INTO tuning (began_at, model, goal, about, given) VALUES (?, ?, ?, ?, ?)",
                (began_at, about.model, about.goal, to_line(about), to_line(given)),
            )
            return Tuning(int(cursor.lastrowid or 0), began_at, None, about, given)

    def latest(self, model: str | None = None, goal: Goal | None = None) -> Tuning | None:
        """The latest tuning of a model for a goal (None: any); None: there is none.

        One that another version wrote in another form counts as none.
        """
        if not self.path.exists():
            return None
        with self._open() as connection:
            row = connection.execute(LATEST, (model, goal)).fetchone()
        if row is None:
            return None
        number, began_at, finished_at, about, given = row
        try:
            return Tuning(
                number,
                began_at,
                finished_at,
                from_json(About, about, what=str(self.path)),
                from_json(Given, given, what=str(self.path)),
            )
        except AppError:
            return None

    def trials(self, tuning: Tuning) -> tuple[Trial, ...]:
        """The trials of a tuning, in order; AppError for one that cannot be read."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT document FROM trial WHERE tuning = ? ORDER BY number LIMIT ?",
                (tuning.number, MOST_TRIALS),
            ).fetchall()
        return tuple(from_json(Trial, row[0], what=str(self.path)) for row in rows)

    def add(self, tuning: Tuning, trial: Trial, conditions: Circumstances) -> None:
        """Keep a trial; AppError when the disk does not take it."""
        low, high = trial.interval or (None, None)
        change = trial.change
        head = (tuning.number, trial.number, conditions.taken_at, change.variable, change.value)
        figures = (trial.outcome, trial.ratio, low, high, trial.took_s)
        with self._open() as connection, connection:
            connection.execute(ADD, (*head, *figures, to_line(trial), to_line(conditions)))

    def finish(self, tuning: Tuning, finished_at: str) -> None:
        """Nothing is left to try in this tuning."""
        with self._open() as connection, connection:
            connection.execute(
                "UPDATE tuning SET finished_at = ? WHERE id = ?", (finished_at, tuning.number)
            )

    def keep_likely(self, tuning: Tuning, likely: Sequence[Likely]) -> None:
        """Keep what quality is compared with."""
        document = to_line([{str(k): v for k, v in one.items()} for one in likely])
        with self._open() as connection, connection:
            connection.execute(
                "UPDATE tuning SET likely = ? WHERE id = ?", (document, tuning.number)
            )

    def keep_result(self, tuning: Tuning, result: Tuned) -> None:
        """Keep what a run of a tuning ended with."""
        with self._open() as connection, connection:
            connection.execute(
                "UPDATE tuning SET result = ? WHERE id = ?", (to_line(result), tuning.number)
            )

    def result(self, tuning: Tuning) -> Tuned | None:
        """What the latest run of a tuning ended with; None: none came to its end."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT result FROM tuning WHERE id = ?", (tuning.number,)
            ).fetchone()
        if row is None or row[0] is None:
            return None
        return from_json(Tuned, row[0], what=str(self.path))

    def likely(self, tuning: Tuning) -> tuple[Likely, ...]:
        """What quality is compared with; empty before it was measured."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT likely FROM tuning WHERE id = ?", (tuning.number,)
            ).fetchone()
        if row is None or row[0] is None:
            return ()
        found = from_json(list[dict[int, float]], row[0], what=str(self.path))
        return tuple(found)


@contextmanager
def tables(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """The SQLite file with these tables; AppError for whatever goes wrong with it."""
    try:
        with closing(opened(path, schema, many_at_once=False)) as connection:
            yield connection
    except (sqlite3.Error, OSError) as error:
        raise AppError(
            Text(
                f"The history of tuning, {path}, cannot be used: {error}.",
                f"调优历史 {path} 无法使用：{error}。",
            ),
            Text(
                "Free space on its disk, or move the file away; `workhorse tune` goes on from what "
                "it holds.",
                "请腾出磁盘空间，或移走该文件；`workhorse tune` 会从已有记录继续。",
            ),
        ) from error


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock of tuning; AppError, exit code 3, while another process has it.

    The kernel gives it up with its process, however that ends.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AppError(
            Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
            Text("Make its folder writable.", "请确保该目录可写。"),
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise another_tunes(os.pread(handle, 32, 0)) from None
        os.truncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            os.truncate(handle, 0)  # nobody is told to stop a process that is another by then
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Tuner:
    """A process that tunes right now; `pid` None: it has not said which one it is yet."""

    pid: int | None

    @property
    def named(self) -> Text:
        """The process in brackets; empty where it is not known."""
        if self.pid is None:
            return Text("", "")
        return Text(f" (process {self.pid})", f"（进程 {self.pid}）")


def who_tunes(path: Path) -> Tuner | None:
    """Who holds the lock of tuning; None: nobody, or the lock cannot be looked at."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return written_in(os.pread(handle, 32, 0))
    except OSError:  # a file system without locks: then no tuning holds one either
        return None
    finally:
        os.close(handle)
    return None


def written_in(lock: bytes) -> Tuner:
    """Who has written itself into the lock."""
    said = lock.decode(errors="replace").strip()
    return Tuner(int(said) if said.isascii() and said.isdigit() else None)


def another_tunes(said: bytes) -> AppError:
    """Another process tunes on this machine."""
    who = written_in(said).named
    return AppError(
        Text(
            f"Another tuning runs on this machine{who.en}: two would disturb each other.",
            f"本机正在进行另一次调优{who.zh}：同时进行会互相干扰。",
        ),
        Text("Wait for its end, or stop it with Ctrl-C.", "请等待其结束，或用 Ctrl-C 停止。"),
        exit_code=EXIT_NO,
    )
