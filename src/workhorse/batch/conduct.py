"""A job from its order to its output: read, kept, run at its pace, written, reported."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import aiohttp

from workhorse.batch.census import Census
from workhorse.batch.concurrency import Concurrency, Room
from workhorse.batch.expect import Expected, expect
from workhorse.batch.forecast import TimeLeft
from workhorse.batch.hold import runs_already
from workhorse.batch.item import ENDED
from workhorse.batch.job import JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.batch.output import write_output
from workhorse.batch.pace import PaceKeeper
from workhorse.batch.progress import Watcher
from workhorse.batch.report import JobReport, Spent, report_of
from workhorse.batch.runner import run_job
from workhorse.batch.survey import Offer, survey, watch_chat
from workhorse.batch.tasks import make_task
from workhorse.bench.job import Where
from workhorse.bench.load import load_session
from workhorse.bench.service import find_service
from workhorse.codec import from_json, to_line
from workhorse.errors import AppError
from workhorse.store import Store

# What a runner has spent is put down so often: a kill costs the report at most so much of it.
NOTED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Reached:
    """A service that answers, and how it is asked."""

    client: aiohttp.ClientSession
    offer: Offer


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ready to be run: what is left of it, and how long that may take."""

    record: JobRecord
    census: Census
    expected: Expected


@asynccontextmanager
async def reached(where: Where, store: Store) -> AsyncIterator[Reached]:
    """The service at an address, looked into; AppError where nobody is or we are not let in."""
    async with load_session() as client:
        service = await find_service(
            client, where.url, where.api_key, model=where.model, tls=where.tls
        )
        yield Reached(client, await survey(client, service, store))


class Told(Watcher, Protocol):
    """Who tells a person how a job goes."""

    def begins(self, record: JobRecord, time_left: TimeLeft, pace: PaceKeeper) -> None:
        """Everything is ready; requests follow."""
        ...


async def prepare(ledger: Ledger, record: JobRecord, there: Reached) -> Prepared:
    """Look at what is left of a job: how much it is, how long it will take."""
    census = Census()
    for item in ledger.items(record.id, states=("waiting", "leased"), content=True):
        census.saw(item.kind, item.content)
    expected = await expect(there.client, there.offer, census, record.job, ledger)
    return Prepared(record, census, expected)


async def conduct(ledger: Ledger, prepared: Prepared, there: Reached, tell: Told) -> JobRecord:
    """Run a job until it has ended, then write its output; the job then.

    When this is cancelled the job is stopped and can be gone on with. Raises `AppError` when
    another process runs it, when it cannot go on, and when its output cannot be written.
    """
    record, offer = prepared.record, there.offer
    if (pid := ledger.runner(record.id)) is not None:  # before anything of its own is put down
        raise runs_already(record.id, pid)
    job, pace, before = record.job, pace_of(record, offer), spent_of(ledger, record.id)
    weights = prepared.expected.weights(prepared.census.chars, offer)
    tell.begins(record, TimeLeft(weights, sure=offer.capacity is not None), pace)
    began_s = time.monotonic()

    def spent() -> Spent:
        worked_s = time.monotonic() - began_s - pace.held_s
        streams = offer.capacity.streams if offer.capacity else pace.most
        return Spent(before.worked_s + worked_s, before.sessions + 1, streams, offer.capacity)

    beside = [asyncio.create_task(note_spent(ledger, record.id, spent))]
    if job.pace.yield_to_chat:
        beside.append(asyncio.create_task(watch_chat(there.client, offer.service, pace)))
    try:
        record = await run_job(
            ledger,
            record.id,
            task=None if job.definition is None else make_task(job),
            service=offer.service,
            pace=pace,
            tell=tell,
            context_tokens=offer.context_tokens,
        )
    finally:
        for one in beside:
            one.cancel()
        await asyncio.wait(beside)
        with suppress(AppError):  # a full disk has stopped the job, and is told
            keep_spent(ledger, record.id, spent())
    deliver(ledger, record)
    return record


def pace_of(record: JobRecord, offer: Offer) -> PaceKeeper:
    """The pace for a job at a service."""
    order = record.job.pace
    best = offer.capacity.streams if offer.capacity is not None else None
    rule = Concurrency(Room(offer.slots, best, order.streams), yield_to_chat=order.yield_to_chat)
    return PaceKeeper(rule, windows=order.windows)


def deliver(ledger: Ledger, record: JobRecord) -> None:
    """Write the output of a job that has ended; of a cancelled one what there is."""
    job = record.job
    if job.output is None or record.state not in ("done", "cancelled"):
        return
    write_output(Path(job.output), job.form, ledger.items(record.id, states=ENDED), record)


def report_now(ledger: Ledger, job_id: str) -> JobReport:
    """The report of a job as it stands."""
    record = ledger.job(job_id)
    items = ledger.items(record.id, states=ENDED)
    return report_of(record, items, ledger.usage(record.id), spent_of(ledger, record.id))


def spent_of(ledger: Ledger, job_id: str) -> Spent:
    """What its runners noted; nothing where none did, or another version wrote it."""
    document = ledger.report(job_id)
    if document is not None:
        with suppress(AppError):
            return from_json(Spent, document, what=f"job {job_id}")
    return Spent()


def keep_spent(ledger: Ledger, job_id: str, spent: Spent) -> None:
    """Put down what the runners of a job have spent so far."""
    ledger.keep_report(job_id, to_line(spent).encode())


async def note_spent(ledger: Ledger, job_id: str, spent: Callable[[], Spent]) -> None:
    """Put it down every second, until cancelled."""
    while True:
        await asyncio.sleep(NOTED_EVERY_S)
        with suppress(AppError):  # a full disk stops the job elsewhere, with its own words
            keep_spent(ledger, job_id, spent())
