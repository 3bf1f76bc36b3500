"""What a change does to a plan and to the command line, and when it is refused."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_cases import BOX, BUILD, CARD_HOST, SHAPE, case

import builders
from workhorse.engines.llamacpp import launch
from workhorse.plan.memory import device_bytes
from workhorse.plan.placement import cards_of, ram_room
from workhorse.records import Plan
from workhorse.tune.apply import apply
from workhorse.tune.given import Given, Refusal
from workhorse.tune.trial import Change, Constraints, together
from workhorse.units import GIB, MIB


def planned(given_: Given, *changes: tuple[str, str]) -> Plan:
    plan = apply(given_, [Change(*change) for change in changes])
    assert isinstance(plan, Plan), plan
    return plan


def refused(given_: Given, *changes: tuple[str, str]) -> str:
    plan = apply(given_, [Change(*change) for change in changes])
    assert isinstance(plan, Refusal), plan
    return plan.because.en


def said(plan: Plan, flag: str) -> str:
    argv = launch(plan, 1).argv
    return argv[argv.index(flag) + 1]


# ------------------------------------------------------------------ what it does


def test_without_a_change_it_is_the_start_plan() -> None:
    assert apply(case(), []) is not None
    given_ = case()
    assert apply(given_, []) is given_.plan


@pytest.mark.parametrize(
    ("variable", "value", "flag", "words"),
    [
        ("threads", "10", "--threads", "10"),
        ("threads", "10", "--threads-batch", "10"),
        ("flash attention", "off", "--flash-attn", "off"),
        ("kv", "q8_0", "--cache-type-v", "q8_0"),
        ("kv", "keys q8_0", "--cache-type-k", "q8_0"),
        ("kv", "keys q8_0", "--cache-type-v", "f16"),
        ("kv", "keys q8_0", "--flash-attn", "off"),
        ("micro-batch", "64", "--ubatch-size", "64"),
        ("batch", "256", "--batch-size", "256"),
        ("slots", "2", "--ctx-size", "8192"),
        ("slots", "2", "--parallel", "2"),
        ("load", "mmap", "--load-mode", "mmap"),
        ("load", "mlock huge", "--load-mode", "mlock"),
        ("drafts", "ngram-mod", "--spec-type", "ngram-mod"),
        ("drafts", "draft-mtp 2", "--spec-draft-n-max", "2"),
    ],
)
def test_the_engine_is_told(variable: str, value: str, flag: str, words: str) -> None:
    assert said(planned(case(), (variable, value)), flag) == words


def test_pages_and_waiting_are_in_the_environment() -> None:
    start = launch(planned(case(), ("load", "none"), ("spin", "default")), 1)
    assert "GLIBC_TUNABLES" not in start.env
    assert "GOMP_SPINCOUNT" not in start.env
    start = launch(planned(case(), ("load", "none huge"), ("spin", "bounded")), 1)
    assert {"GLIBC_TUNABLES", "GOMP_SPINCOUNT"} <= set(start.env)


def test_cpus_bring_their_threads_and_their_memory() -> None:
    both = planned(case(), ("cpus", "0-27"))
    assert (both.threads, both.memory_nodes, len(both.cpus)) == (28, (0, 1), 28)
    fewer = planned(case(), ("cpus", "0-27"), ("threads", "20"))
    assert (fewer.threads, fewer.memory_nodes) == (20, (0, 1))
    # What was found for other CPUs is gone with them.
    assert planned(case(), ("threads", "7"), ("cpus", "0-27")).threads == 28


def test_numa_binds_interleaves_or_leaves_it() -> None:
    assert planned(case(), ("numa", "0-1")).memory_nodes == (0, 1)
    assert planned(case(), ("numa", "1")).memory_nodes == (1,)
    assert planned(case(), ("numa", "local")).memory_nodes is None


def test_layers_leave_the_card() -> None:
    card = case(CARD_HOST, build=replace(BUILD, gpu_architectures=("sm_70",)))
    assert card.plan.gpu_layers == card.plan.layers
    fewer = planned(card, ("gpu layers", "20"))
    assert (fewer.gpu_layers, fewer.layer_split, fewer.gpu_index) == (20, (20,), 0)
    assert {group.device for group in fewer.placement} == {"GPU 0", "RAM"}
    assert device_bytes(fewer.budget, "GPU 0") < device_bytes(card.plan.budget, "GPU 0")


def test_layers_that_draft_take_their_memory() -> None:
    able = replace(SHAPE, draft_layers=1, draft_attention=SHAPE.attention[:1])
    given_ = case(model=able)
    drafting = planned(given_, ("drafts", "draft-mtp 2"))
    more = device_bytes(drafting.budget, "RAM") - device_bytes(given_.plan.budget, "RAM")
    layer = sum(t.n_bytes for t in SHAPE.tensors if t.name.startswith("blk.31."))
    assert more >= layer
    assert "model.drafts_unused" in {f.code for f in given_.plan.verdict.findings}
    assert "model.drafts_unused" not in {f.code for f in drafting.verdict.findings}


def test_two_changes_as_one() -> None:
    joint = together(Change("kv", "q8_0"), Change("threads", "10"))
    plan = apply(case(), [joint])
    assert isinstance(plan, Plan)
    assert (plan.kv_type_k, plan.threads) == ("q8_0", 10)


def test_another_file_and_another_build_keep_name_context_and_slots() -> None:
    smaller = replace(SHAPE, path="/models/tiny-small.gguf", tensors=SHAPE.tensors[:-1])
    other = replace(BUILD, version="test 2")
    plan = planned(
        case(files=(smaller,), builds=(other,)),
        ("engine", "test 2"), ("quant", smaller.path), ("threads", "10"),
    )  # fmt: skip
    assert (plan.model_path, plan.engine.version) == (smaller.path, "test 2")
    assert (plan.context_tokens, plan.slots, plan.threads) == (4096, 4, 10)
    assert plan.model_name == case().plan.model_name


def test_the_forecast_is_reckoned_anew() -> None:
    given_ = case()
    few = planned(given_, ("threads", "2")).forecast.decode_tokens_per_s
    now = given_.plan.forecast.decode_tokens_per_s
    assert few is not None
    assert now is not None
    assert few.value < now.value


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("threads", "0"), ("threads", "many"), ("threads", "29"), ("threads", "9" * 30),
        ("cpus", "0-99"), ("cpus", ""), ("cpus", "3-1"), ("cpus", "x"), ("numa", "7"),
        ("load", "fast"), ("load", "mmap huge"), ("spin", "long"), ("flash attention", "auto"),
        ("gpu layers", "3"), ("expert layers", "3"), ("split", "columns"), ("drafts", "mtp x"),
        ("sampling", "card"), ("sampling", "moon"),
        ("slots", "0"), ("quant", "/elsewhere.gguf"), ("engine", "test 9"), ("colour", "blue"),
    ],
)  # fmt: skip
def test_what_is_no_value_here_is_refused(variable: str, value: str) -> None:
    assert refused(case(), (variable, value))


def test_constraints_hold() -> None:
    assert "2 slots" in refused(case(slots=4), ("slots", "2"))
    smaller = Given(BOX, SHAPE, case().plan, "decode", Constraints(8192, 1, 0.2))
    assert "8192 are asked for" in refused(smaller, ("threads", "10"))


def test_a_quantised_cache_needs_flash_attention() -> None:
    assert "flash attention" in refused(case(), ("kv", "q8_0"), ("flash attention", "off"))


def test_a_plan_beyond_the_memory_is_refused_as_such() -> None:
    tight = builders.machine(nodes=1, cores=4, ram_bytes=SHAPE.weight_bytes * 2 + 512 * MIB)
    plan = apply(case(tight, goal="total"), [Change("slots", "64")])
    assert isinstance(plan, Refusal)
    assert plan.memory
    assert "20%" in plan.because.en


CHANGES = (
    Change("slots", "8"), Change("slots", "64"), Change("kv", "q8_0"), Change("threads", "3"),
    Change("cpus", "0-7"), Change("numa", "0-1"), Change("load", "mmap"), Change("batch", "1024"),
    Change("micro-batch", "1024"), Change("gpu layers", "9"), Change("gpu layers", "33"),
    Change("flash attention", "off"), Change("drafts", "ngram-mod"),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4), st.sampled_from((2, 4, 16)))
def test_no_change_leads_beyond_memory_or_below_what_is_asked(
    changes: list[Change], card_gib: int
) -> None:
    gpu = builders.gpu(memory_bytes=card_gib * GIB)
    host = builders.machine(nodes=2, cores=4, threads_a_core=2, ram_bytes=6 * GIB, gpus=(gpu,))
    given_ = case(host, build=replace(BUILD, gpu_architectures=("sm_70",)))
    made = apply(given_, changes)
    if isinstance(made, Refusal):
        return
    room = ram_room(host, 0.2)
    assert room is not None
    # The prompt cache is cut to what is left.
    assert device_bytes(made.budget, "RAM") <= room
    for card in cards_of(host.gpus, 0.2):
        assert device_bytes(made.budget, f"GPU {card.gpu.index}") <= card.room_bytes
    assert made.context_tokens >= 4096
    assert made.slots >= 1
    assert not made.verdict.blocked
