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
    a_cpu_s: tuple[float, ...]  # CPU seconds that a took while it was loaded, warm-up included
    b_cpu_s: tuple[float, ...]
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
    name: str,
    a: Server,
    b: Server,
    scenario: Scenario,
    pairs: int,
    *,
    patience_s: float,
    apart: bool = True,
) -> Case:
    """Measure both `pairs` times with one repeat each; who is first alternates.

    `apart` says that one has nothing to do with the other, so that the waiting one must idle.
    Each pair waits up to `patience_s` for a quiet machine. A pair during which other work ran is
    measured again, whatever it showed; after as many again as `pairs`, disturbed ones are kept
    too, with a doubt.
    """
    side_a, side_b = Side(a), Side(b)
    others_cpus: list[float] = []
    spare = pairs
    while len(others_cpus) < pairs:
        wait_for_quiet(OTHERS_CPUS_MAX, patience_s)
        others = Others.now()
        a_first = len(others_cpus) % 2 == 0
        first, second = (side_a, side_b) if a_first else (side_b, side_a)
        first.measure(second, scenario)
        second.measure(first, scenario)
        disturbed = others.cpus_since()
        if disturbed > OTHERS_CPUS_MAX and spare > 0:
            spare -= 1
            first.forget()
            second.forget()
            continue
        others_cpus.append(round(disturbed, 3))
        print(f"  {name}: pair {len(others_cpus)} of {pairs}", flush=True)
    idle_cpus = max(side_a.idle_cpus, side_b.idle_cpus) if apart else None
    if idle_cpus is not None and idle_cpus > IDLE_CPUS_MAX:
        print(f"  DOUBT: the waiting server took {idle_cpus:.2f} CPUs")
    if max(others_cpus) > OTHERS_CPUS_MAX:
        print(f"  DOUBT: other processes took up to {max(others_cpus):.2f} CPUs")
    return Case(
        name,
        tuple(side_a.measured),
        tuple(side_b.measured),
        idle_cpus,
        tuple(side_a.loaded_cpu_s),
        tuple(side_b.loaded_cpu_s),
        tuple(others_cpus),
    )


class Side:
    """One of the two servers and what was measured of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.measured: list[Measurement] = []
        self.loaded_cpu_s: list[float] = []
        self.idle_cpus = 0.0  # most CPU time per second while it waited

    def measure(self, waiting: "Side", scenario: Scenario) -> None:
        """One round against this server while the other one waits."""
        loaded_s, waiting_s, began_s = self.server.cpu_s(), waiting.server.cpu_s(), monotonic()
        self.measured.append(measure_once(self.server, scenario))
        self.loaded_cpu_s.append(round(self.server.cpu_s() - loaded_s, 3))
        idle_cpus = (waiting.server.cpu_s() - waiting_s) / (monotonic() - began_s)
        waiting.idle_cpus = max(waiting.idle_cpus, idle_cpus)

    def forget(self) -> None:
        """Drop the last round."""
        self.measured.pop()
        self.loaded_cpu_s.pop()


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
