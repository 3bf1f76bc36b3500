"""What each engine's answers say of it, as the guard and the dashboard read it."""

import asyncio

import aiohttp
import pytest
from stand_ins import Exchange, StandInBackend, chunk, gateway, scripted, until

from workhorse.serve.activity import Activity
from workhorse.serve.backend import Capacity, Roster, Served
from workhorse.serve.figures import TokenCount
from workhorse.serve.live import FLOW_S, LATEST_ANSWERS, LATEST_S, Live


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def served() -> Served:
    return Served("horse", StandInBackend("http://127.0.0.1:1"), Capacity(2, 4096))


def answered(live: Live, one: Served, decode_tokens_per_s: float) -> None:
    count = TokenCount(900, 100, 200, decode_tokens_per_s, 400.0)
    live.answered(one, [count], ttft_s=2.5, streams=2.0, took_s=8.0)


def test_nothing_is_known_before_an_answer() -> None:
    live = Live(Roster((served(),)), Clock())
    (reading,) = live.engine_readings()
    assert (reading.model_name, reading.state, reading.slots) == ("horse", "ready", 2)
    assert (reading.generating, reading.waiting) == (0, 0)
    for figure in (reading.decode_tokens_per_s, reading.ttft_s, reading.total_tokens_per_s):
        assert figure is None
    assert reading.prefill_share is None


def test_the_latest_answers_count_and_old_ones_no_more() -> None:
    clock, one = Clock(), served()
    live = Live(Roster((one,)), clock)
    for speed in (1.0, *[10.0, 20.0, 30.0, 40.0] * (LATEST_ANSWERS // 4)):
        answered(live, one, speed)
    (reading,) = live.engine_readings()
    assert reading.decode_tokens_per_s == 25
    assert (reading.prefill_tokens_per_s, reading.ttft_s) == (400, 2.5)
    assert (reading.depth_tokens, reading.streams) == (1000, 2)
    assert reading.prefill_share == pytest.approx(800 / 400 / 8)
    clock.now_s += LATEST_S + 1
    assert live.engine_readings()[0].decode_tokens_per_s is None


def test_all_streams_together_over_the_latest_seconds() -> None:
    clock, one = Clock(), served()
    live = Live(Roster((one,)), clock)
    live.engine_readings()
    for _ in range(int(4 * FLOW_S)):
        clock.now_s += 1
        live.flow(one).tokens += 50
        (reading,) = live.engine_readings()
        assert reading.total_tokens_per_s == pytest.approx(50)
    clock.now_s += FLOW_S + 1
    live.engine_readings()
    clock.now_s += FLOW_S + 1
    assert live.engine_readings()[0].total_tokens_per_s == 0


def test_engines_that_are_gone_are_forgotten_once_nobody_is_served() -> None:
    first, second, third = served(), served(), served()
    roster = Roster((first,))
    live = Live(roster, Clock())
    live.flow(first).generating = 1
    roster.put(second, instead_of=first)
    live.flow(second)
    assert live.flow(first).generating == 1
    live.flow(first).generating = 0
    roster.put(third, instead_of=second)
    live.flow(third).tokens = 5
    live.flow(first).tokens = 7
    assert live.flow(third).tokens == 5


async def test_who_is_served_and_who_waits_shows_while_it_is_so() -> None:
    go = asyncio.Event()

    async def script(to: Exchange) -> None:
        await go.wait()
        await to.begin_stream()
        await to.event(chunk("a"))
        timings = {"cache_n": 0, "prompt_n": 100, "prompt_per_second": 200.0}
        timings |= {"predicted_n": 9, "predicted_per_second": 30.0}
        await to.event(chunk(None, finish="stop", timings=timings))
        await to.end_stream()

    activity, roster = Activity(), Roster()
    live = Live(roster)
    async with scripted(script) as (_, url):
        backend = StandInBackend(url)
        async with (
            gateway(
                backend, capacity=Capacity(1, 4096), activity=activity, live=live, queue_length=5
            ) as front,
            aiohttp.ClientSession(front) as http,
        ):
            roster.put(Served("horse", backend, Capacity(1, 4096)))
            asks = [
                asyncio.create_task(
                    http.post("/v1/chat/completions", json={}, headers={"X-Priority": word})
                )
                for word in ("chat", "batch")
            ]
            await until(lambda: activity.in_flight == 2)
            await until(lambda: live.engine_readings()[0].waiting == 1)
            (reading,) = live.engine_readings()
            assert (reading.generating, reading.queue_limit) == (1, 5)
            assert reading.giving_way == 1  # of the one in the slot and the one that waits
            go.set()
            for ask in asks:
                (await ask).release()
            await until(lambda: live.engine_readings()[0].generating == 0)
            (reading,) = live.engine_readings()
            assert (reading.decode_tokens_per_s, reading.prefill_tokens_per_s) == (30, 200)
            assert (reading.waiting, reading.giving_way) == (0, 0)
