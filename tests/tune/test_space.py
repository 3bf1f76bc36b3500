"""Which variables there are here, in which order, and why the others are not."""

from dataclasses import replace

import pytest
from tune_cases import BOX, BUILD, CARD_HOST, SHAPE, case

import builders
from workhorse.engines.llamacpp import launch
from workhorse.knowledge.llamacpp_flags import CARD_SAMPLING
from workhorse.records import Bandwidth, Plan
from workhorse.tune.apply import apply
from workhorse.tune.card_choices import sampling, split
from workhorse.tune.cpu_choices import cpu_words
from workhorse.tune.given import Given, Refusal
from workhorse.tune.offer import Around, NotHere, Offer
from workhorse.tune.settings import cpu_list
from workhorse.tune.space import space_of
from workhorse.tune.trial import Change
from workhorse.tune.variables import Space, Variable
from workhorse.units import GB

PLAIN = builders.machine(nodes=1, cores=4)


def variables(given: Given, *kept: Change) -> dict[str, Variable]:
    return {v.name: v for v in space_of(given, kept).variables}


def reason(space: Space, option: str) -> str:
    return next(r.because.en for r in space.rejected if r.option == option)


def expected(variable: Variable) -> dict[str, float | None]:
    return {choice.value: choice.expected for choice in variable.choices}


def test_two_cpus_without_a_card() -> None:
    space = space_of(case(), ())
    assert {v.name for v in space.variables} == {
        "cpus", "threads", "numa", "load", "spin", "flash attention", "kv", "drafts",
    }  # fmt: skip
    assert {r.option for r in space.rejected} == {
        "engine", "quant", "slots", "gpu layers", "expert layers", "split", "sampling",
        "batch", "micro-batch",
    }  # fmt: skip
    assert all(r.because.en and r.because.zh for r in space.rejected)
    assert all(v.because.en and v.because.zh for v in space.variables)


def test_one_node_without_second_threads_has_no_set_of_cpus_to_try() -> None:
    space = space_of(case(PLAIN), ())
    assert {"cpus", "numa"} <= {r.option for r in space.rejected}
    assert "one memory node" in reason(space, "numa")


def test_on_a_card_main_memory_does_not_matter() -> None:
    card = case(CARD_HOST, build=replace(BUILD, gpu_architectures=("sm_70",)))
    space = space_of(card, ())
    assert "lies on a card" in reason(space, "threads")
    assert {"threads", "cpus", "numa", "load", "spin", "gpu layers"} <= {
        r.option for r in space.rejected
    }


@pytest.mark.parametrize("goal", ["decode", "total", "prefill"])
def test_every_value_can_be_applied_and_the_incumbents_is_among_them(goal: str) -> None:
    given = case(goal=goal)  # type: ignore[arg-type]
    for name, variable in variables(given).items():
        assert variable.now in variable.values
        assert variable.start == variable.now
        for choice in variable.choices:
            if choice.fits:
                plan = apply(given, [Change(name, choice.value)])
                assert isinstance(plan, Plan)


def test_what_the_forecast_promises_most_comes_first() -> None:
    read = (
        Bandwidth(38 * GB, "huge", 14, 0, "test", 1.0),
        Bandwidth(60 * GB, "huge", 28, None, "test", 1.0, (0, 1)),
        Bandwidth(30 * GB, "small", 14, 0, "test", 1.0),
    )
    box = replace(BOX, memory=replace(BOX.memory, bandwidths=read))
    order = [v.name for v in space_of(case(box), ()).variables]
    assert order[0] == "cpus"
    told = expected(variables(case(box))["cpus"])
    both = told["0-27"]
    assert both is not None
    assert both > 1.2
    load = expected(variables(case(box))["load"])["none"]
    assert load is not None
    assert load < 1


def test_the_forecast_is_silent_where_it_knows_nothing() -> None:
    found = variables(case())
    assert expected(found["spin"])["default"] is None
    assert expected(found["flash attention"])["off"] is None
    assert expected(found["drafts"])["ngram-mod"] is None


def test_second_threads_of_cores_are_not_forecast_as_cores() -> None:
    told = expected(variables(case(goal="prefill"))["threads"])
    assert told["28"] == pytest.approx(1.0)


def test_many_streams_have_other_variables() -> None:
    found = variables(case(goal="total"))
    assert "slots" in found
    assert "drafts" not in found
    eight = expected(found["slots"])["8"]
    assert eight is not None
    assert eight > 1.1
    assert all(int(value) >= 1 for value in found["slots"].values)


def test_slots_never_fall_below_what_is_asked() -> None:
    found = variables(case(goal="total", slots=4))
    assert min(int(value) for value in found["slots"].values) == 4


def test_a_loss_of_quality_is_only_offered_where_it_is_measured() -> None:
    given = case()
    assert "q4_0" not in variables(given)["kv"].values
    asked = replace(given, constraints=replace(given.constraints, kl_divergence=0.01))
    assert "q4_0" in variables(asked)["kv"].values


def test_keys_alone_are_quantised_without_flash_attention() -> None:
    assert "keys q8_0" in variables(case())["kv"].values
    kept = Change("kv", "keys q8_0")
    found = {one.name: one for one in space_of(case(), (kept,)).variables}["kv"]
    assert found.now == "keys q8_0"
    assert "q8_0" not in found.values  # its values would need flash attention


def test_flash_attention_of_an_unproven_build_stays_off_on_a_card() -> None:
    build = replace(BUILD, gpu_architectures=("sm_70",), flash_attention=False)
    space = space_of(case(CARD_HOST, build=build), ())
    assert "has not shown" in reason(space, "flash attention")


def test_builds_and_files_at_hand_are_variables() -> None:
    smaller = replace(SHAPE, path="/models/tiny-small.gguf", tensors=SHAPE.tensors[:-9])
    foreign = replace(BUILD, version="for another CPU", needs_flags=("avx512f",))
    given = case(files=(smaller,), builds=(replace(BUILD, version="test 2"), foreign))
    found = variables(given)
    assert found["engine"].values == ("test 1", "test 2")
    ratio = expected(found["quant"])[smaller.path]
    assert ratio is not None
    assert ratio > 1


def test_the_space_moves_with_the_incumbent() -> None:
    found = variables(case(), Change("cpus", "0-27"))
    assert (found["threads"].now, found["threads"].start) == ("28", "14")
    assert found["numa"].now == "0-1"


@pytest.mark.parametrize("words", ["0", "0-3", "0-3,8", "1,3,5-9"])
def test_lists_of_cpus_are_written_as_they_are_read(words: str) -> None:
    assert cpu_words(cpu_list(words)) == words


FORM = "split-mode takes tensor"


@pytest.mark.parametrize(("forms", "kv_type", "values"), [
    ((FORM,), "f16", ("layer", "tensor")),
    ((), "f16", ("layer", "row")),  # an older build
    ((FORM,), "q8_0", None),
])  # fmt: skip
def test_cards_share_a_model_as_the_build_can(
    forms: tuple[str, ...], kv_type: str, values: tuple[str, ...] | None
) -> None:
    knows = (*BUILD.knows, "--split-mode", "--tensor-split")
    build = replace(BUILD, gpu_architectures=("sm_70",), knows=knows, forms=forms)
    on_cards = case(CARD_HOST, build=build)
    plan = replace(
        on_cards.plan,
        gpu_indexes=(0, 1),
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        flash_attention=True,
    )
    found = split(Around(on_cards, plan))
    assert (found.values if isinstance(found, Offer) else None) == values


def test_tokens_may_be_chosen_on_a_card_that_holds_all_layers() -> None:
    knows = (*BUILD.knows, CARD_SAMPLING)
    build = replace(BUILD, gpu_architectures=("sm_70",), knows=knows)
    card = case(CARD_HOST, build=build)
    offer = sampling(Around(card, card.plan))
    assert isinstance(offer, Offer)
    assert (offer.now, offer.values) == ("host", ("host", "card"))
    chosen = apply(card, [Change("sampling", "card")])
    assert isinstance(chosen, Plan)
    assert chosen.card_sampling
    assert CARD_SAMPLING in launch(chosen, 1).argv
    for plan in (
        replace(card.plan, gpu_indexes=(0, 1)),
        replace(card.plan, gpu_layers=card.plan.layers - 1),
        replace(card.plan, embeddings=True),
        replace(card.plan, engine=BUILD),
    ):
        assert isinstance(sampling(Around(card, plan)), NotHere)
    assert isinstance(apply(card, [Change("gpu layers", "9"), Change("sampling", "card")]), Refusal)
