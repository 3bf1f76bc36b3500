"""The plugin with code for cards: compiled file by file, resumed, checked; with a compiler that
writes what it was asked for, and once with the real one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workhorse.config import places
from workhorse.engines.supply.cuda_build import PluginSite, make_objects, make_plugin
from workhorse.engines.supply.cuda_ninja import PLUGIN
from workhorse.engines.supply.cuda_recipe import (
    TREE,
    ClangPlaces,
    CudaOrder,
    clang_compiler,
    cuda_order,
)
from workhorse.engines.supply.cuda_toolkit import clang_places, packaged_cuda
from workhorse.engines.supply.run_tool import ToolRunner
from workhorse.engines.supply.toolchain import packaged_toolchain
from workhorse.errors import AppError
from workhorse.machine.fatbin import GpuCode, read_gpu_code
from workhorse.models.fetch import no_progress
from workhorse.plan.what_if import Parts, composed_machine
from workhorse.units import GIB

NINJA = shutil.which("ninja")
needs_ninja = pytest.mark.skipif(NINJA is None, reason="ninja is not installed here")
KERNELS = ("acc", "mmq", "set-rows")


def order(*names: str) -> CudaOrder:
    return cuda_order(names, [], composed_machine(Parts(None, 0, 64 * GIB)))


class Site:
    """A source tree of three files, and a compiler that is a script."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        tree = folder / "source" / TREE
        (tree / "template-instances").mkdir(parents=True)
        for name in KERNELS:
            (tree / f"{name}.cu").touch()
        zig = folder / "zig"
        zig.write_text(
            f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent}/fake_clang.py "$@"\n'
        )
        zig.chmod(0o755)
        self.log = folder / "calls"
        monkeypatch.setenv("FAKE_CLANG_LOG", str(self.log))
        self.places = ClangPlaces(str(zig), "/l", "/r", "/c", "/o")
        self.steps: list[tuple[int, int | None]] = []

    @classmethod
    def again(cls, folder: Path) -> "Site":
        """The same site, from another process."""
        site = cls.__new__(cls)
        site.folder, site.steps, site.log = folder, [], folder / "calls"
        site.places = ClangPlaces(str(folder / "zig"), "/l", "/r", "/c", "/o")
        return site

    def make(self, *names: str) -> Path:
        log_path = self.folder / "build.log"
        with log_path.open("a", buffering=1) as log:
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                tool = ToolRunner(os.environ, log, log_path, handle, self.told)
                asked = order(*names)
                compiler = clang_compiler(asked, self.places, str(self.folder / "source"))
                return make_plugin(asked, PluginSite(self.folder, compiler, str(NINJA), 2), tool)
            finally:
                os.close(handle)

    def told(self, done: int, total: int | None) -> None:
        self.steps.append((done, total))

    def calls(self) -> list[str]:
        """What was compiled or linked since the last time."""
        said = self.log.read_text().split("\n")[:-1]
        self.log.write_text("")
        return sorted(said)

    def object(self, name: str) -> Path:
        (found,) = self.folder.glob(f"cuda-*/{name}.o")
        return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "work").mkdir()
    yield Site(tmp_path / "work", monkeypatch)


@needs_ninja
def test_a_plugin_holds_what_was_asked(site: Site) -> None:
    plugin = site.make("sm_70", "sm_61")
    wanted = GpuCode(("sm_61", "sm_70"), ("compute_61", "compute_70"))
    assert (plugin.name, read_gpu_code(plugin)) == (PLUGIN, wanted)
    assert site.calls() == [
        *(f"c++ {PLUGIN}",),
        *("cc libcublas.so.12", "cc libcuda.so.1"),
        *(f"clang {name}.o" for name in KERNELS),
    ]
    assert site.steps[-1][0] == site.steps[-1][1]
    # Made again, nothing is compiled; for another card all of it, beside.
    site.make("sm_61", "sm_70")
    assert site.calls() == []
    site.make("sm_70")
    assert len(site.calls()) == 6


@needs_ninja
def test_a_failure_keeps_the_other_objects(site: Site) -> None:
    site.patch.setenv("FAKE_CLANG_FAILS", "mmq.o")
    with pytest.raises(AppError, match="not today") as failed:
        site.make("sm_70")
    assert "build.log" in failed.value.next_step.en
    before = {line for line in site.calls() if line != "clang mmq.o"}
    site.patch.delenv("FAKE_CLANG_FAILS")
    site.make("sm_70")
    again = site.calls()
    assert "clang mmq.o" in again
    assert not before & set(again), "compiled before the failure"


@needs_ninja
def test_a_damaged_object_is_made_again(site: Site) -> None:
    site.make("sm_70")
    site.calls()
    damaged = site.object("mmq")
    damaged.write_bytes(damaged.read_bytes()[:-5])
    plugin = site.make("sm_70")
    assert site.calls() == [f"c++ {PLUGIN}", "clang mmq.o"]
    assert read_gpu_code(plugin) == GpuCode(("sm_70",), ("compute_70",))


@needs_ninja
def test_a_compiler_that_leaves_an_architecture_out(site: Site) -> None:
    site.patch.setenv("FAKE_CLANG_DROPS", "70")
    with pytest.raises(AppError, match="is damaged, and so is a second one"):
        site.make("sm_61", "sm_70")


@needs_ninja
def test_no_kernel_no_plugin(site: Site) -> None:
    """Files without any code are no error each; a plugin without any is one."""
    site.patch.setenv("FAKE_CLANG_DROPS", "70")
    with pytest.raises(AppError, match="not for sm_70"):
        site.make("sm_70")


INTERRUPTED = """
import os, sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from test_cuda_build import Site
site = Site.again(Path(sys.argv[2]))
site.make("sm_70")
"""


@needs_ninja
def test_ctrl_c_ends_the_compilers_and_keeps_the_objects(site: Site) -> None:
    """`no_process_left_behind` looks for a compiler that goes on."""
    command = [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent), str(site.folder)]
    hangs = {**os.environ, "FAKE_CLANG_HANGS": "acc.o"}
    with subprocess.Popen(command, env=hangs, stderr=subprocess.PIPE, text=True) as making:
        waited_s = 0.0
        while "clang acc.o" not in (site.log.read_text() if site.log.exists() else ""):
            assert making.poll() is None and waited_s < 240
            time.sleep(0.05)
            waited_s += 0.05
        making.send_signal(signal.SIGINT)
        _, said = making.communicate(timeout=300)
    assert "KeyboardInterrupt" in said
    assert not list(site.folder.glob(f"cuda-*/{PLUGIN}"))
    site.calls()
    plugin = site.make("sm_70")
    assert "clang acc.o" in site.calls()
    assert read_gpu_code(plugin) == GpuCode(("sm_70",), ("compute_70",))


REAL = """
#include <cuda_fp16.h>
#include <cub/cub.cuh>
#include <cublas_v2.h>
#include <vector>
// Reads a float through a pointer to an integer, as ggml's attention does: see cuda_recipe.py.
__global__ void kernel(const half *in, float *out, int n) {
    using Sum = cub::BlockReduce<float, 128>;
    __shared__ typename Sum::TempStorage room;
    float mine = threadIdx.x < n ? __half2float(in[threadIdx.x]) : 0.0f;
    *((unsigned int *) &mine) *= mine >= -20.0f;
    const float sum = Sum(room).Sum(mine);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
cublasStatus_t run(cublasHandle_t blas, const std::vector<half *> &rows, float *out) {
    for (half *row : rows) kernel<<<1, 128>>>(row, out, 128);
    return cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH);
}
"""


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_the_real_compiler_makes_code_for_old_cards(site: Site) -> None:
    """Fetches 310 MB once into the data folder; then some ten CPU-seconds."""
    tools = places().tools
    toolchain = packaged_toolchain(tools, no_progress)
    cuda = packaged_cuda(tools, no_progress)
    for name in KERNELS:
        (site.folder / "source" / TREE / f"{name}.cu").write_text(REAL)
    asked, where = order("sm_61", "sm_70"), clang_places(cuda, toolchain)
    compiler = clang_compiler(asked, where, str(site.folder / "source"))
    made = PluginSite(site.folder, compiler, toolchain.ninja, 2)
    log_path = site.folder / "build.log"
    with log_path.open("w", buffering=1) as log:
        handle = os.open(site.folder, os.O_RDONLY)
        try:
            tool = ToolRunner(toolchain.variables(), log, log_path, handle, site.told)
            folder = make_objects(asked, made, tool)
        finally:
            os.close(handle)
    for name in KERNELS:
        code = read_gpu_code(folder / f"{name}.o")
        assert code == GpuCode(("sm_61", "sm_70"), ("compute_61", "compute_70"))
