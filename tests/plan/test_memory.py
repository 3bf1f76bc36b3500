"""The memory arithmetic against what llama.cpp printed, and its monotony."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.plan.cuts import Cut, Sizes
from workhorse.plan.memory import (
    Layout,
    compute_bytes,
    feed_forward_size,
    kv_bytes,
    output_bytes,
)
from workhorse.records import Attention, Model
from workhorse.units import MIB

# Shapes of the models whose buffers were printed by llama-server 0.5.0 on a CPU, 2026-11.
SMOL = builders.model(
    layers=30, embedding=576, feed_forward=1536, heads=9, kv_heads=3, vocabulary=49152, tied=True
)


def gemma() -> Model:
    """Gemma 3 270M: 15 of 18 layers slide over 512 tokens."""
    base = builders.model(
        layers=18, embedding=640, feed_forward=2048, heads=4, kv_heads=1, head_size=256
    )
    full, sliding = Attention(1, 256, 256), Attention(1, 256, 256, 512)
    kinds = tuple(full if layer % 6 == 5 else sliding for layer in range(18))
    return replace(base, attention=kinds, vocabulary=262144)


@pytest.mark.parametrize(
    ("layout", "kv_mib"),
    [
        (Layout(512, 1), 11.25),
        (Layout(2048, 1), 45.0),
        (Layout(8192, 1), 180.0),
        (Layout(2048, 4), 180.0),
        (Layout(8192, 1, "q8_0", "q8_0"), 95.625),
    ],
)
def test_kv_is_what_the_engine_printed(layout: Layout, kv_mib: float) -> None:
    assert kv_bytes(SMOL, layout) == kv_mib * MIB


@pytest.mark.parametrize(
    ("layout", "kv_mib"),
    [
        (Layout(512, 1), 1.5 + 7.5),
        (Layout(2048, 1), 6.0 + 15.0),
        (Layout(8192, 1), 24.0 + 15.0),
        (Layout(2048, 4), 24.0 + 60.0),
        (Layout(8192, 1, micro_batch_tokens=128), 24.0 + 11.25),
        (Layout(8192, 1, micro_batch_tokens=2048), 24.0 + 37.5),
    ],
)
def test_sliding_window_kv_is_what_the_engine_printed(layout: Layout, kv_mib: float) -> None:
    assert kv_bytes(gemma(), layout) == kv_mib * MIB


@pytest.mark.parametrize(
    ("layout", "compute_mib"),
    [
        (Layout(512, 1), 14.01),
        (Layout(2048, 1), 15.51),
        (Layout(8192, 1), 21.51),
        (Layout(2048, 4), 15.51),
        (Layout(8192, 1, micro_batch_tokens=128), 5.38),
        (Layout(8192, 1, micro_batch_tokens=2048), 86.05),
        (Layout(8192, 1, flash_attention=False), 166.38),
    ],
)
def test_compute_buffers_are_close_to_what_the_engine_printed(
    layout: Layout, compute_mib: float
) -> None:
    assert compute_bytes(SMOL, layout) == pytest.approx(compute_mib * MIB, rel=0.05)


def test_the_output_buffer_is_what_the_engine_printed() -> None:
    assert output_bytes(SMOL, 4) == 0.75 * MIB
    assert output_bytes(gemma(), 4) == 4.0 * MIB


def test_a_cache_never_exceeds_the_context() -> None:
    wide = builders.model(window_tokens=100_000)
    narrow = builders.model(window_tokens=None)
    assert kv_bytes(wide, Layout(1024, 2)) == kv_bytes(narrow, Layout(1024, 2))


def test_layers_without_attention_keep_no_kv() -> None:
    base = builders.model()
    assert kv_bytes(replace(base, attention=(None,) * base.layers), Layout(4096, 4)) == 0


def test_experts_in_use_decide_the_feed_forward_width() -> None:
    moe = builders.model(feed_forward=512, experts=64, experts_used=8)
    assert feed_forward_size(moe) == 512 * 8


def test_beside_a_gpu_main_memory_holds_the_embedding_and_the_logits() -> None:
    apart, tied = builders.model(tied=False), builders.model(tied=True)
    for shape in (apart, tied):
        cut = Cut((shape.layers + 1,), shape.layers, 0, False)
        lines = Sizes(shape).lines(Layout(2048, 1), cut, ["GPU 0"])
        beside = {line.item: line.n_bytes for line in lines if line.device == "RAM"}
        embedding = next(t for t in shape.tensors if t.name == "token_embd.weight").n_bytes
        assert beside == {"weights": embedding, "output": output_bytes(shape, 1)}
        on_card = sum(x.n_bytes for x in lines if (x.device, x.item) == ("GPU 0", "weights"))
        assert on_card == shape.weight_bytes - (0 if shape is tied else embedding)


layouts = st.builds(
    Layout,
    context_tokens=st.integers(1, 1 << 20),
    slots=st.integers(1, 64),
    micro_batch_tokens=st.sampled_from([64, 512, 2048]),
    flash_attention=st.booleans(),
)


@given(layouts, st.integers(1, 1 << 18), st.integers(1, 8))
def test_memory_grows_with_context_and_slots(layout: Layout, tokens: int, slots: int) -> None:
    shape = builders.model()
    longer = replace(layout, context_tokens=layout.context_tokens + tokens)
    more = replace(layout, slots=layout.slots + slots)
    size = total(shape, layout)
    assert 0 < size <= total(shape, longer)
    assert size < total(shape, more)


@given(layouts, st.integers(1, 80))
def test_memory_grows_with_layers(layout: Layout, layers: int) -> None:
    assert total(builders.model(layers=layers), layout) < total(
        builders.model(layers=layers + 1), layout
    )


def total(shape: Model, layout: Layout) -> int:
    cut = Cut((), shape.layers, 0, False)
    return sum(line.n_bytes for line in Sizes(shape).lines(layout, cut, []))
