"""The fake engine keeps told times, serves in order and frees the slots of clients that left."""

import asyncio
import json
from functools import partial

import pytest
from fake_client import Client, Json, fake, until

from workhorse.engines.fake.decode import Schedule, Slots


@pytest.mark.parametrize("streams", [1, 16])
async def test_told_times_are_kept(streams: int) -> None:
    body = {"prompt": "go", "n_predict": 40, "ignore_eos": True, "stream": True}

    async def arrivals(client: Client) -> list[float]:
        loop, times = asyncio.get_running_loop(), []
        sent_s = loop.time()
        async with client.http.post(client.url + "/completion", json=body) as answer:
            async for line in answer.content:
                if b'"stop":false' in line:
                    times.append(loop.time() - sent_s)
        return times

    async with fake(slots=16, ttft_s=0.05, gap_s=0.01) as client:
        await arrivals(client)
        runs = await asyncio.gather(*(arrivals(client) for _ in range(streams)))
    assert all(len(run) == 40 for run in runs)
    # No token comes before its time. How late one may come is a matter of the machine's other
    # load, so it is measured in `benchmarks/bench_truth.py`.
    assert min(run[0] for run in runs) >= 0.05
    assert min(run[-1] for run in runs) >= 0.05 + 39 * 0.01


async def test_timings_tell_the_schedule() -> None:
    told: Json = {"ttft_s": 0.02, "gap_s": 0.005, "prefill_s_per_token": 0.001}
    async with fake(**told) as client:
        _, _, text = await client.post("/completion", {"prompt": [7] * 30, "n_predict": 5})
    timings = json.loads(text)["timings"]
    assert timings["prompt_ms"] == pytest.approx(50)
    assert timings["predicted_per_token_ms"] == pytest.approx(5)
    assert timings["predicted_n"] == 5


async def test_busy_slots_slow_each_other_down() -> None:
    ask = {"prompt": "x", "n_predict": 4, "ignore_eos": True}
    async with fake(slots=3, gap_s=0.02, batch_slowdown=0.5) as client:
        answers = await asyncio.gather(*(client.post("/completion", ask) for _ in range(3)))
        alone = await client.post("/completion", ask)
    slow, fast = (
        json.loads(one[2])["timings"]["predicted_per_token_ms"] for one in (answers[0], alone)
    )
    assert fast == pytest.approx(20)
    assert fast < slow <= 40.001


async def test_who_comes_when_no_slot_is_free_waits_in_line() -> None:
    ask = {"prompt": "x", "n_predict": 3, "ignore_eos": True}
    done: list[int] = []

    def in_line(client: Client, count: int) -> bool:
        return client.server.decoder.slots.waiting >= count or bool(done)

    async with fake(slots=1, gap_s=0.01) as client:

        async def one(number: int) -> None:
            await client.post("/completion", ask)
            done.append(number)

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(one(number)))
            # One after the other: the first has the slot, each next is one more in the line.
            await until(partial(in_line, client, number))
        await asyncio.gather(*tasks)
        assert await client.busy() == [False]
    assert done == [0, 1, 2, 3]


async def test_a_slot_given_to_someone_who_just_left_goes_to_the_next() -> None:
    slots = Slots(1)
    assert await slots.take() == 0
    leaves, stays = asyncio.create_task(slots.take()), asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    slots.give(0)
    leaves.cancel()
    assert await stays == 0
    slots.give(0)
    assert slots.busy == [False]


# ------------------------------------------------------------ clients that leave


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", [{"ttft_s": 60.0}, {"gap_s": 60.0}], ids=["prefill", "decode"])
async def test_a_client_that_leaves_frees_its_slot(stream: bool, phase: Json) -> None:
    async with fake(slots=1, **phase) as client:
        ask = {"prompt": "x", "n_predict": 5, "stream": stream}
        leaver = asyncio.create_task(client.post("/completion", ask))
        await until(lambda: client.server.decoder.slots.busy == [True])
        leaver.cancel()
        await until(lambda: client.server.decoder.slots.busy == [False])


def test_a_deaf_engine_hears_when_llama_server_would() -> None:
    # 1024 tokens of prompt in two batches of 5 s, then ten tokens a second apart.
    schedule = Schedule(start_s=0, first_s=10, last_s=19, prompt_tokens=1024)

    def heard(left_s: float, *, stream: bool, progress: bool) -> float:
        return schedule.heard_s(left_s, stream=stream, progress=progress)

    assert heard(2, stream=False, progress=False) == 19
    assert heard(12, stream=False, progress=True) == 19
    assert heard(2, stream=True, progress=False) == 10
    assert heard(2, stream=True, progress=True) == 5
    assert heard(7, stream=True, progress=True) == 10
    assert heard(12, stream=True, progress=False) == 12


async def test_a_deaf_engine_keeps_the_slot_of_a_client_that_left() -> None:
    async with fake(slots=1, ttft_s=1.0, deaf=True) as client:
        slots = client.server.decoder.slots
        ask = {"prompt": "x", "n_predict": 5, "stream": True}
        leaver = asyncio.create_task(client.post("/completion", ask))
        await until(lambda: slots.busy == [True])
        leaver.cancel()
        after = asyncio.create_task(client.post("/completion", ask))
        await until(lambda: slots.waiting == 1)
        after.cancel()
        await until(lambda: slots.waiting == 0)
        assert slots.busy == [True]
        await until(lambda: slots.busy == [False])
