"""Plans for vLLM and LMDeploy: what lies where, in which type, and what speaks against it."""

from dataclasses import replace

import pytest

import builders
import pooled
from workhorse.plan.pooled import attention_for, kv_token_bytes, make_pooled_plan
from workhorse.plan.wish import Wish
from workhorse.plan.words import ITEMS, SETTINGS
from workhorse.records import Plan
from workhorse.units import GIB


def blockers(plan: Plan) -> list[str]:
    return [f.code for f in plan.verdict.findings if f.level == "blocker"]


def budget(plan: Plan, item: str, device: str) -> int:
    return sum(line.n_bytes for line in plan.budget if (line.item, line.device) == (item, device))


def test_on_a_card_the_pool_takes_what_the_rest_leaves() -> None:
    plan = pooled.plan(pooled.vllm("0.19.1", on_card=True), builders.gpu())
    on_card = sum(line.n_bytes for line in plan.budget if line.device == "GPU 0")
    assert plan.pool is not None
    assert on_card == pytest.approx(16 * GIB * 0.8, rel=0.001)
    assert budget(plan, "weights", "GPU 0") == 2 * GIB
    assert plan.pool.kv_bytes == budget(plan, "kv", "GPU 0")
    assert (plan.gpu_index, plan.pool.dtype) == (0, "float16")
    assert blockers(plan) == []


def test_in_main_memory_the_pool_is_what_the_requests_need() -> None:
    wish = Wish(context_tokens=4096, slots=3)
    plan = pooled.plan(pooled.vllm(), wish=wish)
    wanted = 3 * 4096 * kv_token_bytes(pooled.model(), 2)
    assert plan.pool is not None
    page = 128 * kv_token_bytes(pooled.model(), 2)
    assert plan.pool.kv_bytes == wanted + page  # one page is the engine's own
    odd = pooled.plan(pooled.vllm(), wish=Wish(context_tokens=500, slots=1)).pool
    assert odd is not None and odd.kv_bytes == 5 * page
    assert plan.pool.memory_share is None
    assert budget(plan, "runtime", "RAM") > 2 * GIB
    assert (plan.device, plan.gpu_index, plan.threads) == ("RAM", None, 3)


def test_in_main_memory_of_two_nodes_the_room_is_that_of_one() -> None:
    two = builders.machine(nodes=2, ram_bytes=64 * GIB)
    files, shape = pooled.stored("BF16", 30 * GIB), pooled.model()
    for machine, fits in ((two, False), (builders.machine(ram_bytes=64 * GIB), True)):
        plan = make_pooled_plan(machine, shape, files, pooled.vllm(), Wish())
        assert plan.verdict.blocked is not fits
    (found,) = make_pooled_plan(two, shape, files, pooled.vllm(), Wish()).verdict.findings
    assert "memory node" in found.seen.en
    # What a full page cache takes of a node is not lost to it.
    full = replace(two, nodes=tuple(replace(n, memory_free_bytes=GIB) for n in two.nodes))
    files = pooled.stored("BF16", 12 * GIB)
    assert not make_pooled_plan(full, shape, files, pooled.vllm(), Wish()).verdict.blocked


def test_threads_are_bound_to_cores_and_not_to_two_halves_of_one() -> None:
    machine = builders.machine(cores=4, threads_a_core=2)
    beside = tuple(
        replace(core, cpus=(2 * n, 2 * n + 1)) for n, core in enumerate(machine.cpu.cores)
    )
    machine = replace(machine, cpu=replace(machine.cpu, cores=beside))
    plan = make_pooled_plan(machine, pooled.model(), pooled.stored(), pooled.vllm(), Wish())
    assert plan.threads == 3
    assert plan.cpus == (0, 2, 4, 6, 1, 3, 5, 7)


def test_float32_weights_are_loaded_in_half_their_bytes() -> None:
    plan = pooled.plan(pooled.vllm(), files=pooled.stored("F32", 4 * GIB))
    assert budget(plan, "weights", "RAM") == 2 * GIB
    assert plan.pool is not None
    assert plan.pool.dtype == "bfloat16"


def test_packed_weights_are_as_large_as_they_are() -> None:
    files = pooled.stored("I32", 5 * GIB, method="gptq")
    plan = pooled.plan(pooled.vllm("0.19.1", on_card=True), builders.gpu(), files=files)
    assert budget(plan, "weights", "GPU 0") == 5 * GIB
    assert blockers(plan) == []


def test_awq_on_a_v100_is_for_lmdeploy() -> None:
    files = pooled.stored("I32", 5 * GIB, method="awq")
    refused = pooled.plan(pooled.vllm("0.19.1", on_card=True), builders.gpu(), files=files)
    assert blockers(refused) == ["engine.weights_refused"]
    assert blockers(pooled.plan(pooled.lmdeploy(), builders.gpu(), files=files)) == []


def test_a_model_that_is_too_large_is_refused_with_the_way_out() -> None:
    files = pooled.stored("BF16", 15 * GIB)
    plan = pooled.plan(pooled.vllm("0.19.1", on_card=True), builders.gpu(), files=files)
    (found,) = [f for f in plan.verdict.findings if f.level == "blocker"]
    assert found.code == "memory.does_not_fit"
    assert "llama.cpp" in found.remedy.en


def test_a_long_context_is_halved_until_it_fits_and_never_below_a_wish() -> None:
    shape = pooled.model(layers=32, kv_heads=8, head_size=128)
    shape = replace(shape, context_trained_tokens=131072)
    build, card = pooled.vllm("0.19.1", on_card=True), builders.gpu(memory_bytes=8 * GIB)
    long = Wish(purpose="long")
    assert pooled.plan(build, card, shape=shape, wish=long).context_tokens < 131072
    asked = pooled.plan(build, card, shape=shape, wish=Wish(context_tokens=131072))
    assert asked.context_tokens == 131072
    assert blockers(asked) == ["memory.does_not_fit"]


def test_fp8_kv_only_where_the_card_has_it() -> None:
    shape = pooled.model(layers=32, kv_heads=8, head_size=128)
    build = pooled.vllm("0.19.1", on_card=True)
    wish = Wish(context_tokens=16384)
    ada = replace(builders.gpu(memory_bytes=8 * GIB), compute_capability=(9, 0), name="H100")
    for card, kind in ((ada, "fp8"), (builders.gpu(memory_bytes=8 * GIB), "auto")):
        files = pooled.stored("F16", 3 * GIB)
        plan = pooled.plan(build, card, shape=shape, wish=wish, files=files)
        assert plan.pool is not None
        assert plan.pool.kv_dtype == kind


def test_what_vllm_does_not_start_with_in_float16_is_a_blocker() -> None:
    shape = replace(pooled.model(), architecture="gemma3")
    old, new = builders.gpu(), replace(builders.gpu(), compute_capability=(8, 0))
    build = pooled.vllm("0.19.1", on_card=True)
    assert blockers(pooled.plan(build, old, shape=shape)) == ["fp16.vllm-refuses"]
    assert blockers(pooled.plan(build, new, shape=shape)) == []


def test_packed_weights_that_turing_does_not_have_kernels_for() -> None:
    card = replace(builders.gpu(), compute_capability=(7, 5), name="Tesla T4")
    for method, refused in (("mxfp4", True), ("awq", False), ("gptq", False)):
        files = pooled.stored("I32", method=method)
        plan = pooled.plan(pooled.vllm(on_card=True), card, files=files)
        assert ("engine.weights_refused" in blockers(plan)) is refused, method


def test_windows_that_turbomind_does_not_keep_are_told() -> None:
    shape = pooled.model()
    window = tuple(a and replace(a, window_tokens=1024) for a in shape.attention)
    shape = replace(shape, attention=window)
    for build, told in ((pooled.lmdeploy(), True), (pooled.vllm(on_card=True), False)):
        plan = pooled.plan(build, builders.gpu(), shape=shape)
        codes = [found.code for found in plan.verdict.findings]
        assert ("engine.no_windows" in codes) is told


def test_an_embedding_model_is_for_vllm() -> None:
    shape, card = replace(pooled.model(), pooling=True), builders.gpu()
    assert blockers(pooled.plan(pooled.lmdeploy(), card, shape=shape)) == ["engine.no_embeddings"]
    assert blockers(pooled.plan(pooled.vllm(on_card=True), card, shape=shape)) == []


def test_lmdeploy_without_a_card_and_a_cuda_vllm_without_one_are_refused() -> None:
    assert "engine.needs_card" in blockers(pooled.plan(pooled.lmdeploy()))
    assert "engine.needs_card" in blockers(pooled.plan(pooled.vllm("0.19.1", on_card=True)))
    assert blockers(pooled.plan(pooled.vllm())) == []


@pytest.mark.parametrize(
    ("version", "capability", "backend"),
    [
        ("0.9.2", (7, 0), "XFORMERS"),
        ("0.9.2", (7, 5), "XFORMERS"),
        ("0.19.1", (7, 0), "TRITON_ATTN"),
        ("0.19.1", (7, 5), None),
        ("0.19.1", (8, 0), None),
        ("0.32.0", None, None),
    ],
)
def test_the_attention_backend_follows_card_and_version(
    version: str, capability: tuple[int, int] | None, backend: str | None
) -> None:
    assert attention_for(pooled.vllm(version, on_card=True), capability)[0] == backend


def test_every_setting_and_item_has_its_words() -> None:
    on_card = pooled.plan(pooled.vllm("0.9.2", on_card=True), builders.gpu())
    for plan in (on_card, pooled.plan(pooled.vllm())):
        assert {reason.setting for reason in plan.reasons} <= set(SETTINGS)
        assert {line.item for line in plan.budget} <= set(ITEMS)


def test_the_forecast_says_that_it_is_an_estimate_until_something_was_measured() -> None:
    forecast = pooled.plan(pooled.vllm()).forecast
    decode = forecast.decode_tokens_per_s
    assert decode is not None
    assert decode.basis == "estimated"
    assert decode.low < decode.value < decode.high
    assert forecast.ceiling_tokens_per_s is not None
    assert decode.high <= forecast.ceiling_tokens_per_s.value
    totals = [speed.total_tokens_per_s.value for speed in forecast.streams]
    assert totals == sorted(totals)
