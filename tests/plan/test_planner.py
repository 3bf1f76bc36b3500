"""What the planner decides, and what it says of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.plan.cpus import choose_cpus
from workhorse.plan.pages import choose_pages, choose_spin, glibc_at_least
from workhorse.plan.planner import make_plan, served_name
from workhorse.plan.wish import Wish
from workhorse.records import Limits, Machine, Plan
from workhorse.units import GIB, MIB


def plan_for(machine: Machine, **wish: int) -> Plan:
    return make_plan(machine, builders.model(), builders.EMBEDDED, Wish(**wish))


def codes(plan: Plan) -> set[str]:
    return {finding.code for finding in plan.verdict.findings}


def reason(plan: Plan, setting: str) -> str:
    return next(r.because.en for r in plan.reasons if r.setting == setting)


# ------------------------------------------------------------------ threads


def test_one_thread_a_physical_core_of_one_node() -> None:
    choice = choose_cpus(builders.machine(nodes=2, cores=14, threads_a_core=2))
    assert choice.threads == 14
    assert choice.memory_nodes == (0,)
    assert choice.cpus == (*range(14), *range(28, 42))
    assert [r.option for r in choice.rejected] == ["28 threads", "28 threads on all nodes"]


def test_the_gpus_node_wins() -> None:
    choice = choose_cpus(builders.machine(nodes=2, cores=14), beside_node=1)
    assert choice.memory_nodes == (1,)
    assert choice.cpus == tuple(range(14, 28))


def test_an_affinity_mask_is_respected() -> None:
    host = builders.machine(nodes=2, cores=4)
    masked = replace(host, limits=replace(host.limits, cpus=(1, 5, 6)))
    choice = choose_cpus(masked)
    assert (choice.threads, choice.cpus, choice.memory_nodes) == (2, (5, 6), (1,))


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (1.9, 1), (3.0, 3), (16.0, 4)])
def test_a_quota_cuts_the_threads(quota: float, threads: int) -> None:
    assert choose_cpus(builders.machine(quota_cpus=quota)).threads == threads


def test_unreadable_topology_still_gives_threads() -> None:
    host = builders.machine()
    blind = replace(
        host, cpu=replace(host.cpu, cores=()), limits=Limits((0, 1, 2), None, None, None)
    )
    assert choose_cpus(blind).threads == 3


def test_a_model_larger_than_a_node_takes_all_nodes() -> None:
    shape = builders.model(embedding=4096, feed_forward=16384, vocabulary=100_000)
    size = shape.weight_bytes
    host = builders.machine(nodes=2, cores=4, ram_bytes=2 * size)
    plan = make_plan(host, shape, builders.EMBEDDED, Wish())
    assert not plan.verdict.blocked
    assert (plan.memory_nodes, plan.threads) == ((0, 1), 8)
    assert "larger than the free memory of one node" in reason(plan, "threads")
    roomy = builders.machine(nodes=2, cores=4, ram_bytes=8 * size)
    assert make_plan(roomy, shape, builders.EMBEDDED, Wish()).memory_nodes == (0,)


def test_a_pooled_model_takes_its_input_in_one_batch() -> None:
    pooled = replace(builders.model(), pooling=True, context_trained_tokens=512)
    plan = make_plan(builders.machine(), pooled, builders.EMBEDDED, Wish())
    assert plan.batch_tokens == plan.micro_batch_tokens == plan.context_tokens == 512
    assert plan.embeddings
    assert not plan.reranks


def test_a_model_that_ranks_needs_a_build_that_can() -> None:
    ranking = replace(builders.model(), pooling=True, ranks=True)
    able = replace(builders.EMBEDDED, knows=(*builders.EMBEDDED.knows, "--reranking"))
    plan = make_plan(builders.machine(), ranking, able, Wish())
    assert plan.embeddings
    assert plan.reranks
    assert not plan.verdict.blocked
    assert "/v1/rerank" in reason(plan, "reranking")
    unable = make_plan(builders.machine(), ranking, builders.EMBEDDED, Wish())
    assert [f.code for f in unable.verdict.findings if f.level == "blocker"] == [
        "engine.no_reranking"
    ]


# ------------------------------------------------------------------ pages and spinning


@pytest.mark.parametrize(
    ("thp", "glibc", "huge"),
    [
        ("madvise", "2.36", True),
        ("always", "2.17", True),
        ("madvise", "2.35", True),
        ("never", "2.36", False),
        (None, "2.36", False),
        ("madvise", "2.31", False),
        ("madvise", None, False),
        ("madvise", "garbage", False),
    ],
)
def test_huge_pages_need_thp_and_glibc(thp: str | None, glibc: str | None, huge: bool) -> None:
    host = builders.machine()
    changed = replace(
        host,
        memory=replace(host.memory, thp=thp),  # type: ignore[arg-type]
        system=replace(host.system, glibc=glibc),
    )
    choice = choose_pages(changed)
    assert choice.huge_pages is huge
    assert choice.load_mode == "none"
    assert choice.reason.value == ("huge" if huge else "small")


def test_glibc_versions_compare_as_numbers() -> None:
    assert glibc_at_least("2.100", (2, 35))
    assert not glibc_at_least("2.4", (2, 35))


def test_spinning_is_bounded_where_threads_wait() -> None:
    host = builders.machine()
    assert choose_spin(builders.EMBEDDED, host, all_on_gpu=False)[0] == "bounded"
    assert choose_spin(builders.EMBEDDED, host, all_on_gpu=True)[0] == "default"
    no_openmp = replace(builders.EMBEDDED, openmp=False)
    spin, reason = choose_spin(no_openmp, host, all_on_gpu=False)
    assert spin == "default" and "Build it anew" in reason.because.en
    sleeps = replace(no_openmp, bounded_wait=True)
    assert choose_spin(sleeps, host, all_on_gpu=False)[0] == "bounded"


def test_the_forecast_uses_the_bandwidth_of_the_same_pages() -> None:
    host = builders.machine()
    huge = plan_for(host).forecast.ceiling_tokens_per_s
    small = plan_for(replace(host, memory=replace(host.memory, thp="never")))
    ceiling = small.forecast.ceiling_tokens_per_s
    assert huge is not None
    assert ceiling is not None
    assert huge.value == pytest.approx(2 * ceiling.value)


# ------------------------------------------------------------------ memory and what is given up


def test_a_roomy_machine_keeps_everything() -> None:
    plan = plan_for(builders.machine())
    assert (plan.context_tokens, plan.slots, plan.kv_type_k) == (8192, 4, "f16")
    assert not plan.verdict.findings


def test_things_are_given_up_in_order() -> None:
    seen: list[tuple[int, int, str]] = []
    for mebibytes in range(1024, 90, -1):
        plan = plan_for(builders.machine(ram_bytes=mebibytes * MIB))
        if plan.verdict.blocked:
            break
        state = (plan.context_tokens, plan.slots, plan.kv_type_k)
        if not seen or seen[-1] != state:
            seen.append(state)
    assert (
        seen
        == [
            (8192, 4, "f16"),
            (8192, 4, "q8_0"),
            (8192, 2, "q8_0"),
            (8192, 1, "q8_0"),
            (4096, 1, "q8_0"),
            (2048, 1, "q8_0"),
        ][: len(seen)]
    )
    assert len(seen) > 3
    assert "memory.does_not_fit" in codes(plan)


def test_what_the_user_asked_is_not_given_up() -> None:
    plan = plan_for(builders.machine(ram_bytes=1 * GIB), context_tokens=1 << 20, slots=4)
    assert plan.verdict.blocked
    assert (plan.context_tokens, plan.slots) == (1 << 20, 4)
    last = plan.verdict.findings[-1]
    assert last.code == "memory.does_not_fit" and "--context or --slots" in last.remedy.en
    smaller = plan_for(builders.machine(ram_bytes=1 * MIB), slots=4).verdict.findings[-1]
    assert "Ask for less" not in smaller.remedy.en


def test_a_control_groups_limit_counts() -> None:
    host = builders.machine()
    limited = replace(
        host, limits=replace(host.limits, memory_bytes=100 * MIB, memory_used_bytes=0)
    )
    assert plan_for(limited).verdict.blocked


def test_unknown_memory_is_not_called_too_small() -> None:
    host = builders.machine()
    unknown = replace(host, memory=replace(host.memory, available_bytes=None))
    assert not plan_for(unknown).verdict.blocked


def test_a_head_that_is_no_whole_block_keeps_f16() -> None:
    odd = builders.model(head_size=80)
    plan = make_plan(
        builders.machine(ram_bytes=700 * MIB), odd, builders.EMBEDDED, Wish(context_tokens=8192)
    )
    assert plan.kv_type_k == "f16"


# ------------------------------------------------------------------ devices


def test_a_card_with_code_takes_the_whole_model() -> None:
    host = builders.machine(nodes=2, gpus=(builders.gpu(numa_node=1),))
    plan = make_plan(host, builders.model(), builders.CUDA, Wish())
    assert (plan.gpu_index, plan.gpu_layers, plan.layers) == (0, 5, 5)
    assert plan.memory_nodes == (1,)
    assert plan.spin == "default"
    on_card = {line.item for line in plan.budget if line.device == "GPU 0"}
    assert on_card == {"weights", "kv", "compute", "runtime"}


def test_the_larger_card_is_taken() -> None:
    cards = (builders.gpu(0, memory_bytes=8 * GIB), builders.gpu(1, memory_bytes=32 * GIB))
    plan = make_plan(builders.machine(gpus=cards), builders.model(), builders.CUDA, Wish())
    assert plan.gpu_index == 1


def test_a_card_without_code_is_a_warning_and_the_cpu_serves() -> None:
    plan = make_plan(
        builders.machine(gpus=(builders.gpu(),)), builders.model(), builders.EMBEDDED, Wish()
    )
    assert plan.gpu_layers == 0
    assert codes(plan) == {"gpu.no_code"}
    assert not plan.verdict.blocked


def test_a_model_too_large_for_the_card_goes_to_main_memory() -> None:
    host = builders.machine(gpus=(builders.gpu(memory_bytes=600 * MIB),))
    plan = make_plan(host, builders.model(), builders.CUDA, Wish())
    assert plan.gpu_index is None
    assert codes(plan) == {"gpu.model_too_large"}


def test_missing_instructions_block() -> None:
    plan = plan_for(builders.machine(flags=("avx", "sse4_2")))
    assert plan.verdict.blocked
    finding = next(f for f in plan.verdict.findings if f.code == "cpu.instructions_missing")
    assert "avx2, fma" in finding.seen.en
    assert finding.command is not None


def test_unknown_flags_do_not_block() -> None:
    assert not plan_for(builders.machine(flags=())).verdict.blocked


# ------------------------------------------------------------------ words


def test_every_decision_has_a_reason_in_both_languages() -> None:
    plan = plan_for(builders.machine(nodes=2))
    assert {r.setting for r in plan.reasons} == {
        "device", "context", "slots", "kv", "flash attention", "batch", "threads", "pages", "spin",
    }  # fmt: skip
    assert all(r.because.en and r.because.zh for r in plan.reasons)
    assert "14" not in reason(plan, "threads")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/m/Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q4_K_M"),
        ("big-00001-of-00003.gguf", "big"),
        ("a,b.gguf", "a-b"),
    ],
)
def test_clients_call_the_model_by_its_file(path: str, name: str) -> None:
    assert served_name(path) == name


@given(
    st.integers(1, 4),
    st.integers(1, 64),
    st.integers(1, 2),
    st.integers(64 * MIB, 512 * GIB),
    st.one_of(st.none(), st.floats(0.1, 128)),
)
def test_no_machine_breaks_the_planner(
    nodes: int, cores: int, threads: int, ram_bytes: int, quota: float | None
) -> None:
    host = builders.machine(
        nodes=nodes, cores=cores, threads_a_core=threads, ram_bytes=ram_bytes, quota_cpus=quota
    )
    plan = plan_for(host)
    assert 1 <= plan.threads <= cores * nodes
    assert set(plan.cpus) <= set(host.limits.cpus)
    used = sum(line.n_bytes for line in plan.budget)
    assert plan.verdict.blocked or used <= ram_bytes * 0.8
    decode = plan.forecast.decode_tokens_per_s
    assert decode is not None
    assert 0 < decode.low <= decode.value <= decode.high


def test_documents_are_not_kept_for_later() -> None:
    machine = builders.machine()
    plan = make_plan(machine, builders.model(), builders.EMBEDDED, Wish(purpose="batch"))
    chat = make_plan(machine, builders.model(), builders.EMBEDDED, Wish(purpose="chat"))
    assert plan.prompt_cache_bytes == 0 < chat.prompt_cache_bytes
    assert not [line for line in plan.budget if line.item == "prompt cache"]
    assert "all its slots wait" in reason(plan, "prompt cache")
