"""What one stored run says, ready to stand beside others. Pure."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from workhorse.bench.report.document import Point
from workhorse.bench.stats import Spread, Summary, summarise
from workhorse.records import (
    Attribution,
    Conditions,
    Estimate,
    Forecast,
    Measurement,
    Plan,
)

LABEL_MAX = 48
NAMELESS = "—"


@dataclass(frozen=True, slots=True)
class Case:
    """One run in the report: measurements, or where a token's time went."""

    name: str  # the store's number or the file's name
    label: str  # told from all others of the report
    when: str
    url: str | None
    model_name: str | None
    measurements: tuple[Measurement, ...] = ()
    attribution: Attribution | None = None
    place: int = 0  # in the report

    @property
    def conditions(self) -> Conditions | None:
        """Of the first measurement."""
        return self.measurements[0].conditions if self.measurements else None

    @property
    def plan(self) -> Plan | None:
        """The plan that was measured, where it is known."""
        return next((m.conditions.plan for m in self.measurements if m.conditions.plan), None)

    @property
    def forecast(self) -> Forecast | None:
        """What was promised."""
        return None if self.plan is None else self.plan.forecast

    @property
    def ceiling(self) -> Estimate | None:
        """What the memory allows one stream, tok/s."""
        found = self.forecast.ceiling_tokens_per_s if self.forecast else None
        if found is None and self.attribution is not None:
            found = self.attribution.ceiling_tokens_per_s
        return found if found is not None and usable(found.value) else None

    @property
    def single(self) -> Measurement | None:
        """The measurement of one stream that stands for the case: the standard one, if any."""
        alone = [m for m in self.measurements if m.streams == 1 and m.scenario != "chat"]
        return next((m for m in alone if m.scenario == "standard"), next(iter(alone), None))


def summary(measurement: Measurement) -> Summary:
    """The figures of a measurement."""
    return summarise(measurement)


def clean(words: str | None, most: int = LABEL_MAX) -> str:
    """A name as one line without control characters, cut; `—` for none."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words or "").split())
    return (line if len(line) <= most else line[: most - 1] + "…") or NAMELESS


def labelled(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases in their places, each label once."""
    found: list[Case] = []
    seen: dict[str, int] = {}
    for case in cases:
        seen[clean(case.label)] = seen.get(clean(case.label), 0) + 1
    for place, case in enumerate(cases):
        label = clean(case.label)
        if seen[label] > 1:
            label = f"{label} · {clean(case.name, 20)}"
        found.append(replace(case, label=label, place=place))
    taken: set[str] = set()
    for place, case in enumerate(found):
        if case.label in taken:  # the same run twice
            found[place] = replace(case, label=f"{case.label} ({place + 1})")
        taken.add(found[place].label)
    return tuple(found)


def usable(value: float | None) -> bool:
    """True for a figure that can be shown on an axis."""
    return value is not None and math.isfinite(value) and value > 0


def point(x: float, spread: Spread | None, times: float = 1.0) -> Point | None:
    """A spread as a point of a plot; None where it cannot be drawn."""
    if spread is None or not all(map(usable, (x, spread.median, spread.low, spread.high))):
        return None
    return Point(x, spread.median * times, spread.low * times, spread.high * times)


def estimate_point(x: float, estimate: Estimate | None) -> Point | None:
    """An estimate as a point of a plot."""
    if estimate is None or not all(map(usable, (estimate.value, estimate.low, estimate.high))):
        return None
    return Point(x, estimate.value, estimate.low, estimate.high)


def over(
    case: Case,
    scenarios: Sequence[str],
    x: Callable[[Measurement], float],
    figure: Callable[[Summary], Spread | None],
    times: Callable[[Measurement], float] = lambda _: 1.0,
) -> tuple[Point, ...]:
    """The points of a case's measurements of some scenarios, by `x`; of two at one x the later."""
    found: dict[float, Point] = {}
    for measurement in case.measurements:
        if measurement.scenario in scenarios:
            one = point(x(measurement), figure(summarise(measurement)), times(measurement))
            if one is not None:
                found[one.x] = one
    return tuple(found[at] for at in sorted(found))


@dataclass(frozen=True, slots=True)
class Kept:
    """One promise of a plan beside what came of it."""

    what: str  # decode, prefill, streams, prompt, depth
    size: int  # streams or tokens
    predicted: Estimate
    measured: Spread


def promises(case: Case) -> Iterator[Kept]:
    """Every promise of the plan that a measurement of the same question answers."""
    forecast = case.forecast
    if forecast is None:
        return
    for measurement in case.measurements:
        found = summarise(measurement)
        tokens, streams = measurement.prompt_tokens, measurement.streams
        if measurement.scenario == "standard" and streams == 1:
            yield from kept("decode", 1, forecast.decode_tokens_per_s, found.decode_tokens_per_s)
            yield from kept(
                "prefill", tokens, forecast.prefill_tokens_per_s, found.prefill_tokens_per_s
            )
        elif measurement.scenario == "standard":
            each = next(
                (s.each_tokens_per_s for s in forecast.streams if s.streams == streams), None
            )
            yield from kept("streams", streams, each, found.decode_tokens_per_s)
        elif measurement.scenario == "prompts" and streams == 1:
            told = next((p.tokens_per_s for p in forecast.prompts if p.prompt_tokens == tokens),
                        None)  # fmt: skip
            yield from kept("prompt", tokens, told, found.prefill_tokens_per_s)
        elif measurement.scenario == "depths":
            told = next((d.tokens_per_s for d in forecast.depths if d.depth_tokens == tokens), None)
            yield from kept("depth", tokens, told, found.decode_tokens_per_s)


def kept(
    what: str, size: int, predicted: Estimate | None, measured: Spread | None
) -> Iterator[Kept]:
    """The promise, where both sides are known."""
    if estimate_point(1, predicted) and point(1, measured) and predicted and measured:
        yield Kept(what, size, predicted, measured)
