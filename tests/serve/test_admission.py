"""Who gets a slot, who waits, who is refused: the decisions, by example."""

from dataclasses import replace

import pytest
from admission_scenes import CHAT, LANE, admission, granted, refused, two, waits

from workhorse.serve.admission import GONE_WAIT_S, LONG_PREFILL_S
from workhorse.serve.decisions import Grant, Lane, Refusal
from workhorse.serve.fair_order import BATCH_YIELDS_S, STRETCH


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


def test_a_request_for_several_answers_takes_as_many_slots() -> None:
    core = admission(replace(LANE, slots=4))
    assert core.arrive(1, replace(CHAT, answers=3), 0) == Grant(1, 1)
    assert core.arrive(2, CHAT, 0) == Grant(2, 1)
    assert waits(core.arrive(3, CHAT, 4)).expected_wait_s == pytest.approx(6)
    assert granted(core.leave(1, 7)) == [3]
    assert [core.arrive(n, CHAT, 8) for n in (4, 5)] == [Grant(4, 1), Grant(5, 1)]
    waits(core.arrive(6, CHAT, 8))


def test_the_wait_for_several_slots_ends_when_the_last_of_them_is_free() -> None:
    core = admission()
    core.arrive(1, CHAT, 0)
    assert waits(core.arrive(2, replace(CHAT, answers=2), 4)).expected_wait_s == pytest.approx(6)
    assert waits(core.arrive(3, CHAT, 4)).expected_wait_s == pytest.approx(16)


def test_each_slot_of_several_counts_against_its_keys_share() -> None:
    core = admission(longest_wait_s=1e9)
    greedy, modest = replace(CHAT, key="a", answers=2), replace(CHAT, key="b")
    core.arrive(1, greedy, 0)
    for ticket, bid in enumerate((greedy, modest, modest), 2):
        waits(core.arrive(ticket, bid, 1))
    assert granted(core.leave(1, 10)) == [3, 4]


def test_more_answers_than_slots_are_the_engines_to_queue() -> None:
    core = admission(replace(LANE, slots=2))
    assert core.arrive(1, replace(CHAT, answers=50), 0) == Grant(1, 1)
    waits(core.arrive(2, CHAT, 0))
    assert granted(core.leave(1, 7)) == [2]


def test_slots_are_kept_together_for_the_next_who_needs_several() -> None:
    core = admission(replace(LANE, slots=2), longest_wait_s=1e9)
    core.arrive(1, CHAT, 0)
    core.arrive(2, CHAT, 0)
    assert waits(core.arrive(3, replace(CHAT, answers=2), 1)).position == 1
    waits(core.arrive(4, CHAT, 2))
    assert core.leave(1, 10) == []
    waits(core.arrive(5, CHAT, 11))
    assert granted(core.leave(2, 12)) == [3]
    assert granted(core.leave(3, 30)) == [4, 5]


def test_tokens_and_concurrency_count_every_answer() -> None:
    core = admission(replace(LANE, slots=8))
    bid = replace(CHAT, key="k", answers=4, tpm=470)  # 100 read, 4 times 90 written
    assert isinstance(core.arrive(1, bid, 0), Grant)
    assert refused(core.arrive(2, replace(bid, answers=1), 0)).why == "tokens a minute"
    few = replace(CHAT, key="few", concurrency=2)
    assert isinstance(core.arrive(3, replace(few, answers=3), 0), Grant)  # it runs alone
    waits(core.arrive(4, few, 0))
    assert granted(core.leave(3, 1)) == [4]


def test_of_two_engines_the_one_that_will_be_done_first() -> None:
    assert two(decode_tokens_per_s=20.0).arrive(1, CHAT, 0) == Grant(1, 2)
    core = two(slots=2)
    assert core.arrive(1, CHAT, 0) == Grant(1, 1)
    assert core.arrive(2, CHAT, 0) == Grant(2, 2)  # less is going on there


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
