"""A stored history decided anew: the same by the same rules, and what other rules would make."""

from dataclasses import replace

from response_surfaces import beside_card, quiet
from simulated_runs import tune

from workhorse.tune.noise import PAIRS_MAX
from workhorse.tune.replay import replay
from workhorse.tune.search import Finished, Limits

SURFACE = beside_card(3, quiet)
RUN = tune(SURFACE, Limits())


def test_a_history_replayed_is_what_it_was() -> None:
    found = replay(SURFACE.space, RUN.trials, Limits(), pairs_max=PAIRS_MAX)
    assert all(step.same for step in found.steps)
    assert len(found.steps) == len(RUN.trials)
    assert (found.kept, found.then) == (RUN.finished.kept, RUN.finished)
    assert [step.pairs_needed for step in found.steps] == [len(t.pairs) for t in RUN.trials]


def test_a_history_that_was_cut_tells_what_comes_next() -> None:
    found = replay(SURFACE.space, RUN.trials[:4], Limits(), pairs_max=PAIRS_MAX)
    assert found.then == RUN.trials[4].change


def test_a_stricter_limit_shows_what_would_not_have_been_taken() -> None:
    found = replay(SURFACE.space, RUN.trials, Limits(least_gain=5.0), pairs_max=PAIRS_MAX)
    assert found.kept == ()
    assert any(not step.same for step in found.steps)


def test_a_trial_that_was_cut_short_is_not_judged() -> None:
    long = next(t for t in RUN.trials if len(t.pairs) > 8)
    cut = replace(long, number=1, kept=(), pairs=long.pairs[:1])
    found = replay(SURFACE.space, (cut,), Limits(), pairs_max=PAIRS_MAX)
    assert (found.steps[0].outcome, found.steps[0].pairs_needed) == (None, None)


def test_where_it_would_have_ended_earlier_it_says_so() -> None:
    found = replay(SURFACE.space, RUN.trials, Limits(trials_max=2), pairs_max=PAIRS_MAX)
    asked = found.steps[2].asked
    assert isinstance(asked, Finished)
    assert asked.reason == "trials"
