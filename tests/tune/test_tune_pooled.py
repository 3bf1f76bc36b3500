"""Tuning engines with one pool of KV: vLLM and LMDeploy, by a stand-in that takes their words."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fake_bed import Listener, fake_server, rule, speak_as_told, two_cores

import builders
import pooled
from workhorse.config import Places
from workhorse.engines.adapter import adapter_for
from workhorse.plan.pooled import make_pooled_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Gpu, Machine, Plan
from workhorse.tune.apply import apply
from workhorse.tune.given import Given, Refusal
from workhorse.tune.job import Wanted, tune
from workhorse.tune.kept import with_kept
from workhorse.tune.space import space_of
from workhorse.tune.trial import Change, Constraints, Goal
from workhorse.units import GB, GIB

WISH = Wish(context_tokens=2048)
CHECKPOINT = pooled.stored(n_bytes=GIB // 4)


def given(
    build: EngineBuild,
    machine: Machine | None = None,
    goal: Goal = "total",
    others: tuple[EngineBuild, ...] = (),
) -> Given:
    machine = machine or two_cores()
    plan = make_pooled_plan(machine, pooled.model(), CHECKPOINT, build, WISH)
    assert not plan.verdict.blocked, plan.verdict
    limits = Constraints(plan.context_tokens, plan.slots, WISH.headroom)
    return Given(
        machine, pooled.model(), plan, goal, limits, builds=others, stored=CHECKPOINT
    )  # fmt: skip


def ampere() -> Gpu:
    return replace(builders.gpu(), compute_capability=(8, 0), rated_bandwidth_bytes_per_s=1500 * GB)


def made(given: Given, *changes: Change) -> Plan:
    plan = apply(given, changes)
    assert isinstance(plan, Plan), plan
    return plan


def words(plan: Plan) -> dict[str, str]:
    argv = adapter_for(plan.engine).launch(plan, 1).argv
    return dict(pairwise(argv))


@pytest.mark.parametrize("name", ["vllm", "lmdeploy"])
def test_what_is_tried_on_a_card_is_what_the_engine_is_told(name: str) -> None:
    build = pooled.vllm(on_card=True) if name == "vllm" else pooled.lmdeploy()
    tried = given(build, builders.machine(gpus=(ampere(),)))
    space = space_of(tried, ())
    assert [variable.name for variable in space.variables] == ["slots", "batch"]
    # What has no place here is told with its reason.
    told = {one.option: one.because.en for one in space.rejected}
    assert "probabilities" in told["kv"]
    assert "share" in told["prefix cache"]
    assert "on a card" in told["threads"]
    slots, batch = ("--max-num-seqs", "--max-num-batched-tokens")
    if name == "lmdeploy":
        slots, batch = "--max-batch-size", "--max-prefill-token-num"
    changed = words(made(tried, Change("slots", "32"), Change("batch", "1024")))
    assert (changed[slots], changed[batch]) == ("32", "1024")
    assert words(tried.plan)[slots] == "16"


def test_on_a_cpu_its_threads_are_tried_and_decode_knows_no_batch() -> None:
    tried = given(pooled.vllm(), builders.machine(cores=8), "decode")
    space = space_of(tried, ())
    assert {variable.name for variable in space.variables} == {"threads", "spin"}
    plan = made(tried, Change("threads", "4"), Change("spin", "default"))
    env = adapter_for(plan.engine).launch(plan, 1).env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0,1,2,3"
    assert "GOMP_SPINCOUNT" not in env


def test_another_environment_is_another_plan_of_the_same_checkpoint() -> None:
    on_card = builders.machine(gpus=(ampere(),))
    vllm, lmdeploy = pooled.vllm(on_card=True), pooled.lmdeploy()
    tried = given(vllm, on_card, others=(lmdeploy,))
    assert "engine" in {variable.name for variable in space_of(tried, ()).variables}
    plan = made(tried, Change("engine", lmdeploy.version), Change("slots", "32"))
    assert (plan.engine, plan.slots, plan.model_name) == (lmdeploy, 32, tried.plan.model_name)


@pytest.mark.parametrize(
    "change",
    [
        Change("slots", "2"),  # fewer than are asked for
        Change("slots", "many"),
        Change("batch", "0"),
        Change("engine", "vllm 0"),
        Change("flash attention", "off"),
        Change("threads", "99"),
    ],
)
def test_what_cannot_be_is_refused(change: Change) -> None:
    assert isinstance(apply(given(pooled.vllm()), (change,)), Refusal)


async def test_a_whole_tuning_of_a_stand_in_for_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engines take turns on the memory; the best plan is the one that `up` starts."""
    monkeypatch.setattr("workhorse.tune.load.MOST_OUTPUT_TOKENS", 30)
    monkeypatch.setattr("workhorse.tune.job.FINAL_PAIRS", 6)
    monkeypatch.setattr("workhorse.tune.job.PAIRS_MAX", 6)
    speak_as_told(monkeypatch)
    first = str(two_cores().limits.cpus[0])
    program = fake_server(
        tmp_path / "bin", [rule(VLLM_CPU_OMP_THREADS_BIND=first, speed_times=6.0)], "--gap-ms", "8"
    )
    build = replace(pooled.vllm(), command=(str(program),))
    tried = given(build, goal="decode")
    assert tried.plan.threads == 2
    where, heard = Places(tmp_path / "home"), Listener()
    tuned = await tune(Wanted(tried, only=("threads",)), where, heard)
    assert heard.outcomes() == {"threads 1": "accepted"}
    assert tuned.kept, tuned.not_kept_because
    plan = with_kept(where.tuning, tried.machine, tried.model, tried.plan, WISH, stored=CHECKPOINT)
    assert (plan.threads, plan.pool) == (1, tried.plan.pool)
    assert {reason.setting for reason in plan.reasons} >= {"tuned", "threads"}
