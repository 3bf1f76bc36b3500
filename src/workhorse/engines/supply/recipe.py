"""What is told to cmake and ninja to build llama.cpp, and what they say back. Pure."""

import re
from collections.abc import Sequence

from workhorse.knowledge.cpu_variants import NATIVE, CpuVariant, variants
from workhorse.knowledge.engine_sources import EngineSource
from workhorse.units import GIB

# Each is one file once linked; without them a build serves, but cannot be tuned or measured.
PROGRAMS = (
    "llama-server",
    "llama-bench",
    "llama-quantize",
    "llama-imatrix",
    "llama-perplexity",
    "llama-fit-params",
    "llama-gguf-split",
    "ggml-rpc-server",  # lends this machine's devices to a server on another one
)
# Compares what a card computes with what the CPU computes: the smoke test of CUDA code.
OPS_TEST = "test-backend-ops"
# The largest C++ file takes 0.8 GB of memory (clang 22.1.8, 2026-11).
BYTES_A_JOB = GIB

_STEP = re.compile(r"^\[(\d{1,6})/(\d{1,6})\]")

# Nothing that asks the network at build time, no tests, no examples, no UI: see llama.cpp's
# CMakeLists.txt (commit 0c1e57098). `-s`: programs without symbols, 11 MB instead of 144.
_FIXED = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_CCACHE=OFF",
    "-DGGML_RPC=ON",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def options(
    variant: CpuVariant | None, source: EngineSource, *, openmp: bool, plugin: bool = False
) -> tuple[str, ...]:
    """The options for cmake; `variant` None is native; `plugin`: for one of ggml's, as for CUDA.

    A plugin finds ggml's functions in the program that loads it, so that one shows its names.

    Every instruction set is named, on or off, so that one build folder can serve one variant
    after the other: only the CPU backend's own files are then compiled again.
    """
    known = dict.fromkeys(name for one in variants() for name in one.options)
    chosen = variant.options if variant else ()
    return (
        *_FIXED,
        f"-DCMAKE_EXE_LINKER_FLAGS={'-s -rdynamic' if plugin else '-s'}",
        f"-DLLAMA_BUILD_TESTS={on(plugin)}",
        f"-DGGML_OPENMP={on(openmp)}",
        f"-DGGML_NATIVE={on(variant is None)}",
        *(f"-D{name}={on(name in chosen)}" for name in known),
        # Else a tree inside another repository takes that one's number and commit.
        "-DLLAMA_BUILD_NUMBER=0",
        f"-DLLAMA_BUILD_COMMIT={source.commit}",
    )


def on(value: bool) -> str:
    """A switch as cmake writes it."""
    return "ON" if value else "OFF"


def build_name(variant: CpuVariant | None, source: EngineSource, cuda: str | None = None) -> str:
    """The name of a build nobody has named: `llama.cpp-0c1e57098-avx2`, `…-native-sm_70`."""
    name = f"{source.engine}-{source.commit}-{variant.name if variant else NATIVE}"
    return f"{name}-{cuda}" if cuda else name


def step(line: str) -> tuple[int, int] | None:
    """(done, all) of a line of ninja's, `[3/229] Building …`."""
    found = _STEP.match(line)
    return (int(found[1]), int(found[2])) if found else None


def jobs(asked: int | None, cpus: int, available_bytes: int | None) -> int:
    """How many compilers run at once: what was asked, else what CPUs and memory allow."""
    if asked is not None:
        return asked
    by_memory = cpus if available_bytes is None else available_bytes // BYTES_A_JOB
    return max(1, min(cpus, by_memory))


def failure(lines: Sequence[str]) -> str:
    """The line of a build's log that says best why it failed."""
    for pattern in (
        r"No space left on device",
        r"\berror: ",
        r"CMake Error",
        r"^nvcc fatal",
        r"^FAILED: ",
        r"Killed",
    ):
        found = next((line for line in lines if re.search(pattern, line)), None)
        if found is not None:
            return found.strip()[:300]
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "it said nothing"
