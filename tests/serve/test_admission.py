"""Who gets a slot, who waits, who is refused: the decisions, by example and by property."""

from dataclasses import replace
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from workhorse.serve.admission import GONE_WAIT_S, LONG_PREFILL_S, Admission
from workhorse.serve.affinity import ENDS_BYTES, MOST_REMEMBERED, Affinity, digests_of
from workhorse.serve.decisions import Bid, Grant, Lane, Refusal, Standing
from workhorse.serve.fair_order import BATCH_YIELDS_S, LONGEST_YIELD_S, STRETCH, FairOrder, Waiter

# One second a hundred prompt tokens, one second ten generated ones.
LANE = Lane(1, "m", 2, True, 100.0, 10.0)
CHAT = Bid("m", prompt_tokens=100, output_tokens=90)  # ten seconds


def admission(*lanes: Lane, **options: float) -> Admission:
    made = Admission(**options)  # type: ignore[arg-type]
    made.set_engines(lanes or (LANE,), 0)
    return made


def waits(decision: Grant | Standing | Refusal) -> Standing:
    assert isinstance(decision, Standing), decision
    return decision


def refused(decision: Grant | Standing | Refusal) -> Refusal:
    assert isinstance(decision, Refusal), decision
    return decision


def granted(decisions: list[Grant]) -> list[int]:
    return [one.ticket for one in decisions]


def test_free_slots_are_given_at_once_and_the_next_one_waits() -> None:
    core = admission()
    assert core.arrive(1, CHAT, 0) == Grant(1, 1)
    assert core.arrive(2, CHAT, 4) == Grant(2, 1)
    third, fourth = waits(core.arrive(3, CHAT, 5)), waits(core.arrive(4, CHAT, 5))
    assert (third.position, fourth.position) == (1, 2)
    assert third.expected_wait_s == pytest.approx(5)  # until the first is done
    assert fourth.expected_wait_s == pytest.approx(9)
    assert core.leave(1, 10) == [Grant(3, 1)]
    standing = core.standing(4, 10)
    assert standing is not None
    assert standing.position == 1


def test_the_wait_for_one_that_takes_longer_than_expected_grows_with_it() -> None:
    core = admission(replace(LANE, slots=1))
    core.arrive(1, CHAT, 0)
    assert waits(core.arrive(2, CHAT, 100)).expected_wait_s == pytest.approx(25)


def test_no_speed_is_known_so_no_wait_is_told() -> None:
    core = admission(Lane(1, "m", 1))
    core.arrive(1, CHAT, 0)
    assert waits(core.arrive(2, CHAT, 0)).expected_wait_s is None


def test_an_engine_that_is_not_planned_yet_lets_everybody_through() -> None:
    core = admission(Lane(1, "m", None))
    assert [core.arrive(n, CHAT, 0) for n in range(50)] == [Grant(n, 1) for n in range(50)]


def test_a_short_chat_passes_a_long_prompt_but_not_for_ever() -> None:
    core = admission(replace(LANE, slots=1), longest_wait_s=1e9)
    core.arrive(0, CHAT, 0)
    waits(core.arrive(1, replace(CHAT, prompt_tokens=3000), 0))  # 39 s
    due_s = STRETCH * 39
    assert waits(core.arrive(2, CHAT, due_s - 45)).position == 1
    assert waits(core.arrive(3, CHAT, due_s - 35)).position == 3


def test_long_prefills_leave_slots_to_the_short() -> None:
    core = admission(replace(LANE, slots=4), longest_wait_s=1e9)
    long = replace(CHAT, prompt_tokens=100 * LONG_PREFILL_S + 1)
    assert isinstance(core.arrive(1, long, 0), Grant)
    assert isinstance(core.arrive(2, long, 0), Grant)
    waits(core.arrive(3, long, 0))
    assert isinstance(core.arrive(4, CHAT, 1), Grant)
    assert granted(core.prefilled(1, 20)) == [3]
    assert core.prefilled(1, 21) == []


def test_one_slot_takes_a_long_prefill_too() -> None:
    core = admission(replace(LANE, slots=1))
    assert isinstance(core.arrive(1, replace(CHAT, prompt_tokens=90_000), 0), Grant)


def test_batch_gives_way_to_chat_and_then_no_more() -> None:
    core = admission(replace(LANE, slots=1), longest_wait_s=1e9)
    core.arrive(0, CHAT, 0)
    core.arrive(1, replace(CHAT, key="b", batch=True), 0)
    core.arrive(2, replace(CHAT, key="a"), 1)
    core.arrive(3, replace(CHAT, key="a"), 2)
    assert granted(core.leave(0, 10)) == [2]
    assert granted(core.leave(2, BATCH_YIELDS_S)) == [1]


def test_who_floods_waits_behind_who_does_not() -> None:
    core = admission(replace(LANE, slots=1), longest_wait_s=1e9)
    core.arrive(0, replace(CHAT, key="flood"), 0)
    for ticket in range(1, 20):
        core.arrive(ticket, replace(CHAT, key="flood"), 0)
    assert waits(core.arrive(20, replace(CHAT, key="calm"), 1)).position == 1
    assert granted(core.leave(0, 10)) == [20]
    assert granted(core.leave(20, 20)) == [1]


def test_the_line_is_bounded_and_one_key_cannot_fill_it() -> None:
    core = admission(replace(LANE, slots=1), queue_length=4, longest_wait_s=1e9)
    core.arrive(0, CHAT, 0)
    for ticket in (1, 2):
        waits(core.arrive(ticket, replace(CHAT, key="flood"), 0))
    full = refused(core.arrive(3, replace(CHAT, key="flood"), 0))
    assert (full.why, full.limit) == ("key's share", 2)
    for ticket in (4, 5):
        waits(core.arrive(ticket, CHAT, 0))
    full = refused(core.arrive(6, CHAT, 0))
    assert (full.why, full.limit, full.position) == ("queue full", 4, 5)
    assert full.retry_after_s == pytest.approx(50)


def test_nobody_is_let_wait_longer_than_clients_do() -> None:
    core = admission(replace(LANE, slots=1), longest_wait_s=15)
    core.arrive(0, CHAT, 0)
    waits(core.arrive(1, CHAT, 0))
    assert refused(core.arrive(2, CHAT, 0)) == Refusal(2, "wait", pytest.approx(20), 2)


def test_requests_a_minute() -> None:
    core = admission(replace(LANE, slots=99))
    bid = replace(CHAT, key="k", rpm=2)
    assert [type(core.arrive(n, bid, 0)) for n in range(3)] == [Grant, Grant, Refusal]
    assert refused(core.arrive(3, bid, 10)).retry_after_s == pytest.approx(20)
    assert isinstance(core.arrive(4, bid, 30), Grant)
    assert isinstance(core.arrive(5, replace(CHAT, key="other", rpm=2), 30), Grant)


def test_tokens_a_minute_settle_with_what_was_really_used() -> None:
    core = admission(replace(LANE, slots=99))
    bid = replace(CHAT, key="k", tpm=380)  # two expected ones
    assert isinstance(core.arrive(1, bid, 0), Grant)
    assert isinstance(core.arrive(2, bid, 0), Grant)
    assert refused(core.arrive(3, bid, 0)).why == "tokens a minute"
    core.leave(1, 0, spent_tokens=0)
    assert isinstance(core.arrive(4, bid, 0), Grant)
    core.leave(4, 0, spent_tokens=570)
    assert refused(core.arrive(5, bid, 0)).retry_after_s == pytest.approx(60 * 570 / 380)


def test_a_request_above_a_minutes_tokens_passes_when_nothing_else_was_used() -> None:
    core = admission()
    assert isinstance(core.arrive(1, replace(CHAT, key="k", tpm=100), 0), Grant)
    assert isinstance(core.arrive(2, replace(CHAT, key="k", tpm=100), 1), Refusal)


def test_who_only_waited_has_used_nothing() -> None:
    core = admission(replace(LANE, slots=1))
    core.arrive(0, CHAT, 0)
    bid = replace(CHAT, key="k", tpm=190)
    waits(core.arrive(1, bid, 0))
    assert core.leave(1, 0) == []
    waits(core.arrive(2, bid, 0))


def test_a_key_at_its_concurrency_waits_for_itself_alone() -> None:
    core = admission(replace(LANE, slots=3))
    one = replace(CHAT, key="one", concurrency=1)
    assert isinstance(core.arrive(1, one, 0), Grant)
    assert waits(core.arrive(2, one, 4)).expected_wait_s == pytest.approx(6)
    assert isinstance(core.arrive(3, CHAT, 5), Grant)
    assert granted(core.leave(3, 6)) == []
    assert granted(core.leave(1, 7)) == [2]


def two(slots: int = 1, **of_second: object) -> Admission:
    second = replace(LANE, number=2, slots=slots)
    return admission(replace(LANE, slots=slots), replace(second, **of_second))  # type: ignore[arg-type]


def test_of_two_engines_the_one_that_will_be_done_first() -> None:
    assert two(decode_tokens_per_s=20.0).arrive(1, CHAT, 0) == Grant(1, 2)
    core = two(slots=2)
    assert core.arrive(1, CHAT, 0) == Grant(1, 1)
    assert core.arrive(2, CHAT, 0) == Grant(2, 2)  # less is going on there


def test_the_same_beginning_goes_to_the_same_engine() -> None:
    document = bytes(range(256)) * 64
    tokens = len(document) / 4
    about = replace(CHAT, prompt_tokens=tokens, prefix=digests_of(document))
    core = two(slots=4)
    assert core.arrive(1, CHAT, 0) == Grant(1, 1)
    assert core.arrive(2, about, 0) == Grant(2, 2)
    core.leave(2, 50)
    question = replace(about, prefix=digests_of(document + b"?" * 1000))
    core.leave(1, 50)
    assert core.arrive(3, question, 60) == Grant(3, 2)
    core.cache_lost(2)
    assert core.arrive(4, question, 60) == Grant(4, 1)


def test_an_engine_that_is_not_ready_gets_nobody_while_another_is() -> None:
    core = two(ready=False)
    assert core.arrive(1, CHAT, 0) == Grant(1, 1)
    waits(core.arrive(2, CHAT, 0))
    ready = (replace(LANE, slots=1), replace(LANE, number=2, slots=1))
    assert core.set_engines(ready, 1) == [Grant(2, 2)]


def test_who_was_queued_in_an_engine_that_died_moves_to_another_first_in_line() -> None:
    core = two()
    core.arrive(1, CHAT, 0)
    core.arrive(2, CHAT, 1)
    waits(core.arrive(3, CHAT, 2))
    lanes = (replace(LANE, slots=1, ready=False), replace(LANE, number=2, slots=1))
    core.set_engines(lanes, 3)
    assert core.again(1, 3) == []
    standing = core.standing(1, 3)
    assert standing is not None
    assert standing.position == 1
    assert core.leave(2, 4) == [Grant(1, 2)]


def test_answers_of_an_engine_that_was_taken_away_go_on() -> None:
    core = admission(replace(LANE, slots=1))
    core.arrive(1, CHAT, 0)
    waits(core.arrive(2, CHAT, 0))
    assert core.set_engines((replace(LANE, number=2, slots=1),), 1) == [Grant(2, 2)]
    assert core.running(1) == 1
    assert core.leave(1, 2) == []


def test_a_model_whose_engines_are_gone_is_waited_for_and_then_given_up() -> None:
    core = admission()
    core.set_engines((), 0)
    waits(core.arrive(1, CHAT, 0))
    assert core.set_engines((), GONE_WAIT_S - 1) == []
    assert core.set_engines((), GONE_WAIT_S) == [Refusal(1, "gone", None)]
    assert not core.anybody_waits()


def test_affinity_forgets_the_oldest() -> None:
    affinity = Affinity()
    affinity.remember(1, (10,))
    for digest in range(20, 20 + MOST_REMEMBERED):
        affinity.remember(2, (digest,))
    assert affinity.known_bytes(1, (10,)) == 0
    assert affinity.known_bytes(2, (20, 999_999)) == ENDS_BYTES[0]


@given(st.binary(max_size=8000), st.binary(max_size=3000))
def test_digests_of_a_longer_prompt_begin_with_those_of_a_shorter(a: bytes, b: bytes) -> None:
    assert digests_of(a + b)[: len(digests_of(a))] == digests_of(a)


# Properties. Waiters of one model, each: key, batch, when it came, what it costs.
WAITERS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.booleans(),
        st.integers(0, 1000).map(float),
        st.integers(1, 400).map(float),
    ),
    max_size=20,
).map(lambda rows: [Waiter(n, *row) for n, row in enumerate(rows)])


@given(WAITERS, st.randoms())
def test_the_order_is_the_same_whatever_order_one_looks_in(
    waiters: list[Waiter], random: object
) -> None:
    shuffled = waiters.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert FairOrder().line(shuffled, 1000) == FairOrder().line(waiters, 1000)


@given(WAITERS)
def test_nobody_of_a_key_who_came_too_late_goes_first(waiters: list[Waiter]) -> None:
    line = FairOrder().line(waiters, 1000)
    for place, one in enumerate(line):
        for later in line[place + 1 :]:
            if one.key == later.key and one.batch == later.batch:
                assert one.arrived_s <= later.arrived_s + LONGEST_YIELD_S


@settings(max_examples=50)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), min_size=30, max_size=60),
)
def test_no_key_that_always_waits_falls_far_behind_another(
    slots: int, asked: list[tuple[str, int]]
) -> None:
    """Start-time fair queueing: one request of each apart, and what the first slots gave."""
    core = admission(replace(LANE, slots=slots), queue_length=1000, longest_wait_s=1e9)
    bids = {n: replace(CHAT, key=key, output_tokens=10.0 * s) for n, (key, s) in enumerate(asked)}
    took_s = {n: 1 + bid.output_tokens / 10 for n, bid in bids.items()}
    waiting = {key: {n for n, bid in bids.items() if bid.key == key} for key in "abc"}
    got_s = dict.fromkeys("abc", 0.0)
    ends: list[tuple[float, int]] = []

    def begin(ticket: int, now_s: float) -> None:
        heappush(ends, (now_s + took_s[ticket], ticket))
        waiting[bids[ticket].key].discard(ticket)

    for ticket, bid in bids.items():
        if isinstance(core.arrive(ticket, bid, 0), Grant):
            begin(ticket, 0)
    while all(waiting.values()):
        now_s, ended = heappop(ends)
        for grant in core.leave(ended, now_s):
            begin(grant.ticket, now_s)
            got_s[bids[grant.ticket].key] += took_s[grant.ticket]
        if all(waiting.values()):
            unfair_s = max(got_s.values()) - min(got_s.values())
            assert unfair_s <= (slots + 1) * max(took_s.values())


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, no slot is given twice and nobody is forgotten."""

    tickets: Bundle[int] = Bundle("tickets")

    @initialize(slots=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def begin(self, slots: list[int]) -> None:
        self.now_s = 0.0
        self.count = 0
        self.core = Admission(queue_length=6, longest_wait_s=500)
        self.lanes = {n: replace(LANE, number=n, slots=s) for n, s in enumerate(slots, 1)}
        self.slots = {n: lane.slots for n, lane in self.lanes.items()}
        self.there = set(self.lanes)
        self.bids: dict[int, Bid] = {}
        self.waiting: set[int] = set()
        self.on: dict[int, int] = {}
        self.refused: set[int] = set()
        self.take(self.core.set_engines(tuple(self.lanes.values()), self.now_s))

    def take(self, decisions: list[Grant] | list[Grant | Refusal]) -> None:
        for one in decisions:
            assert one.ticket in self.waiting, "decided twice, or never asked"
            self.waiting.discard(one.ticket)
            if isinstance(one, Grant):
                assert one.engine in self.there
                self.on[one.ticket] = one.engine
            else:
                self.refused.add(one.ticket)

    @rule(
        target=tickets,
        key=st.sampled_from(["", "a", "b"]),
        batch=st.booleans(),
        prompt=st.integers(1, 5000),
        output=st.integers(1, 500),
        concurrency=st.sampled_from([None, None, 1]),
        limit=st.sampled_from([None, None, None, 30]),
    )
    def arrive(
        self,
        key: str,
        batch: bool,
        prompt: int,
        output: int,
        concurrency: int | None,
        limit: int | None,
    ) -> int:
        self.count += 1
        ticket = self.count
        bid = Bid("m", prompt, output, key, batch, rpm=limit, concurrency=concurrency)
        self.bids[ticket] = bid
        decision = self.core.arrive(ticket, bid, self.now_s)
        assert decision.ticket == ticket
        if isinstance(decision, Standing):
            self.waiting.add(ticket)
            assert 1 <= decision.position <= len(self.waiting)
        elif isinstance(decision, Grant):
            assert decision.engine in self.there
            self.on[ticket] = decision.engine
        else:
            self.refused.add(ticket)
            assert decision.retry_after_s is None or decision.retry_after_s >= 0
        return ticket

    @rule(ticket=consumes(tickets), spent=st.sampled_from([None, 0.0, 900.0]))
    def leave(self, ticket: int, spent: float | None) -> None:
        if ticket in self.refused:
            return
        self.waiting.discard(ticket)
        self.on.pop(ticket, None)
        self.take(self.core.leave(ticket, self.now_s, spent))

    @rule(ticket=tickets)
    def prefilled(self, ticket: int) -> None:
        if ticket in self.on:
            self.take(self.core.prefilled(ticket, self.now_s))

    @rule(ticket=tickets)
    def again(self, ticket: int) -> None:
        if ticket in self.on:
            del self.on[ticket]
            self.waiting.add(ticket)
            self.take(self.core.again(ticket, self.now_s))

    @rule(seconds=st.sampled_from([0.1, 5.0, 400.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(there=st.sets(st.integers(1, 3)), ready=st.sets(st.integers(1, 3)))
    def engines_come_and_go(self, there: set[int], ready: set[int]) -> None:
        self.there = there & self.lanes.keys()
        lanes = [replace(self.lanes[n], ready=n in ready) for n in sorted(self.there)]
        self.take(self.core.set_engines(lanes, self.now_s))

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        for number in self.slots:
            used = sum(engine == number for engine in self.on.values())
            assert used <= (self.slots[number] or 0)
            assert self.core.running(number) == used

    @invariant()
    def who_waits_is_in_the_line_once(self) -> None:
        assert sorted(self.core.waiting("m", self.now_s)) == sorted(self.waiting)
        for place, ticket in enumerate(self.core.waiting("m", self.now_s), 1):
            standing = self.core.standing(ticket, self.now_s)
            assert standing is not None
            assert standing.position == place

    @invariant()
    def a_key_never_has_more_than_it_may(self) -> None:
        for key in ("a", "b"):
            own = [self.bids[t].concurrency for t in self.on if self.bids[t].key == key]
            # The latest one came when its limit allowed it; one without a limit always does.
            assert len(own) <= 1 or None in own or own.count(1) <= 1


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
