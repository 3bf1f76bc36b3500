"""What each key used, by the hour, in SQLite: counts and times, never a word of what was asked.

Written in batches off the event loop: a crash loses at most `WRITE_EVERY_S` of it.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from workhorse.errors import AppError
from workhorse.sqlite_file import opened
from workhorse.text import Text

WRITE_EVERY_S = 1.0
HOUR_S = 3600

Outcome = Literal["done", "failed", "refused", "left"]
By = Literal["key", "model", "day"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS usage_hour (
    hour_unix_s INTEGER NOT NULL,       -- where the hour begins
    key TEXT NOT NULL,                  -- its name; '': no key was asked for
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,          -- all of them: the next three are among them
    failed INTEGER NOT NULL,
    refused INTEGER NOT NULL,           -- for lack of room, or by a limit of the key
    left_early INTEGER NOT NULL,        -- the client left before its answer was complete
    prompt_tokens INTEGER NOT NULL,     -- cached ones included
    cached_tokens INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,
    waited_s REAL NOT NULL,             -- for a free slot
    served_s REAL NOT NULL,             -- in a slot
    PRIMARY KEY (hour_unix_s, key, model)
) WITHOUT ROWID
"""
_FIGURES = (
    "requests",
    "failed",
    "refused",
    "left_early",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "waited_s",
    "served_s",
)
# Names of columns, from the tuple above: nothing of a user's is in these statements.
_ADD = f"""
INSERT INTO usage_hour (hour_unix_s, key, model, {", ".join(_FIGURES)})
VALUES (?, ?, ?, {", ".join("?" for _ in _FIGURES)})
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in _FIGURES)}
"""  # noqa: S608
_DAY = "date(hour_unix_s, 'unixepoch', 'localtime')"
_COLUMNS: dict[By, str] = {"key": "key", "model": "model", "day": _DAY}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Used:
    """What one request took."""

    key: str
    model: str
    outcome: Outcome
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    waited_s: float = 0.0
    served_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What many requests took together."""

    requests: int = 0
    failed: int = 0
    refused: int = 0
    left_early: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    waited_s: float = 0.0
    served_s: float = 0.0

    def plus(self, other: "Totals") -> "Totals":
        """Both together."""
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One line of a report: what it is about, and the totals. `None`: summed over all of them."""

    day: str | None
    key: str | None
    model: str | None
    totals: Totals


class Usage:
    """Collects what requests took and writes it to the file once a second; `path` None: nowhere."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        # By hour, key and model: as small as it is for a second, and bounded when a disk is full.
        self._pending: dict[tuple[int, str, str], Totals] = {}
        self._told = False

    def note(self, used: Used) -> None:
        """Take in one request that is over."""
        if self._path is None:
            return
        hour_unix_s = int(self._clock()) // HOUR_S * HOUR_S
        self._add((hour_unix_s, used.key, used.model), _totals_of(used))

    async def running(self, _: object = None) -> AsyncIterator[None]:
        """Writes while it runs, and what is left at the end."""
        if self._path is None:
            yield
            return
        writer = asyncio.create_task(self._write_on(), name="usage")
        try:
            yield
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            await self.write()

    async def write(self) -> None:
        """Write what has come in; keep it for the next time when the disk does not take it."""
        if self._path is None or not self._pending:
            return
        batch, self._pending = self._pending, {}
        try:
            await asyncio.shield(asyncio.to_thread(write_usage, self._path, batch))
            self._told = False
        except AppError as error:
            for hour, totals in batch.items():
                self._add(hour, totals)
            if not self._told:
                log.warning("%s", error)
            self._told = True

    def _add(self, hour: tuple[int, str, str], totals: Totals) -> None:
        before = self._pending.get(hour)
        self._pending[hour] = totals if before is None else before.plus(totals)

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.write()


def write_usage(path: Path, batch: dict[tuple[int, str, str], Totals]) -> None:
    """Add a batch to the file; all of it or nothing."""
    try:
        with closing(opened(path, SCHEMA, private=True)) as connection, connection:
            rows = [(*hour, *astuple(totals)) for hour, totals in batch.items()]
            connection.executemany(_ADD, rows)
    except (sqlite3.Error, OSError) as error:
        raise _unusable(path, error) from error


def read_usage(
    path: Path,
    *,
    by: Sequence[By] = ("key",),
    key: str | None = None,
    since_unix_s: float | None = None,
) -> tuple[UsageRow, ...]:
    """What was used, one row for each of `by`; empty when nothing was kept yet. Blocks.

    `since_unix_s` counts from the hour that it lies in.
    """
    if not path.exists():
        return ()
    columns = [_COLUMNS[one] for one in dict.fromkeys(by)]
    sums = ", ".join(f"sum({name})" for name in _FIGURES)
    # Only names of columns from this file are put in; values go in as parameters.
    query = (
        f"SELECT {', '.join([*columns, sums])} FROM usage_hour "  # noqa: S608
        "WHERE hour_unix_s >= ? AND (? IS NULL OR key = ?) "
        f"GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}"
    )
    since = 0 if since_unix_s is None else int(since_unix_s) // HOUR_S * HOUR_S
    try:
        with closing(opened(path, SCHEMA, private=True)) as connection:
            found = connection.execute(query, (since, key, key)).fetchall()
    except (sqlite3.Error, OSError) as error:
        raise _unusable(path, error) from error
    names = list(dict.fromkeys(by))
    return tuple(_row(dict(zip(names, row, strict=False)), row[len(names) :]) for row in found)


def _row(names: dict[By, str], figures: Iterable[float]) -> UsageRow:
    totals = Totals(*figures)  # type: ignore[arg-type]  # SQLite gives back what was put in
    return UsageRow(names.get("day"), names.get("key"), names.get("model"), totals)


def _totals_of(used: Used) -> Totals:
    totals = Totals(
        requests=1,
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        generated_tokens=used.generated_tokens,
        waited_s=used.waited_s,
        served_s=used.served_s,
    )
    counted = {"failed": "failed", "refused": "refused", "left": "left_early"}
    name = counted.get(used.outcome)
    return totals if name is None else replace(totals, **{name: 1})


def figure_names() -> tuple[str, ...]:
    """The names of the totals, in order."""
    return tuple(field.name for field in fields(Totals))


def _unusable(path: Path, error: Exception) -> AppError:
    return AppError(
        Text(
            f"The usage in {path} cannot be kept or read: {error}.",
            f"{path} 中的用量数据无法读写：{error}。",
        ),
        Text(
            "Make room on the disk. A file that is damaged has to be moved away: a new one is "
            "made, and keys have to be made anew.",
            "请清理磁盘空间。若文件已损坏，请移走，系统会新建一个，但密钥需要重新创建。",
        ),
    )
