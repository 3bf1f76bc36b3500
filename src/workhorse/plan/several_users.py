"""What several engines give together to so many users at a time. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from workhorse.records import Estimate, Plan, StreamSpeed

USERS = (1, 4, 16)


def users_speeds(plans: Sequence[Plan]) -> tuple[StreamSpeed, ...]:
    """The speeds at 1, 4 and 16 users, of each and of all; () where one plan knows none."""
    found = [at_users(plans, users) for users in USERS]
    return tuple(speed for speed in found if speed is not None)


def at_users(plans: Sequence[Plan], users: int) -> StreamSpeed | None:
    """What `users` get when each new one goes to the engine that gains most by it.

    Who finds no free slot waits, so that the speed of each counts the time that others take.
    """
    loads = shared_out(plans, users)
    if loads is None:
        return None
    totals = [total_of(plan, load) for plan, load in zip(plans, loads, strict=True) if load]
    known = [total for total in totals if total is not None]
    together = Estimate(
        sum(total.value for total in known),
        sum(total.low for total in known),
        sum(total.high for total in known),
        "tok/s",
        known[0].basis,
        known[0].source,
    )
    return StreamSpeed(users, scaled(together, 1 / users), together)


def shared_out(plans: Sequence[Plan], users: int) -> list[int] | None:
    """Users on each engine, as a gateway by least expected wait places them."""
    loads = [0] * len(plans)
    for _ in range(users):
        gains = []
        for plan, load in zip(plans, loads, strict=True):
            now, then = total_of(plan, load), total_of(plan, load + 1)
            if then is None:
                return None
            gains.append((then.value - (now.value if now else 0.0), -load / max(1, plan.slots)))
        loads[gains.index(max(gains))] += 1
    return loads


def total_of(plan: Plan, users: int) -> Estimate | None:
    """What one engine gives to all of its users together; None for nobody, or where no speed
    is known. Between the numbers of streams that were forecast a step's time is a line."""
    known = {speed.streams: speed.total_tokens_per_s for speed in plan.forecast.streams}
    if plan.forecast.decode_tokens_per_s is not None:
        known.setdefault(1, plan.forecast.decode_tokens_per_s)
    streams = min(users, plan.slots)
    if not known or streams < 1:
        return None
    if streams in known:
        return known[streams]
    counts = sorted(known)
    below = max((n for n in counts if n < streams), default=counts[0])
    above = min((n for n in counts if n > streams), default=None)
    nearest = known[below]
    if above is None:  # beyond the last: as the last two go on
        above, below = below, max((n for n in counts if n < below), default=below)
    return scaled(nearest, total_between(known, below, above, streams) / nearest.value)


def total_between(known: dict[int, Estimate], below: int, above: int, streams: int) -> float:
    """Tokens a second of all by the line through the step times of two numbers of streams."""
    first, last = below / known[below].value, above / known[above].value
    slope = 0.0 if above == below else (last - first) / (above - below)
    return streams / (first + slope * (streams - below))


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """The same estimate, times `factor`."""
    return replace(
        estimate,
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=estimate.high * factor,
    )
