"""Two interleaved series: is one higher, and how sure is that. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

# With five pairs even "all five higher" happens by chance in 2 of 32 cases (sign test), so no
# method can be 95 % sure; with six it is 2 of 64.
PAIRS_MIN = 6
RESAMPLES = 4000
CONFIDENCE = 0.95

Outcome = Literal["higher", "lower", "no difference", "too few pairs"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` = median of a over median of b; `interval` holds it with 95 % confidence.

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


def compare(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Comparison:
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
    ratios.sort()
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Comparison(ratio, (ratios[tail], ratios[-1 - tail]), len(pairs))
