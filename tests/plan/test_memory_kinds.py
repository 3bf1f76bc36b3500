"""Memory beyond weights and KV: groups, drafts, checkpoints, projectors, unknown architectures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.plan.cuts import Cut, Sizes
from workhorse.plan.drafts import DRAFTS, check_drafts, draft_bytes
from workhorse.plan.memory import (
    Layout,
    checkpoint_bytes,
    compute_bytes,
    device_bytes,
    kv_bytes,
    loaded,
    padded_cells,
    projector_bytes,
    second_head_bytes,
    state_bytes,
    weight_part,
)
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import (
    Attention,
    BudgetLine,
    Model,
    Plan,
    Projector,
    RecurrentState,
    SideCache,
)
from workhorse.units import GIB, MIB


def with_tensors(*names: str, base: Model | None = None) -> Model:
    """A model with further tensors of 256 x 256."""
    base = base or builders.model()
    more = tuple(builders.tensor(name, 256, 256) for name in names)
    return replace(base, tensors=(*base.tensors, *more))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("blk.0.attn_q.weight", "attention"),
        ("blk.0.indexer.q_proj.weight", "attention"),
        ("blk.0.attn_norm.weight", "norms and others"),
        ("blk.0.ssm_out.weight", "recurrence"),
        ("blk.0.attn_gate.weight", "recurrence"),
        ("blk.0.time_mix_key.weight", "recurrence"),
        ("blk.0.channel_mix_key.weight", "feed-forward"),
        ("blk.0.ffn_gate_inp.weight", "feed-forward"),
        ("blk.0.ffn_up_shexp.weight", "shared experts"),
        ("blk.1.ffn_gate_up_exps.weight", "experts"),
        ("blk.1.exp_probs_b.bias", "norms and others"),
    ],
)
def test_a_tensor_is_told_by_its_name(name: str, part: str) -> None:
    assert weight_part(builders.tensor(name, 4)) == part


@pytest.mark.parametrize("experts_in_ram", [0, 2, 4])
@pytest.mark.parametrize("on_card", [0, 1, 3, 5])
def test_the_parts_of_the_weights_are_all_of_them(experts_in_ram: int, on_card: int) -> None:
    model = with_tensors(
        "per_layer_token_embd.weight",
        "output_norm.weight",
        "rope_freqs.weight",
        "blk.0.ssm_out.weight",
        "blk.0.ffn_up_shexp.weight",
        "blk.1.ffn_gate_exps.weight",
        base=builders.model(experts=8, experts_used=2),
    )
    cut = Cut((on_card,) if on_card else (), model.layers, experts_in_ram if on_card else 0, False)
    lines = Sizes(model).lines(Layout(2048, 1), cut, ["GPU 0"] if on_card else [])
    weights = [line for line in lines if line.item == "weights"]
    assert sum(line.n_bytes for line in weights) == model.weight_bytes
    assert len({(line.device, line.part) for line in weights}) == len(weights)
    assert all(line.part and line.n_bytes > 0 for line in weights)


def test_layers_that_draft_are_not_loaded_unless_they_draft() -> None:
    model = with_tensors("blk.3.nextn.eh_proj.weight")
    drafting = replace(
        model, draft_layers=1, attention=(*model.attention[:3], None),
        draft_attention=(Attention(2, 64, 64),),
    )  # fmt: skip
    layout = Layout(2048, 2)
    left_out = [t.name for t in drafting.tensors if not loaded(t, drafting)]
    assert left_out == [
        "blk.3.attn_q.weight",
        "blk.3.ffn_down.weight",
        "blk.3.nextn.eh_proj.weight",
    ]
    held = sum(x.n_bytes for x in in_ram(drafting, layout) if x.item == "weights")
    more = draft_bytes(drafting, layout)
    assert held + more - 2 * 2048 * 2 * 2 * 64 * 2 == model.weight_bytes
    assert draft_bytes(model, layout) == 0


def test_drafting_keeps_states_to_go_back_to_where_the_engine_can() -> None:
    layout = Layout(2048, 2)
    state = RecurrentState(0, 1000)
    base = replace(builders.model(), draft_layers=1, recurrent=(state, state, None, None))
    able = replace(base, architecture="qwen35")
    assert draft_bytes(able, layout) - draft_bytes(base, layout) == DRAFTS * 2 * 2 * 1000


def test_a_plan_notes_layers_that_it_does_not_use() -> None:
    assert check_drafts(builders.model(), Layout(2048, 1)) == ()
    (note,) = check_drafts(replace(builders.model(), draft_layers=1), Layout(2048, 1))
    assert note.level == "note"
    assert "draft" in note.seen.en


def test_a_tied_head_that_the_cpu_repacks_is_held_twice() -> None:
    tied = builders.model(tied=True)
    packed = tuple(
        replace(t, type="q4_k") if t.name == "token_embd.weight" else t for t in tied.tensors
    )
    assert second_head_bytes(tied) == 0  # f16 is used as it is
    assert second_head_bytes(replace(tied, tensors=packed)) == packed[0].n_bytes
    assert second_head_bytes(builders.model(tied=False)) == 0


def test_a_checkpoint_holds_windows_and_states_of_one_slot() -> None:
    layout = Layout(8192, 4)
    assert checkpoint_bytes(builders.model(), layout) == 0
    sliding = builders.model(window_tokens=512)
    cells = padded_cells(512 + layout.micro_batch_tokens)
    assert checkpoint_bytes(sliding, layout) == 4 * cells * 2 * (2 * 64 * 2)
    state = RecurrentState(1000, 50_000)
    recurrent = replace(builders.model(), recurrent=(state, None, state, None))
    assert checkpoint_bytes(recurrent, layout) == 2 * 51_000
    assert state_bytes(recurrent, layout) == 4 * 2 * 51_000


def test_a_side_cache_counts_its_own_cells() -> None:
    base = builders.model(layers=1)
    layout = Layout(10_000, 1)
    plain = Attention(2, 64, 64)
    compressed = replace(plain, side=(SideCache(128, 0, 4), SideCache(32, 16)))
    more = kv_bytes(replace(base, attention=(compressed,)), layout) - kv_bytes(
        replace(base, attention=(plain,)), layout
    )
    assert more == padded_cells(10_240 // 4) * 128 * 2 + padded_cells(10_000) * (32 + 16) * 2


def test_without_flash_attention_narrow_values_are_padded() -> None:
    wide, narrow = Attention(2, 512, 512), Attention(2, 256, 256)
    model = replace(builders.model(layers=2), attention=(wide, narrow))
    on, off = Layout(2048, 1), Layout(2048, 1, flash_attention=False)
    assert kv_bytes(model, off) - kv_bytes(model, on) == 2048 * 2 * 256 * 2
    latent = replace(model, attention=(wide, Attention(1, 576, 0)))
    assert kv_bytes(latent, off) == kv_bytes(latent, on)


def test_a_projector_takes_its_weights_and_room_for_one_image() -> None:
    vision = Projector("/m/mmproj.gguf", "vision", 800 * MIB, 896, 14, 1152, 4304, 16)
    weights, scratch = projector_bytes(vision)
    patches = (896 // 14) ** 2
    assert weights == 800 * MIB
    assert scratch == patches * 4 * (4 * 1152 + 3 * 4304 + 16 * patches)
    assert projector_bytes(replace(vision, patch_size=None)) == (800 * MIB, 400 * MIB)


def test_the_projector_is_counted_before_layers_are_placed() -> None:
    eyes = Projector("/m/mmproj.gguf", "vision", 800 * MIB, 896, 14, 1152, 4304, 16)
    taken = sum(projector_bytes(eyes))
    blind = builders.model(layers=32, embedding=2048, feed_forward=14336)
    seeing = replace(blind, projector=eyes)
    build = replace(builders.CUDA, knows=(*builders.CUDA.knows, "--n-gpu-layers", "--mmproj"))

    def planned(model: Model, room_bytes: int | None) -> Plan:
        cards = () if room_bytes is None else (builders.gpu(memory_bytes=room_bytes),)
        return make_plan(builders.machine(gpus=cards), model, build, Wish(headroom=0))

    in_ram = planned(seeing, None)
    assert [line.device for line in in_ram.budget if line.item == "projector"] == ["RAM"] * 2
    whole = planned(blind, 16 * GIB)
    exactly = device_bytes(whole.budget, "GPU 0")
    assert planned(blind, exactly).gpu_layers == blind.layers + 1
    with_eyes = planned(seeing, exactly + taken)
    assert with_eyes.gpu_layers == blind.layers + 1
    assert device_bytes(with_eyes.budget, "GPU 0") == exactly + taken
    assert with_eyes.kv_type_k == whole.kv_type_k == "f16"
    assert with_eyes.projector == eyes
    short = planned(seeing, exactly + taken // 2)
    assert (short.kv_type_k, short.gpu_layers) != ("f16", blind.layers + 1)
    assert device_bytes(short.budget, "GPU 0") <= exactly + taken // 2
    assert [r.value for r in short.reasons if r.setting == "projector"] == ["mmproj.gguf"]


def test_several_cards_leave_room_for_it_on_the_first() -> None:
    eyes = Projector("/m/mmproj.gguf", "vision", 800 * MIB, 896, 14, 1152, 4304, 16)
    model = builders.model(layers=32, embedding=2048, feed_forward=14336)
    knows = (*builders.CUDA.knows, "--n-gpu-layers", "--mmproj", "--tensor-split")
    build, room_bytes = replace(builders.CUDA, knows=knows), 3400 * MIB
    host = builders.machine(gpus=tuple(builders.gpu(n, memory_bytes=room_bytes) for n in range(2)))
    assert make_plan(host, model, build, Wish(headroom=0)).gpu_indexes == (0,)
    plan = make_plan(host, replace(model, projector=eyes), build, Wish(headroom=0))
    assert {line.device for line in plan.budget if line.item == "projector"} == {"GPU 0"}
    assert plan.gpu_layers == model.layers + 1
    assert 0 < plan.layer_split[0] < plan.layer_split[1]
    for card in range(2):
        assert device_bytes(plan.budget, f"GPU {card}") <= room_bytes


def test_an_unknown_architecture_says_so() -> None:
    model = replace(builders.model(), architecture="newarch", known=False)
    line = next(x for x in in_ram(model, Layout(2048, 1)) if x.item == "compute")
    assert "newarch" in line.source.en
    assert "newarch" in line.source.zh
    assert "±50 %" in line.source.en


sizes = st.integers(1, 4096)
attentions = st.one_of(
    st.none(),
    st.builds(
        Attention,
        kv_heads=st.integers(1, 64),
        key_size=sizes,
        value_size=st.integers(0, 4096),
        window_tokens=st.one_of(st.none(), st.integers(1, 1 << 17)),
        side=st.lists(
            st.builds(SideCache, sizes, st.integers(0, 4096), st.sampled_from([1, 4, 128])),
            max_size=2,
        ).map(tuple),
    ),
)
states = st.one_of(
    st.none(), st.builds(RecurrentState, st.integers(0, 1 << 24), st.integers(0, 1 << 30))
)
layouts = st.builds(
    Layout,
    context_tokens=st.integers(1, 1 << 20),
    slots=st.integers(1, 64),
    kv_type_k=st.sampled_from(["f16", "q8_0", "q4_0"]),
    kv_type_v=st.sampled_from(["f16", "q8_0", "q4_0"]),
    micro_batch_tokens=st.sampled_from([32, 512, 2048]),
    flash_attention=st.booleans(),
)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Models of any mixture of layers."""
    layers = draw(st.integers(1, 12))
    base = builders.model(layers=layers, experts=draw(st.sampled_from([0, 8])), experts_used=2)
    return replace(
        base,
        attention=tuple(draw(attentions) for _ in range(layers)),
        recurrent=tuple(draw(states) for _ in range(layers)),
    )


@given(models(), layouts, st.integers(1, 1 << 16), st.integers(1, 8))
def test_memory_grows_with_context_slots_and_layers(
    model: Model, layout: Layout, tokens: int, slots: int
) -> None:
    size = total(model, layout)
    assert 0 < size <= total(model, replace(layout, context_tokens=layout.context_tokens + tokens))
    assert size < total(model, replace(layout, slots=layout.slots + slots))
    again = replace(
        model,
        layers=model.layers + 1,
        attention=(*model.attention, model.attention[0]),
        recurrent=(*model.recurrent, model.recurrent[0]),
    )
    assert size <= total(again, layout)
    assert 0 <= checkpoint_bytes(model, layout) * layout.slots <= size
    assert compute_bytes(model, layout) <= compute_bytes(model, layout, outputs=4096)


def in_ram(model: Model, layout: Layout) -> tuple[BudgetLine, ...]:
    """The budget when main memory holds it all."""
    return Sizes(model).lines(layout, Cut((), model.layers, 0, False), [])


def total(model: Model, layout: Layout) -> int:
    return sum(line.n_bytes for line in in_ram(model, layout))
