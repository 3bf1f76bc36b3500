"""Makes ggml's CUDA plugin: every file by clang, in parallel, resumable; then the proof."""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.supply.cuda_ninja import (
    OBJECTS,
    PLUGIN,
    CudaCompiler,
    Unit,
    ninja_file,
    weighted_step,
)
from workhorse.engines.supply.cuda_recipe import TREE, CudaOrder, units
from workhorse.engines.supply.run_tool import ToolRunner
from workhorse.errors import AppError
from workhorse.machine.fatbin import GpuCode, read_gpu_code
from workhorse.models.part_file import check_space, local_errors
from workhorse.text import Text

# Objects and plugin of one architecture, machine code and PTX (measured 2026-11: 400 MB).
NEEDED_BYTES = 600_000_000


@dataclass(frozen=True, slots=True)
class PluginSite:
    """Where a plugin is made, and with what."""

    work: Path  # of this source; its folder `source` is the tree
    compiler: CudaCompiler
    ninja: str
    jobs: int


def make_plugin(order: CudaOrder, site: PluginSite, tool: ToolRunner) -> Path:
    """The plugin's file with code for each asked architecture; raises AppError."""
    folder = make_objects(order, site, tool)
    tool.run([site.ninja, "-C", str(folder), PLUGIN])
    return checked_plugin(folder / PLUGIN, order)


def make_objects(order: CudaOrder, site: PluginSite, tool: ToolRunner) -> Path:
    """The folder with all objects, each whole and with the asked code; raises AppError.

    It is named after all that goes into them, and stays: the next call goes on with it.
    """
    tree = site.work / "source"
    with local_errors(tree):
        names = sorted(p.relative_to(tree).as_posix() for p in (tree / TREE).rglob("*.cu"))
    todo = units(names, order)
    folder = site.work / f"cuda-{_key(site.compiler)}"
    if not folder.is_dir():
        check_space(site.work, NEEDED_BYTES * len(order.architectures))
    with local_errors(folder):
        folder.mkdir(exist_ok=True)
        plan = ninja_file(todo, site.compiler, str(tree))
        (folder / "build.ninja").write_text(plan, "utf-8")
    # A compiler that dies leaves large files behind: here they are found, and go with the folder.
    scratch = folder / "tmp"
    tool = tool.with_environment({"TMPDIR": str(scratch.resolve())})
    broken: list[Path] = []
    for _ in range(2):
        with local_errors(folder):
            for path in broken:
                path.unlink(missing_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
        whole = [unit.name for unit in todo if (folder / f"{unit.name}.o").is_file()]
        ninja = [site.ninja, "-C", str(folder), f"-j{site.jobs}", OBJECTS]
        tool.run(ninja, weighted_step(todo, whole))
        broken = damaged_objects(folder, todo, order)
        if not broken:
            return folder
    raise tool.failed(f"{broken[0].name} is damaged, and so is a second one of it")


def damaged_objects(folder: Path, todo: Sequence[Unit], order: CudaOrder) -> list[Path]:
    """Objects that are no whole files, or have code for other cards than those that were asked."""
    wanted = code_of(order)
    paths = [folder / f"{unit.name}.o" for unit in todo]
    # A file without a kernel, such as one that only calls cuBLAS, has no code at all.
    return [path for path in paths if read_gpu_code(path) not in (wanted, GpuCode())]


def checked_plugin(plugin: Path, order: CudaOrder) -> Path:
    """The plugin, when it has machine code and PTX of each asked architecture; AppError else."""
    found, wanted = read_gpu_code(plugin), code_of(order)
    if found != wanted:
        held = ", ".join((*found.sass, *found.ptx)) if found else "nothing that can be read"
        raise AppError(
            Text(
                f"{plugin.name} has code for {held}, not for {order.name}.",
                f"{plugin.name} 含有 {held} 的代码，而不是 {order.name}。",
            ),
            Text(
                "Begin anew: workhorse engine remove --tools",
                "请重新开始：workhorse engine remove --tools",
            ),
        )
    return plugin


def code_of(order: CudaOrder) -> GpuCode:
    """What a file compiled for this order holds."""
    return GpuCode(
        tuple(one.code for one in order.architectures),
        tuple(one.ptx for one in order.architectures),
    )


def _key(compiler: CudaCompiler) -> str:
    return hashlib.sha256(repr(compiler).encode()).hexdigest()[:12]
