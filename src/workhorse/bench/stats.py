"""From raw times to figures, and the doubts about them. Pure.

Per run: time to first token, decode, prefill, end to end. Per measurement: median, least and
most. A run that ended with an error counts in no figure; it is a doubt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from workhorse.bench.energy import energy_j
from workhorse.records import Measurement, Run


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some samples with the least and the most of them."""

    median: float
    low: float
    high: float
    samples: int

    @property
    def share(self) -> float:
        """How far least and most are apart, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a measurement; None where no run could tell.

    `decode_tokens_per_s` is of one stream; `total_tokens_per_s` of all streams of a round
    together: every token they generated over the time from the common start to the end of the
    last one. That time includes prefill, because a user waits for it too.
    """

    streams: int
    runs: int
    failed: int
    ttft_s: Spread | None
    decode_tokens_per_s: Spread | None
    prefill_tokens_per_s: Spread | None
    total_tokens_per_s: Spread | None
    end_to_end_s: Spread | None
    cached_share: float | None = None  # of the prompt tokens: out of the service's cache
    energy_j: float | None = None
    tokens_per_j: float | None = None  # generated ones


def ttft_s(run: Run) -> float | None:
    """Seconds until the first piece of text; None when none came."""
    return run.arrivals_s[0] if run.arrivals_s and not run.error else None


def decode_tokens_per_s(run: Run) -> float | None:
    """(tokens - 1) / (last - first arrival): generation without prefill.

    None for fewer than two tokens or when all text came at once: no time passed to divide by.
    """
    if run.error or run.output_tokens < 2 or len(run.arrivals_s) < 2:
        return None
    return rate(run.output_tokens - 1, run.arrivals_s[-1] - run.arrivals_s[0])


def prefill_tokens_per_s(run: Run) -> float | None:
    """Prompt tokens that were computed over the time to first token.

    A little low by its nature: that time also holds one decode step, the network and, with
    several streams, the wait for the others. None when the service counts no prompt tokens.
    """
    first_s = ttft_s(run)
    if first_s is None or run.prompt_tokens is None:
        return None
    return rate(run.prompt_tokens - (run.cached_tokens or 0), first_s)


def total_tokens_per_s(one_round: Sequence[Run]) -> float | None:
    """Tokens of all streams of a round over its whole time; None when one of them failed."""
    if not one_round or any(run.error for run in one_round):
        return None
    began_s = [run.sent_s or 0.0 for run in one_round]
    if any(run.sent_s is None for run in one_round):
        began_s = [0.0] * len(one_round)
    ended_s = max(begin + run.end_s for begin, run in zip(began_s, one_round, strict=True))
    return rate(sum(run.output_tokens for run in one_round), ended_s - min(began_s))


def rate(tokens: int, seconds: float) -> float | None:
    """Tokens per second; None when there is nothing or no time to speak of.

    A nanosecond is below what any clock here resolves: dividing by it gives figures, not facts.
    """
    return tokens / seconds if tokens > 0 and seconds > 1e-9 else None


def rounds(runs: Iterable[Run]) -> tuple[tuple[Run, ...], ...]:
    """The runs by round: the n-th run of each stream belongs to round n."""
    by_round: list[list[Run]] = []
    seen: dict[int, int] = {}
    for run in runs:
        number = seen.get(run.stream, 0)
        seen[run.stream] = number + 1
        if number == len(by_round):
            by_round.append([])
        by_round[number].append(run)
    return tuple(tuple(one_round) for one_round in by_round)


def decode_by_round(measurement: Measurement) -> tuple[float, ...]:
    """Each round's median decode speed of one stream: what repeats of a measurement compare.

    Streams of one round differ by their place in the queue, which says nothing about noise.
    """
    by_round = (known(map(decode_tokens_per_s, one)) for one in rounds(measurement.runs))
    return tuple(median(values) for values in by_round if values)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and most of the values that are known; None when none is."""
    samples = known(values)
    if not samples:
        return None
    return Spread(median(samples), min(samples), max(samples), len(samples))


def known(values: Iterable[float | None]) -> list[float]:
    """The values without the unknown ones."""
    return [value for value in values if value is not None]


def is_mixed(measurement: Measurement) -> bool:
    """True where requests differ in their lengths, as in a trace of chats: one round of many."""
    return any(run.asked_output_tokens is not None for run in measurement.runs)


def cached_share(runs: Iterable[Run]) -> float | None:
    """Share of the prompt tokens that came out of a cache; None where that is not told."""
    told = [
        (run.prompt_tokens, run.cached_tokens)
        for run in runs
        if not run.error and run.prompt_tokens is not None and run.cached_tokens is not None
    ]
    prompt_tokens = sum(prompt for prompt, _ in told)
    return sum(cached for _, cached in told) / prompt_tokens if prompt_tokens else None


def summarise(measurement: Measurement) -> Summary:
    """The figures of a measurement."""
    runs = measurement.runs
    full = [one for one in rounds(runs) if len(one) == measurement.streams]
    if is_mixed(measurement):
        full = [runs]
    energy = energy_j(measurement)
    made = sum(run.output_tokens for run in runs)
    return Summary(
        streams=measurement.streams,
        runs=len(runs),
        failed=sum(run.error is not None for run in runs),
        ttft_s=spread(map(ttft_s, runs)),
        decode_tokens_per_s=spread(map(decode_tokens_per_s, runs)),
        prefill_tokens_per_s=spread(map(prefill_tokens_per_s, runs)),
        total_tokens_per_s=spread(map(total_tokens_per_s, full)),
        end_to_end_s=spread(None if run.error else run.end_s for run in runs),
        cached_share=cached_share(runs),
        energy_j=energy,
        tokens_per_j=made / energy if energy and made else None,
    )
