"""The system's nvcc: found, asked what it makes, refused when it does not fit."""

import sys
from pathlib import Path

import pytest

from workhorse.engines.supply.cuda_recipe import CudaOrder, cuda_order
from workhorse.engines.supply.nvcc import asked_nvcc, find_nvcc, nvcc_compiler, system_nvcc
from workhorse.errors import AppError
from workhorse.plan.what_if import Parts, composed_machine
from workhorse.units import GIB

# Words of nvcc 12.4 and 13.0 (2026-11).
V12 = ("12.4", "compute_50\ncompute_61\ncompute_70\ncompute_90")
V13 = ("13.0", "compute_75\ncompute_80\ncompute_90\ncompute_120")


def order(*names: str) -> CudaOrder:
    return cuda_order(names, [], composed_machine(Parts(None, 0, 64 * GIB)))


def toolkit(root: Path, release: str, listed: str) -> Path:
    """A toolkit whose nvcc says this of itself."""
    program = root / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    said = {
        "--version": f"Cuda compilation tools, release {release}, V{release}.88\n",
        "--list-gpu-arch": listed,
    }
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r}[sys.argv[1]])\n")
    program.chmod(0o755)
    (root / "lib64").mkdir()
    (root / "lib64" / f"libcudart.so.{release.partition('.')[0]}").touch()
    return program


def environ(tmp_path: Path, *roots: Path) -> dict[str, str]:
    return {
        "PATH": ":".join(str(root / "bin") for root in roots),
        "CUDA_HOME": str(tmp_path / "none"),
    }


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    nvcc = asked_nvcc(toolkit(tmp_path / "12", *V12))
    assert nvcc is not None
    assert (nvcc.release, nvcc.architectures[2]) == ((12, 4), "sm_70")
    assert nvcc.runtime == tmp_path / "12" / "lib64" / "libcudart.so.12"


@pytest.mark.parametrize("said", ["exit 1", "echo nothing", "kill -9 $$"])
def test_one_that_does_not_run(tmp_path: Path, said: str) -> None:
    program = tmp_path / "nvcc"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    assert asked_nvcc(program) is None


def test_the_newest_that_fits_is_taken(tmp_path: Path) -> None:
    old, new = tmp_path / "12", tmp_path / "13"
    toolkit(old, *V12)
    toolkit(new, *V13)
    here = {"CUDA_HOME": str(old), "PATH": str(new / "bin")}
    assert {one.release for one in find_nvcc(here)} >= {(12, 4), (13, 0)}
    assert system_nvcc(order("sm_70"), here).release == (12, 4)
    assert system_nvcc(order("sm_90"), here).release == (13, 0)


def test_none_fits(tmp_path: Path) -> None:
    toolkit(tmp_path / "13", *V13)
    with pytest.raises(AppError, match="makes no code for sm_61, sm_70") as refused:
        system_nvcc(order("sm_61", "sm_70", "sm_80"), environ(tmp_path, tmp_path / "13"))
    assert "Leave out --compiler system" in refused.value.next_step.en


def test_none_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workhorse.engines.supply.nvcc.find_nvcc", lambda _: [])
    with pytest.raises(AppError, match="no nvcc"):
        system_nvcc(order("sm_70"), {})


def test_its_words(tmp_path: Path) -> None:
    nvcc = asked_nvcc(toolkit(tmp_path / "12", *V12))
    assert nvcc is not None
    made = nvcc_compiler(order("sm_61", "sm_70"), nvcc, "/usr/bin/c++", "/own", "/tree")
    assert "arch=compute_70,code=[sm_70,compute_70]" in made.compile
    assert "-use_fast_math" in made.compile
    assert not [word for word in made.compile if "CUDA_ARCH_LIST" in word], "nvcc sets it itself"
    assert made.stubs == ("libcublas.so.12", "libcuda.so.1")
