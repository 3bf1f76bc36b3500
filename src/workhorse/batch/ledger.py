"""Every job and its items, in one SQLite file: what is to be done, by whom, what came of it.

An item is waiting, or leased by the one runner that holds its job, or has ended. It ends once:
what ends it says for whom it was leased, and changes nothing when that is no longer so.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from workhorse.batch.add_items import add_items
from workhorse.batch.hold import holder, holding
from workhorse.batch.item import NewItem, Reason, Usage
from workhorse.batch.job import Counts, Job, JobRecord, JobState
from workhorse.batch.ledger_file import LedgerFile
from workhorse.batch.ledger_items import Items, row_of
from workhorse.batch.rows import JOB_COLUMNS, encoded, job_of
from workhorse.codec import to_line
from workhorse.errors import AppError

# No letters that are taken for digits, none that make words.
ID_LETTERS, ID_LENGTH = "bcdfghjkmnpqrstvwxz23456789", 6
CANCELLED = Reason(cause="cancelled", seen="The job was cancelled.", seen_zh="任务已取消。")
COUNT = "SELECT state, count(*) FROM item WHERE job = ? GROUP BY state"


class Ledger(Items):
    """The jobs of one installation. Any thread may use it; none waits for long.

    Every method raises `AppError` when the file cannot be used, such as on a full disk.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(LedgerFile(path))
        self._path = path

    def close(self) -> None:
        """Close the file; it is opened again when it is used again."""
        self._file.close()

    def settle(self) -> None:
        """Have what was done so far on the disk: a power cut does not reach it."""
        self._file.settle()

    # jobs

    def add(
        self,
        job: Job,
        items: Iterable[NewItem],
        now_unix_s: float,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Keep a new job with all its items, which are read one by one; nobody sees half of it.

        It is `stopped` until somebody runs it. Raises `AppError` for two items of one id, for
        none at all, and passes on what the reading of the items raises; then there is no job.
        """
        self._forget_halves()
        while True:
            job_id = "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))
            with holding(self._lock(job_id), job_id):
                number = self._begin_job(job_id, job, now_unix_s, extra or {})
                if number is None:
                    continue
                try:
                    add_items(self._file, number, items)
                except BaseException:
                    with suppress(AppError):
                        self._forget(number)
                    raise
            self._file.settle()
            return self.job(job_id)

    def jobs(self) -> tuple[JobRecord, ...]:
        """All of them, the newest first."""
        with self._file.reading() as connection:
            rows = connection.execute(
                f"SELECT {JOB_COLUMNS} FROM job WHERE whole ORDER BY number DESC"  # noqa: S608
            ).fetchall()
            counted: dict[int, dict[str, int]] = {}
            for job, state, count in connection.execute(
                "SELECT job, state, count(*) FROM item GROUP BY job, state"
            ):
                counted.setdefault(job, {})[state] = count
        return tuple(self._as_it_is(row, Counts(**counted.get(row[0], {}))) for row in rows)

    def job(self, job_id: str) -> JobRecord:
        """One job; the beginning of its id is enough. Raises `AppError` for none and for several.

        The counts take 0.1 s for a million items.
        """
        with self._file.reading() as connection:
            row = row_of(connection, job_id)
            counts = Counts(**dict(connection.execute(COUNT, (row[0],)).fetchall()))
        return self._as_it_is(row, counts)

    def usage(self, job_id: str) -> Usage:
        """What all items of a job have taken so far."""
        with self._file.reading() as connection:
            number = row_of(connection, job_id)[0]
            found = connection.execute(
                "SELECT total(prompt_tokens), total(cached_tokens), total(output_tokens), "
                "total(requests) FROM item WHERE job = ?",
                (number,),
            ).fetchone()
        prompt_tokens, cached_tokens, output_tokens, requests = (int(each) for each in found)
        return Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            requests=requests,
        )

    def runner(self, job_id: str) -> int | None:
        """The process that works on a job; None: nobody does."""
        return holder(self._lock(self._whole_id(job_id)))

    @contextmanager
    def held(self, job_id: str) -> Iterator[None]:
        """Be the only one who runs a job; AppError, exit code 3, while another process does.

        What a dead runner had leased waits again, and so does what this one has, at the end.
        """
        job_id = self._whole_id(job_id)
        with holding(self._lock(job_id), job_id):
            self._free(job_id)
            try:
                yield
            finally:
                with suppress(AppError):  # else the next one to hold it does this
                    self._free(job_id)

    def begin(self, job_id: str) -> JobState:
        """A runner sets to work; the job's state then, which stays what it was once it ended."""
        with self._file.writing() as connection:
            row = row_of(connection, job_id)
            number, state = row[0], row[3]
            if state in ("stopped", "running"):
                state = "running"
                connection.execute("UPDATE job SET state = ? WHERE number = ?", (state, number))
        found: JobState = state
        return found

    def end(self, job_id: str, state: JobState, now_unix_s: float) -> None:
        """The job is done, cancelled (what is left of it too), or stopped to be gone on with."""
        with self._file.writing() as connection:
            number = row_of(connection, job_id)[0]
            if state == "cancelled":
                connection.execute(
                    "UPDATE item SET state = 'cancelled', owner = NULL, reason = ? "
                    "WHERE job = ? AND state IN ('waiting', 'leased')",
                    (encoded(CANCELLED), number),
                )
            ended_unix_s = None if state in ("stopped", "running") else now_unix_s
            connection.execute(
                "UPDATE job SET state = ?1, ended_unix_s = ?2, "
                "cancelling = cancelling AND ?1 = 'stopped' WHERE number = ?3",
                (state, ended_unix_s, number),
            )
        self._file.settle()

    def cancel(self, job_id: str, now_unix_s: float) -> None:
        """End a job: at once where nobody runs it, else its runner does within seconds."""
        found = self.job(job_id)
        if found.state in ("done", "cancelled"):
            return
        with self._file.writing() as connection:
            connection.execute("UPDATE job SET cancelling = 1 WHERE id = ?", (found.id,))
        try:
            with self.held(found.id):
                self.end(found.id, "cancelled", now_unix_s)
        except AppError:
            # Its runner has seen it, or will; a trouble with the file is another matter.
            if self.runner(found.id) is None and self.job(found.id).ended_unix_s is None:
                raise

    def is_cancelling(self, job_id: str) -> bool:
        """Has somebody asked for the job's end?"""
        with self._file.reading() as connection:
            return bool(row_of(connection, job_id)[4])

    def retry(self, job_id: str, numbers: Sequence[int] | None = None) -> int:
        """Have what failed or was cancelled wait again (`numbers` None: all of it); how many.

        What could not be read stays as it is. Their attempts begin at 0.
        """
        again = (
            "UPDATE item SET state = 'waiting', attempts = 0, due_unix_s = 0, reason = NULL "
            "WHERE job = ? AND state IN ('failed', 'cancelled') "
            "AND EXISTS (SELECT 1 FROM content WHERE content.item = item.key)"
        )
        with self._file.writing() as connection:
            job = row_of(connection, job_id)[0]
            if numbers is None:
                changed = connection.execute(again, (job,)).rowcount
            else:
                changed = connection.executemany(
                    again + " AND number = ?", [(job, number) for number in numbers]
                ).rowcount
            if changed:
                connection.execute(
                    "UPDATE job SET state = 'stopped', ended_unix_s = NULL, cancelling = 0 "
                    "WHERE number = ? AND state != 'running'",
                    (job,),
                )
        return max(0, changed)

    def keep_extra(self, job_id: str, extra: Mapping[str, Any]) -> None:
        """Put something else into a job's `extra`."""
        with self._file.writing() as connection:
            number = row_of(connection, job_id)[0]
            document = to_line(dict(extra))
            connection.execute("UPDATE job SET extra = ? WHERE number = ?", (document, number))

    def keep_report(self, job_id: str, report: bytes) -> None:
        """Keep what was told of a job at its end."""
        with self._file.writing() as connection:
            number = row_of(connection, job_id)[0]
            connection.execute("UPDATE job SET report = ? WHERE number = ?", (report, number))

    def report(self, job_id: str) -> bytes | None:
        """The report that was kept; None: none was."""
        with self._file.reading() as connection:
            number = row_of(connection, job_id)[0]
            row = connection.execute("SELECT report FROM job WHERE number = ?", (number,))
            found: bytes | None = row.fetchone()[0]
            return found

    def forget(self, job_id: str) -> None:
        """Delete a job with all its items; AppError, exit code 3, while somebody runs it."""
        job_id = self._whole_id(job_id)
        with holding(self._lock(job_id), job_id):
            with self._file.reading() as connection:
                number = row_of(connection, job_id)[0]
            self._forget(number)

    # inside

    def _as_it_is(self, row: tuple[Any, ...], counts: Counts) -> JobRecord:
        """A job; one whose runner was killed, or could not say that it ends, is not running."""
        record = job_of(row, counts)
        if record.state != "running" or holder(self._lock(record.id)) is not None:
            return record
        with self._file.reading() as connection:
            state = row_of(connection, record.id)[3]
        # Else it has ended in this moment.
        return replace(record, state="stopped") if state == "running" else self.job(record.id)

    def _lock(self, job_id: str) -> Path:
        return self._path.with_name(f"{self._path.stem}-{job_id}.lock")

    def _whole_id(self, job_id: str) -> str:
        with self._file.reading() as connection:
            found: str = row_of(connection, job_id)[1]
            return found

    def _begin_job(
        self, job_id: str, job: Job, now_unix_s: float, extra: Mapping[str, Any]
    ) -> int | None:
        """The number of a new job, not whole yet; None: another one has this id."""
        row = (job_id, to_line(job), now_unix_s, to_line(dict(extra)))
        with self._file.writing() as connection:
            cursor = connection.execute(
                "INSERT OR IGNORE INTO job (id, whole, document, state, created_unix_s, extra) "
                "VALUES (?, 0, ?, 'stopped', ?, ?)",
                row,
            )
            return cursor.lastrowid if cursor.rowcount else None

    def _free(self, job_id: str) -> None:
        """What is leased waits again; only for who holds the job."""
        with self._file.writing() as connection:
            connection.execute(
                "UPDATE item SET state = 'waiting', owner = NULL "
                "WHERE job = ? AND state = 'leased'",
                (row_of(connection, job_id)[0],),
            )

    def _forget_halves(self) -> None:
        """Delete what processes left that were killed while they added a job."""
        with self._file.reading() as connection:
            halves = connection.execute("SELECT number, id FROM job WHERE NOT whole").fetchall()
        for number, job_id in halves:
            with suppress(AppError), holding(self._lock(job_id), job_id):
                self._forget(number)

    def _forget(self, job: int) -> None:
        own = "IN (SELECT key FROM item WHERE job = ?)"
        with self._file.writing() as connection:
            for table in ("content", "step"):
                connection.execute(f"DELETE FROM {table} WHERE item {own}", (job,))  # noqa: S608
            connection.execute("DELETE FROM item WHERE job = ?", (job,))
            connection.execute("DELETE FROM job WHERE number = ?", (job,))
