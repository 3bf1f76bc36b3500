"""Two series of figures: is one higher, and how sure is that. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

# With five pairs even "all five higher" happens by chance in 2 of 32 cases (sign test), so no
# method can be 95 % sure; with six it is 2 of 64.
PAIRS_MIN = 6
# Without pairs, four against four is the least with which "all of one above all of the other"
# is rarer than 5 % (2 of 70); a median of four is still one of two samples, so five.
SAMPLES_MIN = 5
RESAMPLES = 4000
CONFIDENCE = 0.95

Outcome = Literal["higher", "lower", "no difference", "too few pairs"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` = median of a over median of b; `interval` holds it with the asked confidence.

    The interval is None with too few pairs to say.
    """

    ratio: float
    interval: tuple[float, float] | None
    pairs: int

    @property
    def outcome(self) -> Outcome:
        """What the interval allows to say of a."""
        if self.interval is None:
            return "too few pairs"
        low, high = self.interval
        if low > 1:
            return "higher"
        return "lower" if high < 1 else "no difference"


def compare(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> Comparison:
    """Ratio of the medians of two positive series that were measured in turns (A B B A …).

    The i-th values of both were measured side by side, so the bootstrap draws pairs: a machine
    that drifts moves both, and the ratio stays. The same seed gives the same interval.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"two series of the same length are needed, not {len(a)} and {len(b)}")
    if min(*a, *b) <= 0:
        raise ValueError("figures must be positive")
    ratio = median(a) / median(b)
    pairs = list(zip(a, b, strict=True))
    if len(pairs) < PAIRS_MIN:
        return Comparison(ratio, None, len(pairs))
    draw = random.Random(seed)  # noqa: S311 statistics, not a secret
    ratios = []
    for _ in range(RESAMPLES):
        chosen = draw.choices(pairs, k=len(pairs))
        ratios.append(median(x for x, _ in chosen) / median(y for _, y in chosen))
    return Comparison(ratio, middle(ratios, confidence), len(pairs))


def compare_apart(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, confidence: float = CONFIDENCE
) -> Comparison:
    """Ratio of the medians of two positive series that were measured at different times.

    What the machine did in between moves the ratio, and the interval does not know of it.
    """
    if not a or not b:
        raise ValueError("two series are needed")
    if min(*a, *b) <= 0:
        raise ValueError("figures must be positive")
    ratio, least = median(a) / median(b), min(len(a), len(b))
    if least < SAMPLES_MIN:
        return Comparison(ratio, None, least)
    draw = random.Random(seed)  # noqa: S311 statistics, not a secret
    ratios = [
        median(draw.choices(a, k=len(a))) / median(draw.choices(b, k=len(b)))
        for _ in range(RESAMPLES)
    ]
    return Comparison(ratio, middle(ratios, confidence), least)


def middle(ratios: Sequence[float], confidence: float) -> tuple[float, float]:
    """What holds this share of the ratios."""
    ordered = sorted(ratios)
    tail = round(len(ordered) * (1 - confidence) / 2)
    return ordered[tail], ordered[-1 - tail]
