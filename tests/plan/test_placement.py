"""Where the weights go: the fewest cards, the least in main memory, never more than there is."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import builders
from workhorse.engines.llamacpp import launch
from workhorse.plan.cuts import Cut, Sizes, split_layers
from workhorse.plan.memory import (
    CUDA_CONTEXT_BYTES,
    RUNTIME_BYTES,
    Layout,
    compute_bytes,
    device_bytes,
    kv_bytes,
    output_bytes,
)
from workhorse.plan.planner import make_plan
from workhorse.plan.weights import weigh
from workhorse.plan.wish import Wish
from workhorse.records import Gpu, Machine, Model, Plan
from workhorse.units import GIB, MIB

ABLE = replace(
    builders.CUDA,
    knows=(
        *builders.CUDA.knows, "--n-gpu-layers", "--split-mode", "--tensor-split", "--n-cpu-moe",
        "--lazy-mode",
    ),
)  # fmt: skip
# 32 layers of 64 MiB and a small vocabulary: 2 GiB, about half of it in the feed-forward part.
DENSE = builders.model(
    layers=32, embedding=2048, feed_forward=14336, heads=16, kv_heads=4, head_size=128
)
MIXED = builders.model(
    layers=16, embedding=1024, feed_forward=512, heads=8, kv_heads=2, head_size=128,
    experts=64, experts_used=4,
)  # fmt: skip


def host(*cards: Gpu, ram_bytes: int = 64 * GIB, nodes: int = 2) -> Machine:
    return builders.machine(nodes=nodes, gpus=cards, ram_bytes=ram_bytes)


def card(index: int, mebibytes: int, node: int | None = 0) -> Gpu:
    return builders.gpu(index, memory_bytes=mebibytes * MIB, numa_node=node)


def plan_for(machine: Machine, model: Model, **wish: object) -> Plan:
    return make_plan(machine, model, ABLE, Wish(**wish))  # type: ignore[arg-type]


def codes(plan: Plan) -> set[str]:
    return {finding.code for finding in plan.verdict.findings}


def words(plan: Plan, flag: str) -> str:
    argv = launch(plan, 1).argv
    return argv[argv.index(flag) + 1]


# ------------------------------------------------------------------ weights


@pytest.mark.parametrize("model", [DENSE, MIXED, builders.model(tied=True)])
def test_the_groups_are_all_of_the_weights(model: Model) -> None:
    groups = weigh(model)
    total = sum(groups.layers) + sum(groups.experts) + groups.output + groups.embedding
    assert total + groups.tables + groups.draft == model.weight_bytes


@pytest.mark.parametrize("model", [DENSE, MIXED, builders.model(tied=True)])
def test_one_card_holds_all_but_the_input_embedding(model: Model) -> None:
    layout, sizes = Layout(4096, 2), Sizes(model)
    lines = sizes.lines(layout, Cut((model.layers + 1,), model.layers, 0, False), ["GPU 0"])
    embedding = next(t for t in model.tensors if t.name == "token_embd.weight").n_bytes
    tied = all(t.name != "output.weight" for t in model.tensors)
    kept = kv_bytes(model, layout) + compute_bytes(model, layout) + CUDA_CONTEXT_BYTES
    on_card = model.weight_bytes - (0 if tied else embedding) + kept
    assert device_bytes(lines, "GPU 0") == on_card
    assert device_bytes(lines, "RAM") == embedding + output_bytes(model, 2)
    lines = sizes.lines(layout, Cut((), model.layers, 0, False), [])
    kept += RUNTIME_BYTES - CUDA_CONTEXT_BYTES + output_bytes(model, 2)
    assert device_bytes(lines, "RAM") == model.weight_bytes + kept


# ------------------------------------------------------------------ cards


def test_the_fewest_cards_that_hold_it_are_taken() -> None:
    plan = plan_for(host(card(0, 6000), card(1, 6000)), DENSE)
    assert (plan.gpu_indexes, plan.gpu_layers, plan.layer_split) == ((0,), 33, (33,))
    assert "--tensor-split" not in launch(plan, 1).argv


def test_layers_over_two_cards() -> None:
    plan = plan_for(host(card(0, 3000), card(1, 3000)), DENSE)
    assert plan.gpu_indexes == (0, 1)
    assert (sum(plan.layer_split), plan.gpu_layers) == (33, 33)
    assert words(plan, "--tensor-split") == ",".join(map(str, plan.layer_split))
    assert words(plan, "--split-mode") == "layer"
    assert launch(plan, 1).env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert not plan.verdict.findings
    assert plan.memory_nodes == (0,)


def test_unequal_cards_are_filled_to_the_same_share() -> None:
    plan = plan_for(host(card(0, 2000), card(1, 4000)), DENSE)
    small, large = plan.layer_split
    assert plan.gpu_indexes == (0, 1)
    assert large > 1.5 * small
    used = [device_bytes(plan.budget, f"GPU {n}") for n in (0, 1)]
    # Each within one layer of the same share of its room.
    assert abs(used[0] / 2000 - used[1] / 4000) < 130 * MIB / 2000


def test_cards_of_one_node_go_together() -> None:
    cards = (card(0, 3900, 0), card(1, 4000, 1), card(2, 3900, 1), card(3, 3800, 0))
    plan = plan_for(host(*cards), DENSE)
    assert plan.gpu_indexes == (1, 2)
    assert plan.memory_nodes == (1,)


def test_what_others_hold_of_a_card_is_not_given_away() -> None:
    busy = replace(card(0, 16000), memory_free_bytes=1000 * MIB)
    plan = plan_for(host(busy, card(1, 6000)), DENSE)
    assert plan.gpu_indexes == (1,)


def test_a_build_that_cannot_split_says_so() -> None:
    machine = host(card(0, 3000), card(1, 3000))
    plan = make_plan(machine, DENSE, builders.CUDA, Wish())
    assert len(plan.gpu_indexes) == 1
    assert "--tensor-split" in {option.option for option in plan.rejected}


# ------------------------------------------------------------------ what is given up


def test_a_smaller_kv_type_then_fewer_slots_come_before_anything_leaves_the_card() -> None:
    seen = []
    for mebibytes in range(6000, 1500, -100):
        plan = plan_for(host(card(0, mebibytes)), DENSE)
        state = (
            plan.kv_type_k == "q8_0", 4 - plan.slots, 8192 - plan.context_tokens,
            33 - plan.gpu_layers if plan.gpu_indexes else 99,
        )  # fmt: skip
        if not seen or seen[-1] != state:
            seen.append(state)
    first_beside = next(n for n, state in enumerate(seen) if state[3])
    assert [s[0] for s in seen[:first_beside]] == sorted(s[0] for s in seen[:first_beside])
    assert [s[1:3] for s in seen[:first_beside]] == sorted(s[1:3] for s in seen[:first_beside])
    offloaded = [state[3] for state in seen[first_beside:]]
    assert offloaded == sorted(offloaded)
    # Once layers leave the card, a shorter context has not helped: it is as wished again.
    assert seen[first_beside][2] == 0


def test_a_smaller_quant_is_advice_and_not_below_four_bits() -> None:
    machine = host(card(0, 2400))
    plan = plan_for(machine, DENSE)
    assert codes(plan) == {"gpu.model_partly_in_ram"}
    (finding,) = plan.verdict.findings
    assert "Q8_0" in finding.remedy.en
    assert "tiny in Q8_0" in {r.option for r in plan.rejected}
    tiny = plan_for(host(card(0, 1340)), DENSE)
    low = plan_for(host(card(0, 1340)), DENSE, least_bits=2.0)
    named = [r.option for r in tiny.rejected if r.option.startswith("tiny in ")]
    named_low = [r.option for r in low.rejected if r.option.startswith("tiny in ")]
    assert (named, named_low) == ([], ["tiny in IQ3_XXS"])


def test_the_fewest_experts_leave_the_card() -> None:
    counts = []
    for mebibytes in range(3200, 800, -100):
        plan = plan_for(host(card(0, mebibytes)), MIXED)
        if not plan.gpu_indexes or plan.gpu_layers < 17:
            break
        counts.append(plan.expert_layers_in_ram)
        if plan.expert_layers_in_ram:
            assert words(plan, "--n-cpu-moe") == str(plan.expert_layers_in_ram)
            fewer = plan.expert_layers_in_ram - 1
            sizes = Sizes(MIXED)
            layout = Layout(plan.context_tokens, 1, "q8_0", "q8_0", micro_batch_tokens=512)
            room = int(mebibytes * MIB * 0.8)
            cut = Cut((0,), 16, fewer, False)
            assert split_layers(sizes, layout, cut, 17, [room]) is None
            assert codes(plan) == {"gpu.model_partly_in_ram"}
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]


def test_experts_left_behind_do_not_fill_the_first_card() -> None:
    plan = plan_for(host(card(0, 1000), card(1, 1000)), MIXED)
    assert plan.expert_layers_in_ram
    first, second = plan.layer_split
    assert first > second  # the first card's layers have lost their experts


def test_layers_leave_the_card_last() -> None:
    plan = plan_for(host(card(0, 2000)), DENSE)
    assert 0 < plan.gpu_layers < 33
    assert words(plan, "--n-gpu-layers") == str(plan.gpu_layers)
    beside = next(g for g in plan.placement if g.group == "layers" and g.device == "RAM")
    assert (beside.first_layer, beside.last_layer) == (0, 32 - plan.gpu_layers)
    assert plan.spin == "bounded" or plan.engine.openmp is False
    assert plan.device.endswith("+ RAM")
    because = {reason.setting: reason.because.en for reason in plan.reasons}
    assert "Fewer than the usual 4" in because["slots"]
    assert "Halves the KV cache" in because["kv"]
    assert "of 33 layers are on cards" in because["device"]


def test_a_model_larger_than_everything_names_the_quant_that_would_fit() -> None:
    plan = plan_for(host(card(0, 1000), ram_bytes=1600 * MIB, nodes=1), DENSE)
    assert plan.verdict.blocked
    (finding,) = (f for f in plan.verdict.findings if f.level == "blocker")
    assert "main memory and cards together" in finding.seen.en
    assert "Q6_K" in finding.remedy.en or "Q5_K_M" in finding.remedy.en
    alone = plan_for(host(ram_bytes=200 * MIB, nodes=1), DENSE)
    (finding,) = alone.verdict.findings
    assert "no quant of at least 4 bits" in finding.remedy.en


def test_long_documents_keep_a_long_context() -> None:
    for mebibytes in range(4000, 1800, -200):
        plan = plan_for(host(card(0, mebibytes)), DENSE, purpose="long")
        assert (plan.slots, plan.context_tokens >= 16384) == (1, True)


def test_more_headroom_or_less_on_request() -> None:
    machine = host(card(0, 3000))
    careful, bold = (plan_for(machine, DENSE, headroom=share) for share in (0.4, 0.02))
    assert careful.gpu_layers < bold.gpu_layers == 33
    assert "gpu.nearly_full" in codes(bold)


# ------------------------------------------------------------------ tables


def with_table(architecture: str) -> Model:
    table = builders.tensor("per_layer_token_embd.weight", 160, 20_000_000)
    return replace(MIXED, architecture=architecture, tensors=(*MIXED.tensors, table))


def test_a_large_table_stays_on_the_disk_where_the_engine_can_read_it_there() -> None:
    model = with_table("qwen4exp")
    plan = plan_for(host(card(0, 16000)), model)
    assert plan.lazy_tables
    assert words(plan, "--lazy-mode") == "on"
    assert ("tables", "disk") in {(g.group, g.device) for g in plan.placement}
    assert device_bytes(plan.budget, "disk") == 6_400_000_000
    held = make_plan(host(card(0, 16000)), model, replace(ABLE, knows=()), Wish())
    other = plan_for(host(card(0, 16000)), with_table("llama"))
    for plain in (held, other):
        assert not plain.lazy_tables
        assert device_bytes(plain.budget, "RAM") > 6_400_000_000


def test_a_table_is_held_where_the_disk_is_slow_and_memory_is_not_short() -> None:
    slow = replace(
        host(card(0, 16000)),
        disks=(builders.disk("hdd"),),
    )
    assert not plan_for(slow, with_table("qwen4exp")).lazy_tables
    short = replace(slow, memory=replace(slow.memory, available_bytes=8 * GIB))
    assert plan_for(short, with_table("qwen4exp")).lazy_tables


# ------------------------------------------------------------------ what holds for every machine

models = st.builds(
    builders.model,
    layers=st.integers(1, 24),
    embedding=st.sampled_from([256, 1024]),
    feed_forward=st.sampled_from([512, 4096]),
    heads=st.just(8),
    kv_heads=st.sampled_from([1, 8]),
    vocabulary=st.sampled_from([1000, 100_000]),
    tied=st.booleans(),
    experts=st.sampled_from([0, 16]),
    experts_used=st.just(2),
)
cards = st.lists(
    st.tuples(st.integers(300, 6000), st.floats(0, 1), st.sampled_from([0, 1, None])), max_size=4
)


@settings(max_examples=60, deadline=None)
@given(models, cards, st.integers(200, 8000), st.sampled_from([None, 2048, 65536]), st.booleans())
def test_no_device_holds_more_than_it_has(
    model: Model,
    found: list[tuple[int, float, int | None]],
    ram_mib: int,
    context: int | None,
    able: bool,
) -> None:
    gpus = tuple(
        replace(card(n, size, node), memory_free_bytes=int(size * MIB * free))
        for n, (size, free, node) in enumerate(found)
    )
    machine = host(*gpus, ram_bytes=ram_mib * MIB)
    machine = replace(machine, limits=replace(machine.limits, memory_nodes=(1,)))
    plan = make_plan(machine, model, ABLE if able else builders.CUDA, Wish(context_tokens=context))
    for gpu in gpus:
        used = device_bytes(plan.budget, f"GPU {gpu.index}")
        assert used <= (gpu.memory_free_bytes or 0)
        assert (gpu.index in plan.gpu_indexes) == (used > 0)
    assert plan.verdict.blocked or device_bytes(plan.budget, "RAM") <= ram_mib * MIB * 0.81
    assert set(plan.gpu_indexes) <= {gpu.index for gpu in gpus}
    assert all(line.n_bytes >= 0 for line in plan.budget)
    assert plan.memory_nodes in (None, (1,))
    assert all(g.memory_nodes in (None, (1,)) for g in plan.placement)
    names = {"RAM", *(f"GPU {n}" for n in plan.gpu_indexes)}
    assert {group.device for group in plan.placement} <= names
    tied = weigh(model).shared_embedding and bool(plan.gpu_indexes)
    placed = sum(group.n_bytes for group in plan.placement)
    assert placed == model.weight_bytes + (weigh(model).embedding if tied else 0)


@settings(max_examples=40, deadline=None)
@given(models, st.integers(1, 1 << 16), st.integers(1, 8), st.integers(1, 8))
def test_what_a_placement_takes_grows_with_context_and_slots(
    model: Model, context: int, slots: int, more: int
) -> None:
    sizes = Sizes(model)
    every = model.layers + 1
    for cut in (
        Cut((every,), model.layers, 0, False),
        Cut((every - 1,), model.layers, model.layers, False),
        Cut((), model.layers, 0, False),
    ):
        devices = ["GPU 0"] * len(cut.counts)
        for larger in (Layout(context + more, slots), Layout(context, slots + more)):
            for device in ("GPU 0", "RAM"):
                before = device_bytes(sizes.lines(Layout(context, slots), cut, devices), device)
                assert before <= device_bytes(sizes.lines(larger, cut, devices), device)
