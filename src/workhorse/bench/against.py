"""Two services or two stored runs, figure by figure: which is faster, and is that sure. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from workhorse.bench.compare import CONFIDENCE, Comparison, compare, compare_apart
from workhorse.bench.stats import (
    Spread,
    decode_tokens_per_s,
    is_mixed,
    known,
    prefill_tokens_per_s,
    rounds,
    spread,
    total_tokens_per_s,
)
from workhorse.records import Measurement, Run

Figure = Literal["decode", "total", "prefill"]
Outcome = Literal["faster", "slower", "no difference", "too few"]
OUTCOMES: dict[str, Outcome] = {
    "higher": "faster",
    "lower": "slower",
    "no difference": "no difference",
    "too few pairs": "too few",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one scenario; `ratio` is of B over A, higher is faster.

    `apart`: the two were not measured in turns, so the machine may have changed between them.
    """

    scenario: str
    prompt_tokens: int
    output_tokens: int
    streams: int
    shared_tokens: int
    figure: Figure
    a: Spread  # tok/s
    b: Spread
    ratio: float
    # 95 % for all figures of the comparison together; None: too few to tell.
    interval: tuple[float, float] | None
    samples: int
    outcome: Outcome
    apart: bool

    def lost_more_than(self, share: float) -> bool:
        """True when B is surely slower by more than this share: even its best case is."""
        return self.interval is not None and self.interval[1] < 1 - share


def compare_all(
    pairs: Sequence[tuple[Measurement, Measurement]], *, apart: bool
) -> tuple[Compared, ...]:
    """Every figure of all scenarios, with one chance of error of 5 % for all of them.

    With 5 % for each, one of thirty figures would "differ" between equal services in most runs.
    """
    count = sum(len(both_have(a, b, apart=apart)) for a, b in pairs)
    confidence = 1 - (1 - CONFIDENCE) / max(1, count)
    return tuple(
        one
        for number, (a, b) in enumerate(pairs)
        for one in compare_measurements(a, b, apart=apart, seed=number, confidence=confidence)
    )


def compare_measurements(
    a: Measurement,
    b: Measurement,
    *,
    apart: bool,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> tuple[Compared, ...]:
    """Every figure that both have, of the same scenario."""
    way = compare_apart if apart else compare
    found: list[Compared] = []
    for figure, (one, other) in both_have(a, b, apart=apart).items():
        spread_a, spread_b = spread(one), spread(other)
        if spread_a is not None and spread_b is not None:
            result = way(other, one, seed=seed, confidence=confidence)
            found.append(compared(a, figure, spread_a, spread_b, result, apart))
    return tuple(found)


def both_have(
    a: Measurement, b: Measurement, *, apart: bool
) -> dict[Figure, tuple[list[float], list[float]]]:
    """The series of each figure that both have; in pairs where they were measured in turns."""
    found: dict[Figure, tuple[list[float], list[float]]] = {}
    figures: tuple[Figure, ...] = ("decode", "total", "prefill")
    for figure in figures:
        if figure == "total" and a.streams == 1:
            continue  # decode and prefill in one, which only hides which of them moved
        all_a, all_b = series(a, figure), series(b, figure)
        one, other = known(all_a), known(all_b)
        if not apart:
            pairs = [(x, y) for x, y in zip(all_a, all_b, strict=False) if x and y]
            one, other = [x for x, _ in pairs], [y for _, y in pairs]
        if one and other:
            found[figure] = one, other
    return found


def compared(
    of: Measurement, figure: Figure, a: Spread, b: Spread, result: Comparison, apart: bool
) -> Compared:
    """The comparison under the name of its scenario."""
    return Compared(
        scenario=of.scenario,
        prompt_tokens=of.prompt_tokens,
        output_tokens=of.output_tokens,
        streams=of.streams,
        shared_tokens=of.shared_tokens,
        figure=figure,
        a=a,
        b=b,
        ratio=result.ratio,
        interval=result.interval,
        samples=result.pairs,
        outcome=OUTCOMES[result.outcome],
        apart=apart,
    )


def series(measurement: Measurement, figure: Figure) -> tuple[float | None, ...]:
    """The figure round by round; request by request where all are in one round."""
    if is_mixed(measurement):
        if figure == "total":
            return (total_tokens_per_s(measurement.runs),)
        return tuple(map(OF_RUN[figure], measurement.runs))
    by_round = rounds(measurement.runs)
    if figure == "total":
        return tuple(
            total_tokens_per_s(one) if len(one) == measurement.streams else None for one in by_round
        )
    return tuple(middle_of(map(OF_RUN[figure], one)) for one in by_round)


OF_RUN: dict[Figure, Callable[[Run], float | None]] = {
    "decode": decode_tokens_per_s,
    "prefill": prefill_tokens_per_s,
}


def middle_of(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    found = known(values)
    return median(found) if found else None


def matched(
    a: Sequence[Measurement], b: Sequence[Measurement]
) -> tuple[tuple[Measurement, Measurement], ...]:
    """The measurements of two runs that are of the same scenario, in the order of the first."""
    left = list(b)
    found: list[tuple[Measurement, Measurement]] = []
    for one in a:
        other = next((each for each in left if sizes(each) == sizes(one)), None)
        if other is not None:
            left.remove(other)
            found.append((one, other))
    return tuple(found)


def sizes(measurement: Measurement) -> tuple[object, ...]:
    """What has to be the same for two measurements to be compared."""
    return (
        measurement.scenario,
        measurement.prompt_tokens,
        measurement.output_tokens,
        measurement.streams,
        measurement.shared_tokens,
    )
