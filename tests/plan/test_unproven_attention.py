"""A build whose attention nobody has seen right on a card: plans leave it off and say so."""

from dataclasses import replace

import builders
from workhorse.engines.llamacpp import settings
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish, layouts
from workhorse.records import EngineBuild, Plan
from workhorse.units import GIB

KNOWS = (*builders.EMBEDDED.knows, "--flash-attn", "--cache-type-k", "--cache-type-v")
UNPROVEN = replace(
    builders.CUDA, knows=KNOWS, forms=("flash-attn takes a value",), flash_attention=False
)


def plan(build: EngineBuild, *, on_card: bool) -> Plan:
    gpus = (builders.gpu(memory_bytes=GIB),) if on_card else ()
    return make_plan(builders.machine(gpus=gpus), builders.model(), build, Wish())


def codes(made: Plan) -> set[str]:
    return {finding.code for finding in made.verdict.findings}


def test_it_stays_off_on_a_card() -> None:
    made = plan(UNPROVEN, on_card=True)
    assert made.gpu_index == 0
    assert not made.flash_attention
    assert "engine.attention-unproven" in codes(made)
    words = settings(made, 1, "127.0.0.1")
    assert words[words.index("--flash-attn") + 1] == "off"
    (reason,) = [one for one in made.reasons if one.setting == "flash attention"]
    assert reason.value == "off"


def test_the_kv_cache_is_never_quantised_without_it() -> None:
    """The engine refuses to start; so slots and context are given up instead."""
    tried = {}
    for on in (True, False):
        tried[on] = [
            one.kv_type_k
            for one in layouts(builders.model(), Wish(), 512, flash_attention=on)
            if one.flash_attention is on
        ]
    assert {"f16", "q8_0"} == set(tried[True])
    assert {"f16"} == set(tried[False])


def test_the_cpus_attention_is_not_in_doubt() -> None:
    made = plan(UNPROVEN, on_card=False)
    assert made.flash_attention
    assert "engine.attention-unproven" not in codes(made)


def test_a_proven_build_has_it_on() -> None:
    made = plan(replace(UNPROVEN, flash_attention=True), on_card=True)
    assert made.flash_attention
    assert "engine.attention-unproven" not in codes(made)
