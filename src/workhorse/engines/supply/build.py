"""Builds llama.cpp here: source, compiler, configure, compile, check, and a record of it."""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.elf import glibc_needed
from workhorse.engines.supply.manifest import (
    PROGRAM,
    BuiltFile,
    Manifest,
    SourcePackage,
    check_name,
    files_of,
)
from workhorse.engines.supply.recipe import PROGRAMS, failure, options, step
from workhorse.engines.supply.source import source_tree
from workhorse.engines.supply.toolchain import (
    CompilerKind,
    Toolchain,
    packaged_toolchain,
    system_toolchain,
)
from workhorse.errors import AppError
from workhorse.knowledge.cpu_variants import NATIVE, CpuVariant
from workhorse.knowledge.engine_sources import EngineSource
from workhorse.machine.fatbin import merged, read_gpu_code
from workhorse.models.part_file import check_space, local_errors
from workhorse.text import Text

# Objects and programs of all targets (measured 2026-11: 680 MB).
NEEDED_BYTES = 900_000_000
LAST_LINES = 400
# ninja removes half-written objects when it is asked to stop.
FAREWELL_S = 10.0

# Called with the folder of the finished build: says that it answers, or raises why not.
Prove = Callable[[Path, Manifest], None]


class Teller(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""

    def progress(self, done: int, total: int | None) -> None:
        """Steps or bytes of this stage."""


@dataclass(frozen=True, slots=True)
class Order:
    """One build to be made; `variant` None is native."""

    name: str
    source: EngineSource
    variant: CpuVariant | None
    compiler: CompilerKind
    jobs: int


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
            chosen = options(self.order.variant, self.order.source, openmp=toolchain.openmp)
            objects = self._objects(toolchain)
            self._compile(toolchain, tree, objects, chosen)
        finally:
            self._spend(time.monotonic() - began_s)
        with self.builds.making() as scratch:
            self._collect(scratch, tree, objects)
            manifest = self._manifest(scratch, toolchain, needs, chosen)
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
        self, toolchain: Toolchain, tree: Path, objects: Path, chosen: Sequence[str]
    ) -> None:
        self.tell.stage(Text("configuring", "配置"))
        configure = [toolchain.cmake, "-S", str(tree), "-B", str(objects), "-G", "Ninja"]
        configure += [f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}"]
        configure += [f"-DCMAKE_C_COMPILER={toolchain.c_compiler}"]
        configure += [f"-DCMAKE_CXX_COMPILER={toolchain.cxx_compiler}"]
        with local_errors(self.log_path):
            self.logs.mkdir(parents=True, exist_ok=True)
            log = self.log_path.open("w", encoding="utf-8", buffering=1)
        with log:
            self._call([*configure, *toolchain.options, *chosen], toolchain, log)
            self.tell.stage(Text("compiling", "编译"))
            ninja = [toolchain.ninja, "-C", str(objects), f"-j{self.order.jobs}", *PROGRAMS]
            self._call(ninja, toolchain, log)

    def _call(self, command: list[str], toolchain: Toolchain, log: IO[str]) -> None:
        """Run one tool, its words in the log; it and its children end with us."""
        lines: deque[str] = deque(maxlen=LAST_LINES)
        log.write(f"$ {' '.join(command)}\n")
        try:
            tool = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=toolchain.variables(),
                pass_fds=(self.lock,),  # killed ourselves, we leave no second build to our compiler
                start_new_session=True,  # a Ctrl-C reaches us alone, and we end the tool in order
            )
        except OSError as error:
            raise self._failed(str(error)) from error
        with tool:
            try:
                for line in tool.stdout or ():
                    log.write(line)
                    lines.append(line)
                    if found := step(line):
                        self.tell.progress(*found)
            except BaseException:
                end_group(tool)
                raise
        if tool.returncode:
            raise self._failed(failure(list(lines)))

    def _failed(self, cause: str) -> AppError:
        return AppError(
            Text(f"The build failed: {cause}", f"构建失败：{cause}"),
            Text(
                f"Read the log {self.log_path}; the next run goes on with what was compiled.",
                f"请查看日志 {self.log_path}；再次运行会沿用已编译的部分。",
            ),
        )

    def _collect(self, scratch: Path, tree: Path, objects: Path) -> None:
        """The programs and the licences they come under."""
        with local_errors(scratch):
            for folder in ("bin", "licences"):
                (scratch / folder).mkdir()
            for program in PROGRAMS:
                shutil.copy2(objects / "bin" / program, scratch / "bin" / program)
            shutil.copy(tree / "LICENSE", scratch / "licences" / "llama.cpp.txt")
            for licence in sorted((tree / "licenses").glob("LICENSE-*")):
                shutil.copy(licence, scratch / "licences" / f"{licence.name[8:]}.txt")

    def _manifest(
        self,
        scratch: Path,
        toolchain: Toolchain,
        needs: tuple[str, ...],
        chosen: tuple[str, ...],
    ) -> Manifest:
        order, source = self.order, self.order.source
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
            options=chosen,
            openmp=toolchain.openmp,
            licences=(
                f"llama.cpp: {source.licence}",
                *(linked if order.compiler == "packaged" else []),
            ),
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            minutes=round(self._spent_s() / 60, 1),
        )

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


def end_group(tool: "subprocess.Popen[str]") -> None:
    """Ask the tool and its children to stop, and make them when they do not."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(tool.pid, number)
        with suppress(subprocess.TimeoutExpired):
            tool.wait(FAREWELL_S)
            return
