"""The forecast: bytes a token reads, the ceiling, and learning from what was measured."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.plan.planner import make_plan
from workhorse.plan.speed import (
    PROTOCOL_DEPTH_TOKENS,
    Experience,
    best_bandwidth,
    bytes_per_token,
    kv_read_bytes,
    setup_for,
    weights_read,
)
from workhorse.plan.wish import Wish
from workhorse.records import Bandwidth, Estimate
from workhorse.units import GB

SETUP = setup_for(builders.EMBEDDED, "RAM", huge_pages=True, threads=4)


def decode(history: tuple[Experience, ...] = ()) -> Estimate:
    plan = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish(), history)
    found = plan.forecast.decode_tokens_per_s
    assert found is not None
    return found


def test_the_embedding_is_read_by_row_unless_it_is_the_output() -> None:
    apart, tied = builders.model(tied=False), builders.model(tied=True)
    assert bytes_per_token(apart, "f16", "f16") == bytes_per_token(tied, "f16", "f16")
    embedding = next(t for t in apart.tensors if t.name == "token_embd.weight")
    kv = kv_read_bytes(apart, PROTOCOL_DEPTH_TOKENS, "f16", "f16")
    assert bytes_per_token(apart, "f16", "f16") == apart.weight_bytes - embedding.n_bytes + kv


def test_only_the_experts_in_use_are_read() -> None:
    few = builders.model(experts=64, experts_used=4)
    every = builders.model(experts=64, experts_used=64)
    experts = sum(t.n_bytes for t in few.tensors if "_exps" in t.name)
    difference = bytes_per_token(every, "f16", "f16") - bytes_per_token(few, "f16", "f16")
    assert difference == pytest.approx(experts * 60 / 64)


def test_weights_are_counted_in_elements() -> None:
    dense = builders.model(tied=True)
    assert weights_read(dense) == dense.parameters


def test_a_sliding_window_bounds_what_is_read() -> None:
    assert kv_read_bytes(builders.model(window_tokens=64), 10_000, "f16", "f16") == kv_read_bytes(
        builders.model(), 64, "f16", "f16"
    )


def test_without_bandwidth_there_is_no_forecast() -> None:
    plan = make_plan(builders.machine(bandwidths=()), builders.model(), builders.EMBEDDED, Wish())
    assert plan.forecast.decode_tokens_per_s is None
    assert plan.forecast.ceiling_tokens_per_s is None
    assert plan.forecast.bytes_per_token > 0


TWO_NODES = (
    Bandwidth(60.0 * GB, "huge", 14, 0, "test", 1.0),
    Bandwidth(58.0 * GB, "huge", 14, 1, "test", 1.0),
    Bandwidth(99.0 * GB, "huge", 14, 0, "across, by mistake fast", 1.0, (1,)),
    Bandwidth(110.0 * GB, "huge", 28, None, "interleaved", 1.0, (0, 1)),
    Bandwidth(50.0 * GB, "small", 14, 1, "test", 1.0),
)


@pytest.mark.parametrize(
    ("nodes", "gb"), [((0,), 60), ((1,), 58), ((0, 1), 110), ((0, 1, 2), 60), (None, None)]
)
def test_the_bandwidth_is_that_of_the_nodes_in_use(
    nodes: tuple[int, ...] | None, gb: float | None
) -> None:
    found = best_bandwidth(TWO_NODES, "huge", nodes)
    assert (found and found.bytes_per_s / GB) == gb


def test_a_model_on_all_nodes_is_forecast_with_interleaved_memory() -> None:
    shape = builders.model(embedding=4096, feed_forward=16384, vocabulary=100_000)
    size = shape.weight_bytes
    host = builders.machine(nodes=2, cores=14, ram_bytes=2 * size, bandwidths=TWO_NODES)
    ceiling = make_plan(host, shape, builders.EMBEDDED, Wish()).forecast.ceiling_tokens_per_s
    assert ceiling is not None and "28" in ceiling.source.en
    roomy = replace(host, nodes=tuple(replace(n, memory_free_bytes=9 * size) for n in host.nodes))
    near = make_plan(roomy, shape, builders.EMBEDDED, Wish()).forecast.ceiling_tokens_per_s
    assert near is not None and ceiling.value == pytest.approx(near.value * 110 / 60)


def test_an_earlier_measurement_of_this_model_corrects_the_forecast() -> None:
    plain = decode()
    assert plain.basis == "estimated"
    seen = Experience("tiny", "f16", SETUP, plain.value, plain.value * 0.5)
    learned = decode((seen,))
    assert learned.basis == "learned"
    assert learned.value == pytest.approx(plain.value * 0.5)
    assert learned.high - learned.low < plain.high - plain.low


def test_other_models_correct_it_with_a_wider_band() -> None:
    plain = decode()
    other = Experience("another", "q4_0", SETUP, 100.0, 80.0)
    same = Experience("tiny", "f16", SETUP, 100.0, 80.0)
    assert decode((same,)).value == pytest.approx(plain.value * 0.8)
    # One other model counts half, many almost whole.
    assert decode((other,)).value == pytest.approx(plain.value * 0.8**0.5)
    assert decode((other,) * 9).value == pytest.approx(plain.value * 0.8**0.9)
    assert decode((other,)).low < decode((same,)).low
    # What is known of this very model outweighs the others.
    assert decode((other, Experience("tiny", "f16", SETUP, 100.0, 50.0))).value == pytest.approx(
        plain.value * 0.5
    )


def test_other_settings_teach_nothing() -> None:
    elsewhere = Experience("tiny", "f16", replace(SETUP, pages="small"), 100.0, 50.0)
    assert decode((elsewhere,)) == decode()


def test_nothing_is_promised_above_the_ceiling() -> None:
    plan = make_plan(
        builders.machine(),
        builders.model(),
        builders.EMBEDDED,
        Wish(),
        (Experience("tiny", "f16", SETUP, 1.0, 1000.0),),
    )
    promised, ceiling = plan.forecast.decode_tokens_per_s, plan.forecast.ceiling_tokens_per_s
    assert promised is not None
    assert ceiling is not None
    assert promised.high <= ceiling.value


@given(st.integers(1, 200))
def test_deeper_models_are_slower(layers: int) -> None:
    def speed(depth: int) -> float:
        shape = builders.model(layers=depth)
        found = make_plan(
            builders.machine(), shape, builders.EMBEDDED, Wish()
        ).forecast.decode_tokens_per_s
        assert found is not None
        return found.value

    assert speed(layers + 1) < speed(layers)


def test_prefill_is_what_was_measured_of_this_model() -> None:
    seen = Experience("tiny", "f16", SETUP, 100.0, 80.0, 640.0)
    plan = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish(), (seen,))
    assert plan.forecast.prefill_tokens_per_s.value == 640.0
    assert plan.forecast.prefill_tokens_per_s.basis == "learned"
    # Two batches a second: 640 tokens hold two of 256 and not two of 512.
    assert plan.batch_tokens == plan.micro_batch_tokens == 256


@pytest.mark.parametrize(
    ("tokens_per_s", "batch_tokens"),
    [(1e6, 512), (1024.0, 512), (1023.0, 256), (300.0, 128), (64.0, 32), (2.0, 32)],
)
def test_a_batch_is_short_enough_to_stop(tokens_per_s: float, batch_tokens: int) -> None:
    seen = Experience("tiny", "f16", SETUP, 100.0, 80.0, tokens_per_s)
    plan = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish(), (seen,))
    assert plan.batch_tokens == batch_tokens


def test_what_was_measured_on_a_card_teaches_nothing_of_the_cpu() -> None:
    card = setup_for(builders.EMBEDDED, "Tesla V100-PCIE-16GB", huge_pages=True, threads=4)
    assert decode((Experience("tiny", "f16", card, 100.0, 900.0, 9000.0),)) == decode()
