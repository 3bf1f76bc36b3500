"""What pairs say: how likely, how surely, how much. Pure.

`seen` is always the logarithms of candidate over incumbent, one a pair.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev

# The noise of a pair: Student's t with so many degrees of freedom, of widths from below a quiet
# machine's to chaos.
TAIL = 4.0
WIDTHS = tuple(0.003 * 1.7**step for step in range(9))  # 0.3 to 21 %
FIRST_BET_WIDTH = 5  # 4 %: a gain has to stand out of ordinary noise before the bet is won
# Logarithms of the gains that are weighed against none, and the losses that count as none.
GAINS = tuple(0.01 * 1.6**step for step in range(11))  # 1 % to × 3
EFFECTS = (*(-gain for gain in reversed(GAINS)), 0.0, *GAINS)
FIRST_GAIN = len(GAINS) + 1

# Finer than any measurement, and coarser than what arithmetic makes of equal figures.
RESOLUTION_DIGITS = 7
INTERVAL_FROM_PAIRS = 3
# Student's t that 2.5 % exceed, for 1 to 10 degrees of freedom.
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def likelihoods(seen: Sequence[float]) -> list[float]:
    """Log-likelihood of the pairs for each effect and width, widths running fastest."""
    return [sum(column) for column in zip(*map(_of_one, seen), strict=True)]


@lru_cache(maxsize=4096)  # each look sums over all pairs anew
def _of_one(seen: float) -> tuple[float, ...]:
    power = (TAIL + 1) / 2
    return tuple(
        -math.log(width) - power * math.log1p(((seen - effect) / width) ** 2 / TAIL)
        for effect in EFFECTS
        for width in WIDTHS
    )


def bet(of: Sequence[float]) -> float:
    """How much likelier the pairs are with a gain than by the best explanation without one.

    The logarithm; `of` are their `likelihoods`. Averaged over gains and widths that were fixed
    before any pair was seen, so without a gain it exceeds log(1/α) at any time with a chance of at
    most α (universal inference: Wasserman, Ramdas and Balakrishnan, PNAS 2020). The average leaves
    narrow noise out: a clock with two speeds gives the same figure a few times by chance.
    """
    widths = len(WIDTHS)
    with_gain = [
        of[at * widths + width]
        for at in range(FIRST_GAIN, len(EFFECTS))
        for width in range(FIRST_BET_WIDTH, widths)
    ]
    top = max(with_gain)
    average = top + math.log(sum(math.exp(x - top) for x in with_gain) / len(with_gain))
    return average - max(of[: FIRST_GAIN * widths])


def best_of(of: Sequence[float], low: float, high: float = math.inf) -> float:
    """The highest log-likelihood among effects from `low` to `high`."""
    widths = len(WIDTHS)
    nearest = min(low, GAINS[-1])
    return max(
        max(of[at * widths : (at + 1) * widths])
        for at, effect in enumerate(EFFECTS)
        if nearest - 1e-9 <= effect <= high
    )


def signed_rank_chance(seen: Sequence[float]) -> float:
    """The chance of ranks as high as these without a gain (Wilcoxon's signed-rank test, exact).

    It only takes the noise to be symmetric: a blow of any size is one rank. Equal sizes share their
    rank, rounded against the gain; a pair without a difference counts against it.
    """
    rounded = [round(x, RESOLUTION_DIGITS) for x in seen]
    sizes = sorted(map(abs, rounded))
    total = 0.0
    for x in rounded:
        if x > 0:
            first, last = sizes.index(x), len(sizes) - sizes[::-1].index(x)
            total += (first + 1 + last) / 2
    return _rank_tail(len(seen))[math.floor(total)]


@lru_cache(maxsize=64)
def _rank_tail(pairs: int) -> tuple[float, ...]:
    """For each sum of ranks, the chance of that or more when every sign is a coin's."""
    chances = [1.0]
    for rank in range(1, pairs + 1):
        longer = [*chances, *(0.0,) * rank]
        for total, chance in enumerate(chances):
            longer[total + rank] += chance
        chances = [chance / 2 for chance in longer]
    tail, above = [], 0.0
    for chance in reversed(chances):
        above += chance
        tail.append(above)
    return tuple(reversed(tail))


def figures(seen: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """The mean and the interval that holds it with 95 % confidence; None: too few pairs.

    Trimmed mean with Winsorised variance (Tukey and McLaughlin, Sankhya A 1963): a fifth of the
    pairs at either end says where it lies and not how far.
    """
    ordered = sorted(seen)
    n, cut = len(ordered), len(ordered) // 5
    middle = fmean(ordered[cut : n - cut])
    if n < INTERVAL_FROM_PAIRS:
        return middle, None
    reach = student_95(n - 2 * cut - 1) * standard_error(ordered)
    return middle, (middle - reach, middle + reach)


def standard_error(seen: Sequence[float]) -> float:
    """How far the trimmed mean may be off, as a standard deviation."""
    ordered = sorted(seen)
    n, cut = len(ordered), len(ordered) // 5
    pulled = [min(max(x, ordered[cut]), ordered[n - cut - 1]) for x in ordered]
    inside = n - 2 * cut
    return stdev(pulled) * math.sqrt((n - 1) / (inside * (inside - 1)))


def student_95(freedom: int) -> float:
    """What Student's t exceeds in 2.5 % of cases: a table up to 10, an expansion beyond it."""
    if freedom <= len(STUDENT_95):
        return STUDENT_95[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
