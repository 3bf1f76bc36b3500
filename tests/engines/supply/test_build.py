"""A real build with real tools: of a small tree with the same programs, and of one C++ file."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_packages import SOURCE

from workhorse.config import places
from workhorse.engines.supply.build import Order, make_builds, unfinished
from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.elf import glibc_needed
from workhorse.engines.supply.manifest import Manifest, read_manifest
from workhorse.engines.supply.recipe import PROGRAMS
from workhorse.engines.supply.toolchain import (
    GLIBC,
    Toolchain,
    packaged_toolchain,
    system_toolchain,
)
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.knowledge.cpu_variants import CpuVariant, variants
from workhorse.models.fetch import no_progress
from workhorse.text import Text

NEEDED = ("cmake", "ninja", "cc", "c++")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
needs_system = pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {MISSING}")

# Each program says how it was built; `backend` stands for ggml's CPU backend.
CMAKE = """cmake_minimum_required(VERSION 3.14)
project(small C CXX)
option(GGML_AVX2 "" OFF)
add_library(shared OBJECT shared.cpp)
add_library(backend OBJECT backend.cpp)
if(GGML_AVX2)
  target_compile_options(backend PRIVATE -DVARIANT="avx2")
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
foreach(name %s)
  add_executable(${name} main.cpp $<TARGET_OBJECTS:shared> $<TARGET_OBJECTS:backend>)
endforeach()
"""
MAIN = "#include <cstdio>\nconst char *variant();\nint shared();\n"
MAIN += 'int main() { std::printf("%s %d\\n", variant(), shared()); }\n'
BACKEND = '#ifndef VARIANT\n#define VARIANT "plain"\n#endif\n'
BACKEND += "const char *variant() { return VARIANT; }\n"


class Told:
    """What the user was told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[tuple[int, int | None]] = []

    def stage(self, words: Text) -> None:
        self.stages.append(words.en)

    def progress(self, done: int, total: int | None) -> None:
        self.steps.append((done, total))


class Site:
    """A data folder in which the source lies ready, so that nothing is fetched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.builds = Builds(folder / "engines")
        self.told = Told()
        self.work = self.builds.folder / f".work-{SOURCE.sha256[:12]}-system"
        self.tree = self.work / "source"
        self.tree.mkdir(parents=True)
        (self.work / "source-is-whole").touch()
        self.write("CMakeLists.txt", CMAKE % " ".join(PROGRAMS))
        self.write("main.cpp", MAIN)
        self.write("backend.cpp", BACKEND)
        self.write("shared.cpp", "int shared() { return 7; }\n")
        self.write("LICENSE", "MIT\n")

    def write(self, name: str, text: str) -> None:
        (self.tree / name).write_text(text)

    def make(self, *orders: Order) -> list[Build]:
        return make_builds(
            orders, self.builds, self.folder / "tools", self.folder / "logs", runs, self.told
        )

    def compiled(self) -> list[str]:
        """The objects that ninja made, in order; one made again comes again."""
        (log,) = [path.read_text() for path in self.work.glob("objects-*/.ninja_log")]
        return re.findall(r"(\w+)\.cpp\.o\t", log)


def runs(folder: Path, manifest: Manifest) -> None:
    done = subprocess.run([folder / manifest.program], capture_output=True, check=True, text=True)
    assert done.stdout.split()[1] == "7"


def order(name: str, variant: CpuVariant | None = None) -> Order:
    return Order(name, SOURCE, variant, "system", jobs=2)


def variant(name: str) -> CpuVariant:
    return next(one for one in variants() if one.name == name)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@needs_system
def test_a_build_from_start_to_end(site: Site) -> None:
    (build,) = site.make(order("first"))
    manifest = read_manifest(build.folder)
    assert {file.path for file in manifest.files} == {
        *(f"bin/{program}" for program in PROGRAMS),
        "licences/llama.cpp.txt",
    }
    assert (manifest.name, manifest.cpu_variant, manifest.openmp) == ("first", "native", True)
    assert manifest.architecture == platform.machine()
    assert manifest.glibc is not None
    assert "-DGGML_NATIVE=ON" in manifest.options
    assert manifest.compiler.endswith("(system)")
    assert manifest.minutes is not None
    assert site.told.stages == ["fetching the source", "configuring", "compiling"]
    done, total = site.told.steps[-1]
    assert done == total
    assert total is not None and total >= len(PROGRAMS)
    # What made it is gone; what it is stays.
    assert sorted(path.name for path in site.builds.folder.iterdir()) == [".lock", "first"]
    assert "Linking" in (site.folder / "logs" / "build-first.log").read_text()


@needs_system
def test_variants_share_all_but_the_backend(site: Site) -> None:
    plain, avx2 = site.make(order("a", variant("x64")), order("b", variant("avx2")))
    said = [subprocess.check_output([build.program], text=True) for build in (plain, avx2)]
    assert said == ["plain 7\n", "avx2 7\n"]
    assert (plain.manifest.needs_flags, avx2.manifest.needs_flags) == ((), variant("avx2").needs)
    steps = [total for done, total in site.told.steps if done == total]
    assert steps[1] is not None and steps[0] is not None
    assert steps[1] < steps[0], "the second build compiled less"


@needs_system
def test_cuda_code_that_was_broken_off_outlives_a_build_without(site: Site) -> None:
    half = site.work / "cuda-0123456789ab" / "mmq.o"
    half.parent.mkdir()
    half.touch()
    site.make(order("first"))
    assert half.exists()
    assert unfinished(site.builds) == [site.work]


@needs_system
def test_a_build_that_fails_goes_on_where_it_stopped(site: Site) -> None:
    site.write("shared.cpp", "#error not today\n")
    with pytest.raises(AppError, match="not today") as failed:
        site.make(order("first"))
    assert "build-first.log" in failed.value.next_step.en
    assert site.builds.names() == []
    assert unfinished(site.builds) == [site.work]
    before = site.compiled()
    site.write("shared.cpp", "int shared() { return 7; }\n")
    with pytest.MonkeyPatch.context() as patch:
        # Kept for once, to see what was compiled.
        patch.setattr("workhorse.engines.supply.build.unfinished", lambda _: [])
        site.make(order("first"))
    assert site.builds.names() == ["first"]
    again = site.compiled()[len(before) :]
    assert "shared" in again
    assert "backend" not in again, "it was compiled before the failure"


@needs_system
def test_one_that_does_not_answer_gets_no_name(site: Site) -> None:
    site.make(order("old"))
    second = Site(site.folder / "other")
    second.write("shared.cpp", "int shared() { return 8; }\n")
    shutil.copytree(site.builds.folder / "old", second.builds.folder / "old")
    with pytest.raises(AssertionError):
        second.make(order("new"))
    assert second.builds.names() == ["old"]
    assert not list(second.builds.folder.glob(".part-*"))


@needs_system
def test_names_are_looked_at_before_anything_is_compiled(site: Site) -> None:
    site.make(order("first"))
    again = Told()
    with pytest.raises(AppError, match="already") as refused:
        make_builds(
            [order("new"), order("first")],
            site.builds,
            site.folder,
            site.folder / "logs",
            runs,
            again,
        )
    assert refused.value.exit_code == EXIT_USAGE
    assert again.stages == []


INTERRUPTED = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from test_build import Site, order
site = Site.__new__(Site)
from workhorse.engines.supply.builds import Builds
import test_build
site.folder = Path(sys.argv[2])
site.builds = Builds(site.folder / "engines")
site.told = test_build.Told()
site.told.progress = lambda done, total: print("step", done, flush=True)
site.make(order("first"))
"""


@needs_system
def test_ctrl_c_leaves_the_objects_and_no_process(site: Site, tmp_path: Path) -> None:
    """A compiler that never ends is interrupted; `no_process_left_behind` looks for it after."""
    site.write("shared.cpp", '#include "/dev/stdin"\nint shared() { return 7; }\n')
    hang = tmp_path / "bin" / "c++"
    hang.parent.mkdir()
    real = shutil.which("c++")
    hang.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*shared.cpp*) sleep 600;; esac\nexec {real} "$@"\n'
    )
    hang.chmod(0o755)
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, here, str(site.folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": f"{hang.parent}:{os.environ['PATH']}"},
    ) as making:
        assert making.stdout is not None
        assert making.stdout.readline().startswith("step")
        making.send_signal(signal.SIGINT)
        making.communicate(timeout=300)
    assert making.returncode not in (0, None)
    assert site.builds.names() == []
    assert list(site.work.glob("objects-*/build.ninja"))
    site.write("shared.cpp", "int shared() { return 7; }\n")
    site.make(order("first"))
    assert site.builds.names() == ["first"]


@needs_system
def test_a_compiler_whose_master_was_killed_keeps_the_lock(site: Site) -> None:
    """Else a second build would write the same objects."""
    begun = site.folder / "begun"
    os.mkfifo(begun)
    site.write("CMakeLists.txt", f'execute_process(COMMAND sh -c "echo $$ >{begun}; sleep 600")\n')
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", INTERRUPTED, here, str(site.folder)]
    with subprocess.Popen(command, start_new_session=True) as making:
        orphan = int(begun.read_text())
        making.kill()
    try:
        with pytest.raises(AppError, match="Another process"):
            site.make(order("second"))
    finally:
        os.killpg(os.getpgid(orphan), signal.SIGKILL)


def test_no_system_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AppError, match="missing: cmake, ninja, cc") as refused:
        system_toolchain()
    assert "ninja-build" in refused.value.next_step.en


def test_a_compiler_that_does_not_run(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'no licence' >&2\nexit 1\n")
    broken.chmod(0o755)
    for compiler in (str(broken), str(tmp_path / "none")):
        toolchain = Toolchain("system", "cmake", "ninja", compiler, compiler, (), True, False, {})
        with pytest.raises(AppError, match="does not run"):
            toolchain.name()


@needs_system
def test_what_the_systems_compiler_uses_of_this_cpu() -> None:
    flags = system_toolchain().native_flags()
    assert set(flags) <= set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))


@pytest.fixture(scope="module")
def packaged() -> Toolchain:
    """The packaged compiler, where it has been fetched once: it is 500 MB."""
    tools = places().tools
    if not list(tools.glob("toolchain-*")):
        pytest.skip("the packaged compiler is not here; `workhorse engine build` fetches it")
    return packaged_toolchain(tools, no_progress)


def test_the_packaged_compiler_makes_a_program_for_old_systems(
    packaged: Toolchain, tmp_path: Path
) -> None:
    # -O3 as in a build: its C++ library is there then, and not compiled for a minute.
    file = tmp_path / "hello.cpp"
    file.write_text('#include <iostream>\nint main() { std::cout << "hello\\n"; }\n')
    target = next(word for word in packaged.options if "CXX_COMPILER_TARGET" in word)
    program = tmp_path / "hello"
    command = [packaged.cxx_compiler, "-target", target.partition("=")[2], "-O3", str(file)]
    subprocess.run([*command, "-o", str(program)], check=True, env=packaged.variables())
    assert subprocess.check_output([program], text=True) == "hello\n"
    needed = glibc_needed(program)
    assert needed is not None
    assert tuple(map(int, needed.split("."))) <= tuple(map(int, GLIBC.split(".")))
    assert "clang" in packaged.name()
    assert packaged.native_flags()
