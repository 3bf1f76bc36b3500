"""What drivers and toolkits can do with the cards: real boxes, odd ones, unknown ones."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from software_boxes import (
    A100,
    K80,
    P40,
    P100,
    RTX5090,
    T4,
    V100,
    a_gpu,
    a_model,
    box,
    codes,
    engine,
    one,
    worse_than_notes,
)

from workhorse.doctor.software import judge_software
from workhorse.knowledge.gpus import cards
from workhorse.records import Gpu, GpuDriver, GpuTrouble
from workhorse.units import GIB

CHINESE = re.compile(r"[\u4e00-\u9fff]")
OLD_CPU = ("avx", "sse4_2")


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


@pytest.mark.parametrize("version", [None, "", "new", "9.2", "10.2"])
def test_a_toolkit_that_no_rule_covers_is_unknown(version: str | None) -> None:
    assert one("toolkit.unknown", box(V100, toolkits=(version,))).level == "note"
    assert "toolkit.unknown" not in codes(box(V100, toolkits=("11.4", "12.2", "13.3")))
    assert "toolkit.unknown" in codes(box(T4, toolkits=("14.0",)))


@pytest.mark.parametrize("version", [None, "", "N/A"])
def test_a_driver_that_does_not_say_its_version_is_unknown(version: str | None) -> None:
    made = box(V100)
    machine = replace(made, driver=GpuDriver(version, None))
    assert one("driver.unknown", machine).level == "note"
    assert worse_than_notes(machine) == set()
    assert "driver.unknown" not in codes(made) | codes(box(driver=None))


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


def test_a_build_for_one_card_is_a_build_for_all_of_them() -> None:
    ada = a_gpu("NVIDIA GeForce RTX 4090", (8, 9), 24564, pci_id="10de:2684")
    machine = box(ada, A100, P40, driver="550.54.15")
    for finding in judge_software(machine):
        if finding.code == "card.recipe":
            assert finding.command is not None
            assert 'ARCHITECTURES="61-real;80-real;89-real"' in finding.command


def test_a_card_of_another_toolkit_is_not_built_for() -> None:
    (kepler,) = [f for f in judge_software(box(K80, K80, driver="470.256.02"))
                 if f.code == "card.recipe"]  # fmt: skip
    assert kepler.command is not None and "ARCHITECTURES=37 " in kepler.command
    volta = one("card.recipe", box(V100, a_gpu("?", None)))
    assert volta.command is not None and "ARCHITECTURES=70-real " in volta.command


def test_a_driver_that_cannot_drive_the_card_is_not_praised_for_its_branch() -> None:
    machine = box(V100, driver="580.95.05", open_module=True)
    assert "driver.open-module" in codes(machine) and "driver.580-kept" not in codes(machine)


@pytest.mark.parametrize(
    ("name", "pci_id", "knows"),
    [("NVIDIA A40-24Q", None, True), ("GRID V100D-32C", "10de:1db6", True),
     ("GRID Z9-4Q", None, False)],
)  # fmt: skip
def test_a_share_of_a_card_is_called_so(name: str, pci_id: str | None, knows: bool) -> None:
    machine = box(a_gpu(name, None, 24576, pci_id=pci_id))
    assert "card.vgpu" in codes(machine) and "card.unknown" not in codes(machine)
    assert ("card.recipe" in codes(machine)) is knows


def test_a_card_with_other_memory_keeps_the_capability_of_its_chip() -> None:
    odd = a_gpu("NVIDIA GeForce RTX 3080", None, 20480, pci_id="10de:2206")
    finding = one("card.unknown", box(odd))
    assert "Ampere" in finding.why.en and "Ampere" in finding.why.zh


def test_a_card_that_answers_with_errors_is_counted_once() -> None:
    trouble = GpuTrouble("errors", "ERR!", "0000:3b:00.0", "10de:1db4")
    found = [f for f in judge_software(box(V100, troubles=(trouble,))) if f.code == "card.recipe"]
    assert len(found) == 1 and "2 x" not in found[0].seen.en


def test_in_windows_the_driver_is_that_of_windows() -> None:
    wsl = box(T4, driver="537.13", kernel="5.15.90.1-microsoft-standard-WSL2")
    assert "Windows" in one("system.wsl", wsl).remedy.en
    assert "system.wsl" not in codes(box(T4, driver="537.13"))
    assert "system.wsl" not in codes(box(kernel="5.15.90.1-microsoft-standard-WSL2"))
