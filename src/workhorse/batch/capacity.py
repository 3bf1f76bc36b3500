"""What a service can do for a job: at how many streams, how fast, by which measurement. Pure.

Time for a load is `prompt tokens / prefill + output tokens / decode`, where decode is of all
streams together and counts no prefill: for a measurement's own tokens that gives exactly the time
which the measurement took, and for another mixture of the two a fair guess.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from workhorse.bench.stats import is_mixed, rounds
from workhorse.records import Measurement, Run
from workhorse.text import Text

# Shorter answers say how fast prompts are read, and nothing of decoding.
OUTPUT_TOKENS_LEAST = 16
# Of a round's time; less is lost in the error of the prefill that is taken off.
DECODE_SHARE_LEAST = 0.1
# More streams have to bring at least this, or they only make everybody wait longer.
WORTH_A_STREAM = 1.02
# A measurement of one stream says this little of many (two-core CPU to V100, 2026-11).
UNMEASURED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Range:
    """A figure with its least and most."""

    low: float
    value: float
    high: float

    def times(self, factor: float) -> "Range":
        """All three of them, scaled."""
        return Range(self.low * factor, self.value * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Speeds at a number of streams; `benched`: measured at just that number."""

    streams: int
    prefill_tokens_per_s: Range
    decode_tokens_per_s: Range  # of all streams together
    source: Text
    benched: bool

    def seconds(self, prompt_tokens: float, output_tokens: float) -> float:
        """How long it takes for so many computed prompt tokens and generated ones."""
        prefill_s = prompt_tokens / self.prefill_tokens_per_s.value
        return prefill_s + output_tokens / self.decode_tokens_per_s.value

    def seconds_range(self, prompt_tokens: Range, output_tokens: Range) -> Range:
        """The time with the least and the most it may be."""
        prefill, decode = self.prefill_tokens_per_s, self.decode_tokens_per_s
        return Range(
            prompt_tokens.low / prefill.high + output_tokens.low / decode.high,
            self.seconds(prompt_tokens.value, output_tokens.value),
            prompt_tokens.high / prefill.low + output_tokens.high / decode.low,
        )


def benched_capacity(measurements: Sequence[Measurement], name: str) -> Capacity | None:
    """What a bench run says; None where it measured no answers at several stream counts.

    `name`: of the run, for people. Requests of the same lengths are compared alone; of several
    such groups the one with the most stream counts counts.
    """
    prefill = prefill_of(measurements)
    if prefill is None:
        return None
    groups: dict[tuple[int, int], dict[int, Measurement]] = defaultdict(dict)
    for one in measurements:
        if not is_mixed(one) and not one.shared_tokens and one.output_tokens >= OUTPUT_TOKENS_LEAST:
            groups[one.prompt_tokens, one.output_tokens][one.streams] = one
    speeds: dict[int, Range] = {}
    for group in groups.values():
        found = {streams: decode_of(one, prefill.value) for streams, one in group.items()}
        known = {streams: speed for streams, speed in found.items() if speed is not None}
        if len(known) > len(speeds):
            speeds = known
    if len(speeds) < 2:
        return None
    streams = best_of({count: speed.value for count, speed in speeds.items()})
    when = measurements[0].conditions.when[:16].replace("T", " ")
    return Capacity(
        streams,
        prefill,
        speeds[streams],
        Text(
            f"bench run {name} of {when} UTC, best at {streams} streams",
            f"第 {name} 次测量（{when} UTC），{streams} 路并发最快",
        ),
        benched=True,
    )


def best_of(total_by_streams: dict[int, float]) -> int:
    """The streams with the most tokens a second; of nearly equal ones the fewest."""
    best = min(total_by_streams)
    for streams in sorted(total_by_streams):
        if total_by_streams[streams] >= total_by_streams[best] * WORTH_A_STREAM:
            best = streams
    return best


def guessed_capacity(
    slots: int | None,
    prefill_tokens_per_s: float | None,
    decode_tokens_per_s: float | None,
    source: Text,
) -> Capacity | None:
    """From the speed of one stream alone: between no gain and a full gain from each slot."""
    if not prefill_tokens_per_s or not decode_tokens_per_s:
        return None
    streams = slots or 1
    off = UNMEASURED_SHARE
    prefill = Range(1 - off, 1.0, 1 + off).times(prefill_tokens_per_s)
    decode = Range(1 - off, float(streams) ** 0.5, float(streams)).times(decode_tokens_per_s)
    return Capacity(streams, prefill, decode, source, benched=streams == 1)


def together(engines: Sequence[Capacity]) -> Capacity | None:
    """What several engines behind one gateway can do at once; None without any."""
    if len(engines) < 2:
        return next(iter(engines), None)
    return Capacity(
        sum(one.streams for one in engines),
        sum_of([one.prefill_tokens_per_s for one in engines]),
        sum_of([one.decode_tokens_per_s for one in engines]),
        engines[0].source,
        benched=False,
    )


def sum_of(ranges: Sequence[Range]) -> Range:
    """The least, the middle and the most of all together."""
    return Range(
        sum(one.low for one in ranges),
        sum(one.value for one in ranges),
        sum(one.high for one in ranges),
    )


def prefill_of(measurements: Iterable[Measurement]) -> Range | None:
    """Prompt tokens a second, from the requests that ran alone; None: none is told."""
    alone = [one for one in measurements if one.streams == 1 and not one.shared_tokens]
    found = [speed for one in alone for run in one.runs if (speed := prefill_speed(run))]
    return Range(min(found), median(found), max(found)) if found else None


def prefill_speed(run: Run) -> float | None:
    """Computed prompt tokens over the engine's own prefill time, else the time to first token."""
    if run.error is not None or run.prompt_tokens is None:
        return None
    seconds = run.engine_prefill_s or (run.arrivals_s[0] if run.arrivals_s else 0.0)
    computed = run.prompt_tokens - (run.cached_tokens or 0)
    return computed / seconds if computed > 0 and seconds > 1e-6 else None


def decode_of(measurement: Measurement, prefill_tokens_per_s: float) -> Range | None:
    """Decode of all streams together: their tokens over what prefill leaves of a round's time."""
    found: list[float] = []
    for one_round in rounds(measurement.runs):
        if len(one_round) < measurement.streams or any(run.error for run in one_round):
            continue
        begun_s = min(run.sent_s or 0.0 for run in one_round)
        took_s = max((run.sent_s or 0.0) + run.end_s for run in one_round) - begun_s
        computed = sum((run.prompt_tokens or 0) - (run.cached_tokens or 0) for run in one_round)
        decode_s = took_s - computed / prefill_tokens_per_s
        tokens = sum(run.output_tokens for run in one_round)
        if tokens > 0 and took_s > 0 and decode_s >= DECODE_SHARE_LEAST * took_s:
            found.append(tokens / decode_s)
    return Range(min(found), median(found), max(found)) if found else None
