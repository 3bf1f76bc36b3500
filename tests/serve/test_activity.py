"""Who is being served, and when nobody is."""

import asyncio

import pytest

from workhorse.serve.activity import Activity

ATTEMPTS = 100
EARLY_S = 0.002  # how much too early a loop may call: the resolution of its clock


async def settle() -> None:
    """Lets every task run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_counts_requests_in_flight() -> None:
    activity = Activity()
    with activity.request():
        with activity.request():
            assert activity.in_flight == 2
        assert activity.in_flight == 1
    assert activity.in_flight == 0


async def test_a_request_that_fails_is_over_too() -> None:
    activity = Activity()
    with pytest.raises(ValueError, match="x"), activity.request():
        raise ValueError("x")
    assert activity.in_flight == 0


async def test_arrived_waits_for_the_next_client() -> None:
    activity = Activity()
    arrived = asyncio.create_task(activity.arrived())
    await settle()
    assert not arrived.done()
    with activity.request():
        pass  # gone before anybody could look
    await settle()
    assert arrived.done()


async def test_arrived_at_once_while_one_is_served() -> None:
    activity = Activity()
    with activity.request():
        await activity.arrived()


async def test_idle_at_once_when_nobody_ever_came() -> None:
    await Activity().wait_idle(3600)


async def test_idle_only_after_the_quiet_time() -> None:
    activity = Activity()
    loop = asyncio.get_running_loop()
    with activity.request():
        idle = asyncio.create_task(activity.wait_idle(0.05))
        await settle()
        assert not idle.done()
    ended_s = loop.time()
    await idle
    assert loop.time() - ended_s >= 0.05 - EARLY_S


async def test_a_client_in_the_quiet_time_starts_it_anew() -> None:
    activity = Activity()
    loop = asyncio.get_running_loop()
    for _ in range(ATTEMPTS):
        began_s = loop.time()
        with activity.request():
            pass
        idle = asyncio.create_task(activity.wait_idle(0.05))
        await settle()
        with activity.request():
            await settle()
            if idle.done():  # we had to wait for our turn, and the time was over
                assert loop.time() - began_s >= 0.05 - EARLY_S
                continue
        ended_s = loop.time()
        await idle
        assert loop.time() - ended_s >= 0.05 - EARLY_S
        return
    pytest.fail("the quiet time was over each time before the client came")
