"""What a service offers: slots, speeds by the store or its own word, people who chat."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from measured_speeds import CONDITIONS, measured

from workhorse.batch.concurrency import Concurrency, Room
from workhorse.batch.pace import PaceKeeper
from workhorse.batch.survey import chats_of, survey, watch_chat
from workhorse.bench.load import load_session
from workhorse.bench.service import Service
from workhorse.records import Measurement, ServedBy
from workhorse.store import Store


@dataclass
class Pages:
    """A service that answers with these documents, and 404 to everything else."""

    pages: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path not in self.pages:
            raise web.HTTPNotFound
        return web.json_response(self.pages[request.path])

    @property
    def service(self) -> Service:
        return Service(self.url, "m", {})


@asynccontextmanager
async def serving(**pages: Any) -> AsyncIterator[Pages]:
    """`serving(workhorse_status=…)` answers at `/workhorse/status`."""
    found = Pages({"/" + name.replace("_", "/"): page for name, page in pages.items()})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield found
    finally:
        await runner.cleanup()


def engine(**reading: Any) -> dict[str, Any]:
    return {"model_name": "m", "state": "ready", "reading": reading}


@pytest.mark.parametrize(
    ("engines", "own", "chats"),
    [
        ([engine(generating=4, waiting=1, giving_way=5)], 5, 0),
        ([engine(generating=4, waiting=3, giving_way=4)], 5, 3),
        # Two batch jobs do not take each other for people.
        ([engine(generating=4, waiting=2, giving_way=6)], 2, 0),
        ([engine(generating=4, waiting=1)], 3, 2),  # a gateway of an earlier version
        ([engine(generating=1, waiting=0, giving_way=0), engine(generating=2, giving_way=2)], 2, 1),
        # Two engines of one model share one line, in which one of two is a batch's.
        (
            [
                engine(generating=2, waiting=2, giving_way=2, giving_way_in_line=1),
                engine(generating=1, waiting=2, giving_way=1, giving_way_in_line=1),
            ],
            2,
            3,
        ),
        ([{"model_name": "other", "reading": {"generating": 3}}], 0, 0),
        ([{"model_name": "m"}], 0, 0),
    ],
)
async def test_people_are_what_does_not_give_way(
    engines: list[dict[str, Any]], own: int, chats: int
) -> None:
    async with serving(workhorse_status={"engines": engines}) as there, load_session() as client:
        assert await chats_of(client, there.service, own) == chats


async def test_a_service_that_is_no_gateway_says_nothing_of_people() -> None:
    async with serving() as there, load_session() as client:
        assert await chats_of(client, there.service, 1) is None


async def test_the_pace_hears_of_people() -> None:
    rule = Concurrency(Room(slots=4), yield_to_chat=True)
    clock = asyncio.get_running_loop().time
    status = {"engines": [engine(generating=1, waiting=0, giving_way=0)]}
    async with serving(workhorse_status=status) as there, load_session() as client:
        watching = asyncio.create_task(watch_chat(client, there.service, PaceKeeper(rule)))
        async with asyncio.timeout(60):
            while not rule.chats(clock()):  # noqa: ASYNC110 nothing would tell
                await asyncio.sleep(0.005)
        watching.cancel()
        await asyncio.wait({watching})
    assert rule.limit(clock()) == 2


def kept(store: Store, url: str, slots: int, *, streams: int = 4, model: str = "m") -> None:
    """A bench run of a service with so many slots, best at so many streams."""
    runs = [measured(count, decode=60.0 * min(count, streams) ** 0.5) for count in (1, 2, 4, 8)]
    conditions = replace(CONDITIONS, url=url, served_by=ServedBy(model=model, slots=slots))
    whole: list[Measurement] = [replace(one, conditions=conditions) for one in runs]
    store.keep_bench(whole, model_name=model)


STATE = {
    "engines": [
        {
            "model_name": "m",
            "slots": 4,
            "context_tokens": 2048,
            "measured": {"decode_tokens_per_s": 60.0, "prefill_tokens_per_s": 400.0},
        },
        {"model_name": "m", "slots": 2, "context_tokens": 1024},
        {"model_name": "other", "slots": 9, "context_tokens": 512},
    ]
}


async def test_the_latest_bench_of_this_plan_tells_the_best_streams(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    async with serving(workhorse_state=STATE) as there, load_session() as client:
        kept(store, there.url, 6, streams=2)
        kept(store, there.url, 6, streams=4)
        kept(store, there.url, 12, streams=8)  # of another plan
        kept(store, "http://127.0.0.1:1", 6, streams=8)  # of another service
        kept(store, there.url, 6, streams=8, model="other")
        found = await survey(client, there.service, store)
    assert (found.slots, found.context_tokens) == (6, 1024)
    assert found.capacity is not None
    assert found.capacity.streams == 4
    assert found.capacity.benched


async def test_without_a_bench_what_the_service_measured_itself(tmp_path: Path) -> None:
    async with serving(workhorse_state=STATE) as there, load_session() as client:
        found = await survey(client, there.service, Store(tmp_path / "s.sqlite"))
    assert found.capacity is not None
    assert not found.capacity.benched
    # Two engines read and write side by side; of one of them nothing was measured yet.
    assert found.capacity.prefill_tokens_per_s.value == 2 * 400
    decode = found.capacity.decode_tokens_per_s
    assert (found.capacity.streams, decode.high) == (6, 6 * 60.0)
    assert decode.low == pytest.approx(2 * 0.7 * 60.0)


async def test_of_a_foreign_service_nothing_is_made_up(tmp_path: Path) -> None:
    async with serving() as there, load_session() as client:
        found = await survey(client, there.service, Store(tmp_path / "s.sqlite"))
    assert (found.slots, found.context_tokens, found.capacity) == (None, None, None)


async def test_a_broken_store_costs_no_job(tmp_path: Path) -> None:
    (tmp_path / "s.sqlite").write_bytes(b"no database" * 1000)
    async with serving(workhorse_state=STATE) as there, load_session() as client:
        found = await survey(client, there.service, Store(tmp_path / "s.sqlite"))
    assert found.slots == 6
