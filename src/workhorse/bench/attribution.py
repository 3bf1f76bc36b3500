"""Where a token's time goes: rounds of requests that differ in one thing each, reckoned up. Pure.

Each round holds one request of each variant, made within seconds of each other, so a machine that
drifts moves all of them. A term is a difference between variants, taken round by round; its
interval is Student's over the rounds. What no experiment reaches is left as one joined term, and
so the terms add up to what was measured.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum, sqrt
from statistics import mean, median, stdev

from workhorse.bench import attribution_words as words
from workhorse.records import Bound, Estimate, Run, Sample, Term, Timed
from workhorse.records.attribution import Variant
from workhorse.text import Text

# Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom (Abramowitz and Stegun,
# Handbook of Mathematical Functions, 1972, table 26.10).
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
STUDENT_95_BEYOND = 2.160  # 13 degrees; 1.96 for ever more, so the interval is a little wide

# A gap so many times the usual one is a pause: two tokens that arrive as one piece make two, and
# a step of the engine that shares its cores with a short task less.
PAUSE_GAPS = 4.0

ROUNDS_MIN = 2  # an interval needs two


@dataclass(frozen=True, slots=True)
class Clock:
    """What a core's clock was on average, and the most that was seen or is rated."""

    device: Text
    mean_mhz: float
    most_mhz: float


def clock_of(samples: Sequence[Sample], rated_mhz: float | None = None) -> Clock | None:
    """The clock of the cards at work, else of the CPUs; None where nothing tells it."""
    cards = [
        float(card.sm_clock_mhz)
        for one in samples
        for card in one.cards
        if card.sm_clock_mhz and (card.busy_share or 0.0) > 0
    ]
    cpus = [one.cpu_mhz for one in samples if one.cpu_mhz]
    if cards:
        return Clock(Text("the card", "显卡"), mean(cards), max(cards))
    if not cpus:
        return None
    return Clock(Text("the CPUs", "CPU"), mean(cpus), max(*cpus, rated_mhz or 0.0))


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the service beforehand; `None`: nothing tells."""

    ceiling: Estimate | None = None  # tokens a second
    kv_s: float | None = None  # of the ceiling's time, reading KV at the explained depth
    devices: tuple[str, ...] = ()  # that hold layers: RAM, GPU 0 …; (): not known
    expected: tuple[tuple[Text, float], ...] = ()  # the forecast's terms beside reading, seconds
    has_gateway: bool = False  # workhorse itself answers at the address
    clock: Clock | None = None


def timed(variant: Variant, run: Run) -> Timed | None:
    """What a run says of a token; None when it failed or no time passed between its tokens."""
    arrivals = run.arrivals_s
    tokens = run.output_tokens - 1
    if run.error is not None or tokens < 1 or len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
        return None
    engine_s = run.engine_decode_s
    return Timed(
        variant,
        (arrivals[-1] - arrivals[0]) / tokens,
        pauses_s(arrivals) / tokens,
        None if engine_s is None or engine_s <= 0 else engine_s / tokens,
        (run.prompt_tokens or 0) + run.output_tokens / 2,
    )


def pauses_s(arrivals_s: Sequence[float]) -> float:
    """Seconds that gaps far longer than the usual one took beyond it, less what was caught up.

    Pieces that arrive in one read share its gap: a reader that was held up finds several at once,
    late and with nothing lost.
    """
    counts = Counter(arrivals_s[1:])  # pieces by the moment of their read
    reads = [(now - before, counts[now]) for before, now in pairwise(sorted(set(arrivals_s)))]
    usual = median(gap / pieces for gap, pieces in reads)  # of one piece
    beyond = fsum(gap - usual * n for gap, n in reads if gap > PAUSE_GAPS * usual * n)
    whole = arrivals_s[-1] - arrivals_s[0]
    return min(beyond, max(0.0, whole - usual * (len(arrivals_s) - 1)))


Round = dict[Variant, Timed]
Contrast = Callable[[Round], float]


def attribute(rounds: Sequence[Sequence[Timed]], known: Known) -> tuple[Term, ...]:
    """The terms of a token's time in the order of the bar, their sum the mean that was measured.

    Rounds that lack a variant of the fullest one are left out. Raises ValueError with fewer than
    `ROUNDS_MIN` whole ones.
    """
    whole = whole_rounds(rounds)
    have = set(whole[0])
    clock = by_engine(whole)
    at: Variant = "direct" if "direct" in have else "whole"
    contrasts: dict[str, Contrast] = {"pauses": lambda one: one["whole"].paused_s}
    if "direct" in have:
        contrasts["gateway"] = lambda one: unpaused(one["whole"]) - unpaused(one["direct"])
    if clock is not unpaused:
        contrasts["delivery"] = lambda one: unpaused(one[at]) - clock(one[at])
    if "plain sampling" in have:
        contrasts["sampling"] = lambda one: clock(one[at]) - clock(one["plain sampling"])
    kv_s = known.kv_s or 0.0
    if "shallow" in have and deeper(whole, at):
        contrasts["attention"] = lambda one: attention_s(one, at, clock) - kv_s
    terms = [experiment(code, contrast, whole, known, have) for code, contrast in contrasts.items()]
    ceiling = ceiling_term(known)
    if ceiling is not None:
        terms.append(ceiling)
    ceiling_s = ceiling.seconds if ceiling else 0.0
    left = [
        one["whole"].token_s - ceiling_s - fsum(f(one) for f in contrasts.values()) for one in whole
    ]
    seconds = measured(whole)[0] - fsum(term.seconds for term in terms)
    rest = rest_term(seconds, left, ceiling, known, contrasts)
    bounds = (*rest.bounds, *bounds_of_rest(whole, at, clock, rest, contrasts))
    rest = replace(rest, bounds=(*bounds, *clock_bound(rest, known.clock)))
    order = ("memory", "attention", "sampling", "rest", "delivery", "gateway", "pauses")
    return tuple(sorted((*terms, rest), key=lambda term: order.index(term.code)))


def whole_rounds(rounds: Sequence[Sequence[Timed]]) -> list[Round]:
    """The rounds that have every variant of the fullest; ValueError when they are too few."""
    named = [{one.variant: one for one in each} for each in rounds]
    fullest = max(named, key=len, default={})
    whole = [one for one in named if one.keys() == fullest.keys()]
    if len(whole) < ROUNDS_MIN or "whole" not in fullest:
        raise ValueError(f"{len(whole)} whole rounds are too few")
    return whole


def measured(rounds: Sequence[Round]) -> tuple[float, float, float]:
    """Seconds a token as the client sees it: mean, least and most with 95 % confidence."""
    return student([one["whole"].token_s for one in rounds])


def student(samples: Sequence[float]) -> tuple[float, float, float]:
    """The mean of at least two samples and its 95 % interval."""
    freedom = len(samples) - 1
    t = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else STUDENT_95_BEYOND
    middle = fsum(samples) / len(samples)
    half = t * stdev(samples) / sqrt(len(samples))
    return middle, middle - half, middle + half


def unpaused(one: Timed) -> float:
    """Seconds a token by the client's clock, without pauses."""
    return one.token_s - one.paused_s


def engine_clock(one: Timed) -> float:
    """The same by the engine's clock; its pauses are seen only from outside.

    Where its clock ran on through them they were its own; else they came behind it. One that is
    shorter than what delivery takes anyway cannot be told.
    """
    engine_s = one.engine_token_s or 0.0
    return engine_s - one.paused_s if engine_s - unpaused(one) > one.paused_s / 2 else engine_s


def by_engine(rounds: Sequence[Round]) -> Callable[[Timed], float]:
    """The engine's own clock where every request has it, else the client's."""
    told = all(one.engine_token_s is not None for each in rounds for one in each.values())
    return engine_clock if told else unpaused


def deeper(rounds: Sequence[Round], at: Variant) -> bool:
    """True when the two depths are far enough apart to draw a line through them."""
    return all(one[at].depth_tokens > 1.5 * one["shallow"].depth_tokens for one in rounds)


def attention_s(one: Round, at: Variant, clock: Callable[[Timed], float]) -> float:
    """What a token takes longer at the explained depth than with no context, on the line through
    both depths."""
    deep, shallow = one[at], one["shallow"]
    slope = (clock(deep) - clock(shallow)) / (deep.depth_tokens - shallow.depth_tokens)
    return slope * deep.depth_tokens


def experiment(
    code: str, contrast: Contrast, rounds: Sequence[Round], known: Known, have: set[Variant]
) -> Term:
    """One term that is a difference between variants."""
    seconds, low, high = student([contrast(one) for one in rounds])
    what, how = words.experiment(
        code,
        gateway=known.has_gateway and "direct" not in have,
        kv_known=known.kv_s is not None or known.ceiling is None,
        depth_tokens=mean(one["whole"].depth_tokens for one in rounds),
        shallow_tokens=(
            mean(one["shallow"].depth_tokens for one in rounds) if "shallow" in have else None
        ),
    )
    return Term(code, what, seconds, low, high, "experiment", how)


def ceiling_term(known: Known) -> Term | None:
    """Bytes over bandwidth; None where nothing tells the ceiling."""
    ceiling = known.ceiling
    if ceiling is None:
        return None
    return Term(
        "memory",
        words.MEMORY,
        1 / ceiling.value,
        1 / ceiling.high,
        1 / ceiling.low,
        "plan",
        ceiling.source,
    )


def rest_term(
    seconds: float,
    left: Sequence[float],
    ceiling: Term | None,
    known: Known,
    found: dict[str, Contrast],
) -> Term:
    """What no experiment separates, called by all that it may hold."""
    _, low, high = student(left)
    slack_low = slack_high = 0.0
    if ceiling is not None:
        slack_low = ceiling.high_s - ceiling.seconds
        slack_high = ceiling.seconds - ceiling.low_s
    what, how = words.rest(
        ceiling=ceiling is not None, devices=known.devices, separated=tuple(found)
    )
    bounds = tuple(Bound(told, 0.0, expected, words.EXPECTED) for told, expected in known.expected)
    return Term("rest", what, seconds, low - slack_low, high + slack_high, "rest", how, bounds)


def bounds_of_rest(
    rounds: Sequence[Round],
    at: Variant,
    clock: Callable[[Timed], float],
    rest: Term,
    found: dict[str, Contrast],
) -> tuple[Bound, ...]:
    """What a second stream in the same step takes bounds what each token takes by itself.

    Reading the weights and starting each layer's work are shared by the streams of a step;
    attention, arithmetic, sampling and detokenising are not. Alone, a token's arithmetic may hide
    behind the reading: so the figure is an upper bound.
    """
    if "together" not in rounds[0]:
        return ()
    attended = "attention" in found

    def more(one: Round) -> float:
        extra = clock(one["together"]) - clock(one[at])
        return extra - (attention_s(one, at, clock) if attended else 0.0)

    _, _, high = student([more(one) for one in rounds])
    most = min(max(high, 0.0), max(rest.high_s, 0.0))
    return (
        Bound(words.OWN_WORK, 0.0, most, words.SECOND_STREAM),
        Bound(words.SHARED_WORK, max(0.0, rest.low_s - most), max(0.0, rest.high_s),
              words.SECOND_STREAM),
    )  # fmt: skip


def clock_bound(rest: Term, clock: Clock | None) -> tuple[Bound, ...]:
    """What a clock below its most takes at most: all of the rest waits for cores."""
    if clock is None or clock.mean_mhz >= clock.most_mhz or rest.high_s <= 0:
        return ()
    most = rest.high_s * (1 - clock.mean_mhz / clock.most_mhz)
    return (Bound(words.CLOCKS, 0.0, most, words.clock(clock.device, clock.mean_mhz,
                                                       clock.most_mhz)),)  # fmt: skip
