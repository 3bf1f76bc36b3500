"""How many boxes a load takes, and how much load some boxes take. Pure.

Searched by simulating with one seed, then confirmed with all of them. What an idle fleet could not
do either is told without a search: more boxes read no prompt and write no answer faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workhorse.fleet.capacity import (
    Box,
    Boxes,
    Goals,
    Limit,
    Load,
    Outcome,
    Progress,
    assess,
    groups_of,
)
from workhorse.fleet.queue_formulae import fleet_line
from workhorse.fleet.queue_simulation import Rules

BOXES_MOST = 10_000
# The search looks at so many requests a time, the answer at more.
REQUESTS_TRIED = 5_000
# A number of users or a rate is found to this share.
SHARE_FOUND = 0.02
# Chance may refuse what the search found: so often one box in fifty more is tried.
CONFIRMED_MOST = 6
# How much of a load is looked for, at most and at least.
SHARE_MOST, SHARE_LEAST = 1024.0, 0.01
# A fleet with more slots is tried as a part of it, with that part of the load.
SLOTS_TRIED = 4_000
# Beyond it a line lasts for hours after any disturbance, and one lost box tips it: our judgement.
BUSY_MOST = 0.95
STEPS_EXPECTED = 12  # of a search, for the bar


@dataclass(frozen=True, slots=True)
class Needed:
    """How many boxes of one kind a load takes, beside those that are there."""

    box: Box
    beside: tuple[Boxes, ...]
    count: int | None  # None: no number of them does it
    outcome: Outcome | None  # with that number
    limit: Limit  # what the number follows from, or why there is none
    at_least: int | None  # by the formulae: fewer do not keep up; None: not told


@dataclass(frozen=True, slots=True)
class Most:
    """How much of a load some boxes take: `share` of what was asked, and the load itself."""

    share: float
    load: Load
    limit: Limit  # what fails first beyond it


def needed(
    box: Box,
    load: Load,
    goals: Goals,
    *,
    beside: Sequence[Boxes] = (),
    seeds: int = 5,
    rules: Rules | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Needed:
    """The smallest number of these boxes with which the load's goals are met."""
    there = tuple(beside)
    hopeless = out_of_reach(box, load, goals)
    if hopeless is not None:
        return Needed(box, there, None, None, hopeless, None)
    at_least = fewest(box, load, there)
    steps = 0
    failed: dict[int, Limit] = {}

    def holds(count: int, *, sure: bool = False) -> Outcome | None:
        nonlocal steps
        steps += 1
        progress(min(steps, STEPS_EXPECTED - 1), STEPS_EXPECTED)
        boxes = (*there, Boxes(box, count))
        found = (
            assess(boxes, load, goals, seeds=seeds, rules=rules)
            if sure
            else tried(boxes, load, goals, rules)
        )
        if not found.holds:
            failed[count] = found.limit
        return found if found.holds else None

    count = smallest(lambda number: holds(number) is not None, at_least or 1, BOXES_MOST)
    for _ in range(CONFIRMED_MOST):
        if count is None:
            break
        outcome = holds(count, sure=True)
        if outcome is not None:
            why = failed.get(count - 1, "slots")
            return Needed(box, there, count, outcome, why, at_least)
        count += max(1, count // 50)
    last: Limit = failed[max(failed)] if failed else "slots"
    return Needed(box, there, None, None, last, at_least)


def out_of_reach(box: Box, load: Load, goals: Goals) -> Limit | None:
    """What even an idle box of this kind does too slowly; None: nothing."""
    fastest = max(one.prefill_tokens_per_s for one in box.replicas)
    if load.computed_prompt.p95_tokens / fastest > goals.first_token_s:
        return "prefill"
    alone = max(1 / one.step_s[0] for one in box.replicas)
    return "decode" if alone < goals.stream_tokens_per_s else None


def fewest(box: Box, load: Load, beside: Sequence[Boxes]) -> int | None:
    """The number that keeps up with the requests, a little left over; None for closed loads."""
    if load.requests_per_s is None:
        return None
    prompt, output = load.computed_prompt.moments, load.output.moments

    def keeps_up(count: int) -> bool:
        groups = groups_of((*beside, Boxes(box, count)))
        pairs = [(group.speeds, group.replicas) for group in groups]
        return (
            fleet_line(pairs, load.requests_per_s or 0.0, prompt, output).utilisation <= BUSY_MOST
        )

    return smallest(keeps_up, 1, 100 * BOXES_MOST)


def smallest(good: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest number from `least` on that is good, where all larger ones are; None: none."""
    bad, number = least - 1, least
    while not good(number):
        if number >= most:
            return None
        bad, number = number, min(most, max(number + 1, number * 3 // 2))
    while number - bad > max(1, number // 200):
        middle = (bad + number) // 2
        if good(middle):
            number = middle
        else:
            bad = middle
    return number


def most_load(
    boxes: Sequence[Boxes],
    load: Load,
    goals: Goals,
    *,
    rules: Rules | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Most | None:
    """The largest multiple of the load that these boxes take; None: not even a hundredth."""
    steps = 0
    limits: dict[float, Limit] = {}

    def holds(share: float) -> bool:
        nonlocal steps
        steps += 1
        progress(min(steps, STEPS_EXPECTED - 1), STEPS_EXPECTED)
        found = tried(boxes, load.times(share), goals, rules)
        limits[share] = found.limit
        return found.holds

    low, high = 0.0, most_possible(boxes, load)
    while holds(high):
        low, high = high, high * 2
        if high > SHARE_MOST or not load.closed:
            return Most(low, load.times(low), "slots")
    while high - low > SHARE_FOUND * high and high > SHARE_LEAST:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Most(low, load.times(low), limits.get(high, "slots")) if low > 0 else None


def most_possible(boxes: Sequence[Boxes], load: Load) -> float:
    """Where to begin: as much as keeps every slot at work; of a closed load, what is asked."""
    if load.requests_per_s is None:
        return 1.0
    pairs = [(group.speeds, group.replicas) for group in groups_of(boxes)]
    prompt, output = load.computed_prompt.moments, load.output.moments
    return BUSY_MOST / fleet_line(pairs, load.requests_per_s, prompt, output).utilisation


def tried(boxes: Sequence[Boxes], load: Load, goals: Goals, rules: Rules | None) -> Outcome:
    """How boxes do, by one seed and few requests; a large fleet by a part of it."""
    part, by = shrunk(boxes)
    rules = shrunk_rules(rules or Rules(), by)
    return assess(part, load.times(1 / by), goals, seeds=1, counted=REQUESTS_TRIED, rules=rules)


def shrunk(boxes: Sequence[Boxes]) -> tuple[tuple[Boxes, ...], int]:
    """A part of a large fleet that stands for all of it, and how often it is in it.

    A line in front of thousands of slots behaves as one in front of more thousands.
    """
    slots = sum(one.box.slots * one.count for one in boxes)
    by = max(1, min(slots // SLOTS_TRIED, *(one.count // 10 for one in boxes)))
    return tuple(Boxes(one.box, round(one.count / by)) for one in boxes), by


def shrunk_rules(rules: Rules, by: int) -> Rules:
    """The line of such a part."""
    if rules.queue_length is None:
        return rules
    return Rules(max(1, rules.queue_length // by), rules.longest_wait_s)
