"""Each cause as a finding: what was seen with its values, why, and what to do, in two languages."""

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from builders import gpu, machine
from workhorse.doctor.gpu_access import judge_gpu_access
from workhorse.records import Finding, GpuDriver, GpuTrouble, Machine, Verdict

CODES = get_args(get_type_hints(GpuTrouble)["code"])
CARD = ("0000:18:00.0", "10de:1db6")


def with_troubles(*troubles: GpuTrouble) -> Machine:
    return replace(machine(), gpus=(), gpu_troubles=troubles)


def only(*troubles: GpuTrouble) -> Finding:
    (finding,) = judge_gpu_access(with_troubles(*troubles))
    return finding


def test_no_trouble_is_no_finding() -> None:
    assert judge_gpu_access(with_troubles()) == ()


@pytest.mark.parametrize("code", CODES)
def test_every_cause_has_words_a_remedy_and_a_source(code: str) -> None:
    finding = only(GpuTrouble(code, "its own words", *CARD))  # type: ignore[arg-type]
    assert finding.code == f"gpu.{code.replace('_', '-')}"
    for text in (finding.seen, finding.why, finding.remedy):
        assert text.en.endswith(".") and text.zh.endswith("。") and text.en != text.zh
        assert any("\u4e00" <= letter <= "\u9fff" for letter in text.zh)
    for words in (finding.seen.en, finding.seen.zh):
        assert CARD[0] in words and CARD[1] in words and "its own words" in words
    mild = ("note",) if code == "driver_not_told" else ("warning", "blocker")
    assert finding.source and finding.level in mild
    assert any(CARD[0] in line for line in finding.evidence)


@pytest.mark.parametrize("code", CODES)
def test_a_cause_without_a_card_is_still_a_sentence(code: str) -> None:
    finding = only(GpuTrouble(code, None))  # type: ignore[arg-type]
    assert finding.seen.en[0].isupper() and "None" not in finding.seen.en + finding.seen.zh


def test_eight_cards_with_one_cause_are_one_finding() -> None:
    troubles = [
        GpuTrouble("no_driver", None, f"0000:{bus:02x}:00.0", "10de:1db6") for bus in range(9)
    ]
    finding = only(*troubles)
    assert "0000:07:00.0" in finding.seen.en and "+1" in finding.seen.en
    assert len(finding.evidence) == 9


def test_two_causes_are_two_findings() -> None:
    findings = judge_gpu_access(
        with_troubles(GpuTrouble("lost", "x", *CARD), GpuTrouble("not_shown", None, *CARD))
    )
    assert [finding.code for finding in findings] == ["gpu.lost", "gpu.not-shown"]


def test_what_makes_every_gpu_useless_blocks() -> None:
    here = with_troubles(GpuTrouble("library_mismatch", "version mismatch"))
    (finding,) = judge_gpu_access(here)
    assert finding.level == "blocker" and finding.share_lost == 1.0
    assert Verdict((finding,)).blocked and finding.command == "sudo reboot"


def test_a_card_beside_working_ones_does_not_block() -> None:
    here = replace(machine(gpus=(gpu(),)), gpu_troubles=(GpuTrouble("lost", "GPU is lost", *CARD),))
    (finding,) = judge_gpu_access(here)
    assert finding.level == "warning" and finding.share_lost is None


@pytest.mark.parametrize("code", ["no_driver", "other_driver", "container"])
def test_a_display_card_or_a_plain_container_does_not_block(code: str) -> None:
    assert only(GpuTrouble(code, None, *CARD)).level == "warning"  # type: ignore[arg-type]


def test_cards_kept_from_a_container_are_a_note() -> None:
    here = with_troubles(GpuTrouble("not_shown", None, *CARD))
    inside = replace(here, system=replace(here.system, container="docker"))
    assert judge_gpu_access(inside)[0].level == "note"
    assert "container: docker" in judge_gpu_access(inside)[0].evidence


def test_an_old_card_is_told_its_last_driver_and_its_module() -> None:
    finding = only(GpuTrouble("not_shown", None, *CARD))
    assert "580" in finding.remedy.en and "580" in finding.remedy.zh
    assert "proprietary" in finding.remedy.en
    unknown = only(GpuTrouble("not_shown", None, "0000:18:00.0", "10de:ffff"))
    assert "proprietary" not in unknown.remedy.en and "580" not in unknown.remedy.en


def test_the_driver_is_evidence() -> None:
    here = replace(
        with_troubles(GpuTrouble("not_shown", None, *CARD)),
        driver=GpuDriver("580.159.04", None, open_module=True),
    )
    assert "driver 580.159.04, open kernel module" in judge_gpu_access(here)[0].evidence


def test_a_driver_that_is_there_is_not_installed_again() -> None:
    here = with_troubles(GpuTrouble("no_driver", None, *CARD))
    (without,) = judge_gpu_access(here)
    assert "Install NVIDIA's driver" in without.remedy.en
    (beside,) = judge_gpu_access(replace(here, driver=GpuDriver("590.44.01", "13.1", None)))
    assert "Install NVIDIA's driver" not in beside.remedy.en
    assert "590.44.01" in beside.remedy.en and "590.44.01" in beside.remedy.zh
    assert "580" in beside.remedy.en  # the last branch of the card


def test_several_cards_take_a_plural() -> None:
    two = [GpuTrouble("no_driver", None, f"0000:{bus:02x}:00.0", "10de:1db6") for bus in range(2)]
    assert " have no kernel driver." in only(*two).seen.en


def test_the_drivers_words_do_not_end_twice() -> None:
    finding = only(GpuTrouble("not_loaded", "It is not running."))
    assert finding.seen.en.endswith("not running.") and ".。" not in finding.seen.zh
