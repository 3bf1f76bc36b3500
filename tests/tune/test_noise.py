"""Pairs are judged right: gains are seen, noise is not, and a disturbed pair decides nothing."""

import itertools
import math
import random

import pytest
from response_surfaces import Noise
from simulated_runs import decided

from workhorse.tune import pair_tests
from workhorse.tune.noise import (
    LOOKS,
    RANK_LOOKS,
    RUN_ERROR,
    Rule,
    fair_pairs,
    figures,
    judge,
    rule_for,
)
from workhorse.tune.trial import Pair


def pairs(*ratios: float) -> tuple[Pair, ...]:
    return tuple(Pair(100 * ratio, 100.0) for ratio in ratios)


def judged(spread: float, gain: float, seeds: int, rule: Rule) -> list[str]:
    noise = Noise(spread, 0.003, 0.005, 0.03, 0.5)
    return [decided(noise.pairs(1 + gain, random.Random(seed)), rule)[1] for seed in range(seeds)]


# ------------------------------------------------------------------ what is accepted


def test_the_trials_of_a_run_share_its_chance_of_error() -> None:
    shares = [rule_for(number).error for number in range(1, 5000)]
    assert math.fsum(shares) <= RUN_ERROR
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_without_a_gain_better_is_said_no_more_often_than_allowed(spread: float) -> None:
    said = judged(spread, 0.0, 150, Rule(error=0.05))
    assert said.count("better") <= 0.05 * 150


def test_noise_of_two_steps_is_no_gain_either() -> None:
    draw, wrong = random.Random(1), 0
    for _ in range(150):
        coins = (Pair(100 * draw.choice((0.98, 1 / 0.98)), 100.0) for _ in itertools.count())
        wrong += decided(coins, Rule(error=0.05))[1] == "better"
    assert wrong <= 0.05 * 150


def test_a_gain_of_three_percent_is_seen_through_two_percent_of_noise() -> None:
    assert judged(0.02, 0.03, 40, rule_for(8)).count("better") >= 34


def test_a_loss_is_never_called_a_gain() -> None:
    assert "better" not in judged(0.03, -0.02, 40, rule_for(1))


def test_a_gain_that_is_not_worth_it_is_none() -> None:
    assert judge(pairs(*[1.004, 1.005, 1.006] * 40), Rule(error=0.01)) == "no difference"


# ------------------------------------------------------------------ how soon


def test_a_large_gain_needs_few_pairs_and_a_large_loss_two() -> None:
    noise = Noise(0.02, 0.003, 0.0, 0.0, 0.5)
    assert len(decided(noise.pairs(1.3, random.Random(3)), rule_for(5))[0]) <= 10
    ended = decided(noise.pairs(0.7, random.Random(3)), rule_for(5))
    assert (len(ended[0]), ended[1]) == (2, "worse")


def test_one_disturbed_pair_does_not_end_a_trial() -> None:
    assert judge(pairs(1.05, 0.6), rule_for(1)) is None
    assert judge(pairs(0.8, 0.7), rule_for(1)) == "worse"


def test_a_judgement_stays_until_the_next_look() -> None:
    seen = pairs(*[1.2, 1.21, 1.19, 1.2, 1.22, 1.18] * 3)
    first = next(n for n in range(1, len(seen)) if judge(seen[:n], rule_for(1)) is not None)
    following = next(look for look in LOOKS if look > first)
    assert {judge(seen[:n], rule_for(1)) for n in range(first, following)} == {"better"}


def test_a_trial_ends_at_its_last_pair() -> None:
    undecided = pairs(*[1.3, 0.99] * 10)
    assert judge(undecided[:9], Rule(error=1e-4, pairs_max=10)) is None
    assert judge(undecided[:10], Rule(error=1e-4, pairs_max=10)) == "no difference"


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_figures_that_are_not_positive_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        judge((Pair(bad, 100.0), Pair(100.0, 100.0)), rule_for(1))


# ------------------------------------------------------------------ the tests by themselves


@pytest.mark.parametrize("seed", range(3))
def test_the_signed_rank_chance_is_that_of_all_signs(seed: int) -> None:
    seen = [random.Random(seed).gauss(0.3, 1) for _ in range(9)]

    def high(signs: tuple[float, ...]) -> float:
        ranks = sorted(map(abs, signs))
        return sum(ranks.index(abs(x)) + 1 for x in signs if x > 0)

    every = itertools.product((-1, 1), repeat=len(seen))
    as_high = sum(
        high(tuple(s * abs(x) for s, x in zip(signs, seen, strict=True))) >= high(tuple(seen))
        for signs in every
    )
    assert pair_tests.signed_rank_chance(seen) == pytest.approx(as_high / 2 ** len(seen))


def test_pairs_without_a_difference_speak_against_a_gain() -> None:
    assert pair_tests.signed_rank_chance([0.0] * 20) == 1.0


def test_the_interval_holds_the_ratio_as_often_as_it_says() -> None:
    noise, held = Noise(0.02, 0.003, 0.0, 0.03, 0.5), 0
    for seed in range(300):
        measured = itertools.islice(noise.pairs(1.04, random.Random(seed)), 12)
        _, interval = figures(tuple(measured))
        assert interval is not None
        held += interval[0] <= 1.04 <= interval[1]
    assert 0.9 <= held / 300 <= 0.99


def test_two_pairs_give_a_ratio_and_no_interval() -> None:
    ratio, interval = figures(pairs(1.1, 1.1))
    assert (round(ratio, 6), interval) == (1.1, None)


@pytest.mark.parametrize(
    ("left_s", "waiting", "pair_s", "pairs"),
    [
        (240.0, 8, 3.7, RANK_LOOKS[0]),  # eight in four minutes: each the fewest that can tell
        (1200.0, 8, 3.7, 36),
        (3600.0, 8, 3.7, 64),  # never more than is usual
        (240.0, 1, 3.7, 64),  # the last one has all that is left
        (0.0, 3, 3.7, RANK_LOOKS[0]),
        (60.0, 3, 0.0, 64),
    ],
)
def test_a_short_budget_is_shared_by_the_variables_that_wait(
    left_s: float, waiting: int, pair_s: float, pairs: int
) -> None:
    assert fair_pairs(left_s, waiting, pair_s, most=64) == pairs
