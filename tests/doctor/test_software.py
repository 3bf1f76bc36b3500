"""What drivers, toolkits and engines can do with the cards: every rule, real boxes, odd ones."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import builders
from rule_cases import Facts, meeting, missing
from workhorse.doctor.gpu_code import GpuCode, code_for
from workhorse.doctor.software import judge_software
from workhorse.knowledge.compat import Rule, rules
from workhorse.knowledge.gpus import cards
from workhorse.records import (
    CudaToolkit,
    EngineFound,
    Finding,
    Gpu,
    GpuDriver,
    GpuTrouble,
    Machine,
    Model,
    Software,
)
from workhorse.units import GIB, MIB

CHINESE = re.compile(r"[\u4e00-\u9fff]")
OLD_CPU = ("avx", "sse4_2")


def a_gpu(
    name: str, capability: tuple[int, int] | None, mib: int | None = None, **more: Any
) -> Gpu:
    memory = None if mib is None else mib * MIB
    return replace(
        builders.gpu(),
        name=name,
        compute_capability=capability,
        memory_total_bytes=memory,
        **more,
    )


V100 = a_gpu("Tesla V100-PCIE-16GB", (7, 0), 16160, pci_id="10de:1db4")
P40 = a_gpu("Tesla P40", (6, 1), 22919, pci_id="10de:1b38")
P100 = a_gpu("Tesla P100-PCIE-16GB", (6, 0), 16280, pci_id="10de:15f8")
K80 = a_gpu("Tesla K80", (3, 7), 11441, pci_id="10de:102d")
T4 = a_gpu("Tesla T4", (7, 5), 15360, pci_id="10de:1eb8")
A100 = a_gpu("NVIDIA A100-SXM4-80GB", (8, 0), 81920, pci_id="10de:20b2")
RTX5090 = a_gpu("NVIDIA GeForce RTX 5090", (12, 0), 32607, pci_id="10de:2b85")


def box(
    *gpus: Gpu,
    driver: str | None = "580.95.05",
    open_module: bool | None = None,
    engines: tuple[EngineFound, ...] = (),
    toolkits: tuple[str | None, ...] = (),
    troubles: tuple[GpuTrouble, ...] = (),
    glibc: str = "2.39",
    kernel: str = "6.1.0-18-amd64",
    flags: tuple[str, ...] = ("avx2", "avx512f", "fma"),
) -> Machine:
    made = builders.machine(gpus=gpus, flags=flags)
    return replace(
        made,
        driver=GpuDriver(driver, None, open_module) if driver or open_module is not None else None,
        system=replace(made.system, glibc=glibc, kernel=kernel),
        gpu_troubles=troubles,
        software=Software(tuple(CudaToolkit("/opt/cuda", each) for each in toolkits), engines),
    )


def engine(
    name: Any,
    version: str | None,
    sass: tuple[str, ...] | None = None,
    ptx: tuple[str, ...] | None = None,
) -> EngineFound:
    return EngineFound(name, "/opt/engine", version, sass, ptx)


def codes(machine: Machine, model: Model | None = None) -> set[str]:
    return {finding.code for finding in judge_software(machine, model)}


def worse_than_notes(machine: Machine, model: Model | None = None) -> set[str]:
    return {
        finding.code
        for finding in judge_software(machine, model)
        if finding.level in ("warning", "blocker")
    }


def one(code: str, machine: Machine, model: Model | None = None) -> Finding:
    (found,) = [each for each in judge_software(machine, model) if each.code == code]
    return found


def a_model(architecture: str, name: str = "m", quantisation: str = "q4_k") -> Model:
    return replace(
        builders.model(), architecture=architecture, name=name, quantisation=quantisation
    )


# Every rule, on a machine made from its own ranges.


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


# Real boxes.


def test_a_v100_with_its_last_driver_and_toolkit_is_well() -> None:
    machine = box(V100, open_module=False, toolkits=("12.8.93",))
    assert worse_than_notes(machine) == set()
    assert {"driver.580-kept", "toolkit.12-builds", "card.odd", "card.recipe"} <= codes(machine)
    recipe = one("card.recipe", machine)
    assert recipe.command is not None and "CMAKE_CUDA_ARCHITECTURES=70-real" in recipe.command
    assert "GGML_CUDA_CUBLAS_COMPUTE_TYPE=f32" in recipe.why.en
    assert "lmdeploy 0.18.0" in recipe.why.zh


def test_a_driver_that_dropped_the_card_blocks_even_when_it_shows_no_card() -> None:
    hidden = GpuTrouble("not_shown", None, pci_address="0000:3b:00.0", pci_id="10de:1db4")
    finding = one("driver.before-turing", box(driver="590.44.01", troubles=(hidden,)))
    assert finding.level == "blocker" and finding.share_lost == 1.0
    assert "Tesla V100-PCIE-16GB" in finding.seen.zh and "590.44.01" in finding.seen.zh
    assert "580" in finding.remedy.en
    assert "driver 590.44.01" in finding.evidence


def test_the_open_module_does_not_drive_a_volta_and_the_closed_one_no_blackwell() -> None:
    assert "driver.open-module" in worse_than_notes(box(V100, open_module=True))
    assert "driver.open-module" not in codes(box(T4, open_module=True))
    assert "driver.closed-module" in worse_than_notes(box(RTX5090, open_module=False))
    assert worse_than_notes(box(RTX5090, open_module=True)) == set()


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        (V100, RTX5090, "module"),
        (K80, RTX5090, "module"),
        (a_gpu("Tesla K40c", (3, 5)), a_gpu("NVIDIA L4", (8, 9)), "470"),
        (a_gpu("an old one", (2, 0)), T4, "390"),
    ],
)
def test_two_cards_that_no_driver_serves(first: Gpu, second: Gpu, word: str) -> None:
    for pair in ((first, second), (second, first)):
        finding = one("driver.none-for-all", box(*pair, driver=None))
        assert finding.level == "blocker" and word in finding.why.en


@pytest.mark.parametrize(
    "pair", [(V100, A100), (K80, V100), (P40, T4), (V100, P100), (T4, RTX5090)]
)
def test_two_cards_that_one_driver_serves(pair: tuple[Gpu, Gpu]) -> None:
    assert "driver.none-for-all" not in codes(box(*pair))


def test_eight_equal_cards_are_judged_once() -> None:
    eight = tuple(replace(V100, index=index) for index in range(8))
    finding = one("card.recipe", box(*eight))
    assert finding.seen.en.startswith("8 x Tesla V100-PCIE-16GB")
    assert finding.seen.zh.startswith("8 个 Tesla V100-PCIE-16GB")


def test_a_k80_counts_as_two() -> None:
    pair = (K80, replace(K80, index=1))
    machine = box(*pair, driver="470.256.02", toolkits=("11.4.4",))
    assert worse_than_notes(machine) == set()
    assert "two" in one("card.odd", machine).why.en.lower()
    alone = one("card.gpus-missing", box(K80, driver="470.256.02"))
    assert alone.share_lost == 0.5
    assert one("card.gpus-missing", box(*pair, replace(K80, index=2))).share_lost == 0.25
    assert "driver.kepler" in worse_than_notes(box(*pair, driver="580.95.05"))


def test_p40_and_p100_have_different_weak_points() -> None:
    llama = (engine("llama.cpp", "b9000", ("sm_60", "sm_61"), ()),)
    f16 = a_model("llama", quantisation="f16")
    assert "llama.cpp.slow-fp16" in worse_than_notes(box(P40, engines=llama), f16)
    assert "llama.cpp.slow-fp16" not in codes(box(P40, engines=llama), a_model("llama"))
    assert "llama.cpp.no-dp4a" in codes(box(P100, engines=llama))
    assert "llama.cpp.no-dp4a" not in codes(box(P40, engines=llama))
    assert "llama.cpp.slow-fp16" not in codes(box(P100, engines=llama), f16)


def test_an_a100_has_nothing_to_fear_from_bf16() -> None:
    machine = box(A100, engines=(engine("vllm", "0.33.0"),))
    assert worse_than_notes(machine, a_model("gemma3", quantisation="bf16")) == set()
    assert "vllm" in one("card.recipe", machine).seen.en


def test_a_box_without_cards_hears_of_its_cpu_and_c_library_only() -> None:
    machine = box(driver=None, glibc="2.17", flags=OLD_CPU)
    assert codes(machine) == {"system.glibc-wheels", "system.cpu_lacks-avx2"}
    assert codes(box(driver=None)) == set()


def test_a_toolkit_too_new_is_no_harm_beside_one_that_builds() -> None:
    assert one("toolkit.13-before-turing", box(V100, toolkits=("13.0",))).level == "warning"
    both = box(V100, toolkits=("13.0.88", "12.9.1"))
    assert one("toolkit.13-before-turing", both).level == "note"
    assert "toolkit.unknown" in codes(box(V100, toolkits=(None,)))


# Engines: their machine code decides, else the rules; else it is not known.


@pytest.mark.parametrize(
    ("capability", "sass", "ptx", "expected"),
    [
        ((7, 0), ("sm_60", "sm_70", "sm_80"), (), GpuCode("exact", "sm_70")),
        ((6, 1), ("sm_50", "sm_60"), (), GpuCode("same major", "sm_60")),
        ((6, 0), ("sm_61",), (), GpuCode("none")),
        ((7, 0), ("sm_75",), (), GpuCode("none")),
        ((7, 5), ("sm_70",), (), GpuCode("same major", "sm_70")),
        ((8, 9), ("sm_80", "sm_86"), (), GpuCode("same major", "sm_86")),
        ((8, 0), ("sm_70",), ("compute_70",), GpuCode("ptx", "compute_70")),
        ((7, 0), (), ("compute_50", "compute_61"), GpuCode("ptx", "compute_61")),
        ((7, 0), (), ("compute_75",), GpuCode("none")),
        ((9, 0), ("sm_90a",), (), GpuCode("exact", "sm_90a")),
        ((9, 1), ("sm_90a",), ("compute_90a",), GpuCode("none")),
        ((10, 3), ("sm_100f",), (), GpuCode("same major", "sm_100f")),
        ((12, 0), ("sm_100f",), ("compute_100f",), GpuCode("none")),
        ((10, 3), (), ("compute_100f",), GpuCode("ptx", "compute_100f")),
        ((12, 1), ("sm_120",), None, GpuCode("same major", "sm_120")),
        ((7, 0), ("sm_80",), None, None),
        ((7, 0), None, ("compute_70",), None),
        ((7, 0), None, None, None),
        ((7, 0), ("sm_", "sm_x", "70", "sm_99999"), (), GpuCode("none")),
        ((7, 0), (), (), GpuCode("none")),
    ],
)
def test_which_code_a_card_runs(
    capability: tuple[int, int],
    sass: tuple[str, ...] | None,
    ptx: tuple[str, ...] | None,
    expected: GpuCode | None,
) -> None:
    assert code_for(capability, sass, ptx) == expected


def test_code_for_other_cards_is_told_with_its_symptom() -> None:
    machine = box(V100, engines=(engine("llama.cpp", "b9000", ("sm_75",), ("compute_80",)),))
    finding = one("engine.no-code", machine)
    assert finding.share_lost == 1.0 and finding.evidence == ("sm_75", "compute_80")
    assert "no kernel image is available" in finding.why.zh
    assert "any CUDA arch <= 700" in finding.why.en


def test_ptx_alone_means_a_slow_first_start() -> None:
    machine = box(V100, engines=(engine("llama.cpp", "b9000", (), ("compute_61",)),))
    finding = one("engine.ptx-only", machine)
    assert "compute_61" in finding.seen.en and "70-real" in finding.remedy.zh


def test_machine_code_that_was_read_overrules_what_is_known_of_the_wheel() -> None:
    old = engine("pytorch", "2.12.1")
    assert "pytorch.cuda13-before-turing" in worse_than_notes(box(V100, engines=(old,)))
    rebuilt = replace(old, sass=("sm_70",), ptx=())
    found = codes(box(V100, engines=(rebuilt,)))
    assert "pytorch.cuda13-before-turing" not in found and "engine.code" in found
    legacy = engine("pytorch", "2.12.1+cu126")
    assert worse_than_notes(box(V100, engines=(legacy,))) == set()


def test_a_cpu_build_is_told_as_one() -> None:
    for cpu_build in (engine("llama.cpp", "b9000", (), ()), engine("pytorch", "2.13.0+cpu")):
        found = codes(box(V100, engines=(cpu_build,)))
        assert "engine.cpu-only" in found
        assert not {"engine.no-code", "pytorch.cuda13-before-turing"} & found


@pytest.mark.parametrize(
    "unknown",
    [
        engine("vllm", None),
        engine("vllm", "main"),
        engine("lmdeploy", "0.99.0"),
        engine("ollama", "7.0.0"),
        engine("llama.cpp", None),
    ],
)
def test_an_unknown_engine_is_called_unknown_and_nothing_is_guessed(unknown: EngineFound) -> None:
    machine = box(V100, engines=(unknown,))
    finding = one("engine.unknown", machine)
    assert finding.level == "note" and finding.command
    assert worse_than_notes(machine) == set()
    assert not any(
        each.level == "good" and "/opt/engine" in each.seen.en for each in judge_software(machine)
    )


def test_formats_that_an_engine_refuses_are_told_together() -> None:
    machine = box(V100, engines=(engine("vllm", "0.19.1"),))
    finding = one("vllm.uses", machine)
    assert finding.level == "note"
    for word in ("AWQ", "FP8", "MXFP4", "GPTQ"):
        assert word in finding.seen.en and word in finding.seen.zh
    assert "Minimum capability: 75. Current capability: 70." in finding.why.zh
    # An engine that does not run at all has no uses.
    assert "vllm.uses" not in codes(box(V100, engines=(engine("vllm", "0.20.0"),)))


# Models.


def test_the_fp16_cast_of_volta_is_a_warning_for_quantised_weights_only() -> None:
    code = "llama.cpp.volta-fp16-cast"
    finding = one(code, box(V100), a_model("qwen3"))
    assert finding.level == "warning" and "-ub 63" in finding.remedy.en
    assert code not in codes(box(V100), a_model("qwen3", quantisation="f16"))
    assert code not in codes(box(T4), a_model("qwen3"))
    # Without a model it is one of the things to know of the card.
    assert "GGML_CUDA_CUBLAS_COMPUTE_TYPE=f32" in one("llama.cpp.uses", box(V100)).remedy.zh


def test_flash_attention_on_mla_models_is_told_on_volta() -> None:
    assert "llama.cpp.volta-mla" in codes(box(V100), a_model("deepseek2"))
    assert "llama.cpp.volta-mla" not in codes(box(V100), a_model("llama"))
    assert "llama.cpp.volta-mla" not in codes(box(A100), a_model("deepseek2"))


@pytest.mark.parametrize(
    ("gpu", "model", "engines", "expected"),
    [
        (V100, a_model("qwen3", "Qwen3-Embedding-8B"), (), {"fp16.qwen3-embedding-volta"}),
        (V100, a_model("qwen3", "Qwen3-8B"), (), set()),
        (V100, a_model("qwen3", "Qwen3Embeddings"), (), set()),
        (T4, a_model("qwen3", "Qwen3-Embedding-8B"), (), set()),
        (V100, a_model("gpt-oss", "gpt-oss-20b"), (), {"fp16.gpt-oss"}),
        (A100, a_model("gpt-oss", "gpt-oss-20b"), (), set()),
        (T4, a_model("gemma3", "Gemma 3"), (), set()),
        (T4, a_model("gemma3", "Gemma 3"), ("vllm",), {"fp16.vllm-refuses"}),
        (T4, a_model("gemma3", "Gemma 3"), ("pytorch",), {"fp16.gemma3-norm"}),
        (V100, a_model("glm4", "GLM Z1 9B"), (), {"fp16.glm-z1-volta", "fp16.llama.cpp-guards"}),
        (V100, a_model("a-new-one", "New"), ("vllm", "pytorch"), set()),
    ],
)
def test_models_that_overflow(
    gpu: Gpu, model: Model, engines: tuple[str, ...], expected: set[str]
) -> None:
    machine = box(gpu, engines=tuple(engine(name, None) for name in engines))
    found = judge_software(machine, model)
    assert {each.code for each in found if each.code.startswith("fp16.")} == expected


def test_what_llama_cpp_guards_against_is_no_warning() -> None:
    assert one("fp16.llama.cpp-guards", box(V100), a_model("glm4")).level == "note"


# Cards of kinds that are not in the table.


def test_an_unknown_card_of_a_known_generation_is_judged_by_it() -> None:
    stranger = a_gpu("Tesla X-7", (7, 0), 16160, pci_id="10de:ffff", pci_subsystem="10de:0001")
    machine = box(stranger, driver="590.44.01")
    finding = one("card.unknown", machine)
    assert finding.level == "note" and "Volta" in finding.why.en and finding.command
    assert {"PCI id 10de:ffff", "subsystem 10de:0001", "name Tesla X-7"} <= set(finding.evidence)
    assert {"driver.before-turing", "card.recipe"} <= codes(machine)


@pytest.mark.parametrize("capability", [None, (1, 3), (13, 0), (99, 0)])
def test_of_an_unknown_generation_nothing_is_said(capability: tuple[int, int] | None) -> None:
    machine = box(
        a_gpu("NVIDIA RTX 9999", capability, 65536),
        driver="700.10",
        engines=(engine("vllm", "0.33.0", ("sm_80",), ()), engine("llama.cpp", None)),
        toolkits=("14.0",),
    )
    assert worse_than_notes(machine) <= {"toolkit.13-driver"}
    assert "card.unknown" in codes(machine)
    assert not {"card.recipe", "engine.no-code", "engine.unknown"} & codes(machine)


def test_a_generation_without_an_engine_is_told_so() -> None:
    machine = box(a_gpu("GeForce GTX 680", (3, 0), 2048), driver="470.256.02")
    assert one("card.no-recipe", machine).level == "warning"


def test_a_hidden_card_that_is_not_in_the_table_is_unknown() -> None:
    hidden = GpuTrouble("no_driver", None, pci_id="10de:0001")
    finding = one("card.unknown", box(driver=None, troubles=(hidden,)))
    assert "PCI id 10de:0001" in finding.evidence


def test_cards_that_are_elsewhere_or_broken_are_not_judged() -> None:
    for code in ("container", "lost"):
        trouble = GpuTrouble(code, None, pci_id="10de:1db4")  # type: ignore[arg-type]
        assert codes(box(driver="590.44.01", troubles=(trouble,))) == set()
    assert codes(box(troubles=(GpuTrouble("silent", None),))) == set()


# The words.


def test_every_finding_speaks_both_languages_and_is_told_once() -> None:
    for card in cards():
        memory = card.memory_gib * GIB
        gpu = replace(a_gpu(card.name, card.capability), memory_total_bytes=memory)
        gpu = replace(gpu, pci_id=card.pci_ids[0] if card.pci_ids else None)
        machine = box(
            gpu,
            engines=(engine("vllm", "0.19.1"), engine("pytorch", "2.10.0"), engine("ollama", None)),
            toolkits=("12.8", "13.1"),
            glibc="2.31",
        )
        found = judge_software(machine, a_model("glm4", "GLM"))
        assert "card.unknown" not in {finding.code for finding in found}
        assert len({(each.code, each.seen.en) for each in found}) == len(found)
        for finding in found:
            assert finding.source
            assert CHINESE.search(finding.why.zh) and CHINESE.search(finding.remedy.zh)
            for text in (finding.seen, finding.why, finding.remedy):
                assert text.en and text.zh and not CHINESE.search(text.en)


@settings(max_examples=60, deadline=None)
@given(
    name=st.text(max_size=40),
    capability=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)),
    driver=st.none() | st.text(max_size=20),
    kernel=st.text(max_size=20),
    version=st.none() | st.text(max_size=20) | st.from_regex(r"[0-9]\.[0-9]{1,2}\.[0-9]"),
    code=st.none() | st.lists(st.text(max_size=12), max_size=4).map(tuple),
    software=st.sampled_from(["vllm", "pytorch", "llama.cpp", "lmdeploy", "sglang", "ollama"]),
)
def test_nothing_that_a_machine_says_raises(
    name: str,
    capability: tuple[int, int] | None,
    driver: str | None,
    kernel: str,
    version: str | None,
    code: tuple[str, ...] | None,
    software: str,
) -> None:
    machine = box(
        a_gpu(name, capability, pci_id=name),
        driver=driver,
        kernel=kernel,
        engines=(engine(software, version, code, code),),
        toolkits=(version,),
        troubles=(GpuTrouble("not_shown", name, pci_id=name),),
    )
    for finding in judge_software(machine, a_model(name, name)):
        assert finding.seen.en and finding.seen.zh
