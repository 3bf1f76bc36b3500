"""What `fleet plan` answers: how the boxes do that are there, how many of each it takes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.fleet.capacity import Box, Boxes, Goals, Load, Outcome, Progress, assess
from workhorse.fleet.queue_simulation import Rules
from workhorse.fleet.sizing import Most, Needed, most_load, needed


@dataclass(frozen=True, slots=True)
class Answer:
    """How some boxes do under a load, how much of it they take, and how many of each it takes."""

    load: Load
    goals: Goals
    outcome: Outcome | None  # of the boxes that are there; None: none are
    most: Most | None  # of them; None: none are, or they take not even a hundredth
    alone: tuple[Needed, ...]  # how many of each kind, of that kind alone
    beside: tuple[Needed, ...]  # how many more of each kind, where those there do not do


def answer(
    there: Sequence[Boxes],
    kinds: Sequence[Box],
    load: Load,
    goals: Goals,
    rules: Rules,
    seeds: int,
    progress: Progress = lambda _done, _total: None,
) -> Answer:
    """Simulate what is there, then search."""
    parts = (2 if there else 0) + len(kinds) * (2 if there else 1)
    part = 0

    def step(done: int, total: int | None) -> None:
        progress(round(100 * (part + done / (total or 1))), 100 * parts)

    outcome = most = None
    if there:
        outcome = assess(there, load, goals, seeds=seeds, rules=rules, progress=step)
        part += 1
        most = most_load(there, load, goals, rules=rules, progress=step)
        part += 1
    alone: list[Needed] = []
    beside: list[Needed] = []
    for box in kinds:
        alone.append(needed(box, load, goals, seeds=seeds, rules=rules, progress=step))
        part += 1
        if outcome is not None and not outcome.holds:
            beside.append(
                needed(box, load, goals, beside=there, seeds=seeds, rules=rules, progress=step)
            )
            part += 1
    return Answer(load, goals, outcome, most, tuple(alone), tuple(beside))
