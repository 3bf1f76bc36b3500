"""One trial on fake engines: what a candidate may do, and what becomes of it."""

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from fake_bed import fake_server, plan_on, rule, speak_as_told, two_cores

import builders
from workhorse.bench import load
from workhorse.bench.load import load_session
from workhorse.bench.service import Service
from workhorse.errors import AppError
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Estimate, Machine, Plan, Run
from workhorse.records.plan import Drafts
from workhorse.text import Text
from workhorse.tune.experiment import Arena, Rules, Seen
from workhorse.tune.load import both_fit, scenario_for_goal
from workhorse.tune.trial import Goal, Pair
from workhorse.units import GIB, MIB

FASTER = rule(threads="1", speed_times=8.0)
HANG_AFTER_S = 6.0


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of 40 tokens is 160 ms of the fake engine."""
    monkeypatch.setattr("workhorse.tune.load.MOST_OUTPUT_TOKENS", 40)
    speak_as_told(monkeypatch)


def impatient(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A candidate that never gets ready, or is silent, need not be waited for long."""
    if fault == "hang":
        monkeypatch.setattr(Arena, "_ready_s", lambda *_: HANG_AFTER_S)
    if fault == "stall":
        monkeypatch.setattr("workhorse.tune.experiment.LEAST_SLOW_S", HANG_AFTER_S)


@asynccontextmanager
async def arena(
    folder: Path,
    plan: Plan,
    machine: Machine,
    on_pair: Callable[[Sequence[Pair]], None] = lambda _: None,
    goal: Goal = "decode",
    **more: float,
) -> AsyncIterator[Arena]:
    """An arena with the plan as its incumbent."""
    rules = Rules(goal, machine, folder / "logs", **more)  # type: ignore[arg-type]
    async with load_session() as client:
        made = Arena(rules, client, on_pair)
        try:
            await made.crown(plan)
            yield made
        finally:
            await made.close()


def after(count: int) -> Callable[[Sequence[Pair]], bool]:
    return lambda pairs: len(pairs) >= count


def states(pids: Sequence[int]) -> list[str]:
    """Each process's state as the kernel says it; T: held."""
    texts = (Path(f"/proc/{pid}/stat").read_text() for pid in pids)
    return [text.rpartition(")")[2].split()[0] for text in texts]


def ratio(seen: Seen) -> float:
    return median(pair.candidate / pair.incumbent for pair in seen.pairs)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def plan_for_speed(*, decode: float, prefill: float) -> Plan:
    plan = make_plan(
        two_cores(), builders.model(), builders.EMBEDDED, Wish(context_tokens=2048, slots=1)
    )
    promised = [
        Estimate(value, value, value, "tok/s", "estimated", Text("", ""))
        for value in (decode, prefill)
    ]
    forecast = replace(
        plan.forecast, decode_tokens_per_s=promised[0], prefill_tokens_per_s=promised[1]
    )
    return replace(plan, forecast=forecast)


async def test_both_are_measured_in_turns_and_the_one_that_waits_is_held(tmp_path: Path) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path, [FASTER], "--gap-ms", "8"))
    held: list[int] = []

    def look(_: Sequence[Pair]) -> None:
        held.append(states(made.pids).count("T"))

    async with arena(tmp_path, plan, machine, look) as made:
        seen = await made.challenge({"threads"}, replace(plan, threads=1), after(4))
        assert seen.failure is None
        assert len(seen.pairs) == 4
        assert ratio(seen) == pytest.approx(8, rel=0.1)
        assert held == [1, 1, 1, 1]
        incumbent, candidate = made.pids
        await made.settle(accepted=True)
        assert made.pids == (candidate,)
        assert not exists(incumbent)
        # The winner is the one to beat now.
        seen = await made.challenge({"threads"}, plan, after(3))
        assert ratio(seen) == pytest.approx(1 / 8, rel=0.1)


async def test_where_memory_holds_one_they_are_started_by_turns(tmp_path: Path) -> None:
    program = fake_server(tmp_path, [FASTER], "--gap-ms", "8")
    machine = two_cores(1 * GIB)
    plan = plan_on(machine, program)
    tight = replace(machine, memory=replace(machine.memory, available_bytes=64 * MIB))
    assert not both_fit(tight, plan, plan)
    running: list[int] = []

    def look(_: Sequence[Pair]) -> None:
        running.append(sum(map(exists, made.pids)))

    async with arena(tmp_path, plan, tight, look) as made:
        seen = await made.challenge({"threads"}, replace(plan, threads=1), after(6))
        assert len(seen.pairs) == 6
        assert ratio(seen) == pytest.approx(8, rel=0.1)
    assert running == [1, 1]


@pytest.mark.parametrize("goal", ["total", "prefill"])
async def test_each_goal_is_measured_by_its_own_load(tmp_path: Path, goal: Goal) -> None:
    machine = two_cores()
    program = fake_server(
        tmp_path, [FASTER], "--gap-ms", "8", "--prefill-ms-per-token", "1", "--batch-slowdown", "0"
    )
    plan = plan_on(machine, program)
    async with arena(tmp_path, plan, machine, goal=goal) as made:
        seen = await made.challenge({"threads"}, replace(plan, threads=1, slots=2), after(2))
        assert seen.failure is None
        assert len(seen.pairs) == 2
        assert ratio(seen) == pytest.approx(8, rel=0.1)


def test_a_round_fits_the_goal_the_context_and_the_time() -> None:
    plan = plan_for_speed(decode=30.0, prefill=1000.0)
    one = scenario_for_goal(plan, "decode", 4)
    assert (one.streams, one.prompt_tokens, one.output_tokens) == (1, 768, 30)
    slow = scenario_for_goal(plan_for_speed(decode=2.0, prefill=20.0), "decode", 4)
    assert (slow.prompt_tokens, slow.output_tokens) == (64, 24)
    together = scenario_for_goal(plan, "total", 4)
    assert (together.streams, together.prompt_tokens) == (4, 128)
    short = replace(plan, context_tokens=40)
    for goal in ("decode", "total", "prefill"):
        found = scenario_for_goal(short, goal, 1)  # type: ignore[arg-type]
        assert found.prompt_tokens >= 1
        assert found.prompt_tokens + found.output_tokens <= 40


@pytest.mark.parametrize(
    ("fault", "variable", "outcome", "words"),
    [
        ("die", "threads", "crashed", "No such file or directory"),
        ("out of memory", "threads", "out of memory", "does not fit"),
        ("garbage", "threads", "wrong output", "repeats one token"),
        ("other words", "spin", "wrong output", "gave another answer"),
        ("hang", "threads", "crashed", "was not ready"),
        ("stall", "threads", "crashed", "hangs"),
        ("die later", "threads", "crashed", "SIGKILL"),
    ],
)
async def test_what_a_candidate_does_is_a_result(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    variable: str,
    outcome: str,
    words: str,
) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path, [rule(fault, threads="1")]))
    async with arena(tmp_path, plan, machine) as made:
        with monkeypatch.context() as patch:
            impatient(patch, fault)
            seen = await made.challenge({variable}, replace(plan, threads=1), after(3))
        assert seen.failure is not None
        assert (seen.failure.outcome, words in seen.failure.why.en) == (outcome, True), seen.failure
        assert seen.failure.why.zh != seen.failure.why.en
        await made.settle(accepted=False)
        # The incumbent is there as before, and the next trial is as good as any.
        seen = await made.challenge({"spin"}, replace(plan, spin="default"), after(2))
        assert (len(seen.pairs), seen.failure) == (2, None)


async def test_where_tokens_are_guessed_ahead_no_text_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that remembers what it wrote would guess the same answer whole."""
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path, (), "--gap-ms", "1"))
    asked: list[bytes] = []

    async def measure_round(service: Service, bodies: Sequence[bytes], *more: Any) -> list[Run]:
        asked.extend(bodies)
        return await load.measure_round(service, bodies, *more)

    monkeypatch.setattr("workhorse.tune.side.measure_round", measure_round)
    async with arena(tmp_path, plan, machine) as made:
        await made.challenge({"threads"}, replace(plan, threads=1), after(3))
        await made.settle(accepted=False)
        assert len(set(asked)) == 1
        asked.clear()
        seen = await made.challenge({"drafts"}, replace(plan, drafts=Drafts("ngram-mod")), after(3))
        assert (len(seen.pairs), seen.failure) == (3, None)
    questions = [json.loads(one) for one in asked]
    prompts = [str(one["prompt"]) for one in questions]
    assert [prompts.count(one) for one in set(prompts)] == [2, 2, 2]  # each once a side
    assert all(one["temperature"] > 0 and not one["cache_prompt"] for one in questions)


async def test_other_words_are_no_fault_where_rounding_may_differ(tmp_path: Path) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path, [rule("other words", threads="1")]))
    async with arena(tmp_path, plan, machine) as made:
        other = replace(plan, threads=1)
        seen = await made.challenge({"threads"}, other, after(1))
        assert (len(seen.pairs), seen.failure) == (1, None)
        await made.settle(accepted=True)
        # From here on its words are those that the same arithmetic has to give.
        seen = await made.challenge({"spin"}, replace(other, spin="default"), after(1))
        assert (len(seen.pairs), seen.failure) == (1, None)


async def test_a_smaller_kv_is_refused_where_its_quality_cannot_be_compared(tmp_path: Path) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path))
    smaller = replace(plan, kv_type_k="q8_0", kv_type_v="q8_0")
    async with arena(tmp_path, plan, machine, kl_divergence=0.01) as made:
        seen = await made.challenge({"kv"}, smaller, after(1))
        assert seen.failure is not None
        assert seen.failure.outcome == "refused"
        assert "probabilities" in seen.failure.why.en


async def test_an_engine_that_did_something_else_than_planned_is_refused(tmp_path: Path) -> None:
    machine = two_cores()
    log = tmp_path / "log.txt"
    log.write_text("I llama_kv_cache: size = 9.00 MiB, K (f16): 4.50 MiB, V (f16): 4.50 MiB\n")
    program = fake_server(tmp_path, (), "--gap-ms", "1", "--log-lines", str(log))
    plan = plan_on(machine, program)
    async with arena(tmp_path, plan, machine) as made:
        smaller = replace(plan, kv_type_k="q8_0", kv_type_v="q8_0")
        seen = await made.challenge({"kv"}, smaller, after(1))
        assert seen.failure is not None
        assert (seen.failure.outcome, "q8_0" in seen.failure.why.en) == ("refused", True)


async def test_an_incumbent_that_dies_is_started_anew(tmp_path: Path) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path))
    first: list[int] = []

    def kill(_: Sequence[Pair]) -> None:
        if not first:
            first.append(made.pids[0])
            os.kill(made.pids[0], signal.SIGKILL)

    async with arena(tmp_path, plan, machine, kill) as made:
        seen = await made.challenge({"threads"}, replace(plan, threads=1), after(3))
        assert (len(seen.pairs), seen.failure) == (3, None)
        assert made.pids[0] != first[0]


async def test_a_plan_that_does_not_start_is_the_end(tmp_path: Path) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path, [rule("garbage", threads="2")]))
    with pytest.raises(AppError, match="repeats one token"):
        async with arena(tmp_path, plan, machine):
            pass


async def test_a_trial_that_is_cancelled_leaves_no_engine(tmp_path: Path) -> None:
    machine = two_cores()
    plan = plan_on(machine, fake_server(tmp_path))
    seen: list[tuple[int, ...]] = []

    def leave(_: Sequence[Pair]) -> None:
        seen.append(made.pids)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with arena(tmp_path, plan, machine, leave) as made:
            await made.challenge({"threads"}, replace(plan, threads=1), after(3))
    assert len(seen[0]) == 2
    assert not [pid for pid in seen[0] if exists(pid)]
