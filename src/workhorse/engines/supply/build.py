"""Builds llama.cpp here: source, compiler, configure, compile, check, and a record of it."""

import hashlib
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.cuda_build import PluginSite, make_plugin
from workhorse.engines.supply.cuda_ninja import PLUGIN, CudaCompiler
from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER, CudaOrder, clang_compiler
from workhorse.engines.supply.cuda_toolkit import (
    clang_places,
    own_headers,
    package_lines,
    packaged_cublas,
    packaged_cuda,
)
from workhorse.engines.supply.elf import glibc_needed
from workhorse.engines.supply.manifest import (
    PROGRAM,
    BuiltFile,
    Manifest,
    SourcePackage,
    check_name,
    files_of,
)
from workhorse.engines.supply.nvcc import nvcc_compiler, system_nvcc
from workhorse.engines.supply.recipe import OPS_TEST, PROGRAMS, options
from workhorse.engines.supply.run_tool import ToolRunner
from workhorse.engines.supply.source import source_tree
from workhorse.engines.supply.toolchain import (
    CompilerKind,
    Toolchain,
    packaged_toolchain,
    system_toolchain,
)
from workhorse.knowledge.cpu_variants import NATIVE, CpuVariant
from workhorse.knowledge.engine_sources import EngineSource
from workhorse.machine.fatbin import merged, read_gpu_code
from workhorse.models.part_file import check_space, local_errors
from workhorse.tell import Teller
from workhorse.text import Text

# Objects and programs of all targets (measured 2026-11: 680 MB).
NEEDED_BYTES = 900_000_000
WAIT_HEADER = "bounded_wait.h"

# Called with the folder of the finished build: says that it answers, or raises why not.
Prove = Callable[[Path, Manifest], None]


@dataclass(frozen=True, slots=True)
class Order:
    """One build to be made; `variant` None is native."""

    name: str
    source: EngineSource
    variant: CpuVariant | None
    compiler: CompilerKind
    jobs: int
    cuda: CudaOrder | None = None  # None: for the CPU alone
    cublas: bool = True  # fetch what CUDA code needs to run

    @property
    def programs(self) -> tuple[str, ...]:
        """What is compiled: with CUDA code also what tests it."""
        return (*PROGRAMS, OPS_TEST) if self.cuda else PROGRAMS


def make_builds(
    orders: Sequence[Order], builds: Builds, tools: Path, logs: Path, prove: Prove, tell: Teller
) -> list[Build]:
    """Make each build in turn; they share all objects but those of the CPU backend.

    Interrupted or failed, it keeps the objects and the next call goes on with them; a build that
    is not finished and proven never gets its name. Raises AppError.
    """
    for order in orders:
        check_name(order.name)
    made = []
    with builds.alone() as lock:
        for order in orders:
            builds.refuse_taken(order.name)
        for order in orders:
            made.append(_Making(order, builds, logs, tell, lock).run(tools, prove))
        for folder in unfinished(builds):
            # Half an hour's CUDA code that was broken off is not lost to a build without any.
            if any(order.cuda for order in orders) or not any(folder.glob("cuda-*")):
                shutil.rmtree(folder, ignore_errors=True)
    return made


def unfinished(builds: Builds) -> list[Path]:
    """The folders in which builds were begun and not finished."""
    return sorted(builds.folder.glob(".work-*"))


@dataclass(frozen=True, slots=True)
class _Making:
    order: Order
    builds: Builds
    logs: Path
    tell: Teller
    lock: int

    @property
    def work(self) -> Path:
        source = self.order.source
        return self.builds.folder / f".work-{source.sha256[:12]}-{self.order.compiler}"

    @property
    def log_path(self) -> Path:
        return self.logs / f"build-{self.order.name}.log"

    def run(self, tools: Path, prove: Prove) -> Build:
        began_s = time.monotonic()
        try:
            toolchain = self._toolchain(tools)
            needs = self._needs(toolchain)
            self.tell.stage(Text("fetching the source", "获取源码"))
            tree = source_tree(self.work, self.order.source, self.tell.progress)
            check_space(self.work, NEEDED_BYTES)
            order = self.order
            plugin = order.cuda is not None
            chosen = options(order.variant, order.source, openmp=toolchain.openmp, plugin=plugin)
            objects = self._objects(toolchain)
            made = self._compile(toolchain, tools, tree, objects, chosen)
        finally:
            self._spend(time.monotonic() - began_s)
        with self.builds.making() as scratch:
            self._collect(scratch, tree, objects, made)
            manifest = self._manifest(scratch, toolchain, needs, chosen, tools)
            prove(scratch, manifest)
            build = self.builds.keep(scratch, manifest)
        (self.work / "seconds").unlink(missing_ok=True)
        return build

    def _toolchain(self, tools: Path) -> Toolchain:
        if self.order.compiler == "system":
            return system_toolchain()
        self.tell.stage(Text("fetching the compiler", "获取编译器"))
        return packaged_toolchain(tools, self.tell.progress)

    def _needs(self, toolchain: Toolchain) -> tuple[str, ...]:
        variant = self.order.variant
        return variant.needs if variant is not None else toolchain.native_flags()

    def _objects(self, toolchain: Toolchain) -> Path:
        """Where the objects lie: cmake mixes up those of two compilers, or of a moved folder."""
        made_by = f"{toolchain.c_compiler}\n{toolchain.name()}\n{self.work.resolve()}"
        objects = self.work / f"objects-{hashlib.sha256(made_by.encode()).hexdigest()[:8]}"
        for other in set(self.work.glob("objects-*")) - {objects}:
            shutil.rmtree(other, ignore_errors=True)
        return objects

    def _compile(
        self,
        toolchain: Toolchain,
        tools: Path,
        tree: Path,
        objects: Path,
        chosen: Sequence[str],
    ) -> tuple[Path, ...]:
        """Compile the programs into `objects`; returns the libraries that go with them."""
        self.tell.stage(Text("configuring", "配置"))
        configure = [toolchain.cmake, "-S", str(tree), "-B", str(objects), "-G", "Ninja"]
        configure += [f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}"]
        configure += [f"-DCMAKE_C_COMPILER={toolchain.c_compiler}"]
        configure += [f"-DCMAKE_CXX_COMPILER={toolchain.cxx_compiler}"]
        if toolchain.bounded_wait:
            configure.append(f"-DCMAKE_C_FLAGS=-include {shlex.quote(str(self._wait_header()))}")
        with local_errors(self.log_path):
            self.logs.mkdir(parents=True, exist_ok=True)
            log = self.log_path.open("w", encoding="utf-8", buffering=1)
        with log:
            tool = ToolRunner(
                toolchain.variables(), log, self.log_path, self.lock, self.tell.progress
            )
            tool.run([*configure, *toolchain.options, *chosen])
            self.tell.stage(Text("compiling", "编译"))
            ninja = [toolchain.ninja, "-C", str(objects), f"-j{self.order.jobs}"]
            tool.run([*ninja, *self.order.programs])
            if self.order.cuda is None:
                return ()
            return self._plugin(self.order.cuda, toolchain, tools, tool)

    def _wait_header(self) -> Path:
        """A copy of what makes waiting threads sleep, where the compiler finds it."""
        header = self.work / WAIT_HEADER
        with local_errors(header):
            text = files("workhorse.engines.supply").joinpath(WAIT_HEADER).read_bytes()
            # Another time stamp would have ninja compile each file anew.
            if not header.is_file() or header.read_bytes() != text:
                header.write_bytes(text)
        return header.resolve()

    def _plugin(
        self, order: CudaOrder, toolchain: Toolchain, tools: Path, tool: ToolRunner
    ) -> tuple[Path, ...]:
        """The CUDA plugin and the run-time library that it asks for."""
        compiler = self._cuda_compiler(order, toolchain, tools)
        self.tell.stage(Text(f"compiling CUDA code: {order.name}", f"编译 CUDA 代码：{order.name}"))
        site = PluginSite(self.work, compiler, toolchain.ninja, self.order.jobs)
        plugin = make_plugin(order, site, tool)
        if self.order.cublas and self.order.compiler == "packaged":
            self.tell.stage(Text("fetching cuBLAS (581 MB)", "获取 cuBLAS（581 MB）"))
            packaged_cublas(self.builds.folder, self.tell.progress)
        return plugin, Path(compiler.runtime)

    def _cuda_compiler(self, order: CudaOrder, toolchain: Toolchain, tools: Path) -> CudaCompiler:
        """The packaged clang, or the system's nvcc with the system's compiler."""
        tree = str(self.work / "source")
        if self.order.compiler == "system":
            nvcc = system_nvcc(order, toolchain.variables())
            return nvcc_compiler(order, nvcc, toolchain.cxx_compiler, own_headers(), tree)
        self.tell.stage(Text("fetching the CUDA packages", "获取 CUDA 软件包"))
        cuda = packaged_cuda(tools, self.tell.progress)
        return clang_compiler(order, clang_places(cuda, toolchain), tree)

    def _collect(self, scratch: Path, tree: Path, objects: Path, libraries: Sequence[Path]) -> None:
        """The programs, the libraries and the licences they come under."""
        with local_errors(scratch):
            for folder in ("bin", "licences", *(["lib"] if libraries else [])):
                (scratch / folder).mkdir()
            for program in self.order.programs:
                shutil.copy2(objects / "bin" / program, scratch / "bin" / program)
            for library in libraries:
                # llama-server looks for the plugin beside itself.
                place = "bin" if library.name == PLUGIN else "lib"
                shutil.copy2(library, scratch / place / library.name)
            shutil.copy(tree / "LICENSE", scratch / "licences" / "llama.cpp.txt")
            for licence in sorted((tree / "licenses").glob("LICENSE-*")):
                shutil.copy(licence, scratch / "licences" / f"{licence.name[8:]}.txt")

    def _manifest(
        self,
        scratch: Path,
        toolchain: Toolchain,
        needs: tuple[str, ...],
        chosen: tuple[str, ...],
        tools: Path,
    ) -> Manifest:
        order, source = self.order, self.order.source
        by_clang = order.cuda is not None and order.compiler == "packaged"
        held = read_programs(scratch)
        linked = ["LLVM libc++ and compiler-rt (Apache-2.0 WITH LLVM-exception), linked in"]
        return Manifest(
            name=order.name,
            engine="llama.cpp",
            source=SourcePackage(
                source.package,
                source.version,
                source.sha256,
                source.engine_version,
                source.commit,
            ),
            files=held.files,
            sass=held.sass,
            ptx=held.ptx,
            glibc=held.glibc,
            program=f"bin/{PROGRAM}",
            architecture=platform.machine(),
            cpu_variant=order.variant.name if order.variant else NATIVE,
            needs_flags=needs,
            compiler=f"{toolchain.name()} ({order.compiler})",
            options=(*chosen, *cuda_words(order.cuda)),
            openmp=toolchain.openmp,
            bounded_wait=toolchain.bounded_wait,
            licences=(
                f"llama.cpp: {source.licence}",
                *(linked if order.compiler == "packaged" else []),
                *(nvidia_lines(scratch) if order.cuda else []),
            ),
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            minutes=round(self._spent_s() / 60, 1),
            fetched=self._fetched(toolchain, tools) if by_clang else (),
            flash_attention="unproven" if by_clang else None,
        )

    def _fetched(self, toolchain: Toolchain, tools: Path) -> tuple[str, ...]:
        """The packages that CUDA code was made with, and what it runs with."""
        cublas = [self.builds.folder / CUBLAS_FOLDER] if self.order.cublas else []
        parts = packaged_cuda(tools, self.tell.progress)
        return package_lines([*filter(None, [toolchain.root]), parts, *cublas])

    def _spent_s(self) -> float:
        with suppress(OSError, ValueError):
            return float((self.work / "seconds").read_text("ascii"))
        return 0.0

    def _spend(self, seconds: float) -> None:
        """Keep the time, over interruptions."""
        with suppress(OSError):  # such as a work folder that was not begun
            (self.work / "seconds").write_text(f"{self._spent_s() + seconds:.1f}", "ascii")


@dataclass(frozen=True, slots=True)
class Contents:
    """What the files of a build say themselves."""

    files: tuple[BuiltFile, ...]
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    glibc: str | None


def read_programs(folder: Path) -> Contents:
    """Hashes, GPU code and the C library asked for, of a folder with `bin/` and perhaps `lib/`."""
    files = files_of(folder)
    programs = [folder / file.path for file in files if file.path.startswith(("bin/", "lib/"))]
    code = merged([code for path in programs if (code := read_gpu_code(path)) is not None])
    needed = [glibc for path in programs if (glibc := glibc_needed(path)) is not None]
    newest = max(needed, key=lambda text: tuple(map(int, text.split("."))), default=None)
    return Contents(files, code.sass, code.ptx, newest)


def cuda_words(order: CudaOrder | None) -> tuple[str, ...]:
    """The choices of the CUDA code, for the record."""
    if order is None:
        return ()
    chosen = [option.name for option in order.options]
    return (f"cuda: {', '.join(one.name for one in order.architectures)}; {', '.join(chosen)}",)


def nvidia_lines(folder: Path) -> tuple[str, ...]:
    """Which files are NVIDIA's, for the record: fetched here by the user, passed on by nobody."""
    return (
        *(
            f"lib/{path.name}: NVIDIA CUDA Toolkit EULA, the user's own copy; do not pass it on"
            for path in sorted((folder / "lib").iterdir())
        ),
        f"bin/{PLUGIN}: llama.cpp (MIT) with code of NVIDIA's libdevice and headers (CUDA EULA) "
        "and of CCCL (Apache-2.0 WITH LLVM-exception)",
    )
