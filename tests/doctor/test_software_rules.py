"""Every rule of what runs with what, on a machine made from its own ranges."""

import pytest
from software_boxes import a_gpu, a_model, box, engine

from rule_cases import Facts, meeting, missing
from workhorse.doctor.software import judge_software
from workhorse.knowledge.compat import Rule, rules
from workhorse.records import EngineFound, Gpu, Machine, Model


def machine_of(rule: Rule, facts: Facts) -> tuple[Machine, Model | None]:
    def told(key: str) -> str | None:
        value = facts.get(key)
        return value if isinstance(value, str) else None

    gpus: tuple[Gpu, ...] = ()
    if capability := told("capability"):
        major, minor = [*capability.split("."), "0"][:2]
        gpus = (a_gpu("a card", (int(major), int(minor))),)
    elif rule.id.startswith(("driver.", "toolkit.")):
        gpus = (a_gpu("a card", (7, 5)),)
    engines: tuple[EngineFound, ...] = ()
    if (software := told("software")) and software != "another":
        build = told("build")
        version = told("version")
        if build and build != "default":
            version = f"{version or '1'}+{build}"
        # A use is told only of an engine that runs: its code fits the card.
        fits = tuple(f"sm_{g.compute_capability[0]}{g.compute_capability[1]}" for g in gpus)  # type: ignore[index]
        sass = fits if rule.use and fits else None
        engines = (engine(software, version, sass, () if sass else None),)
    toolkit = told("toolkit")
    module = told("driver_module")
    flags = facts.get("cpu_flags")
    machine = box(
        *gpus,
        driver=told("driver"),
        open_module=None if module in (None, "another") else module == "open",
        engines=engines,
        toolkits=(toolkit,) if toolkit else (),
        glibc=told("glibc") or "2.39",
        kernel=told("kernel") or "6.1.0",
        flags=tuple(sorted(flags)) if isinstance(flags, frozenset) else ("avx2", "avx512f"),
    )
    model = None
    if told("weights") or told("model"):
        weights = told("weights") or "quantised"
        quantisation = {"quantised": "q4_k", "another": "f32"}.get(weights, weights)
        model = a_model(told("model") or "llama", quantisation=quantisation)
    return machine, model


def tells(rule: Rule, machine: Machine, model: Model | None) -> bool:
    found = judge_software(machine, model)
    if any(finding.code == rule.id for finding in found):
        return True
    uses = f"{rule.when.get('software')}.uses"
    line = f"{rule.use_zh}：{rule.cause_zh}"
    return any(finding.code == uses and line in finding.why.zh for finding in found)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_every_rule_is_told_on_its_machine_and_on_no_neighbour(rule: Rule) -> None:
    assert tells(rule, *machine_of(rule, meeting(rule)))
    for key in rule.when:
        # workhorse itself brings llama.cpp: its uses are told without one being found.
        if not (key == "software" and rule.when[key] == "llama.cpp" and rule.use):
            assert not tells(rule, *machine_of(rule, missing(rule, key))), key
