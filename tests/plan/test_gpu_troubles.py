"""A plan that does without a card says so, and who tells why."""

from dataclasses import replace

import builders
from workhorse.plan.checks import check_gpu_access
from workhorse.records import GpuTrouble


def test_a_card_that_cannot_be_used_is_a_warning() -> None:
    troubles = (
        GpuTrouble("library_mismatch", "Driver/library version mismatch"),
        GpuTrouble("no_driver", None, "0000:18:00.0", "10de:1db6"),
    )
    (finding,) = check_gpu_access(replace(builders.machine(), gpu_troubles=troubles))
    assert finding.level == "warning" and finding.command == "workhorse doctor"
    for words in (finding.seen.en, finding.seen.zh):
        assert "0000:18:00.0 (10de:1db6)" in words and "version mismatch" in words
    assert finding.evidence == ("library_mismatch", "no_driver")


def test_a_trouble_without_words_is_a_sentence() -> None:
    silent = replace(builders.machine(), gpu_troubles=(GpuTrouble("silent", None),))
    assert check_gpu_access(silent)[0].seen.en == "An NVIDIA card cannot be used."


def test_no_trouble_is_no_finding() -> None:
    assert check_gpu_access(builders.machine()) == ()


def test_a_card_that_works_all_the_same_is_not_called_unusable() -> None:
    ill = GpuTrouble("errors", "ERR!", "0000:18:00.0", "10de:1db6")
    assert check_gpu_access(replace(builders.machine(), gpu_troubles=(ill,))) == ()
