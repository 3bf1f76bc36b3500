"""Requests that leave at any moment, engines that come, go and die: no slot is lost or doubled."""

import asyncio
import random
from collections import Counter

import pytest
from stand_ins import PATIENCE_S, StandInBackend

from workhorse.errors import AppError
from workhorse.serve.ask import Ask
from workhorse.serve.backend import READY, Capacity, Roster, Served
from workhorse.serve.keys import Key
from workhorse.serve.live import Live
from workhorse.serve.metrics import Metrics
from workhorse.serve.queue import Place, Queue
from workhorse.serve.usage import Usage

SLOTS = 2
KEYS = (None, Key("calm"), Key("one at a time", concurrency=1), Key("later", priority="batch"))
PROMPTS = (b"", b"short", b"long " * 4000)  # the last is a long prefill


class Storm:
    """Two engines of one model behind one line, and clients that stay as long as they like."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        capacity = Capacity(SLOTS, 10_000, 100.0, 10.0, 15.0)
        self.engines = [Served("horse", StandInBackend("http://x"), capacity) for _ in range(2)]
        self.roster = Roster(self.engines)
        self.live = Live(self.roster)
        metrics = Metrics(in_flight=lambda: 0, served=lambda: self.roster.served)
        self.queue = Queue(self.roster, self.live, metrics, Usage(), length=12)
        self.inside: Counter[Served] = Counter()
        self.answered = 0

    async def client(self) -> None:
        ask = Ask(b"", "unchanged", prompt=self.chance.choice(PROMPTS))
        place = self.queue.place(ask, self.chance.choice(KEYS))
        if self.chance.random() < 0.3:
            place.sign, place.sign_every_s = self.sign, 0.001
        async with place:
            await self.is_served(place)
            if self.chance.random() < 0.2:
                await place.again()
                await self.is_served(place)
        self.answered += 1

    async def sign(self, _: Place) -> None:
        await asyncio.sleep(0)
        if self.chance.random() < 0.2:
            raise ConnectionResetError

    async def is_served(self, place: Place) -> None:
        self.inside[place.served] += 1
        assert self.inside[place.served] <= SLOTS
        try:
            for _ in range(self.chance.randrange(6)):
                await asyncio.sleep(0)
            if place.first_token_s is None:
                place.begun()
            for _ in range(self.chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            self.inside[place.served] -= 1

    def turn(self, clients: list[asyncio.Task[None]]) -> None:
        """Something happens."""
        engine = self.chance.choice(self.engines)
        match self.chance.randrange(10):
            case 0 | 1 | 2 | 3:
                clients.append(asyncio.create_task(self.client()))
            case 4 | 5 | 6 if clients:
                self.chance.choice(clients).cancel()
            case 7 if engine in self.roster.served:
                self.roster.drop(engine)
            case 8 if engine not in self.roster.served:
                self.roster.put(engine)
            case 9:
                backend = engine.backend
                assert isinstance(backend, StandInBackend)
                backend.state = "restarting" if backend.state == READY else READY

    def calm(self) -> None:
        for engine in self.engines:
            assert isinstance(engine.backend, StandInBackend)
            engine.backend.state = READY
            if engine not in self.roster.served:
                self.roster.put(engine)


@pytest.mark.parametrize("seed", range(30))
async def test_every_slot_comes_back(seed: int) -> None:
    storm, clients = Storm(seed), list[asyncio.Task[None]]()
    for _ in range(400):
        storm.turn(clients)
        for _ in range(storm.chance.randrange(3)):
            await asyncio.sleep(0)
    storm.calm()
    async with asyncio.timeout(PATIENCE_S):
        ends = await asyncio.gather(*clients, return_exceptions=True)
        whole = [storm.client() for _ in range(2 * SLOTS)]
        ends += await asyncio.gather(*whole, return_exceptions=True)
    allowed = (asyncio.CancelledError, AppError, ConnectionResetError)
    assert [end for end in ends if end is not None and not isinstance(end, allowed)] == []
    assert storm.answered
    queue = storm.queue
    assert storm.inside.total() == 0 and not queue._places
    assert not queue._admission.anybody_waits()
    assert [queue._admission.running(number) for number in queue._served] == [0, 0]
    assert [storm.live.flow(engine).generating for engine in storm.engines] == [0, 0]
