"""What would be decided of a stored history today: every choice and every judgement anew. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from workhorse.tune.noise import Judgement, Rule, judge, rule_for
from workhorse.tune.search import Finished, Limits, kept_after, next_change
from workhorse.tune.trial import Change, Outcome, Trial
from workhorse.tune.variables import Space

OUTCOMES: dict[Judgement, Outcome] = {
    "better": "accepted",
    "worse": "worse",
    "no difference": "no difference",
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """One stored trial, and what would be done with it."""

    trial: Trial
    asked: Change | Finished  # what would be tried at this place
    outcome: Outcome | None  # what its pairs would be judged to show; None: more were needed
    pairs_needed: int | None  # so many of its pairs would have been enough; None: more were needed

    @property
    def same(self) -> bool:
        """Whether the same would be tried, with the same outcome."""
        return self.asked == self.trial.change and self.outcome == self.trial.outcome


@dataclass(frozen=True, slots=True)
class Replay:
    """A history as it would be decided."""

    steps: tuple[Replayed, ...]
    kept: tuple[Change, ...]  # by the judgements of today
    then: Change | Finished  # what would come after the stored trials


def replay(
    space_of: Callable[[Sequence[Change]], Space],
    trials: Sequence[Trial],
    limits: Limits,
    *,
    pairs_max: int,
) -> Replay:
    """Every trial judged and every choice made anew, on the incumbents that there were.

    `space_of` gives the space around an incumbent, as for the search itself; the time of each trial
    is the stored one. Nothing is started or measured.
    """
    steps = []
    for at, trial in enumerate(trials):
        before = trials[:at]
        asked = next_change(space_of(trial.kept), before, limits)
        rule = rule_for(trial.number, least_gain=limits.least_gain, pairs_max=pairs_max)
        outcome, needed = judged(trial, rule)
        steps.append(Replayed(trial, asked, outcome, needed))
    decided = [replace(s.trial, outcome=s.outcome) for s in steps if s.outcome is not None]
    then = next_change(space_of(kept_after(trials)), trials, limits)
    return Replay(tuple(steps), kept_after(decided), then)


def judged(trial: Trial, rule: Rule) -> tuple[Outcome | None, int | None]:
    """The outcome of a trial's pairs, and how many of them told; what failed stays as it was."""
    if not trial.pairs or trial.outcome not in OUTCOMES.values():
        return trial.outcome, 0
    for count in range(1, len(trial.pairs) + 1):
        said = judge(trial.pairs[:count], rule)
        if said is not None:
            return OUTCOMES[said], count
    return None, None
