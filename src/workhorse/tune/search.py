"""From what was tried to what is tried next: a fold over the history, so it can be resumed. Pure.

One variable at a time, those that promise most first. Along an ordered variable the best value is
closed in from both sides, as a figure that rises to one peak allows; a value that crashed, ran out
of memory or gave wrong output closes everything beyond it. What the forecast or the memories'
bandwidth rules out is not tried. When every variable was looked at, those that were settled before
another one changed are looked at again, near where they stand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from workhorse.text import Text
from workhorse.tune.cliffs import left, memory_freed, over_the_cliff, stood
from workhorse.tune.trial import Change, Trial
from workhorse.tune.variables import Choice, Space, Variable

# How far the forecast's ratio between two plans may be off. Two plans for one machine share most of
# their errors; what trials of this run show beyond it widens it.
FORECAST_ERROR = 0.15
# What a memory's measured or rated bandwidth may be too low by.
CEILING_ERROR = 0.05
# A value this much behind is looked at again when other variables have changed.
NEAR = 0.93
Reason = Literal["tried", "forecast", "budget", "trials"]
BEYOND = ("crashed", "out of memory", "wrong output", "refused")


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, and which gain is worth a trial."""

    budget_s: float | None = None  # None: until nothing is left
    trials_max: int = 200
    least_gain: float = 0.01


@dataclass(frozen=True, slots=True)
class Finished:
    """The search is over: `kept` is the best that was found, as changes to the start plan."""

    reason: Reason
    why: Text
    kept: tuple[Change, ...]


def kept_after(trials: Sequence[Trial]) -> tuple[Change, ...]:
    """The incumbent after these trials: the last accepted value of each variable."""
    kept: dict[str, Change] = {}
    for trial in trials:
        if trial.outcome == "accepted":
            for part in trial.change.parts:
                kept.pop(part.variable, None)
                kept[part.variable] = part
    return tuple(kept.values())


def next_change(
    space: Space, trials: Sequence[Trial], limits: Limits, *, spent_s: float | None = None
) -> Change | Finished:
    """What to try next after these trials, or why it is over.

    `space` is the one around the incumbent of `kept_after(trials)`; `spent_s` what the run has
    taken, by default what its trials took. The same arguments give the same answer.
    """
    kept = kept_after(trials)
    over = limit_reached(trials, limits, spent_s)
    if over is not None:
        return Finished(*over, kept)
    search = Search(space, tuple(trials), limits)
    for variable in search.in_turn():
        choice = search.best_open(variable)
        if choice is not None:
            return Change(variable.name, choice.value)
    joint = over_the_cliff(space, trials)
    if joint is not None:
        return joint
    if search.ruled_out():
        return Finished(
            "forecast",
            Text(
                "What was not tried cannot give more, by the forecast.",
                "按预测，未试的取值都不会更快。",
            ),
            kept,
        )
    return Finished(
        "tried", Text("Everything that may give more was tried.", "可能更快的取值均已试过。"), kept
    )


def is_second_look(trials: Sequence[Trial], change: Change) -> bool:
    """Whether a variable is looked at again because others have changed since: `second_pass`."""
    if len(change.parts) > 1:
        return True
    since = changed_since(trials, change.variable)
    return any(t.change.variable == change.variable for t in trials[:since])


def limit_reached(
    trials: Sequence[Trial], limits: Limits, spent_s: float | None
) -> tuple[Reason, Text] | None:
    """The limit that another trial would break; None: none."""
    if len(trials) >= limits.trials_max:
        n = limits.trials_max
        return "trials", Text(f"{n} trials were asked for at most.", f"已达上限 {n} 次试验。")
    if limits.budget_s is None:
        return None
    spent = sum(trial.took_s for trial in trials) if spent_s is None else spent_s
    usual = median(trial.took_s for trial in trials) if trials else 0.0
    if spent + usual / 2 < limits.budget_s:
        return None
    return "budget", Text(
        f"The time is used up: {spent:.0f} of {limits.budget_s:.0f} s.",
        f"时间已用完：{limits.budget_s:.0f} 秒中的 {spent:.0f} 秒。",
    )


def changed_since(trials: Sequence[Trial], variable: str) -> int:
    """The number of trials after which no other variable changed any more."""
    others = [
        at
        for at, trial in enumerate(trials)
        if trial.outcome == "accepted" and trial.change.variable != variable
    ]
    return others[-1] + 1 if others else 0


@dataclass(frozen=True, slots=True)
class Search:
    """One step of the search."""

    space: Space
    trials: tuple[Trial, ...]
    limits: Limits

    def in_turn(self) -> list[Variable]:
        """The variables, the one being tried first, then new ones, then those to look at again."""
        last = self.trials[-1].change.variable if self.trials else None
        tried = {trial.change.variable for trial in self.trials}
        return sorted(self.space.variables, key=lambda v: (v.name != last, v.name in tried))

    def of(self, variable: Variable) -> tuple[list[Trial], list[Trial]]:
        """Its trials before the others changed, and since."""
        since = changed_since(self.trials, variable.name)
        mine = [(at, t) for at, t in enumerate(self.trials) if t.change.variable == variable.name]
        return [t for at, t in mine if at < since], [t for at, t in mine if at >= since]

    def best_open(self, variable: Variable) -> Choice | None:
        """The value to try next of this variable; None: nothing is left of it."""
        before, since = self.of(variable)
        tried = {t.change.value for t in since} | {variable.now}
        # What it stood at before it was moved was measured beside the better one.
        tried |= {stood(variable, t) for t in since if t.outcome == "accepted"}
        if variable.ordered:
            choices = self.between(variable, before, since)
        else:
            choices = [c for c in variable.choices if not before or was_near(variable, before, c)]
        choices = [c for c in choices if c.fits and c.value not in tried and not self.hopeless(c)]
        if not choices:
            return None
        if variable.ordered:
            return self.halving(variable, choices)
        return max(choices, key=lambda c: (c.expected or 1.0, -variable.values.index(c.value)))

    def between(
        self, variable: Variable, before: Sequence[Trial], since: Sequence[Trial]
    ) -> list[Choice]:
        """Values that may still be the peak of an ordered variable."""
        values, now = variable.values, variable.values.index(variable.now)
        low, high = -1, len(values)
        for trial in (*before, *since):
            if trial.change.value not in values:
                continue
            at = values.index(trial.change.value)
            # What stands and falls with other variables counts only while they stay: a cliff stays.
            if trial in since or self.still_closed(trial):
                if at < now:
                    low = max(low, at)
                elif at > now:
                    high = min(high, at)
        for trial in since:  # where it stood before it moved is behind as well
            if trial.outcome == "accepted":
                before_it = stood(variable, trial)
                old = values.index(before_it) if before_it in values else now
                if old != now:
                    low, high = (max(low, old), high) if old < now else (low, min(high, old))
        if before:
            low, high = max(low, now - 2), min(high, now + 2)
        return [c for at, c in enumerate(variable.choices) if low < at < high]

    def still_closed(self, trial: Trial) -> bool:
        """Whether a value that could not be run cannot be run now either."""
        if trial.outcome in ("out of memory", "refused"):
            return not memory_freed(self.space, self.trials[trial.number :])
        return trial.outcome in BEYOND

    def halving(self, variable: Variable, left: Sequence[Choice]) -> Choice:
        """The value that promises most; where the forecast cannot tell, the middle of the longer
        side of what is left."""
        if any(choice.expected is not None and choice.expected != 1.0 for choice in left):
            return max(left, key=lambda c: c.expected or 1.0)
        now = variable.values.index(variable.now)
        places = [variable.values.index(choice.value) for choice in left]
        above, below = [p for p in places if p > now], [p for p in places if p < now]
        side = above if len(above) >= len(below) else below[::-1]
        return variable.choices[side[len(side) // 2]]

    def hopeless(self, choice: Choice) -> bool:
        """Whether forecast or bandwidth say that this value cannot be better."""
        worth = 1 + self.limits.least_gain
        if choice.expected is not None and choice.expected * (1 + self.error()) < worth:
            return True
        speed = self.incumbent_speed()
        most = choice.most_tokens_per_s
        return most is not None and speed is not None and most * (1 + CEILING_ERROR) < speed * worth

    def error(self) -> float:
        """How far the forecast's ratios are off, by what this run has shown of them."""
        seen = [
            abs(math.log(t.ratio / t.expected))
            for t in self.trials
            if t.ratio is not None and t.expected is not None
        ]
        return max(FORECAST_ERROR, 2 * median(seen) if len(seen) > 2 else 0.0)

    def incumbent_speed(self) -> float | None:
        """What the incumbent reached lately, tok/s; None before anything was measured."""
        for trial in reversed(self.trials):
            if trial.pairs:
                if trial.outcome == "accepted":
                    return median(pair.candidate for pair in trial.pairs)
                return median(pair.incumbent for pair in trial.pairs)
        return None

    def ruled_out(self) -> bool:
        """Whether the forecast kept any value from being tried."""
        tried = {(t.change.variable, t.change.value) for t in self.trials}
        return any(
            self.hopeless(choice)
            for variable in self.space.variables
            for choice in variable.choices
            if choice.value != variable.now and (variable.name, choice.value) not in tried
        )


def was_near(variable: Variable, before: Sequence[Trial], choice: Choice) -> bool:
    """Whether the value was not far behind when it was tried, or left for a better one."""
    ratios = [
        t.ratio if t.change.value == choice.value else 1 / t.ratio
        for t in before
        if t.ratio is not None and (t.change.value == choice.value or left(variable, t, choice))
    ]
    return bool(ratios) and ratios[-1] >= NEAR
