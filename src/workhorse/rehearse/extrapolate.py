"""From what twins took to what the model will take. Pure.

A cost is a fixed part and one by size: `size` is the bytes that the layers read for one token
when decoding, and their number for prompts. Two twins give both parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from workhorse.errors import AppError
from workhorse.text import Text

# No band is narrower than this: what the method itself misses, seen against whole models.
LEAST_BAND = 0.05
# With so many rounds the least and the most are left out of the interval: they were disturbed.
TRIMMED_FROM = 5
# Rounds have settled when half of them are within this share of their median.
SETTLED_WITHIN = 0.02


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds with the interval that the rounds leave open."""

    seconds: float
    low_s: float
    high_s: float


def whole_cost(samples: Sequence[float]) -> Cost:
    """The cost of a twin that has all layers: what it took."""
    return banded(median(samples), samples)


def cost_at(
    size: float, sizes: tuple[float, float], shallow: Sequence[float], deep: Sequence[float]
) -> Cost:
    """The cost at `size` on the line through two twins' medians.

    `shallow[i]` and `deep[i]` were taken one after the other; the line through each pair bounds
    the interval. AppError when more layers did not take longer: the machine was too busy.
    """
    if median(deep) <= median(shallow):
        raise too_noisy()
    pairs = [on_line(size, sizes, s, d) for s, d in zip(shallow, deep, strict=True)]
    value = on_line(size, sizes, median(shallow), median(deep))
    return banded(value, pairs)


def on_line(size: float, sizes: tuple[float, float], shallow: float, deep: float) -> float:
    """The value at `size` of the line through two points."""
    return deep + (deep - shallow) / (sizes[1] - sizes[0]) * (size - sizes[1])


def banded(value: float, samples: Sequence[float]) -> Cost:
    """A cost whose interval holds the samples and is no narrower than the method allows."""
    trim = int(len(samples) >= TRIMMED_FROM)
    kept = sorted(samples)[trim : len(samples) - trim]
    # A pair that was disturbed can point below zero; no cost is.
    low = max(min(kept[0], value / (1 + LEAST_BAND)), value / 2)
    return Cost(value, low, max(kept[-1], value / (1 - LEAST_BAND)))


def settled(samples: Sequence[Sequence[float]]) -> bool:
    """True when more rounds would not move the medians much."""
    return all(
        len(one) > 1 and median(abs(x - median(one)) for x in one) <= SETTLED_WITHIN * median(one)
        for one in samples
    )


def too_noisy() -> AppError:
    """The differences between twins drowned in other load."""
    return AppError(
        Text(
            "The deeper twin was not slower than the shallow one: other programs keep this "
            "machine too busy to measure.",
            "较深的缩小模型没有更慢：其他程序占用过多，无法准确测速。",
        ),
        Text("Try again when it is quiet.", "请在机器空闲时重试。"),
    )
