"""How many requests at once: the rule by itself, then the keeper that lets them through."""

import asyncio
from collections.abc import Callable

import pytest

from workhorse.batch.concurrency import (
    ANSWERS_A_STEP,
    BURST_S,
    CHAT_STILL_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    STREAMS_UNKNOWN,
    Concurrency,
    Room,
)
from workhorse.batch.pace import PaceKeeper
from workhorse.batch.windows import window_of

# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "most"),
    [
        (Room(slots=4, best=4), 5),  # one waits, so that no slot is empty
        (Room(slots=4), 5),
        (Room(slots=4, best=2), 2),  # two were faster: a third would take a slot
        (Room(slots=4, best=16), 5),  # measured past the slots: they are all that computes
        (Room(slots=4, best=4, asked=9), 9),  # the user's word
        (Room(best=8), 8),
        (Room(), STREAMS_UNKNOWN),
    ],
)
def test_as_many_as_were_measured_best(room: Room, most: int) -> None:
    assert room.most == most
    assert Concurrency(room).limit(0.0) == most


def test_a_refusal_pauses_and_cuts_once_a_burst_then_it_grows_back_slowly() -> None:
    rule = Concurrency(Room(slots=8))
    for _ in range(5):
        rule.refused(3.0, 100.0)
    assert rule.limit(102.9) == 0
    assert rule.changes_in_s(100.5) == 2.5
    assert rule.limit(103.0) == 6
    for limit in (6, 7, 8):
        for _ in range(ANSWERS_A_STEP * limit):
            assert rule.limit(104.0) == limit
            rule.answered()
    for _ in range(100):
        rule.answered()
    assert rule.limit(104.0) == 9  # never more than there is room for


def test_refusals_never_end_the_job() -> None:
    rule = Concurrency(Room(slots=2))
    now_s = 0.0
    for _ in range(20):
        rule.refused(None, now_s)
        now_s += LONGEST_PAUSE_S + BURST_S
        assert rule.limit(now_s) >= 1


def test_a_refusal_without_a_time_waits_longer_each_time_until_an_answer() -> None:
    rule = Concurrency(Room(slots=2))
    now_s, pauses = 0.0, []
    for _ in range(9):
        rule.refused(None, now_s)
        pauses.append(rule.changes_in_s(now_s))
        now_s += 1000
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    rule.answered()
    rule.refused(None, now_s)
    assert rule.changes_in_s(now_s) == FIRST_PAUSE_S


def test_who_yields_keeps_a_slot_free_beside_each_chat_until_it_is_still() -> None:
    rule = Concurrency(Room(slots=4), yield_to_chat=True)
    assert rule.limit(0.0) == 5
    rule.chat_seen(1, 10.0)
    assert rule.limit(10.0) == 2
    rule.chat_seen(3, 20.0)
    assert rule.limit(20.0) == 0
    rule.chat_seen(1, 30.0)
    assert rule.limit(30.0) == 0  # the three of a moment ago may write again
    rule.chat_seen(0, 40.0)
    assert rule.changes_in_s(40.0) == CHAT_STILL_S - 10
    assert rule.limit(30.0 + CHAT_STILL_S) == 5


def test_who_does_not_yield_goes_on_beside_chats() -> None:
    rule = Concurrency(Room(slots=4))
    rule.chat_seen(3, 10.0)
    assert rule.limit(10.0) == 5


# --- the keeper ----------------------------------------------------------------------------------


class Clock:
    """Time that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Work:
    """Requests that take a turn each, in the order of their numbers, and end when told."""

    def __init__(self, pace: PaceKeeper, count: int) -> None:
        self.pace, self.most, self.begun = pace, 0, list[int]()
        self._ends = [asyncio.Event() for _ in range(count)]
        self.tasks = [asyncio.create_task(self._one(number)) for number in range(count)]

    async def _one(self, number: int) -> None:
        async with self.pace.turn():
            self.begun.append(number)
            self.most = max(self.most, self.pace.under_way)
            await self._ends[number].wait()

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self._ends[number].set()

    async def finish(self) -> None:
        self.end(*range(len(self.tasks)))
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settled(condition: Callable[[], object]) -> None:
    """Until it holds: the tasks of this loop have nothing else to wait for."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 there is nothing that would tell
            await asyncio.sleep(0)


async def idle() -> None:
    """Everything that could run has run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_turns_come_in_order_and_never_more_than_the_limit() -> None:
    work = Work(PaceKeeper(Concurrency(Room(asked=3))), 8)
    await settled(lambda: len(work.begun) == 3)
    work.end(1)
    await settled(lambda: len(work.begun) == 4)
    await work.finish()
    assert work.begun == list(range(8))
    assert work.most == 3
    assert work.pace.under_way == 0


async def test_who_leaves_the_line_takes_nobodys_place() -> None:
    work = Work(PaceKeeper(Concurrency(Room(asked=1))), 4)
    await settled(lambda: work.begun == [0])
    for number in (1, 0, 2):
        work.tasks[number].cancel()
    await settled(lambda: work.begun == [0, 3])
    await work.finish()
    assert work.pace.under_way == 0


async def test_a_turn_that_comes_to_who_is_cancelled_goes_to_the_next() -> None:
    pace = PaceKeeper(Concurrency(Room(asked=1)))
    leave = asyncio.Event()

    async def first() -> None:
        async with pace.turn():
            await leave.wait()
        second.cancel()  # has been given the turn, and does not know it yet

    began = asyncio.create_task(first())
    await settled(lambda: pace.under_way == 1)
    work = Work(pace, 2)
    second = work.tasks[0]
    await idle()
    leave.set()
    await settled(lambda: work.begun == [1])
    await asyncio.gather(began, work.finish())
    assert pace.under_way == 0


async def test_a_turn_that_raises_is_given_back() -> None:
    pace = PaceKeeper(Concurrency(Room(asked=1)))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with pace.turn():
                raise ZeroDivisionError
    assert pace.under_way == 0


async def test_nothing_begins_outside_the_window_and_that_time_is_told() -> None:
    clock, minute = Clock(), 720
    pace = PaceKeeper(
        Concurrency(Room(asked=2)),
        windows=(window_of("20:00-07:00"),),
        clock=clock,
        wall=clock,
        minute=lambda _: minute,
    )
    work = Work(pace, 3)
    await idle()
    assert work.begun == []
    clock.now_s += 500
    assert pace.held_s == 500
    minute = 1200
    pace.chat_seen(0)  # anything that happens looks at the clock
    await settled(lambda: work.begun == [0, 1])
    clock.now_s += 100
    assert pace.held_s == 500
    minute = 420
    work.end(0, 1)
    await idle()
    assert work.begun == [0, 1]  # what runs may end, nothing new begins
    minute = 1300
    pace.chat_seen(0)
    await settled(lambda: work.begun == [0, 1, 2])
    await work.finish()


async def test_a_pause_ends_by_itself() -> None:
    pace = PaceKeeper(Concurrency(Room(asked=2)))
    pace.refused(0.01)
    async with asyncio.timeout(60), pace.turn():
        assert pace.under_way == 1


async def test_a_chat_that_falls_silent_gives_the_slots_back_without_anything_else() -> None:
    clock = Clock()
    pace = PaceKeeper(
        Concurrency(Room(slots=2), yield_to_chat=True), clock=clock, minute=lambda _: 0
    )
    pace.chat_seen(2)
    work = Work(pace, 2)
    await idle()
    assert work.begun == []
    clock.now_s += CHAT_STILL_S
    pace.chat_seen(0)
    await settled(lambda: len(work.begun) == 2)
    await work.finish()
