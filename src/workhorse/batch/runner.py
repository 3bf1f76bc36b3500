"""Runs a job: every item to its one end, whatever happens to the service, the disk, or to us."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from workhorse.batch.asking import Asker, Pace
from workhorse.batch.client import client_of
from workhorse.batch.counting import TokenCounts
from workhorse.batch.crew import Crew
from workhorse.batch.item import Item, State, Usage
from workhorse.batch.job import Counts, JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.batch.ledger_thread import LedgerThread
from workhorse.batch.progress import Progress, Watcher
from workhorse.batch.retry import Patience
from workhorse.batch.task import Task
from workhorse.batch.tools import ItemTools, Memory
from workhorse.bench.service import Service
from workhorse.errors import AppError
from workhorse.text import Text

TICK_S = 1.0
SETTLE_S = 10.0  # a power cut costs the results of at most so long
# Where the service does not say: what the smallest of them have.
ASSUMED_CONTEXT_TOKENS = 4096


async def run_job(
    ledger: Ledger,
    job_id: str,
    *,
    task: Task | None,
    service: Service,
    pace: Pace,
    tell: Watcher,
    clock: Callable[[], float] = time.time,
    context_tokens: int | None = None,
    patience: Patience | None = None,
) -> JobRecord:
    """Work on a job until it has ended; the job as it is then.

    `task` turns texts into results; items that are requests are passed on without one.
    `clock` is Unix time; `context_tokens` of one slot, None: the service says; `patience`: how long
    a request may take. Cancelling it stops the job within a moment: nothing is lost, and it can
    be run again. Raises `AppError` when another process runs it, and when it cannot go on (the disk
    is full, the service stays away, refuses the key, no longer has the model): it is stopped then.
    """
    store = LedgerThread(ledger)
    try:
        async with store.held(job_id):
            if await store.do(ledger.begin, job_id) == "running":
                run = _Run(store, job_id, tell, clock)
                try:
                    done = await run.work(service, task, pace, context_tokens, patience)
                except BaseException:
                    with suppress(AppError):
                        await store.do(ledger.end, job_id, "stopped", clock())
                    raise
                await store.do(ledger.end, job_id, "done" if done else "cancelled", clock())
            return await store.do(ledger.job, job_id)
    finally:
        await store.close()


class _Run:
    """One run of one job."""

    def __init__(
        self, store: LedgerThread, job_id: str, tell: Watcher, clock: Callable[[], float]
    ) -> None:
        self._store, self._ledger = store, store.ledger
        self._job_id, self._tell, self._clock = job_id, tell, clock
        self._counts: dict[str, int] = {}
        self._usage = Usage()
        self._crew: Crew | None = None
        self._asker: Asker | None = None
        self._end = asyncio.Event()  # it shall end before all is done, for `_trouble` if any
        self._trouble: Exception | None = None

    async def work(
        self,
        service: Service,
        task: Task | None,
        pace: Pace,
        context_tokens: int | None,
        patience: Patience | None,
    ) -> bool:
        """Work until all is done; False: it was cancelled before."""
        found = await self._store.do(self._ledger.job, self._job_id)
        self._job_id = found.id
        self._usage = await self._store.do(self._ledger.usage, found.id)
        counts = found.counts
        self._counts = {
            "waiting": counts.waiting,
            "done": counts.done,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
        }
        async with client_of(service) as client:
            asker = self._asker = Asker(
                client, pace, patience=patience, note=self._tell.note, changed=self._stir
            )
            ticker = asyncio.create_task(self._tick())
            try:
                await self._before_the_end(asker.well())
                context = context_tokens or await client.context_tokens()
                if context is None and not self._end.is_set():
                    self._tell.note(_context_assumed(service.url))
                self._crew = self._crew_for(found, task, asker, context)
                if self._end.is_set():
                    self._crew.stop(self._trouble)
                return await self._crew.run()
            finally:
                ticker.cancel()
                await asyncio.gather(ticker, return_exceptions=True)
                self._say()

    async def _before_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, unless the job is to end before it is done."""
        both = asyncio.create_task(work), asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if both[0].done():
                both[0].result()
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _crew_for(
        self, found: JobRecord, task: Task | None, asker: Asker, context_tokens: int | None
    ) -> Crew:
        counted = TokenCounts(asker)

        def tools(item: Item) -> ItemTools:
            return ItemTools(
                asker,
                counted,
                self._memory(item.number),
                attempts=found.job.attempts,
                context_tokens=context_tokens or ASSUMED_CONTEXT_TOKENS,
                spent=self._spent,
            )

        return Crew(
            self._store,
            found,
            secrets.token_hex(8),
            task=task,
            asker=asker,
            tools=tools,
            ended=self._ended,
            clock=self._clock,
        )

    def _memory(self, number: int) -> Memory:
        async def remembered(step: str) -> bytes | None:
            return await self._store.do(self._ledger.remembered, self._job_id, number, step)

        async def remember(step: str, answer: bytes, usage: Usage) -> None:
            await self._store.do(self._ledger.remember, self._job_id, number, step, answer, usage)

        return Memory(remembered, remember)

    async def _tick(self) -> None:
        """Once a second: tell how far it is, and hear whether it shall end."""
        loop = asyncio.get_running_loop()
        settled_s = loop.time()
        try:
            while True:
                self._say()
                if await self._store.do(self._ledger.is_cancelling, self._job_id):
                    self._stop()
                if loop.time() - settled_s >= SETTLE_S:
                    await self._store.do(self._ledger.settle)
                    settled_s = loop.time()
                await asyncio.sleep(TICK_S)
        except Exception as error:  # noqa: BLE001 (raised by `Crew.run`)
            self._stop(error)

    def _stop(self, trouble: Exception | None = None) -> None:
        self._trouble = self._trouble or trouble
        self._end.set()
        if self._crew is not None:
            self._crew.stop(trouble)

    def _say(self) -> None:
        asker = self._asker
        self._tell.seen(
            Progress(
                Counts(**self._counts),
                self._usage,
                0 if asker is None else asker.under_way,
                asker is not None and asker.is_away,
            )
        )

    def _ended(self, state: State) -> None:
        self._counts["waiting"] -= 1
        self._counts[state] += 1

    def _spent(self, usage: Usage) -> None:
        self._usage += usage

    def _stir(self) -> None:
        if self._crew is not None:
            self._crew.stir()


def _context_assumed(url: str) -> Text:
    assumed = ASSUMED_CONTEXT_TOKENS
    return Text(
        f"{url} does not say how long its context is; {assumed} tokens are assumed.",
        f"{url} 未说明上下文长度，按 {assumed} 个 token 处理。",
    )
