"""A whole run of the tuner against an engine that is known, without any clock or process."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from response_surfaces import Surface

from workhorse.text import same
from workhorse.tune.noise import LOOKS, PAIRS_MAX, Rule, figures, judge, rule_for
from workhorse.tune.search import (
    Finished,
    Limits,
    is_second_look,
    kept_after,
    next_change,
)
from workhorse.tune.trial import Change, Outcome, Pair, Trial
from workhorse.tune.variables import Space

OUTCOMES: dict[str, Outcome] = {
    "better": "accepted",
    "worse": "worse",
    "no difference": "no difference",
}


@dataclass(frozen=True)
class Run:
    """What came of it."""

    surface: Surface
    trials: tuple[Trial, ...]
    finished: Finished

    @property
    def of_best(self) -> float:
        """The true speed that was found, as a share of the highest of all combinations."""
        return (
            self.surface.speed(self.surface.at(self.finished.kept)) or 0.0
        ) / self.surface.best()

    @property
    def of_all(self) -> float:
        """Trials as a share of all combinations."""
        return len(self.trials) / self.surface.size

    @property
    def pairs(self) -> int:
        """Pairs that were measured in all."""
        return sum(len(trial.pairs) for trial in self.trials)


def tune(surface: Surface, limits: Limits, pairs_max: int = PAIRS_MAX) -> Run:
    """The search until it is finished; each value tried is one trial, whatever came of it."""
    trials: list[Trial] = []
    while True:
        kept = kept_after(trials)
        step = next_change(surface.space(kept), trials, limits)
        if isinstance(step, Finished):
            return Run(surface, tuple(trials), step)
        trials.append(tried(surface, step, trials, pairs_max))


def forecast(space: Space, change: Change) -> float | None:
    """What the space says of a change."""
    of = {(v.name, c.value): c.expected for v in space.variables for c in v.choices}
    return of.get((change.variable, change.value))


def tried(surface: Surface, change: Change, before: list[Trial], pairs_max: int) -> Trial:
    """One trial: the engine runs out of memory, or is measured until it is judged."""
    kept, number = kept_after(before), len(before) + 1
    here, there = surface.speed(surface.at(kept)), surface.speed(surface.at((*kept, change)))
    second = is_second_look(before, change)
    if here is None or there is None:
        return Trial(
            number, change, kept, (), "out of memory", None, None, None, 5.0, same(""), second
        )
    draw = random.Random(f"{surface.name} {surface.seed} {number}")
    rule = rule_for(number, pairs_max=pairs_max)
    pairs, said = decided(surface.noise.pairs(there / here, draw), rule)
    ratio, interval = figures(pairs)
    return Trial(
        number, change, kept, pairs, OUTCOMES[said], ratio, interval,
        forecast(surface.space(kept), change),
        float(len(pairs)), same(""), second,
    )  # fmt: skip


def decided(pairs: Iterable[Pair], rule: Rule) -> tuple[tuple[Pair, ...], str]:
    """Pairs until the rule has an answer, and the answer."""
    seen: list[Pair] = []
    for pair in islice(pairs, rule.pairs_max):
        seen.append(pair)
        if len(seen) in LOOKS or len(seen) == rule.pairs_max:  # else it says what it said before
            said = judge(seen, rule)
            if said is not None:
                return tuple(seen), said
    raise AssertionError("the rule did not end")
