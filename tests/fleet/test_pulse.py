"""Whether a replica lives, from what was heard of it."""

from dataclasses import replace

import pytest
from stand_in_fleet import StandInReplica

from workhorse.fleet.pulse import Patience, Pulse

FACTS = StandInReplica("one").facts()
PATIENCE = Patience(poll_s=1, silent_s=5, gone_s=12)


@pytest.fixture
def pulse() -> Pulse:
    found = Pulse(PATIENCE)
    found.answered(FACTS, 100.0)
    return found


def test_never_heard_of_it_starts_whatever_fails() -> None:
    pulse = Pulse(PATIENCE)
    pulse.unanswered(50.0)
    pulse.absent()
    assert pulse.state == "starting"
    assert not pulse.is_gone(1000.0)
    pulse.answered(FACTS, 1001.0)
    assert (pulse.state, pulse.restarts) == ("ready", 0)


def test_one_lost_poll_is_no_silence_and_silence_no_end(pulse: Pulse) -> None:
    pulse.unanswered(103.0)
    assert pulse.state == "ready"
    pulse.unanswered(106.0)
    assert (pulse.state, pulse.is_gone(106.0)) == ("silent", False)
    assert pulse.is_gone(112.0)


def test_nothing_missed_is_nothing_lost(pulse: Pulse) -> None:
    """Whoever was not asked for an hour, such as on a machine that slept, is not gone."""
    assert not pulse.is_gone(3700.0)


def test_a_piece_of_an_answer_is_a_sign_of_life_but_no_promise(pulse: Pulse) -> None:
    pulse.unanswered(106.0)
    pulse.heard(107.0)
    assert (pulse.state, pulse.is_gone(115.0)) == ("ready", False)
    pulse.absent()
    pulse.heard(116.0)
    assert pulse.state == "away"


def test_a_refusal_counts_at_once_and_an_answer_ends_it(pulse: Pulse) -> None:
    pulse.absent()
    assert pulse.state == "away"
    pulse.answered(replace(FACTS, boot="2"), 101.0)
    assert (pulse.state, pulse.restarts) == ("ready", 1)


def test_it_says_itself_that_it_drains(pulse: Pulse) -> None:
    pulse.answered(replace(FACTS, state="draining"), 101.0)
    assert pulse.state == "draining"
    pulse.unanswered(110.0)
    assert pulse.state == "silent"
