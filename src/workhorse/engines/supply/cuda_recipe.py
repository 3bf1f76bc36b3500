"""Which CUDA files of llama.cpp are compiled, with which words, and how they are linked. Pure.

CMake's own CUDA support wants nvcc, and no nvcc of a package registry makes code below sm_75. So
the files are compiled one by one by clang, which makes PTX for every card; ptxas of CUDA 12.9 makes
machine code of it down to sm_50. The result is ggml's plugin `libggml-cuda.so`, which llama-server
loads from its own folder when a card and a driver are there: the programs run without them too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from workhorse.engines.supply.cuda_ninja import PLUGIN, CudaCompiler, Unit
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.knowledge.cuda_build import (
    DEFAULT_OPTION,
    Architecture,
    CudaOption,
    architectures,
    compile_seconds,
    cuda_options,
)
from workhorse.records import Machine
from workhorse.text import Text

TREE = "ggml/src/ggml-cuda"
AUTO = "auto"
# Where the plugin finds NVIDIA's libraries: in its own build, or beside all builds.
CUBLAS_FOLDER = ".cublas-12"
RUN_PATHS = ("$ORIGIN/../lib", f"$ORIGIN/../../{CUBLAS_FOLDER}")

# That of the programs: toolchain.py.
_GLIBC = "2.17"

# ggml/cmake/common.cmake, ggml_cuda_fattn_vec_instances, commit 0c1e57098.
_FA_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16")
_FA_VECTOR = "fattn-vec-instance-"

# What ggml's CMake files define for a backend that is a plugin, commit 0c1e57098.
_DEFINES = (
    "NDEBUG",
    "_GNU_SOURCE",
    "_XOPEN_SOURCE=600",
    "GGML_BACKEND_BUILD",
    "GGML_BACKEND_DL",
    "GGML_BACKEND_SHARED",
    "GGML_SHARED",
    "GGML_SCHED_MAX_COPIES=4",
    "GGML_CUDA_USE_GRAPHS",
)
# The clang words for nvcc's `-use_fast_math`, but for its coarser division and square root.
_CLANG = (
    "-O3",
    "-fPIC",
    "-std=c++17",
    "-fgpu-flush-denormals-to-zero",
    "-fgpu-approx-transcendentals",
    "-ffp-contract=fast",
    # ggml reads floats through pointers to integers. nvcc lets it; clang takes such a value for
    # undefined: flash attention on Volta then multiplies by garbage (seen in its IR, 2026-11).
    "-fno-strict-aliasing",
    "-w",
)
# What `zig c++` tells its clang about its own C++ library (0.17.1, ZIG_VERBOSE_CC=1, 2026-11).
_LIBCXX = (
    "_LIBCPP_ABI_VERSION=1",
    "_LIBCPP_ABI_NAMESPACE=__1",
    "_LIBCPP_HAS_THREADS=1",
    "_LIBCPP_HAS_MONOTONIC_CLOCK",
    "_LIBCPP_HAS_TERMINAL",
    "_LIBCPP_HAS_MUSL_LIBC=0",
    "_LIBCXXABI_DISABLE_VISIBILITY_ANNOTATIONS",
    "_LIBCPP_DISABLE_VISIBILITY_ANNOTATIONS",
    "_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=0",
    "_LIBCPP_HAS_FILESYSTEM=1",
    "_LIBCPP_HAS_RANDOM_DEVICE",
    "_LIBCPP_HAS_LOCALIZATION",
    "_LIBCPP_HAS_UNICODE",
    "_LIBCPP_HAS_WIDE_CHARACTERS",
    "_LIBCPP_HAS_NO_STD_MODULES",
    "_LIBCPP_HAS_TIME_ZONE_DATABASE",
    "_LIBCPP_PSTL_BACKEND_SERIAL",
    "_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_NONE",
    "_LIBCPP_ASSERTION_SEMANTIC_DEFAULT=_LIBCPP_ASSERTION_SEMANTIC_IGNORE",
    # NVIDIA's headers refuse libc++ on x86 for nvcc's sake, and name this way around it.
    "_ALLOW_UNSUPPORTED_LIBCPP",
    f"__GLIBC_MINOR__={_GLIBC.removeprefix('2.')}",
)
_LIBC_FOLDERS = ("x86-linux-gnu", "generic-glibc", "x86-linux-any", "any-linux-any")
_TARGET = "x86_64-linux-gnu"


@dataclass(frozen=True, slots=True)
class CudaOrder:
    """What CUDA code is to be made: for which cards, with which choices."""

    architectures: tuple[Architecture, ...]  # ascending
    options: tuple[CudaOption, ...]

    @property
    def name(self) -> str:
        """`sm_61-sm_70-force-mmq`: a part of a build's name."""
        chosen = [option.name for option in self.options if option.name != DEFAULT_OPTION]
        return "-".join([*(one.name for one in self.architectures), *chosen])


@dataclass(frozen=True, slots=True)
class ClangPlaces:
    """Where the parts of the packaged CUDA compiler lie."""

    zig: str
    zig_lib: str
    resource_dir: str  # clang's own headers
    cuda: str  # bin/ptxas, bin/fatbinary, nvvm/libdevice, include, lib
    own_headers: str


def cuda_order(words: Sequence[str], options: Sequence[str], machine: Machine) -> CudaOrder:
    """What the user asked for; AppError for what is not known or, with `auto`, not here."""
    names = {one.name: one for one in architectures()}
    if AUTO in words:
        words = [word for word in words if word != AUTO] + list(of_cards(machine))
    strange = next((word for word in words if word not in names), None)
    if strange is not None:
        raise _usage(
            Text(
                f"No code can be made for {strange[:40]!r}.", f"无法为 {strange[:40]!r} 生成代码。"
            ),
            Text(f"Known are: {', '.join(names)}.", f"可用的有：{'、'.join(names)}。"),
        )
    choices = {one.name: one for one in cuda_options()}
    chosen = tuple(choices[name] for name in dict.fromkeys((DEFAULT_OPTION, *options)))
    if {"force-mmq", "force-cublas"} <= set(options):
        raise _usage(
            Text(
                "force-mmq and force-cublas exclude each other.", "force-mmq 与 force-cublas 互斥。"
            ),
            Text("Choose one of them.", "请选择其一。"),
        )
    wanted = sorted({names[word] for word in words}, key=lambda one: one.number)
    return CudaOrder(tuple(wanted), chosen)


def of_cards(machine: Machine) -> tuple[str, ...]:
    """`sm_70` of each kind of card that is here, by the nearest older code that can be made."""
    if not machine.gpus:
        raise _usage(
            Text("No NVIDIA card was found here.", "本机未检测到 NVIDIA 显卡。"),
            Text(
                "Name the card's architecture, such as --gpu sm_70 (V100).",
                "请指定显卡架构，例如 --gpu sm_70（V100）。",
            ),
        )
    found = []
    for gpu in machine.gpus:
        capability = gpu.compute_capability
        fitting = [
            one.name
            for one in architectures()
            if capability is not None and one.runs_on(capability)
        ]
        if not fitting:
            raise _usage(
                Text(
                    f"No code can be made for {gpu.name} "
                    f"({'unknown' if capability is None else f'compute {capability}'}).",
                    f"无法为 {gpu.name} 生成代码"
                    f"（{'未知' if capability is None else f'计算能力 {capability}'}）。",
                ),
                Text("Name an architecture: --gpu sm_70", "请指定架构：--gpu sm_70"),
            )
        found.append(fitting[-1])
    return tuple(dict.fromkeys(found))


def units(names: Iterable[str], order: CudaOrder) -> tuple[Unit, ...]:
    """The files to compile among those of the source tree, the longest first.

    `names` are paths below the tree. ggml's CMakeLists.txt takes all `*.cu` of the folder and, of
    the instances, all but the vector kernels, of which it takes the chosen pairs.
    """
    pairs = chosen_pairs(order.options)
    taken = []
    for name in names:
        path = PurePosixPath(name)
        if path.suffix != ".cu" or not name.startswith(f"{TREE}/"):
            continue
        pair = path.stem.removeprefix(_FA_VECTOR) if path.stem.startswith(_FA_VECTOR) else None
        if pair is None or pair in pairs:
            seconds = compile_seconds(path.stem) * len(order.architectures)
            taken.append(Unit(name, seconds))
    return tuple(sorted(taken, key=lambda unit: (-unit.seconds, unit.source)))


def chosen_pairs(options: Sequence[CudaOption]) -> frozenset[str]:
    """`q8_0-q8_0` …: the K-V types that vector kernels are made for."""
    words = {pair for option in options for pair in option.pairs}
    if "all" in words:
        return frozenset(f"{k}-{v}" for k in _FA_TYPES for v in _FA_TYPES)
    return frozenset(words)


def defines(order: CudaOrder) -> tuple[str, ...]:
    """The macros that ggml's CUDA code is compiled with."""
    pairs = chosen_pairs(order.options)
    every = [f"{k}-{v}" for v in _FA_TYPES for k in _FA_TYPES]
    told = "all" if len(pairs) == len(every) else ",".join(p for p in every if p in pairs)
    return (
        *_DEFINES,
        *(word for option in order.options for word in option.defines),
        f'GGML_CUDA_FA_QUANTS="{told}"',
        *(f"GGML_CUDA_FA_{p.replace('-', '_').upper()}={int(p in pairs)}" for p in every),
    )


def clang_compiler(order: CudaOrder, places: ClangPlaces, tree: str) -> CudaCompiler:
    """The packaged compiler, for each architecture that is known."""
    return CudaCompiler(
        compile=compile_words(order, places, tree),
        link=(
            *(places.zig, "c++", "-shared", "-target", f"{_TARGET}.{_GLIBC}", "-O3"),
            *link_options(),
        ),
        stub=(places.zig, "cc", "-shared", "-target", f"{_TARGET}.{_GLIBC}"),
        runtime=f"{places.cuda}/lib/libcudart.so.12",
        major=12,
    )


def compile_words(order: CudaOrder, places: ClangPlaces, tree: str) -> tuple[str, ...]:
    """The command that compiles one file, but for the file and `-o OBJECT`."""
    include = (
        f"{places.resource_dir}/include/cuda_wrappers",
        f"{places.zig_lib}/libcxx/include",
        f"{places.zig_lib}/libcxxabi/include",
        f"{places.resource_dir}/include",
        *(f"{places.zig_lib}/libc/include/{folder}" for folder in _LIBC_FOLDERS),
        f"{places.cuda}/include",
        places.own_headers,
    )
    return (
        *(places.zig, "clang", "--no-default-config", "-x", "cuda"),
        *(f"--cuda-path={places.cuda}", "-resource-dir", places.resource_dir, "-target", _TARGET),
        *_CLANG,
        f"-ffile-prefix-map={tree}/=",  # the build's folder is no part of the build
        *(f"--cuda-gpu-arch={one.code}" for one in order.architectures),
        *(f"--cuda-include-ptx={one.code}" for one in order.architectures),
        "-nostdinc",
        "-nostdinc++",
        *(word for folder in include for word in ("-isystem", folder)),
        # nvcc sets it. Without it ggml believes in kernels for whatever card it finds.
        f"-D__CUDA_ARCH_LIST__={','.join(str(one.number) for one in order.architectures)}",
        *(f"-D{word}" for word in (*_LIBCXX, *defines(order))),
        *include_words(tree),
        "-c",
    )


def include_words(tree: str) -> tuple[str, ...]:
    """Where ggml's own headers are."""
    return tuple(f"-I{tree}/ggml/{folder}" for folder in ("src", "include", "src/ggml-cuda"))


def link_options() -> tuple[str, ...]:
    """How any linker makes the plugin.

    The driver's library and cuBLAS are no part of the build: empty libraries of their names stand
    for them. ggml's own functions come from the program that loads the plugin.
    """
    return (
        "-s",
        f"-Wl,-soname,{PLUGIN}",
        "-Wl,--no-as-needed",
        *(f"-Wl,-rpath,{folder}" for folder in RUN_PATHS),
    )


def _usage(what: Text, step: Text) -> AppError:
    return AppError(what, step, exit_code=EXIT_USAGE)
