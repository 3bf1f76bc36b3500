"""Tokens are chosen on the card where that was seen to pay, and what it takes is in the budget."""

from dataclasses import replace

import pytest

import builders
from workhorse.engines.llamacpp import launch
from workhorse.knowledge.llamacpp_flags import CARD_SAMPLING
from workhorse.plan.memory import device_bytes, output_bytes
from workhorse.plan.planner import make_plan
from workhorse.plan.sampling import LEAST_VOCABULARY, MORE_ROWS, SCRATCH_BYTES
from workhorse.plan.wish import Wish
from workhorse.records import Drafts, EngineBuild, Gpu, Model, Plan
from workhorse.units import GIB

ABLE = replace(
    builders.CUDA,
    knows=(*builders.CUDA.knows, "--n-gpu-layers", "--split-mode", "--tensor-split", CARD_SAMPLING),
)
WIDE = builders.model(vocabulary=152_064)
CARD = builders.gpu(0, memory_bytes=16 * GIB)


def planned(model: Model = WIDE, build: EngineBuild = ABLE, *cards: Gpu) -> Plan:
    return make_plan(builders.machine(gpus=cards or (CARD,)), model, build, Wish(slots=4))


def words(plan: Plan) -> list[str]:
    return [reason.because.en for reason in plan.reasons if reason.setting == "sampling"]


def test_a_large_vocabulary_is_looked_through_on_the_card() -> None:
    plan = planned()
    assert plan.card_sampling
    assert CARD_SAMPLING in launch(plan, 1).argv
    assert "152,064 scores" in words(plan)[0]


def test_what_it_takes_is_in_the_budget() -> None:
    card, host = planned(), planned(build=replace(ABLE, knows=ABLE.knows[:-1]))
    assert not host.card_sampling
    more = {
        device: device_bytes(card.budget, device) - device_bytes(host.budget, device)
        for device in ("RAM", "GPU 0")
    }
    # A tenth of what is left of main memory is the prompt cache: it shrinks as the rest grows.
    rows = MORE_ROWS * output_bytes(WIDE, 4)
    assert more["GPU 0"] == SCRATCH_BYTES
    assert 0.85 * rows <= more["RAM"] <= rows


def test_each_stream_costs_less_then() -> None:
    card, host = planned(), planned(build=replace(ABLE, knows=ABLE.knows[:-1]))
    faster = [
        with_card.total_tokens_per_s.value / without.total_tokens_per_s.value
        for with_card, without in zip(card.forecast.streams, host.forecast.streams, strict=True)
    ]
    assert all(ratio > 1.0 for ratio in faster)
    assert faster[-1] > faster[0]


@pytest.mark.parametrize(
    "plan",
    [
        planned(builders.model(vocabulary=LEAST_VOCABULARY - 1)),
        planned(replace(WIDE, pooling=True)),
        make_plan(builders.machine(), WIDE, ABLE, Wish()),  # no card
        make_plan(  # two cards that each hold a part
            builders.machine(gpus=(CARD, replace(CARD, index=1))),
            builders.model(layers=64, embedding=4096, feed_forward=32768, vocabulary=152_064),
            ABLE,
            Wish(),
        ),
    ],
)
def test_else_the_host_does_it(plan: Plan) -> None:
    assert not plan.card_sampling
    assert CARD_SAMPLING not in launch(plan, 1).argv
    assert not words(plan)


def test_guessed_tokens_are_checked_on_the_host() -> None:
    """With drafts the engine's way on the card was never run."""
    plan = replace(planned(), drafts=Drafts("ngram-mod"))
    assert CARD_SAMPLING not in launch(plan, 1).argv
