"""Which layers twins have: the pattern kept, the mix of types kept, the cache outweighed."""

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_builder import BOOL, STR, U32, Gguf, llama
from hypothesis import given
from hypothesis import strategies as st
from published_shapes import PUBLISHED, Published

import builders
from workhorse.errors import AppError
from workhorse.models.gguf import describe
from workhorse.models.header import read_header
from workhorse.records import Model
from workhorse.rehearse.source import Part, metadata
from workhorse.rehearse.twin import (
    AMD_CORES_A_CACHE,
    CACHE_TIMES,
    UNKNOWN_CACHE_BYTES,
    amplified,
    fair_sample,
    last_level_cache,
    make_twin,
    pattern,
    plan_twins,
)
from workhorse.rehearse.twin_file import pieces, twin_keys
from workhorse.units import GIB, MIB


@given(
    lead=st.lists(st.integers(0, 3), max_size=4),
    period=st.lists(st.integers(4, 7), min_size=1, max_size=6),
    times=st.integers(2, 8),
    rest=st.integers(0, 5),
)
def test_a_pattern_is_found_and_holds(
    lead: list[int], period: list[int], times: int, rest: int
) -> None:
    kinds = lead + period * times + period[: rest % len(period)]
    found = pattern(kinds)
    assert found is not None
    first, length = found
    assert first + length <= len(lead) + len(period)
    assert all(kinds[i] == kinds[i + length] for i in range(first, len(kinds) - length))


def test_layers_without_a_pattern_have_none() -> None:
    assert pattern([1, 2, 3, 4]) is None
    assert pattern(["own"] * 3 + ["shared"] * 1) is None
    assert pattern([]) is None


@given(sizes=st.lists(st.floats(1, 1e9), min_size=1, max_size=60), data=st.data())
def test_a_fair_sample_is_spread_as_all_are(sizes: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    chosen = fair_sample(sizes, count)
    assert len(set(chosen)) == count
    assert list(chosen) == sorted(chosen)
    assert chosen == tuple(range(len(sizes))) or count < len(sizes)
    # Sorted by size, each comes from its own part of the whole.
    ranks = sorted(sorted(range(len(sizes)), key=lambda i: (sizes[i], i)).index(c) for c in chosen)
    assert all(abs(rank - (i + 0.5) * len(sizes) / count) <= 1 for i, rank in enumerate(ranks))


def test_of_two_types_in_turn_a_twin_has_both_in_the_same_share() -> None:
    chosen = fair_sample([100.0, 140.0] * 16, 8)
    assert sum(place % 2 for place in chosen) == 4


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("cache_bytes", [6 * MIB, 32 * MIB, 256 * MIB])
def test_published_models_have_fair_twins(name: str, cache_bytes: int) -> None:
    part, model = published(PUBLISHED[name])
    try:
        planned = plan_twins(model, cache_bytes, None)
    except AppError as error:
        assert "fair twin" in error.what.en
        assert cache_bytes > 32 * MIB
        return
    layers = model.layers - model.draft_layers
    assert planned.layers == layers
    for twin in planned.twins:
        if not planned.whole:
            assert twin.working_bytes >= CACHE_TIMES * cache_bytes
        assert len(twin.layers) <= layers
        keys = twin_keys(metadata(part), twin, model.architecture, model.layers)
        start = next(pieces(keys, twin.tensors, 32, len(twin.layers)))
        again = read_header(lambda at, size, raw=start: raw[at : at + size], 2**50, name="twin")
        copied = describe([again], Path("twin.gguf"))
        assert copied.layers == len(twin.layers)
        assert copied.attention == tuple(model.attention[i] for i in twin.layers)
        assert (copied.experts, copied.experts_used) == (model.experts, model.experts_used)
        assert copied.weight_bytes == twin.n_bytes
        kinds = [t.type for t in copied.tensors if t.name.startswith("blk.")]
        assert set(kinds) <= {t.type for t in model.tensors}
    if not planned.whole:
        shallow, deep = planned.twins
        assert len(shallow.layers) < len(deep.layers) <= layers
        # What a layer more costs is what a layer of the model costs on average.
        step = (deep.layers_read_bytes - shallow.layers_read_bytes) / (
            len(deep.layers) - len(shallow.layers)
        )
        assert step == pytest.approx(planned.layers_read_bytes / layers, rel=0.15)


def published(shape: Published) -> tuple[Part, Model]:
    raw = shape.header().header()
    size = 2**50

    def read_at(at: int, n_bytes: int) -> bytes:
        return raw[at : at + n_bytes].ljust(n_bytes, b"\0")

    header = read_header(read_at, size, name="model")
    return Part("model.gguf", header, read_at), describe([header], Path("model.gguf"))


@given(
    fixed=st.floats(0, 100),
    shallow=st.integers(1, 20),
    more=st.integers(1, 20),
    rest=st.integers(1, 99),
)
def test_a_deeper_twin_amplifies_its_noise_less(
    fixed: float, shallow: int, more: int, rest: int
) -> None:
    deep = shallow + more
    whole = deep + rest
    assert amplified(fixed, shallow, deep, whole) > amplified(fixed, shallow, deep + 1, whole) >= 0
    # Against the worst that two lines through disturbed points can say.
    cost = [fixed + layers for layers in (shallow, deep, whole)]
    high = cost[1] * 1.01 + (cost[1] * 1.01 - cost[0] * 0.99) / more * rest
    assert high / cost[2] - 1 <= 0.01 * (2**0.5 * amplified(fixed, shallow, deep, whole) + 1.01)


def test_small_models_are_copied_whole_because_the_cache_would_hold_a_twin() -> None:
    model = builders.model(layers=8)
    planned = plan_twins(model, 32 * MIB, None)
    assert planned.whole
    assert planned.twins[0].layers == tuple(range(8))


def test_a_cache_too_large_for_any_twin_is_refused() -> None:
    model = builders.model(layers=4, embedding=8192, feed_forward=65536)
    with pytest.raises(AppError, match="outweighs the caches"):
        plan_twins(model, 64 * GIB, None)


def test_layers_that_follow_no_pattern_are_refused_when_large() -> None:
    model = builders.model(layers=6, embedding=8192, feed_forward=65536)
    windows = tuple(
        replace(a, window_tokens=w)
        for a, w in zip(model.attention, (None, 1, 2, 3, 4, 5), strict=True)
        if a is not None
    )
    with pytest.raises(AppError, match="no pattern"):
        plan_twins(replace(model, attention=windows), 32 * MIB, None)


def test_twins_that_do_not_fit_the_memory_are_refused() -> None:
    model = builders.model(layers=32, embedding=8192, feed_forward=65536)
    with pytest.raises(AppError, match="room for"):
        plan_twins(model, 32 * MIB, GIB)


def test_the_cache_of_a_machine() -> None:
    two = builders.machine(nodes=2, cores=4)
    cpu = replace(two.cpu, l3_bytes=35 * MIB, vendor="GenuineIntel")
    assert last_level_cache(replace(two, cpu=cpu), gpu=False) == 70 * MIB
    assert last_level_cache(replace(two, cpu=replace(cpu, l3_bytes=None)), gpu=False) == (
        UNKNOWN_CACHE_BYTES
    )
    amd = replace(builders.machine(cores=16).cpu, l3_bytes=32 * MIB, vendor="AuthenticAMD")
    several = last_level_cache(replace(two, cpu=amd), gpu=False)
    assert several == 16 // AMD_CORES_A_CACHE * 32 * MIB


def test_lists_with_a_value_a_layer_are_cut_and_the_tokenizer_is_copied() -> None:
    file = llama(layers=6).without("llama.attention.head_count_kv")
    file.list("llama.attention.head_count_kv", U32, [1, 2, 1, 2, 1, 2])
    file.list("llama.attention.sliding_window_pattern", BOOL, [True, False] * 3)
    file.key("split.count", U32, 1).key("general.license", STR, "mit")
    part, model = part_of(file)
    twin = make_twin(model, (2, 3))
    keys = {key.name: key for key in twin_keys(metadata(part), twin, "llama", 6)}
    assert keys["llama.block_count"].number == 2
    assert keys["llama.attention.head_count_kv"].entries == 2
    assert keys["llama.attention.sliding_window_pattern"].raw.endswith(b"\1\0")
    before = {key.name: key for key in metadata(part)}
    assert keys["tokenizer.ggml.tokens"] == before["tokenizer.ggml.tokens"]
    assert "split.count" not in keys
    assert set(before) - set(keys) == {"split.count"}


def part_of(file: Gguf) -> tuple[Part, Model]:
    raw = file.build()
    header = read_header(lambda at, size: raw[at : at + size], len(raw), name="model")
    part = Part("model.gguf", header, lambda at, size: raw[at : at + size])
    return part, describe([header], Path("model.gguf"))
