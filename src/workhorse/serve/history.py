"""What the service looked like over time: a bounded history in SQLite.

Each tier is coarser and kept longer than the one before it. A point of a coarser tier has the
least, the mean and the most of those it stands for, so that a peak is not lost in a mean; where
nothing was read there is no point, and a reader sees the gap.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from workhorse.errors import AppError
from workhorse.records import Reading
from workhorse.serve.points import LARGEST_FIGURES, TIERS, UNITS, Event, Point, points_of, span_for
from workhorse.sqlite_file import opened
from workhorse.text import Text

WRITE_EVERY_S = 10.0  # a commit is a write to the disk; more often would only wear it
PRUNE_EVERY_S = 300.0
EVENTS_KEPT = 200
LARGEST_PIXELS = 2000
LARGEST_WAITING = 50_000  # points of about an hour, while the disk does not take them

SCHEMA = """
CREATE TABLE IF NOT EXISTS history_figure (
    id INTEGER PRIMARY KEY,
    figure TEXT NOT NULL,
    subject TEXT NOT NULL,              -- a model, a card's index; '': the machine
    UNIQUE (figure, subject)
);
CREATE TABLE IF NOT EXISTS history_point (
    figure_id INTEGER NOT NULL,
    tier INTEGER NOT NULL,
    at_unix_s INTEGER NOT NULL,         -- where its step begins
    mean REAL NOT NULL,
    low REAL,                           -- NULL: as the mean
    high REAL,
    PRIMARY KEY (figure_id, tier, at_unix_s)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history_event (
    id INTEGER PRIMARY KEY,
    at_unix_s REAL NOT NULL,
    model_name TEXT NOT NULL,
    state TEXT NOT NULL,
    reason_en TEXT,
    reason_zh TEXT
);
"""
INSERT = "INSERT OR REPLACE INTO history_point (figure_id, tier, at_unix_s, mean) VALUES (?,0,?,?)"
ROLL_UP = """
INSERT OR REPLACE INTO history_point (figure_id, tier, at_unix_s, mean, low, high)
SELECT figure_id, :tier, at_unix_s / :step * :step, avg(mean),
    nullif(min(coalesce(low, mean)), avg(mean)), nullif(max(coalesce(high, mean)), avg(mean))
FROM history_point
WHERE tier = :tier - 1 AND at_unix_s >= :since AND at_unix_s < :until AND figure_id = :figure_id
GROUP BY at_unix_s / :step
"""
SELECT = """
SELECT at_unix_s / :step * :step AS at, round(min(coalesce(low, mean)), 4), round(avg(mean), 4),
    round(max(coalesce(high, mean)), 4)
FROM history_point
WHERE figure_id = :figure_id AND tier = :tier AND at_unix_s >= :since AND at_unix_s <= :until
GROUP BY at ORDER BY at
"""
# The coarsest tier has all points, and its latest is found without reading the others.
OLDEST = """
SELECT id FROM (
    SELECT id, (SELECT max(at_unix_s) FROM history_point WHERE figure_id = id AND tier = ?) AS last
    FROM history_figure
) WHERE last < ? ORDER BY last LIMIT 1
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of one subject: `(unix seconds, least, mean, most)`; a gap has no points."""

    figure: str
    subject: str
    unit: str
    points: tuple[tuple[int, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was asked of the history."""

    since_unix_s: float
    until_unix_s: float
    step_s: int  # between two points that follow each other without a gap
    series: tuple[Series, ...]


class History:
    """The history in the SQLite file `path`; the only writer of its tables.

    `take` and `note` are cheap and never fail; `write` and the readers block, so they belong into
    a thread. What cannot be written is dropped and logged once: the service goes on without it.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()  # one connection at a time; `take` does not wait for it
        self._taken = threading.Lock()  # of the two lists
        self._points: list[Point] = []
        self._events: list[Event] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._pruned_unix_s: float | None = None
        self._failed = False

    def take(self, reading: Reading) -> None:
        """Keep a reading; it is on the disk after the next `write`."""
        points = list(points_of(reading))
        with self._taken:
            self._points += points
            del self._points[:-LARGEST_WAITING]

    def note(self, event: Event) -> None:
        """Keep an engine's new state."""
        with self._taken:
            self._events.append(event)
            del self._events[:-EVENTS_KEPT]

    async def keep(self) -> None:
        """Write until cancelled, and what is left then."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                await asyncio.to_thread(self.write)
        finally:
            self.write()

    def write(self) -> None:
        """Write what was taken, fold it into the coarser tiers, drop what is too old."""
        with self._taken:
            points, self._points = self._points, []
            events, self._events = self._events, []
        with self._lock:
            try:
                with closing(self._open()) as connection, connection:
                    self._insert(connection, points)
                    _insert_events(connection, events)
                    self._prune(connection)
                self._failed = False
            except (sqlite3.Error, OSError) as error:
                self._ids.clear()
                if not self._failed:
                    log.warning("The history in %s cannot be written: %s.", self._path, error)
                self._failed = True

    def read(
        self, figures: Sequence[str], since_unix_s: float, until_unix_s: float, pixels: int
    ) -> Stretch:
        """These figures of all their subjects, at most one point a pixel.

        Raises an AppError when the file cannot be read.
        """
        self.write()
        span = span_for(since_unix_s, until_unix_s, self._clock(), min(pixels, LARGEST_PIXELS))
        found = []
        with self._reading() as connection:
            for figure in figures:
                rows = connection.execute(
                    "SELECT id, subject FROM history_figure WHERE figure = ? ORDER BY subject",
                    (figure,),
                ).fetchall()
                for figure_id, subject in rows:
                    asked = {
                        "figure_id": figure_id,
                        "tier": span.tier,
                        "step": span.step_s,
                        "since": since_unix_s,
                        "until": until_unix_s,
                    }
                    points = tuple(connection.execute(SELECT, asked))
                    if points:
                        found.append(Series(figure, subject, UNITS[figure], points))
        return Stretch(since_unix_s, until_unix_s, span.step_s, tuple(found))

    def events(self, latest: int = 20) -> tuple[Event, ...]:
        """The latest changes of the engines, newest first; an AppError as from `read`."""
        self.write()
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT at_unix_s, model_name, state, reason_en, reason_zh FROM history_event "
                "ORDER BY id DESC LIMIT ?",
                (latest,),
            ).fetchall()
        return tuple(
            Event(at, name, state, None if en is None else Text(en, zh or en))
            for at, name, state, en, zh in rows
        )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, closing(self._open()) as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise AppError(
                Text(
                    f"The history in {self._path} cannot be read: {error}.",
                    f"无法读取历史数据 {self._path}：{error}。",
                ),
                Text(
                    "If it is damaged, move it away: a new one is made, and keys have to be made "
                    "anew.",
                    "若文件已损坏，请移走：系统会新建一个，但密钥需要重新创建。",
                ),
            ) from error

    def _open(self) -> sqlite3.Connection:
        connection = opened(self._path, SCHEMA, private=True)
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut costs seconds of it
        return connection

    def _insert(self, connection: sqlite3.Connection, points: Iterable[Point]) -> None:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        rows = []
        for point in points:
            figure_id = self._figure_id(connection, point)
            if figure_id is None:
                continue
            at = point.at_unix_s
            rows.append((figure_id, at, point.value))
            first[figure_id] = min(at, first.get(figure_id, at))
            last[figure_id] = max(at, last.get(figure_id, at))
        connection.executemany(INSERT, rows)
        for tier, finer in zip(range(1, len(TIERS)), TIERS, strict=False):
            step_s = TIERS[tier].step_s
            connection.executemany(
                ROLL_UP,
                [
                    {
                        "figure_id": figure_id,
                        "tier": tier,
                        "step": step_s,
                        "since": since // step_s * step_s,
                        "until": last[figure_id] + finer.step_s,
                    }
                    for figure_id, since in first.items()
                ],
            )

    def _figure_id(self, connection: sqlite3.Connection, point: Point) -> int | None:
        """The row of a figure; None when there are too many of the latest hour already."""
        key = (point.figure, point.subject)
        if (known := self._ids.get(key)) is not None:
            return known
        named = "SELECT id FROM history_figure WHERE figure = ? AND subject = ?"
        if (row := connection.execute(named, key).fetchone()) is None:
            (there,) = connection.execute("SELECT count(*) FROM history_figure").fetchone()
            if there >= LARGEST_FIGURES and not self._forget_oldest(connection, point):
                return None
            connection.execute("INSERT INTO history_figure (figure, subject) VALUES (?, ?)", key)
            row = connection.execute(named, key).fetchone()
        return self._ids.setdefault(key, int(row[0]))

    def _forget_oldest(self, connection: sqlite3.Connection, new: Point) -> bool:
        """Make room for a new figure: models come and go, and each leaves months of points."""
        row = connection.execute(OLDEST, (len(TIERS) - 1, new.at_unix_s - TIERS[0].kept_s))
        if (oldest := row.fetchone()) is None:
            return False
        connection.execute("DELETE FROM history_point WHERE figure_id = ?", oldest)
        connection.execute("DELETE FROM history_figure WHERE id = ?", oldest)
        self._ids = {key: known for key, known in self._ids.items() if known != oldest[0]}
        return True

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Drop what is older than its tier keeps, or from a future that a clock set right made."""
        now = self._clock()
        if self._pruned_unix_s is not None and 0 <= now - self._pruned_unix_s < PRUNE_EVERY_S:
            return
        self._pruned_unix_s = now
        known = "DELETE FROM history_point WHERE tier = ? AND figure_id IN "
        known += "(SELECT id FROM history_figure) AND at_unix_s "
        for tier, kept in enumerate(TIERS):
            connection.execute(f"{known} < ?", (tier, now - kept.kept_s))
            connection.execute(f"{known} > ?", (tier, now + kept.step_s))
        connection.execute(
            "DELETE FROM history_figure WHERE NOT EXISTS "
            "(SELECT 1 FROM history_point WHERE figure_id = id)"
        )
        connection.execute(
            "DELETE FROM history_event WHERE id <= (SELECT max(id) FROM history_event) - ?",
            (EVENTS_KEPT,),
        )
        self._ids.clear()


def _insert_events(connection: sqlite3.Connection, events: Iterable[Event]) -> None:
    connection.executemany(
        "INSERT INTO history_event (at_unix_s, model_name, state, reason_en, reason_zh) "
        "VALUES (?, ?, ?, ?, ?)",
        [
            (
                event.at_unix_s,
                event.model_name,
                event.state,
                event.reason and event.reason.en,
                event.reason and event.reason.zh,
            )
            for event in events
        ],
    )
