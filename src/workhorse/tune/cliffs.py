"""Values that did not fit, tried together with a value of another variable that takes less. Pure.

One variable at a time ends at the edge of the memory: one more layer does not fit, and a smaller KV
type alone is a little slower. Both together may be faster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workhorse.tune.trial import Change, Trial, together
from workhorse.tune.variables import Choice, Space, Variable

NO_ROOM = ("out of memory", "refused")
# What a value is taken to cost that was never measured and that no forecast knows.
COST_USUAL = 0.98
# What a step beyond the edge is taken to give where no forecast knows.
GAIN_USUAL = 1.03
# How far the product of both may be off: what acts together is not known.
PAIRING_ERROR = 0.05
# So many pairs are tried at one edge before it is left alone.
TRIES = 4


@dataclass(frozen=True, slots=True)
class Pairing:
    """A value beyond the edge, one that makes room for it, and what both promise."""

    change: Change
    edge: str  # the variable that is at its edge
    promise: float


def over_the_cliff(space: Space, trials: Sequence[Trial]) -> Change | None:
    """The most promising pair of changes that was not tried around this incumbent; None: none."""
    since = after_last_accepted(trials)
    tried = {trial.change for trial in since}
    left = [
        pairing
        for variable in space.variables
        if sum(is_pair_of(trial, variable.name) for trial in since) < TRIES
        for pairing in pairings(space, variable, trials)
        if pairing.change not in tried
    ]
    return max(left, key=lambda pairing: pairing.promise).change if left else None


def is_pair_of(trial: Trial, name: str) -> bool:
    """Whether a trial took this variable over its edge."""
    parts = trial.change.parts
    return len(parts) > 1 and parts[0].variable == name


def after_last_accepted(trials: Sequence[Trial]) -> Sequence[Trial]:
    """The trials around the incumbent of now."""
    accepted = [at for at, trial in enumerate(trials) if trial.outcome == "accepted"]
    return trials[accepted[-1] + 1 :] if accepted else trials


def pairings(space: Space, edge: Variable, trials: Sequence[Trial]) -> Iterator[Pairing]:
    """Each value of `edge` that did not fit, with each value of another one that takes less."""
    refused = least_refused(space, trials)
    for beyond in without_room(edge, trials):
        gain = beyond.expected or GAIN_USUAL
        for other in space.variables:
            if other.name == edge.name:
                continue
            for choice in other.choices:
                cost = cost_of(other, choice, trials)
                if (
                    not choice.fits
                    or gain * cost * (1 + PAIRING_ERROR) < 1
                    or not takes_less(other, choice)
                ):
                    continue
                taken = taken_together((edge, beyond), (other, choice))
                if taken is not None and refused is not None and taken >= refused:
                    continue
                change = together(Change(edge.name, beyond.value), Change(other.name, choice.value))
                yield Pairing(change, edge.name, gain * cost)


def without_room(edge: Variable, trials: Sequence[Trial]) -> list[Choice]:
    """The values that did not fit; of an ordered variable all beyond the first on either side."""
    latest = {t.change.value: t.outcome for t in trials if t.change.variable == edge.name}
    failed = {value for value, outcome in latest.items() if outcome in NO_ROOM}
    failed |= {choice.value for choice in edge.choices if not choice.fits}
    failed.discard(edge.now)
    if not edge.ordered:
        return [choice for choice in edge.choices if choice.value in failed]
    now = edge.values.index(edge.now)
    places = [edge.values.index(value) for value in failed if value in edge.values]
    above, below = [p for p in places if p > now], [p for p in places if p < now]
    first_above, first_below = min(above, default=len(edge.values)), max(below, default=-1)
    return [c for at, c in enumerate(edge.choices) if at >= first_above or at <= first_below]


def cost_of(variable: Variable, choice: Choice, trials: Sequence[Trial]) -> float:
    """What a value was seen to leave of the speed, else what the forecast says of it."""
    if choice.value == variable.now:
        return 0.0
    alone = Change(variable.name, choice.value)
    seen = [
        t.ratio if t.change == alone else 1 / t.ratio
        for t in trials
        if t.ratio is not None
        and (
            (t.change == alone and stood(variable, t) == variable.now)
            or (t.change.value == variable.now and left(variable, t, choice))
        )
    ]
    return seen[-1] if seen else choice.expected or COST_USUAL


def stood(variable: Variable, trial: Trial) -> str:
    """The variable's value when this trial began."""
    kept = [change.value for change in trial.kept if change.variable == variable.name]
    return kept[-1] if kept else variable.start


def left(variable: Variable, trial: Trial, choice: Choice) -> bool:
    """Whether this trial moved the variable away from the value: it was measured as well."""
    return (
        trial.outcome == "accepted"
        and trial.change.variable == variable.name
        and stood(variable, trial) == choice.value
    )


def takes_less(variable: Variable, choice: Choice) -> bool:
    """Whether a value takes less memory than the incumbent's."""
    now = variable.choice_now.n_bytes
    return now is not None and choice.n_bytes is not None and choice.n_bytes < now


def taken_together(*chosen: tuple[Variable, Choice]) -> int | None:
    """The memory of all these values together; None where one is not known."""
    total = chosen[0][0].choice_now.n_bytes
    for variable, choice in chosen:
        now = variable.choice_now.n_bytes
        if total is None or now is None or choice.n_bytes is None:
            return None
        total += choice.n_bytes - now
    return total


def least_refused(space: Space, trials: Sequence[Trial]) -> int | None:
    """The least memory of which it is known that there is not so much, around this incumbent."""
    values = {
        choice.n_bytes
        for variable in space.variables
        for choice in variable.choices
        for trial in after_last_accepted(trials)
        if trial.outcome in NO_ROOM and trial.change == Change(variable.name, choice.value)
    }
    return min((n for n in values if n is not None), default=None)


def memory_freed(space: Space, later: Sequence[Trial]) -> bool:
    """Whether a variable that takes memory has changed in these trials."""
    changed = {p.variable for t in later if t.outcome == "accepted" for p in t.change.parts}
    return any(
        len({choice.n_bytes for choice in variable.choices}) > 1
        for variable in space.variables
        if variable.name in changed
    )
