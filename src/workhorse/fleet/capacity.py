"""How a fleet does under a load, by simulation: figures with intervals, what the limit is. Pure.

Each figure is the mean over seeds with its 95 % interval (Student's t): the seeds draw arrivals
and lengths anew, so the interval says how much of it is chance, not how good the speeds are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log, sqrt
from typing import Literal

import numpy as np

from workhorse.fleet.queue_formulae import Line, Moments, fleet_line
from workhorse.fleet.queue_simulation import Floats, Group, Passed, Requests, Rules, simulate
from workhorse.fleet.replica_speeds import Speeds

# The 97.5 % point of Student's t by degrees of freedom (tables, such as NIST's).
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
SEEDS_MOST = len(STUDENT_T) + 1
# Standard normal quantile of 95 %.
Z95 = 1.6449

# What is simulated at least, beside filling and draining: of the usual fleet a second's work.
REQUESTS_COUNTED = 12_000
# And at most, with all seeds together, but for the fewest seeds that make an interval.
REQUESTS_MOST, SEEDS_LEAST = 400_000, 2
# A little of every fleet's slots is left free at the start, or the first arrivals find none.
FILLED_MOST = 0.9

Limit = Literal["nothing", "slots", "line", "prefill", "decode", "prompts"]
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Box:
    """One kind of machine: the replicas that one of them runs."""

    kind: str
    replicas: tuple[Speeds, ...]
    measured: bool  # False: by forecasts

    @property
    def slots(self) -> int:
        """Requests at a time."""
        return sum(one.slots for one in self.replicas)


@dataclass(frozen=True, slots=True)
class Boxes:
    """So many of one kind."""

    box: Box
    count: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens: log-normal, with this mean and 95th percentile; equal: all the same."""

    mean_tokens: float
    p95_tokens: float

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm: of the two that fit, the smaller."""
        ratio = log(self.p95_tokens / self.mean_tokens)
        return Z95 - sqrt(max(0.0, Z95**2 - 2 * ratio))

    @property
    def moments(self) -> Moments:
        """Mean and variance."""
        return Moments(self.mean_tokens, self.mean_tokens**2 * (exp(self.spread**2) - 1))

    def draw(self, chance: np.random.Generator, count: int) -> Floats:
        """So many lengths, of at least one token."""
        spread = self.spread
        middle = log(self.mean_tokens) - spread**2 / 2
        return np.maximum(1.0, chance.lognormal(middle, spread, count))


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a fleet. Open: requests come at `requests_per_s` whatever happens.

    Closed (`users` and `think_s`): each user asks, reads the answer, thinks, and asks again.
    """

    prompt: Lengths
    output: Lengths
    requests_per_s: float | None = None
    users: int | None = None
    think_s: float | None = None
    cached_share: float = 0.0  # of a prompt, that a replica has in its cache

    @property
    def closed(self) -> bool:
        """Whether users wait for their answer before they ask again."""
        return self.think_s is not None

    def times(self, factor: float) -> "Load":
        """So many times as much of it."""
        if self.requests_per_s is not None:
            return replace(self, requests_per_s=self.requests_per_s * factor)
        return replace(self, users=max(1, round((self.users or 0) * factor)))

    @property
    def computed_prompt(self) -> Lengths:
        """The part of a prompt that has to be computed."""
        left = 1 - self.cached_share
        return Lengths(self.prompt.mean_tokens * left, self.prompt.p95_tokens * left)


@dataclass(frozen=True, slots=True)
class Goals:
    """What is wished for: for 95 of 100 requests."""

    first_token_s: float
    stream_tokens_per_s: float
    refused_share: float = 0.001


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a fleet does under a load."""

    boxes: tuple[Boxes, ...]
    slots: int
    requests_per_s: Figure  # that were answered
    first_token_p50_s: Figure
    first_token_p95_s: Figure
    wait_p95_s: Figure  # for a slot
    waited_share: Figure
    stream_p50_tokens_per_s: Figure
    stream_p5_tokens_per_s: Figure  # what 95 of 100 get at least
    refused_share: Figure
    slots_share: Figure  # of the slots, at work
    tokens_per_s: Figure  # written, of all
    holds: bool
    limit: Limit
    formulae: Line
    requests: int  # simulated
    seeds: int


def groups_of(boxes: Sequence[Boxes]) -> tuple[Group, ...]:
    """The replicas of these boxes, equal ones together."""
    found: dict[Speeds, int] = {}
    for one in boxes:
        for speeds in one.box.replicas:
            found[speeds] = found.get(speeds, 0) + one.count
    return tuple(Group(speeds, count) for speeds, count in found.items() if count)


def assess(
    boxes: Sequence[Boxes],
    load: Load,
    goals: Goals,
    *,
    seeds: int = 5,
    counted: int = REQUESTS_COUNTED,
    rules: Rules | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Outcome:
    """Simulate the load on these boxes once a seed."""
    groups = groups_of(boxes)
    rules = rules or Rules()
    found: list[tuple[Requests, Passed, slice]] = []
    while len(found) < seeds:
        progress(len(found), seeds)
        requests, window = drawn(groups, load, counted, np.random.default_rng(len(found)))
        found.append((requests, simulate(groups, requests, rules), window))
        # So many requests differ from seed to seed by next to nothing.
        seeds = min(seeds, max(SEEDS_LEAST, REQUESTS_MOST // len(requests.output_tokens)))
    return summed_up(boxes, groups, load, goals, found)


def drawn(
    groups: Sequence[Group], load: Load, counted: int, chance: np.random.Generator
) -> tuple[Requests, slice]:
    """Arrivals and lengths, and which of the requests count.

    Those before fill the fleet: it begins with as many answers half done as are in it on average,
    then gets one stay's time to forget that. Those after keep it filled until the last that counts
    has ended.
    """
    if load.closed:
        return drawn_closed(load, counted, chance)
    rate = load.requests_per_s or 0.0
    slots = sum(group.speeds.slots * group.replicas for group in groups)
    stay_s = mean_stay_s(groups, load)
    inside = round(min(FILLED_MOST * slots, rate * stay_s))
    margin = ceil(max(rate * stay_s, counted / 10))
    count = 2 * margin + counted
    arrivals = np.cumsum(chance.exponential(1 / rate, count))
    prompts = load.computed_prompt.draw(chance, count)
    outputs = load.output.draw(chance, count)
    # Of the answers that are under way at a moment long ones are more, and each is half done.
    pool = load.output.draw(chance, max(1000, 4 * inside))
    begun = chance.choice(pool, inside, p=pool / pool.sum()) * chance.random(inside)
    return (
        Requests(
            np.concatenate((np.zeros(inside), arrivals)),
            np.concatenate((np.zeros(inside), prompts)),
            np.concatenate((begun, outputs)),
        ),
        slice(inside + margin, inside + margin + counted),
    )


def drawn_closed(load: Load, counted: int, chance: np.random.Generator) -> tuple[Requests, slice]:
    """The same for users who wait for their answers: they come in over one time of thinking."""
    users, think_s = load.users or 1, load.think_s or 0.0
    margin = max(4 * users, counted // 10)
    count = users + 2 * margin + max(counted, 2 * users)
    arrivals = np.sort(chance.random(users) * max(think_s, 1e-3))
    return (
        Requests(
            arrivals,
            load.computed_prompt.draw(chance, count),
            load.output.draw(chance, count),
            chance.exponential(max(think_s, 1e-9), count),
        ),
        slice(margin, count - margin),
    )


def mean_stay_s(groups: Sequence[Group], load: Load) -> float:
    """About how long a request is in a slot, with the load spread over all replicas."""
    rate = (load.requests_per_s or 0.0) / sum(group.replicas for group in groups)
    read, write = load.computed_prompt.mean_tokens, load.output.mean_tokens
    stays: list[float] = []
    for group in groups:
        speeds, streams, stay_s = group.speeds, 1.0, 0.0
        read_s = read / speeds.prefill_tokens_per_s
        free = 1.0 if speeds.prompt_batch_tokens is None else max(0.1, 1 - rate * read_s)
        for _ in range(30):
            step_s = speeds.step_s[min(speeds.slots, max(1, round(streams))) - 1]
            stay_s = (read_s + write * step_s) / free
            streams = (streams + min(speeds.slots, rate * stay_s)) / 2
        stays.append(stay_s)
    return sum(stays) / len(stays)


def summed_up(
    boxes: Sequence[Boxes],
    groups: Sequence[Group],
    load: Load,
    goals: Goals,
    found: Sequence[tuple[Requests, Passed, slice]],
) -> Outcome:
    """The figures of all seeds."""
    slots = sum(group.speeds.slots * group.replicas for group in groups)
    each = [figures(requests, passed, window, slots) for requests, passed, window in found]
    means = {name: interval([one[name] for one in each]) for name in each[0]}
    rate = means["requests_per_s"].value if load.closed else load.requests_per_s or 0.0
    prompt, output = load.computed_prompt.moments, load.output.moments
    formulae = fleet_line([(g.speeds, g.replicas) for g in groups], rate, prompt, output)
    holds = (
        means["first_token_p95_s"].value <= goals.first_token_s
        and means["stream_p5_tokens_per_s"].value >= goals.stream_tokens_per_s
        and means["refused_share"].value <= goals.refused_share
    )
    return Outcome(
        tuple(boxes),
        slots,
        **means,
        holds=holds,
        limit=limit_of(groups, means, goals, formulae),
        formulae=formulae,
        requests=sum(len(requests.output_tokens) for requests, _, _ in found),
        seeds=len(found),
    )


def figures(requests: Requests, passed: Passed, window: slice, slots: int) -> dict[str, float]:
    """The figures of one seed; of the requests that count."""
    refused = passed.refused[window]
    answered = ~refused
    arrived = passed.arrived_s[window]
    waits = (passed.granted_s[window] - arrived)[answered]
    firsts = (passed.first_token_s[window] - arrived)[answered]
    outputs = requests.output_tokens[window][answered]
    writes_s = (passed.ended_s[window] - passed.first_token_s[window])[answered]
    stays_s = (passed.ended_s[window] - passed.granted_s[window])[answered]
    several = (outputs > 2) & (writes_s > 0)
    speeds = (outputs[several] - 1) / writes_s[several]
    took_s = float(arrived.max() - arrived.min())
    rate = len(firsts) / took_s if took_s > 0 else 0.0
    return {
        "requests_per_s": rate,
        "first_token_p50_s": quantile(firsts, 0.5),
        "first_token_p95_s": quantile(firsts, 0.95),
        "wait_p95_s": quantile(waits, 0.95),
        "waited_share": float((waits > 0).mean()) if len(waits) else 1.0,
        "stream_p50_tokens_per_s": quantile(speeds, 0.5),
        "stream_p5_tokens_per_s": quantile(speeds, 0.05),
        "refused_share": float(refused.mean()),
        # Little's law; what was refused took no slot.
        "slots_share": rate * float(stays_s.mean()) / slots if len(stays_s) else 1.0,
        "tokens_per_s": rate * float(outputs.mean()) if len(outputs) else 0.0,
    }


def quantile(values: Floats, share: float) -> float:
    """The value below which that share lies; 0 of none."""
    return float(np.quantile(values, share)) if len(values) else 0.0


def interval(values: Sequence[float]) -> Figure:
    """The mean and its 95 % interval; of figures that cannot be negative."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Figure(mean, mean, mean)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = STUDENT_T[min(len(values), SEEDS_MOST) - 2] * deviation / sqrt(len(values))
    return Figure(mean, max(0.0, mean - half), mean + half)


def limit_of(
    groups: Sequence[Group], means: dict[str, Figure], goals: Goals, formulae: Line
) -> Limit:
    """Which part of the fleet keeps it from its goals; `nothing` when it holds."""
    if means["refused_share"].value > goals.refused_share:
        return "slots" if formulae.utilisation >= 1 else "line"
    first_s, wait_s = means["first_token_p95_s"].value, means["wait_p95_s"].value
    if first_s > goals.first_token_s:
        return "slots" if wait_s > first_s / 2 else "prefill"
    if means["stream_p5_tokens_per_s"].value < goals.stream_tokens_per_s:
        full = min(1 / group.speeds.step_s[-1] for group in groups)
        return "decode" if full < goals.stream_tokens_per_s else "prompts"
    return "nothing"
