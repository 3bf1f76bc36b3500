"""Measure two services in turns (A B, B A, …), compare, print and store."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import monotonic

from servers import Others, Server, wait_for_quiet
from workhorse import __version__
from workhorse.bench.compare import Comparison, compare
from workhorse.bench.load import Progress, measure
from workhorse.bench.scenario import Scenario
from workhorse.bench.stats import (
    Spread,
    decode_by_round,
    rounds,
    spread,
    total_tokens_per_s,
    ttft_s,
)
from workhorse.codec import to_line
from workhorse.machine.probe import probe
from workhorse.records import Conditions, Machine, Measurement

IDLE_CPUS_MAX = 0.02  # a server that waits and takes more slows the other one down

OTHERS_CPUS_MAX = 0.1  # 5 % of two cores: as much as the differences that are looked for
PATIENCE_S = 120.0

Figure = Callable[[Measurement], float]


@dataclass(frozen=True, slots=True)
class Case:
    """One setting with everything that was measured in it, in the order of time."""

    name: str
    a: tuple[Measurement, ...]
    b: tuple[Measurement, ...]
    idle_cpus_max: float | None  # most CPU time per second that the waiting server took
    others_cpus: tuple[float, ...]  # CPUs' worth of other work on the machine, pair by pair


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure of one case, compared."""

    case: str
    figure: str
    a: Spread
    b: Spread
    comparison: Comparison
    outcome: str


@dataclass(frozen=True, slots=True)
class Result:
    """A benchmark's stored result: the raw measurements and what they say."""

    benchmark: str
    when: str
    workhorse: str
    machine: Machine
    a: str  # how each side was started
    b: str
    outcomes: tuple[Outcome, ...]
    notes: dict[str, float]
    cases: tuple[Case, ...]


def take_turns(
    name: str, a: Server, b: Server, scenario: Scenario, pairs: int, *, apart: bool = True
) -> Case:
    """Measure both `pairs` times with one repeat each; who is first alternates.

    `apart` says that one has nothing to do with the other, so that the waiting one must idle.
    A pair during which other work ran is measured again, whatever it showed; after as many
    again as `pairs`, disturbed ones are kept too, with a doubt.
    """
    taken: dict[str, list[Measurement]] = {a.url: [], b.url: []}
    idle_cpus, spare = 0.0, pairs
    others_cpus: list[float] = []
    while len(others_cpus) < pairs:
        wait_for_quiet(OTHERS_CPUS_MAX, PATIENCE_S)
        others = Others.now()
        first, second = (a, b) if len(others_cpus) % 2 == 0 else (b, a)
        idle_cpus = max(idle_cpus, measure_into(taken, first, second, scenario))
        idle_cpus = max(idle_cpus, measure_into(taken, second, first, scenario))
        disturbed = others.cpus_since()
        if disturbed > OTHERS_CPUS_MAX and spare > 0:
            spare -= 1
            for measured in taken.values():
                measured.pop()
            continue
        others_cpus.append(round(disturbed, 3))
        print(f"  {name}: pair {len(others_cpus)} of {pairs}", flush=True)
    if apart and idle_cpus > IDLE_CPUS_MAX:
        print(f"  DOUBT: the waiting server took {idle_cpus:.2f} CPUs")
    if max(others_cpus) > OTHERS_CPUS_MAX:
        print(f"  DOUBT: other processes took up to {max(others_cpus):.2f} CPUs")
    return Case(
        name,
        tuple(taken[a.url]),
        tuple(taken[b.url]),
        idle_cpus if apart else None,
        tuple(others_cpus),
    )


def measure_into(
    taken: dict[str, list[Measurement]], loaded: Server, waiting: Server, scenario: Scenario
) -> float:
    """Measure one server; returns the CPU time per second that the other took meanwhile."""
    before_s, began_s = waiting.cpu_s(), monotonic()
    taken[loaded.url].append(measure_once(loaded, scenario))
    return (waiting.cpu_s() - before_s) / (monotonic() - began_s)


def measure_once(server: Server, scenario: Scenario) -> Measurement:
    """One round of the scenario; a failed request ends the benchmark."""
    when = now()
    once = replace(scenario, repeats=1)
    runs = asyncio.run(measure(server.url, once, on_progress=ignore))
    for run in runs:
        if run.error is not None:
            raise RuntimeError(f"{server.url}: {run.error}")
    rounded = tuple(
        replace(
            run,
            arrivals_s=tuple(round(time_s, 6) for time_s in run.arrivals_s),
            end_s=round(run.end_s, 6),
        )
        for run in runs
    )
    return once.measurement(rounded, Conditions(when, None, None, server.url, __version__))


def counted(streams: int) -> str:
    """`1 stream`, `4 streams`."""
    return "1 stream" if streams == 1 else f"{streams} streams"


def ignore(_: Progress) -> None:
    """Nobody watches."""


def decode(measurement: Measurement) -> float:
    """Decode tok/s of one stream."""
    return median(decode_by_round(measurement))


def total(measurement: Measurement) -> float:
    """Tok/s of all streams together, prefill included."""
    values = [total_tokens_per_s(one) for one in rounds(measurement.runs)]
    return median(value for value in values if value is not None)


def first_token(measurement: Measurement) -> float:
    """Seconds to the first token, median of the streams."""
    times_s = [ttft_s(run) for run in measurement.runs]
    return median(time_s for time_s in times_s if time_s is not None)


def outcome(case: Case, figure: str, of: Figure) -> Outcome:
    """One figure of a case, compared."""
    a, b = [of(one) for one in case.a], [of(one) for one in case.b]
    compared = compare(a, b)
    spread_a, spread_b = spread(a), spread(b)
    if spread_a is None or spread_b is None:
        raise RuntimeError(f"{case.name}: nothing was measured")
    return Outcome(case.name, figure, spread_a, spread_b, compared, compared.outcome)


def print_outcomes(a: str, b: str, outcomes: Sequence[Outcome]) -> None:
    """A Markdown table: medians with least and most, the ratio with its interval."""
    print(f"\n| case | figure | {a} | {b} | ratio | 95 % interval | |")
    print("|---|---|---|---|---|---|---|")
    for one in outcomes:
        interval = one.comparison.interval
        span = f"{interval[0]:.3f}–{interval[1]:.3f}" if interval else "—"
        print(
            f"| {one.case} | {one.figure} | {show(one.a)} | {show(one.b)} "
            f"| {one.comparison.ratio:.3f} | {span} | {one.outcome} |"
        )


def show(values: Spread) -> str:
    """A median with least and most."""
    digits = 1 if values.median >= 1 else 4
    return f"{values.median:.{digits}f} ({values.low:.{digits}f}–{values.high:.{digits}f})"


def store(
    path: Path,
    benchmark: str,
    sides: tuple[str, str],
    outcomes: Sequence[Outcome],
    notes: dict[str, float],
    cases: Sequence[Case],
) -> None:
    """Write the result as one JSON document."""
    result = Result(
        benchmark, now(), __version__, probe(), *sides, tuple(outcomes), notes, tuple(cases)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_line(result) + "\n", encoding="utf-8")
    print(f"\nstored: {path}")


def now() -> str:
    """The time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
