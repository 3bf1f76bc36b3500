"""How fast a replica is at each number of streams: from its plan's forecast, or as measured. Pure.

The time of one token grows nearly in a straight line with the streams that share the step: weights
are read once for all of them, KV and arithmetic come for each. So two measured points tell all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from workhorse.plan.planner import BATCH_SIZES_TOKENS, TWO_BATCHES_S
from workhorse.records import Plan

SLOTS_MOST = 4096  # of one replica; a file may say anything


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast one replica is: `step_s[n - 1]` is the time of one token with n streams at a time.

    `prompt_batch_tokens` of a prompt are read between two tokens of the streams beside it; None:
    a prompt slows down nobody (a test engine).
    """

    slots: int
    prefill_tokens_per_s: float
    step_s: tuple[float, ...]
    prompt_batch_tokens: int | None = None

    @property
    def stream_tokens_per_s(self) -> float:
        """Decode speed of one stream while all slots are at work: what the admission reckons by."""
        return min(1 / self.step_s[-1], 1 / self.step_s[0])


def planned_speeds(plan: Plan) -> Speeds | None:
    """What the plan promises; None where it does not know how fast it decodes."""
    forecast = plan.forecast
    points = {one.streams: 1 / one.each_tokens_per_s.value for one in forecast.streams}
    if not points and forecast.decode_tokens_per_s is not None:
        points = {1: 1 / forecast.decode_tokens_per_s.value}
    if not points:
        return None
    return Speeds(
        plan.slots,
        forecast.prefill_tokens_per_s.value,
        steps(points, plan.slots),
        plan.batch_tokens,
    )


def measured_speeds(
    slots: int,
    prefill_tokens_per_s: float | None,
    decode_tokens_per_s: float | None,
    total_tokens_per_s: float | None,
) -> Speeds | None:
    """What a replica says of itself; None where it knows too little.

    With one stream's speed alone, further streams are taken to slow each other down as if each
    had its own pass over the weights: the worst that is possible.
    """
    alone, total = decode_tokens_per_s, total_tokens_per_s
    if not prefill_tokens_per_s or not (alone or total) or not 1 <= slots <= SLOTS_MOST:
        return None
    points = {1: 1 / alone} if alone else {}
    if total and (slots > 1 or not points):
        points[slots] = slots / total
    elif alone and slots > 1:
        points[slots] = slots / alone
    return Speeds(
        slots, prefill_tokens_per_s, steps(points, slots), batch_for(prefill_tokens_per_s)
    )


def batch_for(prefill_tokens_per_s: float) -> int:
    """The batch that a plan for this prefill speed takes."""
    room_tokens = prefill_tokens_per_s * TWO_BATCHES_S / 2
    fitting = (size for size in BATCH_SIZES_TOKENS if size <= room_tokens)
    return next(fitting, BATCH_SIZES_TOKENS[-1])


def steps(points: Mapping[int, float], slots: int) -> tuple[float, ...]:
    """Seconds of one step with 1 to `slots` streams, in straight lines between the points known.

    Never less than with fewer streams: that would be an error of a measurement.
    """
    known = sorted(points.items())
    found: list[float] = []
    for streams in range(1, slots + 1):
        below = [point for point in known if point[0] <= streams] or known[:1]
        above = [point for point in known if point[0] > streams]
        (low, low_s), (high, high_s) = below[-1], above[0] if above else below[-1]
        if not above and len(known) > 1:
            (low, low_s), (high, high_s) = known[-2], known[-1]
        slope_s = (high_s - low_s) / (high - low) if high > low else 0.0
        step_s = low_s + slope_s * (streams - low)
        found.append(max(step_s, found[-1] if found else 0.0))
    return tuple(found)
