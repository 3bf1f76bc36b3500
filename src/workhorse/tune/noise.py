"""Better, worse, no difference, or measure more: decided from pairs, without mistaking noise. Pure.

Candidate and incumbent are measured in turns (A B B A …), so what slows the machine slows both and
the logarithm of a pair's ratio holds the difference and the noise of two measurements. That noise
is taken to be symmetric with heavy tails (Student's t with four degrees of freedom), of a width
that nobody knows beforehand.

*Better* is a bet against "no gain": how much likelier the pairs are under a gain (averaged over
gains and widths, fixed before any pair is seen) than under the best explanation without one
(universal inference: Wasserman, Ramdas and Balakrishnan, PNAS 2020). If there is no gain, this
ratio ever exceeds 1/α with a chance of at most α, however often one looks and whenever one stops
(Ville's inequality). The trials of a run share one α by their number, so that all of them together
accept noise in at most `RUN_ERROR` of runs.

*Worse* and *no difference* need no such care, as they change nothing: they end a trial once a gain
worth having has become implausible. What that costs in missed gains, and every rate under other
noise than the assumed, is simulated in docs/measured/ (`benchmarks/tune_simulated.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import Literal

from workhorse.tune.trial import Pair

Judgement = Literal["better", "worse", "no difference"]

# At most one run in so many accepts a change that gains nothing: half of what is promised to the
# user, because real noise is not exactly as assumed.
RUN_ERROR = 1 / 400
# Shares of it: the first trials, which promise most, get most; the sum over all is 1.
SHARE_OFFSET = 9

# A gain that is not worth a setting that differs from what the plan explains.
LEAST_GAIN = 0.01
PAIRS_MAX = 64
# A gain worth having is given up when it is so many times less likely than what is seen.
HOPELESS = 12.0
# One pair may be disturbed whatever its size.
PAIRS_MIN = 2
# After so many pairs it is looked at; between them there is nothing to decide.
LOOKS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 33, 39, 46, 54, 64, 76, 90, 107, 128)

# The noise of a pair: degrees of freedom, and widths from below a quiet machine's to chaos.
TAIL = 4.0
WIDTHS = tuple(0.003 * 1.5**step for step in range(11))  # 0.3 to 17 %
# Logarithms of the gains that are weighed against none, and the losses that count as none.
GAINS = tuple(0.01 * 1.45**step for step in range(14))  # 1 % to × 3.5
EFFECTS = (*(-gain for gain in reversed(GAINS)), 0.0, *GAINS)
FIRST_GAIN = len(GAINS) + 1

INTERVAL_FROM_PAIRS = 3
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


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


def judge(pairs: Sequence[Pair], rule: Rule) -> Judgement | None:
    """What the pairs so far allow to say of the candidate; None: measure more.

    Call it after every pair. Raises ValueError for figures that are not positive.
    """
    n = len(pairs)
    last = n >= rule.pairs_max
    if n < PAIRS_MIN or (n not in LOOKS and not last):
        return None
    seen = [log_ratio(pair) for pair in pairs[: rule.pairs_max]]
    likelihoods = total_likelihoods(seen)
    worth = math.log1p(rule.least_gain)
    if evidence(likelihoods) >= math.log(1 / rule.error) and median(seen) >= worth:
        return "better"
    best = best_of(likelihoods, -math.inf, math.inf)
    if best - best_of(likelihoods, 0.0, math.inf) > math.log(HOPELESS):
        return "worse"
    if best - best_of(likelihoods, worth, math.inf) > math.log(HOPELESS) or last:
        return "no difference"
    return None


def log_ratio(pair: Pair) -> float:
    """The logarithm of candidate over incumbent; raises ValueError where one is not positive."""
    if not (pair.candidate > 0 and pair.incumbent > 0):
        raise ValueError(f"figures must be positive, not {pair.candidate} and {pair.incumbent}")
    return math.log(pair.candidate / pair.incumbent)


def evidence(likelihoods: Sequence[float]) -> float:
    """The logarithm of the bet against "no gain"."""
    widths = len(WIDTHS)
    with_gain = likelihoods[FIRST_GAIN * widths :]
    top = max(with_gain)
    average = top + math.log(sum(math.exp(x - top) for x in with_gain) / len(with_gain))
    return average - max(likelihoods[: FIRST_GAIN * widths])


def best_of(likelihoods: Sequence[float], low: float, high: float) -> float:
    """The highest log-likelihood among effects from `low` to `high`."""
    widths = len(WIDTHS)
    return max(
        max(likelihoods[at * widths : (at + 1) * widths])
        for at, effect in enumerate(EFFECTS)
        if low - 1e-9 <= effect <= high
    )


def total_likelihoods(seen: Sequence[float]) -> list[float]:
    """Log-likelihood of all pairs for each effect and width, widths running fastest."""
    return [sum(column) for column in zip(*map(_likelihoods, seen), strict=True)]


@lru_cache(maxsize=4096)  # each look sums over all pairs anew
def _likelihoods(seen: float) -> tuple[float, ...]:
    power = (TAIL + 1) / 2
    return tuple(
        -math.log(width) - power * math.log1p(((seen - effect) / width) ** 2 / TAIL)
        for effect in EFFECTS
        for width in WIDTHS
    )


# ------------------------------------------------------------------ figures to show


def figures(pairs: Sequence[Pair]) -> tuple[float, tuple[float, float] | None]:
    """Candidate over incumbent, and the interval that holds it with 95 % confidence.

    Trimmed mean of the logarithms with Winsorised variance (Tukey and McLaughlin, Sankhya A 1963):
    a fifth of the pairs at either end says where it lies and not how far. None: too few pairs.
    """
    seen = sorted(map(log_ratio, pairs))
    n, cut = len(seen), len(seen) // 5
    middle = fmean(seen[cut : n - cut])
    if n < INTERVAL_FROM_PAIRS:
        return math.exp(middle), None
    pulled = [min(max(x, seen[cut]), seen[n - cut - 1]) for x in seen]
    inside = n - 2 * cut
    error = stdev(pulled) * math.sqrt(n - 1) / math.sqrt(inside * (inside - 1))
    reach = student_95(inside - 1) * error
    return math.exp(middle), (math.exp(middle - reach), math.exp(middle + reach))


def student_95(freedom: int) -> float:
    """What t exceeds in 2.5 % of cases: a table up to 10, an expansion beyond it."""
    if freedom <= len(STUDENT_95):
        return STUDENT_95[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
