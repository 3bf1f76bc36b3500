"""Forecasts for cards, the CPU and both together: they move the right way and are never absurd."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import builders
from workhorse.plan.speed import (
    Experience,
    Reader,
    Setup,
    card_reader,
    explain,
    explain_learning,
    forecast,
    prefill,
)
from workhorse.plan.speed.reads import experts_read
from workhorse.plan.speed.speculation import tokens_a_step
from workhorse.records import Disk, Estimate, Forecast, Model, Placed
from workhorse.text import Text

SETUP = Setup("test", "huge", 4)
WORDS = Text("test", "测试")
CPU = Reader("cpu", 40e9, WORDS, "measured", 8)
CAPABILITIES = st.sampled_from(
    [None, (3, 5), (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)]
)


def card(
    bandwidth: float = 900e9,
    capability: tuple[int, int] | None = (7, 0),
    integers: float | None = None,
) -> Reader:
    return Reader("gpu", bandwidth, WORDS, "datasheet", 1, capability, integers)


def promise(model: Model, reader: Reader, **more: object) -> Forecast:
    return forecast(model, reader, kv_types=("f16", "f16"), setup=SETUP, **more)  # type: ignore[arg-type]


def decode(model: Model, reader: Reader, **more: object) -> float:
    found = promise(model, reader, **more).decode_tokens_per_s
    assert found is not None
    return found.value


def figures(found: Forecast) -> list[Estimate]:
    every = [found.decode_tokens_per_s, found.ceiling_tokens_per_s, found.prefill_tokens_per_s]
    every += [found.load_s, found.drafted_tokens_per_s]
    for speed in found.streams:
        every += [speed.each_tokens_per_s, speed.total_tokens_per_s]
    every += [prompt.tokens_per_s for prompt in found.prompts]
    every += [deep.tokens_per_s for deep in found.depths]
    return [estimate for estimate in every if estimate is not None]


MODELS = st.builds(
    builders.model,
    layers=st.integers(1, 120),
    embedding=st.sampled_from([64, 576, 2048, 8192]),
    feed_forward=st.sampled_from([128, 1536, 28672]),
    vocabulary=st.integers(1, 300_000),
    experts=st.sampled_from([0, 8, 512]),
    experts_used=st.sampled_from([1, 2, 8]),
    window_tokens=st.sampled_from([None, 128, 4096]),
)
READERS = st.one_of(
    st.builds(
        card,
        st.floats(1e9, 1e13),
        CAPABILITIES,
        st.one_of(st.none(), st.floats(1e11, 1e14)),
    ),
    st.builds(
        Reader,
        st.just("cpu"),
        st.floats(1e8, 1e12),
        st.just(WORDS),
        st.just("measured"),
        st.integers(1, 256),
    ),
)


@settings(deadline=None, max_examples=60)
@given(MODELS, READERS, st.integers(0, 1_000_000))
def test_no_machine_and_no_model_gives_an_absurd_figure(
    model: Model, reader: Reader, depth: int
) -> None:
    found = promise(model, reader, depth_tokens=depth, disk=disk("ssd"))
    for estimate in figures(found):
        assert math.isfinite(estimate.high)
        assert 0 < estimate.low <= estimate.value <= estimate.high
    assert all(math.isfinite(term.seconds) and term.seconds > 0 for term in found.terms)


@settings(deadline=None, max_examples=60)
@given(MODELS, READERS, st.floats(1.0, 50.0))
def test_more_bandwidth_is_never_slower(model: Model, reader: Reader, times: float) -> None:
    faster = replace(reader, bandwidth_bytes_per_s=(reader.bandwidth_bytes_per_s or 0) * times)
    assert decode(model, faster) >= decode(model, reader) * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(READERS, st.integers(1, 150))
def test_more_layers_are_never_faster(reader: Reader, layers: int) -> None:
    few, many = builders.model(layers=layers), builders.model(layers=layers + 1)
    assert decode(many, reader) <= decode(few, reader)


@settings(deadline=None, max_examples=60)
@given(MODELS, READERS, st.integers(0, 200_000), st.integers(1, 200_000))
def test_a_deeper_context_is_never_faster(
    model: Model, reader: Reader, depth: int, more: int
) -> None:
    deep = decode(model, reader, depth_tokens=depth + more)
    assert deep <= decode(model, reader, depth_tokens=depth) * (1 + 1e-9)


@settings(deadline=None, max_examples=60)
@given(MODELS, READERS)
def test_more_streams_are_slower_for_each(model: Model, reader: Reader) -> None:
    found = promise(model, reader).streams
    assert [speed.streams for speed in found] == [1, 2, 4, 8, 16]
    each = [speed.each_tokens_per_s.value for speed in found]
    assert each[1:] == sorted(each[1:], reverse=True)
    for speed in found:
        total = speed.each_tokens_per_s.value * speed.streams
        if speed.streams > 1:
            assert speed.total_tokens_per_s.value == pytest.approx(total)


def test_one_stream_is_the_forecast_itself() -> None:
    found = promise(builders.model(), card(), history=(
        Experience("tiny", "f16", SETUP, 1.0, 1e9),))  # fmt: skip
    assert found.streams[0].each_tokens_per_s == found.decode_tokens_per_s
    assert found.decode_tokens_per_s is not None and found.ceiling_tokens_per_s is not None
    assert found.decode_tokens_per_s.high <= found.ceiling_tokens_per_s.value


def test_depths_are_slower_the_deeper() -> None:
    shape = builders.model(layers=32, embedding=4096, feed_forward=14336, kv_heads=8, heads=32)
    for reader in (card(), CPU):
        found = promise(shape, reader)
        decode_here = found.decode_tokens_per_s
        assert decode_here is not None
        speeds = [decode_here.value, *(deep.tokens_per_s.value for deep in found.depths)]
        assert len(speeds) == 4 and speeds == sorted(speeds, reverse=True)
        assert len(set(speeds)) == 4


def test_streams_share_what_is_read_once() -> None:
    shape = builders.model(layers=32, embedding=4096, feed_forward=14336, vocabulary=128_000)
    found = {speed.streams: speed for speed in promise(shape, card()).streams}
    one, eight = found[1], found[8]
    assert eight.total_tokens_per_s.value > 2 * one.total_tokens_per_s.value


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 512), st.integers(1, 64))
def test_distinct_experts(experts: int, streams: int) -> None:
    used = min(10, experts)
    model = builders.model(experts=experts, experts_used=used)
    share = experts_read(model, streams)
    assert used / experts <= share + 1e-12
    assert share <= min(1.0, streams * used / experts) + 1e-12


def disk(kind: str, rate: float | None = None) -> Disk:
    return Disk("/models", "ext4", None, None, kind, rate)  # type: ignore[arg-type]


def test_loading_takes_as_long_as_the_disk() -> None:
    shape = builders.model(layers=32, embedding=4096, feed_forward=14336, vocabulary=128_000)
    slow, fast = (promise(shape, CPU, disk=disk(kind)).load_s for kind in ("hdd", "nvme"))
    measured = promise(shape, CPU, disk=disk("ssd", 1e9)).load_s
    assert slow is not None and fast is not None and measured is not None
    assert slow.value > 5 * fast.value
    assert measured.basis == "measured"
    assert measured.value == pytest.approx(shape.weight_bytes / 1e9, abs=2)
    assert promise(shape, CPU).load_s is None


EXPERTS = builders.model(
    layers=24, embedding=2048, feed_forward=768, vocabulary=150_000, experts=128, experts_used=8
)
BOTH = {"GPU 0": card(), "RAM": CPU}


def placed(experts_in_ram: int, layers_in_ram: int = 0) -> tuple[Placed, ...]:
    last = EXPERTS.layers - 1
    groups = [Placed("embedding", "RAM", 0), Placed("output", "GPU 0", 0)]
    if layers_in_ram:
        groups.append(Placed("layers", "RAM", 0, 0, layers_in_ram - 1))
    if experts_in_ram > layers_in_ram:
        groups.append(Placed("experts", "RAM", 0, layers_in_ram, experts_in_ram - 1))
    if layers_in_ram <= last:
        groups.append(Placed("layers", "GPU 0", 0, layers_in_ram, last))
    return tuple(groups)


def of(groups: tuple[Placed, ...]) -> Forecast:
    return forecast(EXPERTS, BOTH, kv_types=("f16", "f16"), setup=SETUP, placed=groups)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 23), st.integers(0, 23))
def test_what_is_left_to_main_memory_costs(experts: int, layers: int) -> None:
    def speed(*groups: int) -> float:
        found = of(placed(*groups)).decode_tokens_per_s
        assert found is not None
        return found.value

    assert speed(max(experts, layers) + 1, layers) <= speed(max(experts, layers), layers)
    assert speed(layers + 1, layers + 1) <= speed(layers, layers)


def test_a_card_and_main_memory_are_both_in_the_terms() -> None:
    found = of(placed(24))
    rows = explain(found)
    assert {row.device for row in rows} == {"GPU 0", "RAM", "PCIe"}
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert [row.seconds for row in rows] == sorted((r.seconds for r in rows), reverse=True)
    assert any("48 handovers" in row.what.en for row in rows)
    assert any("published rows" in row.source.en for row in rows)
    one = found.decode_tokens_per_s
    assert one is not None and one.value <= 1 / sum(row.seconds for row in rows) * (1 + 1e-9)


def test_two_cards_work_one_after_the_other() -> None:
    half = EXPERTS.layers // 2
    groups = (
        Placed("embedding", "RAM", 0),
        Placed("layers", "GPU 0", 0, 0, half - 1),
        Placed("layers", "GPU 1", 0, half, EXPERTS.layers - 1),
        Placed("output", "GPU 1", 0),
    )
    two = forecast(
        EXPERTS,
        {"GPU 0": card(), "GPU 1": card()},
        kv_types=("f16", "f16"),
        setup=SETUP,
        placed=groups,
    ).decode_tokens_per_s
    assert two is not None
    assert 0.9 * decode(EXPERTS, card()) < two.value < decode(EXPERTS, card())


def test_a_memory_of_unknown_speed_leaves_the_forecast_open() -> None:
    unknown = {**BOTH, "RAM": replace(CPU, bandwidth_bytes_per_s=None)}
    found = forecast(EXPERTS, unknown, kv_types=("f16", "f16"), setup=SETUP, placed=placed(24))
    assert found.decode_tokens_per_s is None and found.streams == () and found.terms == ()
    on_card = forecast(EXPERTS, unknown, kv_types=("f16", "f16"), setup=SETUP, placed=placed(0))
    assert on_card.decode_tokens_per_s is not None  # an embedding read by row needs no bandwidth


def test_an_unknown_architecture_has_a_wider_band() -> None:
    def width(model: Model) -> float:
        found = promise(model, card()).decode_tokens_per_s
        assert found is not None
        return (found.high - found.low) / found.value

    shape = builders.model(layers=32, embedding=4096, feed_forward=14336)
    assert width(replace(shape, known=False)) > width(shape)


@pytest.mark.parametrize("reader", [CPU, card()])
def test_a_bare_benchmark_shows_more(reader: Reader) -> None:
    shape = builders.model(layers=8)
    assert decode(shape, reader, served=False) > decode(shape, reader)


def test_latent_attention_on_an_old_card_may_be_slow() -> None:
    shape = builders.model(layers=27)
    latent = tuple(replace(a, kv_heads=1, key_size=576, value_size=0) for a in shape.attention if a)
    mla = replace(shape, attention=latent)
    old, new = (promise(mla, card(capability=c)).decode_tokens_per_s for c in ((7, 0), (8, 0)))
    assert old is not None and new is not None
    assert old.low < 0.2 * old.value and "MLA" in old.source.en
    assert new.low > 0.7 * new.value and "MLA" not in new.source.en


def test_an_odd_architecture_starts_more_kernels() -> None:
    shape = builders.model(layers=48)
    assert decode(replace(shape, architecture="qwen4exp"), card()) < decode(shape, card())
    assert decode(replace(shape, architecture="qwen4exp"), CPU) == decode(shape, CPU)


def test_longer_prompts_are_read_slower_on_a_card() -> None:
    shape = builders.model(layers=32, embedding=4096, feed_forward=14336, heads=32)
    speeds = [p.tokens_per_s.value for p in promise(shape, card()).prompts]
    assert len(speeds) == 3 and speeds[1] > speeds[2]


def test_longer_prompts_are_read_slower_on_a_cpu() -> None:
    """Measured on 135M Q4_1: 3600 tokens at 0.65 of the speed of 400."""
    shape = builders.model(
        layers=30, embedding=576, feed_forward=5600, heads=9, vocabulary=49152, tied=True
    )
    assert shape.parameters == pytest.approx(134.5e6, rel=0.05)
    cpu = replace(CPU, cores=2)
    at = [prefill(shape, cpu, SETUP, prompt_tokens=n).value for n in (400, 3600)]
    assert at[1] / at[0] == pytest.approx(0.65, rel=0.15)


def test_a_measured_prompt_holds_for_other_lengths_too() -> None:
    shape = builders.model(layers=32, embedding=4096, feed_forward=14336, heads=32)
    seen = Experience("tiny", "f16", SETUP, 100.0, 90.0, 640.0)
    at = [prefill(shape, card(), SETUP, (seen,), prompt_tokens=n).value for n in (768, 8192, 65536)]
    assert at[0] == pytest.approx(640)
    assert at[1] > at[2]


def test_drafts() -> None:
    assert tokens_a_step(3, 0.0) == 1
    assert tokens_a_step(3, 1.0) == 4
    shape = builders.model(layers=33, embedding=4096, feed_forward=14336, vocabulary=150_000)
    assert promise(shape, card()).drafted_tokens_per_s is None
    drafting = replace(shape, draft_layers=1)
    found = promise(drafting, card())
    assert found.drafted_tokens_per_s is not None and found.decode_tokens_per_s is not None
    assert 1 < found.drafted_tokens_per_s.value / found.decode_tokens_per_s.value < 3
    # The draft layer itself is not read for an ordinary token.
    assert found.decode_tokens_per_s.value > decode(shape, card())


def test_kin_of_the_same_quant_outweigh_others() -> None:
    def learned(*history: Experience) -> float:
        return decode(builders.model(), CPU, history=history)

    kin, other = (Experience("another", q, SETUP, 100.0, s) for q, s in (("f16", 80), ("q4_0", 50)))
    assert learned(kin, other) == learned(kin)


def test_promises_that_were_kept_are_counted() -> None:
    kept = Experience("m", "f16", SETUP, 100.0, 90.0, None, 80.0, 120.0)
    missed = replace(kept, measured_tokens_per_s=70.0)
    assert explain_learning(()) is None
    told = explain_learning((kept, missed, kept))
    assert told is not None and told.en.startswith("2 of 3")


def test_a_card_is_read_from_its_table() -> None:
    gpu = builders.gpu()
    found = card_reader(replace(gpu, rated_bandwidth_bytes_per_s=None))
    assert found.bandwidth_bytes_per_s == pytest.approx(897e9)
    assert found.integers_per_s == pytest.approx(7.07e12, rel=0.01)
    strange = card_reader(replace(gpu, name="Tesla X999", pci_id=None))
    assert strange.integers_per_s is None
    assert decode(builders.model(), strange) > 0
