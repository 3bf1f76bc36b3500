"""Twins of the real model on the real engine, and what follows from their times."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.bench.scenario import scenario_for
from workhorse.engines.find import embedded_build
from workhorse.engines.openmp import ensure_openmp
from workhorse.errors import AppError
from workhorse.machine.probe import probe
from workhorse.models.gguf import read_gguf
from workhorse.plan.planner import make_plan
from workhorse.plan.rehearsed import Rehearsed, setup_of, with_rehearsed
from workhorse.plan.speed import Experience
from workhorse.plan.wish import Wish
from workhorse.records import Estimate
from workhorse.rehearse.extrapolate import LEAST_BAND, cost_at, settled, whole_cost
from workhorse.rehearse.job import Wanted, plan_for, rehearse
from workhorse.rehearse.measure import measure_twins
from workhorse.rehearse.protocol import Protocol, protocol_for, protocols
from workhorse.rehearse.result import conclude
from workhorse.rehearse.scratch import scratch
from workhorse.rehearse.source import local_parts
from workhorse.rehearse.times import TwinTimes
from workhorse.rehearse.twin import TwinPlan, make_twin
from workhorse.rehearse.twin_file import write_twin
from workhorse.store import Store
from workhorse.text import Text


class Silent:
    """Nobody is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def planned(self, twins: TwinPlan) -> None:
        pass

    def writing(self, done_bytes: int, total_bytes: int) -> None:
        pass

    def measuring(self, done: int, total: int) -> None:
        self.steps.append((done, total))


@pytest.mark.real
def test_twins_of_the_embedded_model_start_and_answer(real_model: Path, tmp_path: Path) -> None:
    ensure_openmp()
    model = read_gguf(real_model)
    plan = make_plan(probe(measure_s=0), model, embedded_build(), Wish(context_tokens=256, slots=2))
    protocol = Protocol(
        scenario_for(prompt_tokens=24, output_tokens=32, repeats=3),
        replace(scenario_for(prompt_tokens=48, output_tokens=32, repeats=3), name="deep"),
        replace(
            scenario_for(streams=2, prompt_tokens=16, output_tokens=32, repeats=3), name="streams"
        ),
    )
    seen: list[int] = []
    with local_parts(real_model) as parts, scratch(tmp_path / "twins") as own:
        plans = []
        for sources in ((0, 15), (0, 8, 15, 22)):
            twin = make_twin(model, sources)
            path = own / f"{len(sources)}.gguf"
            write_twin(parts[0], twin, model.architecture, model.layers, path, lambda _: None)
            plans.append((plan_for(plan, twin, path), len(sources)))
        times = asyncio.run(measure_twins(plans, protocol, tmp_path / "logs", seen.append))
    for samples in ("token_s", "prompt_s", "deep_token_s", "streams_token_s"):
        shallow, deep = (len(getattr(one, samples)) for one in times)
        assert 3 <= shallow == deep <= 7
    assert all(value > 0 for one in times for value in (*one.token_s, *one.prompt_s))
    assert seen == sorted(seen)
    assert seen[-1] == sum(protocol.cost(layers) for _, layers in plans)
    assert list((tmp_path / "twins").iterdir()) == []


def test_an_embedding_model_has_no_decoding_to_rehearse(tmp_path: Path) -> None:
    model = replace(builders.model(), pooling=True)
    plan = make_plan(builders.machine(), model, builders.EMBEDDED, Wish())
    with pytest.raises(AppError, match="embeddings"):
        rehearse(
            Wanted(builders.machine(), model, plan), (), tmp_path, tmp_path, Silent(), quick=True
        )


# --- extrapolation --------------------------------------------------------------------------------


@given(
    fixed=st.floats(1e-4, 1e-1),
    each=st.floats(1e-5, 1e-1),
    shallow=st.integers(1, 20),
    more=st.integers(1, 20),
    layers=st.integers(1, 200),
)
def test_a_straight_line_is_continued(
    fixed: float, each: float, shallow: int, more: int, layers: int
) -> None:
    deep = shallow + more
    layers = max(layers, deep)
    cost = cost_at(layers, (shallow, deep), [fixed + each * shallow] * 3, [fixed + each * deep] * 3)
    truth = fixed + each * layers
    assert cost.seconds == pytest.approx(truth, rel=1e-6)
    assert 0 < cost.low_s <= cost.seconds <= cost.high_s
    assert cost.low_s == pytest.approx(truth / (1 + LEAST_BAND), rel=1e-6)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9))
def test_the_interval_holds_every_sample_within_reason(samples: list[float]) -> None:
    cost = whole_cost(samples)
    assert min(samples) <= cost.seconds <= max(samples)
    assert cost.seconds <= cost.high_s
    assert len(samples) >= 5 or max(samples) <= cost.high_s
    assert cost.seconds / 2 <= cost.low_s <= cost.seconds


def test_one_disturbed_round_of_many_widens_nothing() -> None:
    assert whole_cost([1.0, 1.0, 9.0, 1.0, 1.0]).high_s < 1.1
    assert whole_cost([1.0, 9.0, 1.0]).high_s == 9.0


def test_rounds_that_agree_have_settled() -> None:
    assert settled([[1.0, 1.01, 0.99], [2.0, 2.0, 9.0]])
    assert not settled([[1.0, 1.0, 1.0], [2.0, 2.5, 3.0]])
    assert not settled([[1.0]])


def test_noise_that_hides_the_layers_is_refused() -> None:
    with pytest.raises(AppError, match="too busy"):
        cost_at(32, (4, 8), [1.0, 1.1, 1.2], [1.0, 1.1, 0.9])


def test_times_become_a_forecast_with_basis_twin() -> None:
    model = builders.model(layers=32)
    plan = make_plan(builders.machine(), model, builders.EMBEDDED, Wish())
    twins = TwinPlan(
        (make_twin(model, range(4)), make_twin(model, range(8))),
        32,
        make_twin(model, range(32)).layers_read_bytes,
        1,
    )
    protocol = protocol_for(plan, 0.0, quick=False)
    times = [
        TwinTimes([0.1 + 0.01 * n] * 3, [1 + 0.5 * n] * 3, [0.2 * n] * 3, [0.3 * n] * 3)
        for n in (4, 8)
    ]
    found = conclude(plan, "f16", twins, protocol, times)
    decode = found.forecast.decode_tokens_per_s
    assert decode is not None
    assert decode.basis == "twin"
    assert decode.value == pytest.approx(1 / 0.42)
    assert found.first_token_s.value == pytest.approx(17.0)
    assert found.forecast.prefill_tokens_per_s.value == pytest.approx(768 / 17)
    assert found.deep_tokens_per_s is not None
    assert found.deep_tokens_per_s.value == pytest.approx(1 / 6.4)
    assert found.streams_tokens_per_s is not None
    assert found.streams_tokens_per_s.value == pytest.approx(4 / 9.6)


@pytest.mark.parametrize("context", [3, 16, 700, 768, 832, 8192])
def test_the_protocol_stays_within_the_context(context: int) -> None:
    plan = make_plan(
        builders.machine(), builders.model(), builders.EMBEDDED, Wish(context_tokens=context)
    )
    for quick in (True, False):
        for protocol in protocols(plan, quick=quick):
            for scenario in protocol.steps:
                assert scenario.prompt_tokens + scenario.output_tokens <= context
                assert scenario.repeats >= 3


def test_a_slow_machine_gets_shorter_prompts_and_no_more_patience() -> None:
    plan = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish())
    forecast = plan.forecast

    def with_prefill(value: float) -> Protocol:
        speed = replace(forecast.prefill_tokens_per_s, value=value)
        slow = replace(plan, forecast=replace(forecast, prefill_tokens_per_s=speed))
        return protocol_for(slow, 0.3, quick=False)

    prompts = [with_prefill(v).standard.prompt_tokens for v in (1e4, 20.0, 8.0, 0.1)]
    assert prompts[0] == 768
    assert prompts[-1] == 128
    assert prompts == sorted(prompts, reverse=True)


# --- what plan makes of it ------------------------------------------------------------------------


def test_a_stored_rehearsal_is_the_forecast_until_the_model_itself_was_measured(
    tmp_path: Path,
) -> None:
    model = builders.model()
    plan = make_plan(builders.machine(), model, builders.EMBEDDED, Wish())
    estimate = Estimate(42.0, 40.0, 44.0, "tok/s", "twin", Text("twins", "缩小模型"))
    one = Rehearsed("tiny", "f16", model.weight_bytes, setup_of(plan), estimate, estimate)
    store = Store(tmp_path / "store.sqlite")
    store.add_rehearsed(replace(one, decode_tokens_per_s=replace(estimate, value=1.0)), "2026")
    store.add_rehearsed(one, "2026")
    told = store.rehearsed()
    assert with_rehearsed(plan, model, told).forecast.decode_tokens_per_s == estimate
    other = replace(one, setup=replace(one.setup, threads=99))
    assert with_rehearsed(plan, model, [other]) == plan
    seen = Experience("tiny", "f16", setup_of(plan), 1.0, 1.0)
    assert with_rehearsed(plan, model, told, [seen]) == plan
