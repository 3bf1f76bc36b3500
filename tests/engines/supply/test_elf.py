"""The C library that a program asks for, read from real programs and from broken ones."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workhorse.engines.supply.elf import glibc_needed

SHELL = Path(os.path.realpath("/bin/sh"))


def test_a_real_program() -> None:
    needed = glibc_needed(SHELL)
    assert needed is not None
    here = os.confstr("CS_GNU_LIBC_VERSION") or ""
    assert tuple(map(int, needed.split("."))) <= tuple(map(int, here.split()[1].split(".")))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.parametrize("path", [SHELL, Path(os.path.realpath(sys.executable))])
def test_the_same_as_objdump_says(path: Path) -> None:
    said = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True)
    versions = {
        tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", said.stdout)
    }
    assert glibc_needed(path) == ".".join(map(str, max(versions)))


def test_what_is_no_program(tmp_path: Path) -> None:
    assert glibc_needed(tmp_path) is None
    assert glibc_needed(tmp_path / "none") is None
    (tmp_path / "text").write_text("#!/bin/sh\n")
    assert glibc_needed(tmp_path / "text") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_broken_program_never_raises(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(SHELL.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from([0, max(0, len(content) - 4096)]))
        at = start + data.draw(st.integers(0, min(4095, len(content) - start - 1)))
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    file = tmp_path / "broken"
    file.write_bytes(bytes(content[:cut]) if data.draw(st.booleans()) else bytes(content))
    needed = glibc_needed(file)
    assert needed is None or re.fullmatch(r"\d+(\.\d+)+", needed)
