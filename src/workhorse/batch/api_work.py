"""Carries batches of OpenAI's API from their input to their results, beside a running service.

What is known of a batch is on disk before the next step begins, and each step can be done again:
after a service that was killed, the next one goes on from there.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from workhorse.batch.api_host import Host, in_thread
from workhorse.batch.api_lines import BadFile, Reader
from workhorse.batch.api_record import (
    Batch,
    LineError,
    accepted,
    cancelling,
    enter,
    final_status,
)
from workhorse.batch.api_results import read_lines, write_results
from workhorse.batch.api_store import ApiStore
from workhorse.batch.api_upload import DAY_S
from workhorse.batch.concurrency import Concurrency, Room
from workhorse.batch.job import Job
from workhorse.batch.job import Pace as PaceOrder
from workhorse.batch.ledger import Ledger
from workhorse.batch.pace import PaceKeeper
from workhorse.batch.progress import Progress
from workhorse.batch.runner import run_job
from workhorse.errors import AppError
from workhorse.text import Text

TICK_S = 1.0  # while a batch is unfinished: who chats, whose time is over, whose key is gone
SWEEP_S = 60.0
AGAIN_S = 30.0  # after a step that failed, such as on a full disk
GIVEN_UP_S = DAY_S  # after its window: a batch whose results cannot even be written has failed
Kind = Literal["read", "answer", "finish"]
# Batches at once in each step; of those that are answered one a key: the gateway shares the slots
# among keys.
AT_ONCE: dict[Kind, int] = {"read": 2, "answer": 8, "finish": 2}
EXTRA = "batch"  # in a job's `extra`: the batch that it belongs to

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Step:
    """A step of a batch that is being done."""

    task: "asyncio.Task[None]"
    owner: str
    kind: Kind
    pace: PaceKeeper | None = None
    model: str | None = None


class ApiWork:
    """The batches of one service; `run` works on them until cancelled."""

    def __init__(
        self,
        store: ApiStore,
        ledger: Ledger,
        host: Host,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._ledger, self._host, self._clock = store, ledger, host, clock
        self._steps: dict[str, _Step] = {}
        self._not_before_s: dict[str, float] = {}  # by the loop's clock
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A batch was ordered or cancelled: look now."""
        self._wake.set()

    @property
    def running(self) -> int:
        """Batches that are being answered."""
        return self._under_way("answer")

    def _under_way(self, kind: Kind) -> int:
        return sum(step.kind == kind for step in self._steps.values())

    async def prepare(self) -> None:
        """Undo what a service that was killed had half done; before anything new comes."""
        await in_thread(lambda _: self._tidy())

    async def run(self) -> None:
        """Work until cancelled; what was begun then goes on in the next `run`."""
        swept_s: float | None = None
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                if swept_s is None or loop.time() - swept_s >= SWEEP_S:
                    swept_s = loop.time()
                    await self._logged(self._sweep())
                busy = await self._logged(self._look())
                try:
                    async with asyncio.timeout(SWEEP_S if busy is False else TICK_S):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            tasks = [step.task for step in self._steps.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # looking

    async def _logged(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What fails here, such as on a full disk, is tried again at the next look."""
        try:
            return await work
        except AppError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("A look at the batches failed.")
        return None

    def _tidy(self) -> None:
        self._store.sweep_unknown()
        for record in self._ledger.jobs():
            if (batch_id := record.extra.get(EXTRA)) is None:
                continue
            batch = self._store.batch(str(batch_id))
            if batch is None or batch.over or batch.job_id != record.id:
                self._ledger.forget(record.id)

    async def _sweep(self) -> None:
        keep_s = self._host.settings.keep_days * DAY_S
        await in_thread(lambda _: self._store.sweep(self._clock(), keep_s))

    async def _look(self) -> bool:
        """Steer what runs, begin what is due; False: there is nothing to be done."""
        batches = await in_thread(lambda _: self._store.unfinished())
        batches = tuple([await self._steered(batch) for batch in batches])
        for batch in batches:
            if not batch.over and batch.id not in self._steps:
                self._begin(batch)
        return bool(batches)

    async def _steered(self, batch: Batch) -> Batch:
        """The batch after what became of it from outside: its time, its key, its model."""
        now_unix_s = self._clock()
        if now_unix_s >= batch.expires_unix_s + GIVEN_UP_S and batch.id not in self._steps:
            error = LineError(code="internal_error", message="The results could not be written.")
            return await self._change(
                batch, lambda one: enter(one, "failed", now_unix_s, errors=(error,))
            )
        if batch.status == "finalizing" or batch.ending is not None:
            pass
        elif not self._host.in_force(batch.owner):
            error = LineError(code="key_revoked", message="The key of this batch was taken back.")
            batch = await self._change(
                batch, lambda one: replace(cancelling(one, now_unix_s), errors=(error,))
            )
        elif now_unix_s >= batch.expires_unix_s:
            batch = await self._change(batch, lambda one: replace(one, ending="expired"))
        step = self._steps.get(batch.id)
        if batch.ending is not None and batch.job_id is not None:
            self._not_before_s.pop(batch.id, None)
            job_id = batch.job_id
            with suppress(AppError):  # it is over in this very moment, or this is done again
                await in_thread(lambda _: self._ledger.cancel(job_id, now_unix_s))
        elif step is not None and step.model is not None:
            if not self._host.serves(step.model):
                step.task.cancel()  # another model must not answer; it goes on when this is back
            elif step.pace is not None:
                step.pace.chat_seen(self._host.chats(step.model))
        return batch

    def _begin(self, batch: Batch) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._not_before_s.get(batch.id, now_s):
            return
        if batch.ending is not None or batch.status == "finalizing":
            self._do(batch, "finish", self._finish)
        elif batch.job_id is None:
            self._do(batch, "read", self._read)
        elif batch.model is not None and self._host.serves(batch.model):
            answered = [step.owner for step in self._steps.values() if step.kind == "answer"]
            if batch.owner not in answered:
                self._do(batch, "answer", self._answer)

    def _do(self, batch: Batch, kind: Kind, work: Callable[[Batch], Awaitable[None]]) -> None:
        if self._under_way(kind) < AT_ONCE[kind]:
            task = asyncio.create_task(self._guarded(batch, work), name=batch.id)
            self._steps[batch.id] = _Step(task, batch.owner, kind)

    async def _guarded(self, batch: Batch, work: Callable[[Batch], Awaitable[None]]) -> None:
        """One batch's failure is its own: it is tried again, and the others do not notice."""
        again_s: float | None = None
        try:
            # The look that led here may be older than the end of the step before.
            now = await in_thread(lambda _: self._store.batch(batch.id))
            if now is not None and not now.over:
                await work(now)
        except AppError as error:
            log.warning("Batch %s goes on later: %s", batch.id, error)
            again_s = AGAIN_S
        except Exception:
            log.exception("Batch %s goes on later.", batch.id)
            again_s = AGAIN_S
        finally:
            del self._steps[batch.id]
            self._not_before_s.pop(batch.id, None)
            if again_s is not None:
                self._not_before_s[batch.id] = asyncio.get_running_loop().time() + again_s
            self.wake()

    async def _change(self, batch: Batch, how: Callable[[Batch], Batch]) -> Batch:
        return await in_thread(lambda _: self._store.change(batch.id, how))

    # steps

    async def _read(self, batch: Batch) -> None:
        """Check the input, line by line, and make a job of it."""
        if batch.job_id is not None or batch.ending is not None:
            return
        reader = Reader(
            batch.endpoint, self._host.resolve(batch.owner), self._host.settings.requests
        )
        path, most_bytes = self._store.path(batch.input_file_id), self._host.largest_request_bytes
        job = Job(
            template="request",
            definition=None,
            input=batch.input_file_id,
            output=None,
            form="openai",
            url=self._host.service(batch.owner, "").url,
            pace=PaceOrder(yield_to_chat=self._host.settings.yield_to_chat),
            owner=batch.owner or None,
        )

        def keep(stop: threading.Event) -> None:
            items = reader.items(read_lines(path, most_bytes, stop.is_set))
            job_id = self._ledger.add(job, items, self._clock(), extra={EXTRA: batch.id}).id
            self._store.change(
                batch.id,
                lambda one: accepted(one, job_id, reader.model, reader.count, self._clock()),
            )

        try:
            await in_thread(keep)
        except BadFile as bad:
            errors = bad.errors
        except FileNotFoundError:
            words = f"The file {batch.input_file_id} was deleted before it was read."
            errors = (LineError(code="invalid_file", message=words),)
        else:
            return
        await self._change(batch, lambda one: enter(one, "failed", self._clock(), errors=errors))

    async def _answer(self, batch: Batch) -> None:
        """Have every request answered, then write the results."""
        if batch.job_id is None or batch.model is None:
            return
        settings = self._host.settings
        rule = Concurrency(
            Room(slots=self._host.slots(batch.model)), yield_to_chat=settings.yield_to_chat
        )
        step, pace = self._steps[batch.id], PaceKeeper(rule)
        step.pace, step.model = pace, batch.model
        pace.chat_seen(self._host.chats(batch.model))
        record = await run_job(
            self._ledger,
            batch.job_id,
            task=None,
            service=self._host.service(batch.owner, batch.model),
            pace=pace,
            tell=_Watcher(batch.id),
            clock=self._clock,
        )
        step.pace = step.model = None
        if record.state in ("done", "cancelled"):
            ended = record.state
            await self._finish(
                await self._change(
                    batch,
                    # Cancelled on the command line: nobody said so here.
                    lambda one: replace(
                        one, ending=one.ending or ("cancelled" if ended == "cancelled" else None)
                    ),
                )
            )

    async def _finish(self, batch: Batch) -> None:
        """Write the results of a batch that has ended, well or before its time."""
        if batch.job_id is not None and batch.ending is not None:
            job_id = batch.job_id
            await in_thread(lambda _: self._ledger.cancel(job_id, self._clock()))
        if batch.status == "in_progress":
            batch = await self._change(batch, lambda one: enter(one, "finalizing", self._clock()))
        await in_thread(lambda stop: self._write(batch, stop))

    def _write(self, batch: Batch, stop: threading.Event) -> None:
        written = write_results(
            self._store,
            self._ledger,
            batch,
            now_unix_s=self._clock(),
            keep_s=self._host.settings.keep_days * DAY_S,
            stop=stop.is_set,
        )
        usage = None if batch.job_id is None else self._ledger.usage(batch.job_id)
        output, error = written.files.get("output"), written.files.get("error")
        self._store.change(
            batch.id,
            lambda one: enter(
                one,
                final_status(one, written.left),
                self._clock(),
                job_id=None,
                output_file_id=None if output is None else output.id,
                error_file_id=None if error is None else error.id,
                counts=written.counts,
                usage=usage,
            ),
            tuple(written.files.values()),
        )
        if batch.job_id is not None:
            self._ledger.forget(batch.job_id)


class _Watcher:
    """Tells the log what is worth telling of a job."""

    def __init__(self, batch_id: str) -> None:
        self._batch_id = batch_id

    def seen(self, progress: Progress) -> None:
        """Whoever asks is told by the ledger."""

    def note(self, words: Text) -> None:
        """Put it into the log."""
        log.info("Batch %s: %s", self._batch_id, words.en)
