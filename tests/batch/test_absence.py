"""A service that is away, busy, or dies of an item: only what is an item's own fault costs it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from job_rig import (
    NOW_S,
    PATIENCE_S,
    Heard,
    added,
    new_ledger,
    one_question,
    pace,
    run,
    standing,
    texts,
    until,
)
from stand_ins import gateway

from supervised import Supervised, fake_launch
from workhorse.batch import asking, crew
from workhorse.batch.item import Item, NewItem, Result
from workhorse.batch.job import Counts
from workhorse.batch.ledger import Ledger
from workhorse.batch.task import Tools
from workhorse.errors import AppError
from workhorse.run.process import free_port
from workhorse.run.supervisor import Supervisor
from workhorse.serve.backend import Capacity

Say = Callable[[web.Request], web.Response]
GOOD = {"choices": [{"message": {"content": "good"}, "finish_reason": "stop"}]}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workhorse.batch.retry.BACK_OFF_S", 0.01)
    monkeypatch.setattr("workhorse.batch.retry.AWAY_PAUSE_S", 0.01)
    monkeypatch.setattr("workhorse.batch.retry.AWAY_PAUSE_MOST_S", 0.05)
    monkeypatch.setattr(asking, "LOOK_PAUSE_S", 0.01)


@asynccontextmanager
async def saying(say: Say, port: int = 0) -> AsyncIterator[str]:
    """A service that answers each chat with what `say` says."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return say(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [429, 503])
async def test_no_room_or_a_restart_costs_no_attempt(ledger: Ledger, status: int) -> None:
    left = 8

    def say(request: web.Request) -> web.Response:
        nonlocal left
        assert request.headers["X-Priority"] == "batch"
        left -= 1
        if left >= 0:
            return web.json_response({}, status=status, headers={"Retry-After": "0"})
        return web.json_response(GOOD)

    job_id = added(ledger, texts(3), attempts=1)
    async with saying(say) as url:
        record = await run(ledger, job_id, one_question, url, context_tokens=100)
    assert record.counts == Counts(done=3)
    assert [one.attempts for one in ledger.items(job_id)] == [0, 0, 0]


async def test_a_service_that_is_started_again(ledger: Ledger) -> None:
    """Requests are refused a connection in between; the job waits and goes on by itself."""
    answered = 0

    def say(_: web.Request) -> web.Response:
        nonlocal answered
        answered += 1
        return web.json_response(GOOD)

    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    heard = Heard()
    job_id = added(ledger, texts(200), attempts=1)
    running = asyncio.create_task(
        run(ledger, job_id, one_question, url, context_tokens=100, tell=heard)
    )
    await until(lambda: heard.notes)  # it was not there when the job began
    async with saying(say, port):
        await until(lambda: answered > 20)
    await until(lambda: len(heard.notes) > 1)
    async with saying(say, port):
        record = await running
    assert record.counts == Counts(done=200)
    assert all("away" in note.en for note in heard.notes)


async def test_a_service_that_stays_away_stops_the_job(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "AWAY_LIMIT_S", 0.2)
    job_id = added(ledger, texts(3))
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(AppError, match="batch resume"):
        await run(ledger, job_id, one_question, url)
    record = ledger.job(job_id)
    assert (record.state, record.counts) == ("stopped", Counts(waiting=3))
    async with saying(lambda _: web.json_response(GOOD)) as url:
        assert (await run(ledger, job_id, one_question, url)).counts == Counts(done=3)


async def test_cancelled_while_it_waits_for_a_service_that_is_away(
    ledger: Ledger, tmp_path: Path
) -> None:
    job_id = added(ledger, texts(3))
    url, heard = f"http://127.0.0.1:{free_port('127.0.0.1')}", Heard()
    running = asyncio.create_task(run(ledger, job_id, one_question, url, tell=heard))
    await until(lambda: heard.notes)
    with new_ledger(tmp_path) as another:
        another.cancel(job_id, NOW_S)
    record = await running
    assert (record.state, record.counts) == ("cancelled", Counts(cancelled=3))


@pytest.mark.parametrize(
    ("status", "words"), [(401, "refuses the API key"), (404, "no longer serves")]
)
async def test_what_no_item_can_help_stops_the_job(ledger: Ledger, status: int, words: str) -> None:
    job_id = added(ledger, texts(3))
    async with saying(lambda _: web.json_response({}, status=status)) as url:
        with pytest.raises(AppError, match=words):
            await run(ledger, job_id, one_question, url)
    assert ledger.job(job_id).counts == Counts(waiting=3)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"choices": 7}', b"\xff\xfe" * 100])
async def test_bodies_that_are_no_answer(ledger: Ledger, body: bytes) -> None:
    job_id = added(ledger, texts(2), attempts=2)
    async with saying(lambda _: web.Response(body=body)) as url:
        record = await run(ledger, job_id, one_question, url)
    assert record.counts == Counts(failed=2)
    for item in ledger.items(job_id):
        assert item.reason and item.reason.cause == "not valid" and item.attempts == 2


async def test_a_full_disk_stops_the_job_and_it_is_gone_on_with(ledger: Ledger) -> None:
    async def long_answer(item: Item, tools: Tools) -> Result:
        await one_question(item, tools)
        # As a text that no packing makes small.
        return Result(text=item.content * 100 + str([hash((item.number, n)) for n in range(2000)]))

    def let_grow(pages: int) -> None:
        with ledger._file.reading() as connection:
            now = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {now + pages}").fetchall()

    job_id = added(ledger, texts(40))
    let_grow(60)
    async with standing() as there:
        with pytest.raises(AppError, match="full"):
            await run(ledger, job_id, long_answer, there.url)
        stopped = ledger.job(job_id)
        assert stopped.state == "stopped" and not stopped.cancelling
        assert 0 < stopped.counts.done < 40 and stopped.counts.failed == 0
        let_grow(10_000)
        assert (await run(ledger, job_id, long_answer, there.url)).counts == Counts(done=40)


@asynccontextmanager
async def supervised(log: Path, *options: str) -> AsyncIterator[str]:
    """A gateway in front of a fake engine that is a process, and is started again when it dies."""
    supervisor = Supervisor(
        lambda port: fake_launch(port, *options),
        log,
        ready_timeout_s=PATIENCE_S,
        next_delay=lambda *_: 0.0,
    )
    await supervisor.start()
    try:
        async with gateway(Supervised(supervisor), capacity=Capacity(4, 4096)) as url:
            yield url
    finally:
        await supervisor.stop()


async def test_an_item_that_kills_the_engine_is_set_aside_and_no_other(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "CALM_S", 0.0)
    items = texts(30)
    items[7] = NewItem(id="poison", source="poison", content="this is poison to it")
    job_id = added(ledger, items, attempts=2)
    async with supervised(tmp_path / "log", "--gap-ms", "2", "--die-of", "poison") as url:
        record = await run(ledger, job_id, one_question, url)
    assert record.counts == Counts(done=29, failed=1)
    for item in ledger.items(job_id):
        if item.id == "poison":
            assert item.reason and (item.reason.cause, item.attempts) == ("crashed", 2)
        else:
            assert item.state == "done" and item.attempts == 0


async def test_an_engine_that_dies_of_everything_stops_the_job(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "CALM_S", 0.0)
    monkeypatch.setattr(crew, "CRASHES_MOST", 2)
    job_id = added(ledger, texts(6), attempts=2)
    async with supervised(tmp_path / "log", "--die-of", "text") as url:
        with pytest.raises(AppError, match="2 items in a row"):
            await run(ledger, job_id, one_question, url)
    counts = ledger.job(job_id).counts
    assert counts.done == 0 and counts.failed <= 1


async def test_suspects_wait_until_the_engine_has_run_a_while(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A supervisor gives up an engine that dies too often: innocent items go first, unharmed."""
    items = [*texts(2, "poison"), *texts(40)[2:]]
    job_id = added(ledger, items)
    async with supervised(tmp_path / "log", "--die-of", "poison") as url:
        running = asyncio.create_task(run(ledger, job_id, one_question, url, pace=pace(2)))
        # A few were at the engine beside the poison, and are suspects too.
        await until(lambda: ledger.job(job_id).counts.done >= 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    counts = ledger.job(job_id).counts
    assert counts.failed == 0 and counts.done + counts.waiting == 40
    attempts = [one.attempts for one in ledger.items(job_id)]
    # Once in company, then alone: after three deaths whoever is suspected is put off.
    assert sum(attempts[:2]) <= 2 and not any(attempts[2:])
