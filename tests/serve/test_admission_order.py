"""Whatever happens in whatever order: no slot is given twice or forgotten, and nobody is lost."""

from dataclasses import replace

from admission_scenes import LANE
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from workhorse.serve.admission import LONG_PREFILL_S, Admission
from workhorse.serve.decisions import Bid, Grant, Refusal, Standing


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
        self.there = self.ready = set(self.lanes)
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
        answers=st.sampled_from([1, 1, 1, 2, 9]),
    )
    def arrive(
        self,
        key: str,
        batch: bool,
        prompt: int,
        output: int,
        concurrency: int | None,
        limit: int | None,
        answers: int,
    ) -> int:
        self.count += 1
        ticket = self.count
        bid = Bid(
            *("m", prompt, output, key, batch),
            rpm=limit,
            concurrency=concurrency,
            answers=answers,
        )
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
        self.ready = ready & self.there or self.there
        lanes = [replace(self.lanes[n], ready=n in ready) for n in sorted(self.there)]
        self.take(self.core.set_engines(lanes, self.now_s))

    def used(self, number: int) -> int:
        """The slots of an engine that its requests hold."""
        slots = self.slots[number] or 0
        mine = [ticket for ticket, engine in self.on.items() if engine == number]
        return sum(min(self.bids[ticket].answers, slots) for ticket in mine)

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        for number in self.slots:
            assert self.used(number) <= (self.slots[number] or 0)
            assert self.core.running(number) == list(self.on.values()).count(number)

    @invariant()
    def who_waits_is_in_the_line_once(self) -> None:
        assert sorted(self.core.waiting("m", self.now_s)) == sorted(self.waiting)
        for place, ticket in enumerate(self.core.waiting("m", self.now_s), 1):
            standing = self.core.standing(ticket, self.now_s)
            assert standing is not None
            assert standing.position == place

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        if all(self.used(number) >= (self.slots[number] or 0) for number in self.ready):
            return
        bids = [self.bids[ticket] for ticket in self.waiting]
        if any(bid.answers > 1 for bid in bids):  # for whom slots are kept together
            return
        for bid in bids:
            long = bid.prompt_tokens > 100 * LONG_PREFILL_S  # for which half of the slots are
            own = sum(self.bids[ticket].key == bid.key for ticket in self.on)
            assert long or (bid.concurrency is not None and own >= bid.concurrency)

    @invariant()
    def nobody_waits_for_an_idle_model(self) -> None:
        assert self.on or not self.waiting or not self.there

    @invariant()
    def a_key_never_has_more_than_it_may(self) -> None:
        for key in ("a", "b"):
            own = [self.bids[t].concurrency for t in self.on if self.bids[t].key == key]
            # The latest one came when its limit allowed it; one without a limit always does.
            assert len(own) <= 1 or None in own or own.count(1) <= 1


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
