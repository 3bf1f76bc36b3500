"""What is tried next follows from what was tried: one variable at a time, and to an end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from response_surfaces import beside_card, many_users, quiet
from simulated_runs import tune

from workhorse.text import same
from workhorse.tune.search import Finished, Limits, is_second_look, kept_after, next_change
from workhorse.tune.trial import Change, Outcome, Pair, Trial, together
from workhorse.tune.variables import Choice, Space, Variable


def variable(
    name: str,
    values: str,
    now: str,
    *,
    ordered: bool = False,
    expected: dict[str, float] | None = None,
) -> Variable:
    told = expected or {}
    choices = tuple(Choice(value, told.get(value)) for value in values.split())
    return Variable(name, now, now, choices, ordered, same(""))


def trial(
    number: int, name: str, value: str, outcome: Outcome, ratio: float | None = None, **more: object
) -> Trial:
    made = Trial(number, Change(name, value), (), (), outcome, ratio, None, None, 10.0, same(""))
    return replace(made, **more)  # type: ignore[arg-type]


def asked(space: Space, *trials: Trial, limits: Limits | None = None) -> Change | Finished:
    return next_change(space, trials, limits or Limits())


SPIN = variable("spin", "bounded default", "bounded")
THREADS = variable("threads", "2 4 6 8 10 12 14", "8", ordered=True)


def test_the_value_just_left_is_not_tried_again_until_another_variable_has_moved() -> None:
    moved = replace(SPIN, now="default")
    first = trial(1, "spin", "default", "accepted", 1.03)
    assert isinstance(asked(Space((moved,)), first), Finished)
    other = trial(2, "threads", "6", "accepted", 1.2, kept=(Change("spin", "default"),))
    at_six = replace(THREADS, now="6", choices=THREADS.choices[2:3])
    assert asked(Space((moved, at_six)), first, other) == Change("spin", "bounded")
    # It was far behind when it was left.
    far = replace(first, ratio=1.5)
    assert isinstance(asked(Space((moved, at_six)), far, other), Finished)


# ------------------------------------------------------------------ an ordered variable


@given(
    st.integers(2, 9).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(0, n - 1), st.integers(0, n - 1))
    )
)
def test_the_peak_is_found_from_anywhere(shape: tuple[int, int, int]) -> None:
    count, peak, now = shape
    trials: list[Trial] = []
    while True:
        values = [str(at) for at in range(count)]
        line = Variable(
            "threads", str(now), values[now], tuple(map(Choice, values)), True, same("")
        )
        here = now
        for done in trials:
            if done.outcome == "accepted":
                here = int(done.change.value)
        line = replace(line, now=values[here])
        step = asked(Space((line,)), *trials)
        if isinstance(step, Finished):
            break
        at = int(step.value)
        better = abs(at - peak) < abs(here - peak)
        trials.append(
            trial(
                len(trials) + 1, "threads", step.value, "accepted" if better else "worse",
                1.1 if better else 0.9, kept=(Change("threads", values[here]),),
            )
        )  # fmt: skip
    # Both sides of a peak may look alike; what is left is next to it at most.
    assert abs(here - peak) <= 1 or abs(here - peak) <= abs(now - peak) / 2
    assert len(trials) <= 2 * count.bit_length() + 2


@pytest.mark.parametrize("outcome", ["crashed", "out of memory", "wrong output"])
def test_nothing_beyond_a_cliff_is_tried(outcome: Outcome) -> None:
    tried = [trial(1, "threads", "10", outcome)]
    seen = set()
    while not isinstance(step := asked(Space((THREADS,)), *tried), Finished):
        seen.add(step.value)
        tried.append(trial(len(tried) + 1, "threads", step.value, "worse", 0.9))
    assert seen <= {"2", "4", "6"}
    assert seen


# ------------------------------------------------------------------ what is left out


def test_what_the_forecast_rules_out_is_not_tried() -> None:
    space = Space((variable("kv", "f16 q8_0", "f16", expected={"q8_0": 0.7}),))
    step = asked(space)
    assert isinstance(step, Finished)
    assert (step.reason, step.kept) == ("forecast", ())


def test_a_forecast_that_was_wrong_in_this_run_rules_less_out() -> None:
    space = Space((variable("kv", "f16 q8_0", "f16", expected={"q8_0": 0.8}),))
    wrong = [trial(n, "threads", str(n), "no difference", 1.0, expected=0.75) for n in range(1, 4)]
    assert isinstance(asked(space), Finished)
    assert asked(space, *wrong) == Change("kv", "q8_0")


def test_what_the_bandwidth_does_not_allow_is_not_tried() -> None:
    choices = (Choice("f16", 1.0), Choice("q8_0", 1.2, most_tokens_per_s=90.0))
    space = Space((Variable("kv", "f16", "f16", choices, False, same("")), SPIN))
    assert asked(space) == Change("kv", "q8_0")  # nothing was measured yet
    before = trial(1, "spin", "default", "worse", 0.9, pairs=(Pair(90.0, 100.0),))
    assert isinstance(asked(space, before), Finished)


def test_what_does_not_fit_alone_is_not_tried_alone() -> None:
    choices = (Choice("1"), Choice("2", 1.5, fits=False))
    space = Space((Variable("gpu layers", "1", "1", choices, True, same("")),))
    assert isinstance(asked(space), Finished)


# ------------------------------------------------------------------ the order


def test_one_variable_is_finished_before_the_next() -> None:
    space = Space((SPIN, THREADS))
    first = trial(1, "threads", "12", "worse", 0.9)
    step = asked(space, first)
    assert isinstance(step, Change)
    assert step.variable == "threads"


def test_a_variable_is_looked_at_again_when_another_one_has_changed() -> None:
    load = variable("load", "none mmap", "none")
    changed = replace(SPIN, now="default")
    history = [
        trial(1, "load", "mmap", "no difference", 0.99),
        trial(2, "spin", "default", "accepted", 1.1),
        trial(3, "spin", "bounded", "worse", 0.9),
    ]
    step = asked(Space((load, changed)), *history)
    assert step == Change("load", "mmap")
    assert is_second_look(history, Change("load", "mmap"))
    assert not is_second_look(history, Change("spin", "bounded"))
    far_behind = [replace(history[0], ratio=0.6), *history[1:]]
    assert isinstance(asked(Space((load, changed)), *far_behind), Finished)


def test_what_was_accepted_is_kept_the_last_of_each_variable() -> None:
    both = together(Change("gpu layers", "24"), Change("kv", "q8_0"))
    trials = [
        trial(1, "threads", "12", "accepted"),
        trial(2, "kv", "q4_0", "worse"),
        replace(trial(3, "", "", "accepted"), change=both),
        trial(4, "threads", "14", "accepted"),
    ]
    assert kept_after(trials) == (
        Change("gpu layers", "24"), Change("kv", "q8_0"), Change("threads", "14"),
    )  # fmt: skip


# ------------------------------------------------------------------ over a cliff


def test_what_does_not_fit_is_tried_with_what_makes_room() -> None:
    layers = Variable(
        "gpu layers", "20", "20",
        (Choice("20", 1.0, n_bytes=1000), Choice("24", 1.2, n_bytes=1200)), True, same(""),
    )  # fmt: skip
    kv = Variable(
        "kv", "f16", "f16", (Choice("f16", 1.0, n_bytes=1000), Choice("q8_0", 0.99, n_bytes=700)),
        False, same(""),
    )  # fmt: skip
    history = [
        trial(1, "gpu layers", "24", "out of memory"),
        trial(2, "kv", "q8_0", "worse", 0.98),
    ]
    step = asked(Space((layers, kv)), *history)
    assert step == Change("gpu layers + kv", "24 + q8_0")
    assert is_second_look(history, step)
    failed = replace(trial(3, "", "", "out of memory"), change=step)
    assert isinstance(asked(Space((layers, kv)), *history, failed), Finished)


# ------------------------------------------------------------------ ends and resumes


def test_the_budget_ends_it() -> None:
    space, first = Space((THREADS,)), trial(1, "threads", "12", "worse", 0.9)
    step = asked(space, first, limits=Limits(budget_s=12.0))
    assert isinstance(step, Finished)
    assert step.reason == "budget"
    assert isinstance(asked(space, first, limits=Limits(budget_s=100.0)), Change)
    later = next_change(space, [first], Limits(budget_s=100.0), spent_s=99.0)
    assert isinstance(later, Finished)


def test_the_number_of_trials_ends_it() -> None:
    step = asked(
        Space((THREADS,)), trial(1, "spin", "default", "worse"), limits=Limits(trials_max=1)
    )
    assert isinstance(step, Finished)
    assert step.reason == "trials"


@pytest.mark.parametrize("family", [beside_card, many_users])
def test_a_history_cut_anywhere_goes_on_the_same_way(family: object) -> None:
    surface = family(5, quiet)  # type: ignore[operator]
    run = tune(surface, Limits())
    assert len(run.trials) > 5
    for at, done in enumerate(run.trials):
        before = run.trials[:at]
        assert next_change(surface.space(kept_after(before)), before, Limits()) == done.change
