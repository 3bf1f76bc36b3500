"""Whose turn it is: properties of the order, and of what keys get by it over time."""

from dataclasses import replace
from heapq import heappop, heappush

from admission_scenes import CHAT, LANE, admission
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.serve.decisions import Grant
from workhorse.serve.fair_order import LONGEST_YIELD_S, FairOrder, Waiter

# Waiters of one model, each: key, batch, when it came, what it costs.
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
