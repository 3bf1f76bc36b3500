"""What llama.cpp's test program says of a card, and what is made of it."""

import sys
from pathlib import Path

import pytest
from builds_made import made_build

from workhorse.engines.supply.card_check import (
    ATTENTION,
    Compared,
    card_finding,
    compare,
    has_test,
    read_result,
)
from workhorse.engines.supply.recipe import OPS_TEST
from workhorse.text import same

RIGHT = """Testing 2 devices
Backend 1/2: CUDA0
  Device description: NVIDIA H200
  MUL_MAT(type_a=f16,type_b=f32,m=16,n=1,k=256): \x1b[1;32mOK\x1b[0m
  1/1 tests passed
  Backend CUDA0: \x1b[1;32mOK\x1b[0m
Backend 2/2: CPU
  Skipping
2/2 backends passed
"""
WRONG = """Backend 1/2: CUDA0
  FLASH_ATTN_EXT(hsk=64,hsv=64): [FLASH_ATTN_EXT] NMSE = 1.2 > 0.0005 \x1b[1;31mFAIL\x1b[0m
  FLASH_ATTN_EXT(hsk=128,hsv=128): \x1b[1;32mOK\x1b[0m
  1/2 tests passed
"""


def test_words_of_a_card_that_is_right() -> None:
    found = read_result(RIGHT)
    assert found == Compared(1, 1, ())
    assert found.good


def test_words_of_a_card_that_is_wrong() -> None:
    found = read_result(WRONG)
    assert found == Compared(1, 2, ("FLASH_ATTN_EXT(hsk=64,hsv=64)",))
    assert not found.good


@pytest.mark.parametrize(
    "said", ["", "CUDA error: no kernel image", "Backend 1/1: CPU\n Skipping\n"]
)
def test_words_without_a_result(said: str) -> None:
    assert read_result(said) is None


def test_no_case_is_no_proof() -> None:
    assert not Compared(0, 0, ()).good


@pytest.mark.parametrize(
    ("compared", "level", "words"),
    [
        (Compared(9, 9, ()), "good", "all 9 cases"),
        (Compared(7, 9, ("A(x)",)), "warning", "2 of 9 cases"),
        (Compared(0, 0, ()), "warning", "no result"),
        (None, "warning", "no result"),
    ],
)
def test_findings(tmp_path: Path, compared: Compared | None, level: str, words: str) -> None:
    finding = card_finding(made_build(tmp_path), compared, same("attention"))
    assert finding.level == level
    assert words in finding.seen.en


def program(folder: Path, script: str) -> None:
    path = folder / "bin" / OPS_TEST
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)


def test_the_program_is_run(tmp_path: Path) -> None:
    assert not has_test(made_build(tmp_path / "a"))
    made_build(tmp_path / "b")
    program(
        tmp_path / "b",
        f"import sys\nassert sys.argv[1:5] == ['test', '-b', 'CUDA0', '-o']\nprint({RIGHT!r})",
    )
    log = tmp_path / "logs" / "card.log"
    assert compare(tmp_path / "b", ATTENTION, log) == Compared(1, 1, ())
    assert "NVIDIA H200" in log.read_text()


@pytest.mark.parametrize("script", ["import os\nos.abort()", "import time\ntime.sleep(600)"])
def test_a_program_that_crashes_or_hangs(tmp_path: Path, script: str) -> None:
    made_build(tmp_path / "b")
    program(tmp_path / "b", script)
    assert compare(tmp_path / "b", ATTENTION, tmp_path / "card.log", timeout_s=1.0) is None
