"""Better, worse, no difference, or measure more: decided from pairs, without mistaking noise. Pure.

Candidate and incumbent are measured in turns (A B B A …), so what slows the machine slows both, and
the logarithm of a pair's ratio holds the difference and the noise of two measurements.

*Better* changes the plan, so its errors are bounded. Two tests share the chance of error of a
trial. A bet against "no gain", which may be looked at after every pair, accepts a large gain after
few: it takes the noise to be symmetric with heavy tails (Student's t, four degrees of freedom) of a
width that nobody knows, and leaves gains within ordinary noise to the other. Wilcoxon's signed-rank
test, at a few looks that share its part, accepts small gains: it only takes the noise to be
symmetric. The trials of a run share the run's chance of error by their number, the first, which
promise most, having most; so all of them together accept noise in at most `RUN_ERROR` of runs,
however many trials there are.

*Worse* and *no difference* change nothing. They end a trial once a gain worth having, or one that
could be shown within the pairs that are left, has become implausible. What that costs in missed
gains, and every rate under other noise than the assumed, is in docs/measured/
(`benchmarks/tune_simulated.py`).

What one start of an engine brings (where its memory happens to lie) is the same in all pairs of a
trial, and no test of pairs can tell it from the setting: the best is measured against the start
plan once more, on fresh starts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from workhorse.tune import pair_tests
from workhorse.tune.trial import Pair

Judgement = Literal["better", "worse", "no difference"]

# At most one run in so many accepts a change that gains nothing: half of what is promised to the
# user, because real noise is not exactly as assumed.
RUN_ERROR = 1 / 400
# The trial of number n has a share of (k+1) / ((n+k)(n+k+1)) of it; all shares add up to 1.
SHARE_OFFSET = 19

# A gain that is not worth a setting that differs from what the plan explains.
LEAST_GAIN = 0.01
PAIRS_MAX = 128
# A gain worth having is given up when it is so many times less likely than what is seen; that is
# also when a loss is called one.
HOPELESS, SURELY_WORSE = 6.0, 12.0
# Part of the chance of error that the bet has; the rest is the signed-rank test's, in equal parts
# at these numbers of pairs (of fewer no ranks are as sure as needed).
BET_SHARE = 0.25
RANK_LOOKS = (18, 22, 28, 36, 48, 64, 90, 128)
# Between these numbers of pairs there is nothing to decide.
LOOKS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, *RANK_LOOKS)
# Of fewer pairs one that was disturbed may decide, and their spread says little.
FEW = 7
# With more pairs the ranks are as sure as the bet, and cheaper to reckon.
BET_PAIRS = 28
# Standard errors at the end that show a gain in most cases, and the part of such a gain that is
# still sought: the noise seen so far may be higher than what comes.
SHOWN_AT, SOUGHT_SHARE = 4.4, 0.7


@dataclass(frozen=True, slots=True)
class Rule:
    """When a trial is decided: the chance of error it may use, the least gain that is worth it."""

    error: float  # that "better" is said of a change without a gain
    least_gain: float = LEAST_GAIN
    pairs_max: int = PAIRS_MAX


def rule_for(trial: int, *, least_gain: float = LEAST_GAIN, pairs_max: int = PAIRS_MAX) -> Rule:
    """The rule for the trial of this number in a run, from 1."""
    share = (SHARE_OFFSET + 1) / ((trial + SHARE_OFFSET) * (trial + SHARE_OFFSET + 1))
    return Rule(RUN_ERROR * share, least_gain, pairs_max)


def fair_pairs(left_s: float, waiting: int, pair_s: float, *, most: int) -> int:
    """How many pairs a trial may take so that `waiting` variables, its own among them, get a turn.

    One of the looks. A trial whose figures differ little would else take all of a short budget,
    and what gives most may stand behind it: a budget of six minutes once went into one trial.
    """
    share = left_s / max(1, waiting) / pair_s if pair_s > 0 else math.inf
    fitting = [look for look in RANK_LOOKS if look <= min(share, most)]
    return max(fitting, default=RANK_LOOKS[0])


def judge(pairs: Sequence[Pair], rule: Rule) -> Judgement | None:
    """What the pairs so far allow to say of the candidate; None: measure more.

    Call it after every pair, with the same rule. Raises ValueError for figures that are not
    positive.
    """
    n = max((look for look in (*LOOKS, rule.pairs_max) if look <= len(pairs)), default=0)
    n = min(n, rule.pairs_max)
    last = n >= rule.pairs_max
    if n < LOOKS[0]:
        return None
    seen = [log_ratio(pair) for pair in pairs[:n]]
    of = pair_tests.likelihoods(seen) if n <= BET_PAIRS else []
    won = (of and by_bet(of, rule)) or by_ranks(seen, rule, last=last)
    if won and median(seen) >= math.log1p(rule.least_gain):
        return "better"
    if unlikely(0.0, seen, of, SURELY_WORSE):
        return "worse"
    return "no difference" if last or unlikely(sought(seen, rule), seen, of, HOPELESS) else None


def unlikely(gain: float, seen: Sequence[float], of: Sequence[float], times: float) -> bool:
    """Whether so high a gain, or a higher one, is so many times less likely than what is seen.

    `of` are the likelihoods of few pairs: among them one good one is reason to go on.
    """
    if len(seen) < FEW:
        best = pair_tests.best_of(of, -math.inf)
        return max(seen) < gain and best - pair_tests.best_of(of, gain) > math.log(times)
    middle, _ = pair_tests.figures(seen)
    reach = math.sqrt(2 * math.log(times)) * pair_tests.standard_error(seen)
    return middle + reach < gain


def sought(seen: Sequence[float], rule: Rule) -> float:
    """The least gain that is still looked for: worth having, and to be shown with what is left."""
    worth = math.log1p(rule.least_gain)
    if len(seen) < FEW:
        return worth
    at_the_end = pair_tests.standard_error(seen) * math.sqrt(len(seen) / rule.pairs_max)
    return max(worth, SOUGHT_SHARE * SHOWN_AT * at_the_end)


def by_bet(of: Sequence[float], rule: Rule) -> bool:
    """Whether the bet against "no gain" is won."""
    return pair_tests.bet(of) >= -math.log(rule.error * BET_SHARE)


def by_ranks(seen: Sequence[float], rule: Rule, *, last: bool) -> bool:
    """Whether the ranks show a gain, at one of the looks that share the chance of error."""
    looks = sum(look < rule.pairs_max for look in RANK_LOOKS) + 1
    if len(seen) not in RANK_LOOKS and not last:
        return False
    return pair_tests.signed_rank_chance(seen) <= rule.error * (1 - BET_SHARE) / looks


def log_ratio(pair: Pair) -> float:
    """The logarithm of candidate over incumbent; raises ValueError where one is not positive."""
    if not (pair.candidate > 0 and pair.incumbent > 0):
        raise ValueError(f"figures must be positive, not {pair.candidate} and {pair.incumbent}")
    return math.log(pair.candidate / pair.incumbent)


def figures(pairs: Sequence[Pair]) -> tuple[float, tuple[float, float] | None]:
    """Candidate over incumbent, and the interval that holds it with 95 % confidence, to be shown.

    The interval is None with too few pairs to say. Raises ValueError as `judge` does.
    """
    middle, interval = pair_tests.figures([log_ratio(pair) for pair in pairs])
    if interval is None:
        return math.exp(middle), None
    return math.exp(middle), (math.exp(interval[0]), math.exp(interval[1]))
