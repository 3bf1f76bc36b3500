"""A C and C++ toolchain: from registry packages alone, or the system's when it is asked for."""

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from workhorse.engines.supply.packages import install_pinned
from workhorse.errors import AppError
from workhorse.knowledge.cpu_variants import flags_of_macros
from workhorse.models.fetch import Progress
from workhorse.models.part_file import check_space, local_errors, sha256_of
from workhorse.text import Text

CompilerKind = Literal["packaged", "system"]

LOCK = "tools.lock"
# The oldest C library that the packaged compiler's programs ask for: that of manylinux2014, so
# they run on every Linux since 2014 (tried 2026-11).
GLIBC = "2.17"
# Unpacked, without and with what the compiler keeps for itself (measured 2026-11: 440 and 560 MB).
NEEDED_BYTES = 1_000_000_000
_WRAPPERS = ("cc", "c++", "ar", "ranlib")
_TARGETS = {"x86_64": f"x86_64-linux-gnu.{GLIBC}", "aarch64": f"aarch64-linux-gnu.{GLIBC}"}


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Programs that build, and what has to be said to each of them."""

    kind: CompilerKind
    cmake: str
    ninja: str
    c_compiler: str
    cxx_compiler: str
    options: tuple[str, ...]  # for cmake, beside those of the engine
    openmp: bool  # does it link OpenMP
    bounded_wait: bool  # are ggml's own threads taught to sleep when they wait
    environment: Mapping[str, str]  # added to ours
    root: Path | None = None  # of the packages; None: the system's

    def variables(self) -> dict[str, str]:
        """The environment that its programs need."""
        return {**os.environ, **self.environment}

    def name(self) -> str:
        """The compiler's own first line, such as `clang version 22.1.8`."""
        return self.said("--version").splitlines()[0].strip()[:200]

    def native_flags(self) -> tuple[str, ...]:
        """The CPU flags that `-march=native` uses on this machine."""
        return flags_of_macros(self.said("-march=native", "-E", "-dM", "-x", "c", os.devnull))

    def said(self, *arguments: str) -> str:
        """What the C compiler answers; AppError when it does not run."""
        try:
            answer = subprocess.run(
                [self.c_compiler, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                env=self.variables(),
                check=False,
            )
        except OSError as error:
            raise _does_not_run(self.c_compiler, str(error)) from error
        if answer.returncode or not answer.stdout.strip():
            last = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
            raise _does_not_run(self.c_compiler, last)
        return answer.stdout


def packaged_toolchain(tools: Path, progress: Progress) -> Toolchain:
    """The compiler, cmake and ninja of the pinned packages, fetched first when not there.

    They lie in a folder of their own below `tools`, named after the pins: a newer workhorse with
    other pins makes another, and nothing of them is in anybody's Python.
    """
    target = _TARGETS.get(platform.machine())
    if target is None:
        raise AppError(
            Text(
                f"There is no packaged compiler for {platform.machine()}.",
                f"没有适用于 {platform.machine()} 的打包编译器。",
            ),
            Text(
                "Install gcc, g++, cmake and ninja, then: --compiler system",
                "请安装 gcc、g++、cmake 和 ninja，然后使用 --compiler system",
            ),
        )
    with as_file(files("workhorse.engines.supply").joinpath(LOCK)) as lock:
        root = tools / f"toolchain-{sha256_of(lock)[:12]}"
        if not root.is_dir():
            _fetch(lock, root, progress)
    wrappers = {name: str(root / "wrappers" / f"zig-{name}") for name in _WRAPPERS}
    return Toolchain(
        kind="packaged",
        cmake=str(root / "cmake" / "data" / "bin" / "cmake"),
        ninja=str(root / "bin" / "ninja"),
        c_compiler=wrappers["cc"],
        cxx_compiler=wrappers["c++"],
        options=(
            f"-DCMAKE_AR={wrappers['ar']}",
            f"-DCMAKE_RANLIB={wrappers['ranlib']}",
            f"-DCMAKE_C_COMPILER_TARGET={target}",
            f"-DCMAKE_CXX_COMPILER_TARGET={target}",
        ),
        openmp=False,  # the package has no OpenMP runtime; ggml then uses its own threads
        bounded_wait=platform.machine() == "x86_64",  # elsewhere ggml pauses in another way
        environment={
            "ZIG_GLOBAL_CACHE_DIR": str(root / "cache"),
            "ZIG_LOCAL_CACHE_DIR": str(root / "cache"),
        },
        root=root,
    )


def system_toolchain() -> Toolchain:
    """The system's compiler, cmake and ninja; AppError with the command when one is missing."""
    wanted = {"cmake": "cmake", "ninja": "ninja-build", "cc": "gcc", "c++": "g++"}
    paths = {name: shutil.which(name) for name in wanted}
    missing = [name for name in wanted if paths[name] is None]
    if missing:
        sudo = "" if os.geteuid() == 0 else "sudo "
        names, packages = ", ".join(missing), " ".join(wanted[name] for name in missing)
        raise AppError(
            Text(
                f"The system has no complete compiler; missing: {names}.",
                f"系统没有完整的编译器，缺少：{names}。",
            ),
            Text(
                f"{sudo}apt-get install {packages}, or leave out --compiler system.",
                f"{sudo}apt-get install {packages}，或不加 --compiler system。",
            ),
        )
    return Toolchain(
        kind="system",
        cmake=str(paths["cmake"]),
        ninja=str(paths["ninja"]),
        c_compiler=str(paths["cc"]),
        cxx_compiler=str(paths["c++"]),
        options=(),
        openmp=True,
        bounded_wait=False,
        environment={},
    )


def _fetch(lock: Path, root: Path, progress: Progress) -> None:
    """Install the pinned packages into `root`: whole or not at all."""
    with local_errors(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        check_space(root.parent, NEEDED_BYTES)
        scratch = Path(tempfile.mkdtemp(prefix=".part-", dir=root.parent))
    try:
        what = Text("The compiler's packages", "编译器软件包")
        install_pinned(lock, scratch / "tools", what, progress)
        with local_errors(root):
            _wrap(scratch / "tools", root)
            (scratch / "tools").rename(root)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _wrap(made: Path, root: Path) -> None:
    """Programs named like a compiler's: cmake takes one path and no words after it."""
    folder = made / "wrappers"
    folder.mkdir()
    zig = shlex.quote(str(root / "ziglang" / "zig"))
    for name in _WRAPPERS:
        script = folder / f"zig-{name}"
        script.write_text(f'#!/bin/sh\nexec {zig} {name} "$@"\n', "utf-8")
        script.chmod(0o755)


def _does_not_run(program: str, cause: str) -> AppError:
    return AppError(
        Text(
            f"The compiler {program} does not run: {cause[:300]}.",
            f"编译器 {program} 无法运行：{cause[:300]}。",
        ),
        Text(
            "Remove the folder `tools` in the data folder and run the command again, or use "
            "--compiler system.",
            "请删除数据目录中的 `tools` 后重新运行，或使用 --compiler system。",
        ),
    )
