"""What of a reading is kept over time, how finely and for how long. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from workhorse.records import EngineReading, Reading
from workhorse.text import Text

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Tier:
    """Points of one fineness, and for how long they are kept."""

    step_s: int
    kept_s: int


# An hour to see what has just happened, days for this week's question, months for the trend.
# 22,320 points of a figure in all.
TIERS = (Tier(5, 3_600), Tier(60, 3 * DAY_S), Tier(600, 120 * DAY_S))
POINTS_OF_A_FIGURE = sum(tier.kept_s // tier.step_s for tier in TIERS)
LARGEST_FIGURES = 96  # series: one figure of one engine or one card; 8 cards and 7 models

# The unit of each figure that `/workhorse/history` knows.
UNITS = {
    "decode_tokens_per_s": "tok/s",
    "total_tokens_per_s": "tok/s",
    "prefill_tokens_per_s": "tok/s",
    "ttft_s": "s",
    "generating": "requests",
    "waiting": "requests",
    "resident_bytes": "B",
    "memory_used_bytes": "B",
    "swap_used_bytes": "B",
    "other_cpus_busy": "CPUs",
    "card_used_bytes": "B",
    "card_busy_share": "1",
    "card_power_w": "W",
    "card_temperature_c": "°C",
    "card_sm_clock_mhz": "MHz",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One figure of one subject (a model, a card's index, or the whole machine: empty)."""

    at_unix_s: int
    figure: str
    subject: str
    value: float


@dataclass(frozen=True, slots=True)
class Event:
    """An engine's new state, and why."""

    at_unix_s: float
    model_name: str
    state: str
    reason: Text | None


def points_of(reading: Reading) -> Iterator[Point]:
    """Every figure of a reading that is known, at the step of the finest tier."""
    step_s = TIERS[0].step_s
    at_unix_s = int(reading.at_unix_s) // step_s * step_s
    for figure, subject, value in _figures(reading):
        if value is not None:
            yield Point(at_unix_s, figure, subject, float(value))


# Several engines may serve one model: it has one curve. They share one line of who waits.
_OF_AN_ENGINE: tuple[
    tuple[str, Callable[[Sequence[float]], float], Callable[[EngineReading], float | None]], ...
] = (
    ("decode_tokens_per_s", fmean, lambda e: e.decode_tokens_per_s),
    ("total_tokens_per_s", sum, lambda e: e.total_tokens_per_s),
    ("prefill_tokens_per_s", fmean, lambda e: e.prefill_tokens_per_s),
    ("ttft_s", fmean, lambda e: e.ttft_s),
    ("generating", sum, lambda e: e.generating),
    ("waiting", max, lambda e: e.waiting),
    ("resident_bytes", sum, lambda e: e.resident_bytes),
)


def _figures(reading: Reading) -> Iterator[tuple[str, str, float | None]]:
    total, available = reading.memory_total_bytes, reading.memory_available_bytes
    used = None if total is None or available is None else total - available
    yield "memory_used_bytes", "", used
    yield "swap_used_bytes", "", reading.swap_used_bytes
    yield "other_cpus_busy", "", reading.other_cpus_busy
    for name in dict.fromkeys(engine.model_name for engine in reading.engines):
        same = [engine for engine in reading.engines if engine.model_name == name]
        for figure, fold, of_engine in _OF_AN_ENGINE:
            known = [value for engine in same if (value := of_engine(engine)) is not None]
            yield figure, name, fold(known) if known else None
    for card in reading.cards:
        index = str(card.index)
        yield "card_used_bytes", index, card.used_bytes
        yield "card_busy_share", index, card.busy_share
        yield "card_power_w", index, card.power_w
        yield "card_temperature_c", index, card.temperature_c
        yield "card_sm_clock_mhz", index, card.sm_clock_mhz


@dataclass(frozen=True, slots=True)
class Span:
    """What to read for a stretch of time: which tier, and how wide each point is."""

    tier: int
    step_s: int


def span_for(since_unix_s: float, until_unix_s: float, now_unix_s: float, pixels: int) -> Span:
    """The finest tier that reaches back so far, thinned to one point a pixel."""
    age_s = now_unix_s - since_unix_s
    last = len(TIERS) - 1
    tier = next((i for i, kept in enumerate(TIERS) if kept.kept_s >= age_s), last)
    step_s = TIERS[tier].step_s
    wanted_s = max(0.0, until_unix_s - since_unix_s) / max(1, pixels)
    return Span(tier, step_s * max(1, -int(-wanted_s // step_s)))
