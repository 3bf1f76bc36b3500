"""Old CPUs, emulated: the chosen build generates there, the next one is refused and would die.

Needs `qemu-x86_64` and builds of the variants (`workhorse engine build --cpu all`, or a folder of
them in WORKHORSE_TEST_ENGINES).
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import builders
from workhorse.config import places
from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.check import judge_build
from workhorse.knowledge.cpu_variants import choose_variant, variants

SSE = ("ssse3", "sse4_2", "popcnt")
HASWELL = (*SSE, "avx", "f16c", "fma", "avx2", "bmi2")
# What each emulated CPU says it has (`__builtin_cpu_supports` under qemu 7.2, 2026-11-30; it
# emulates nothing beyond AVX2), and the variant for it.
CPUS = {
    "Conroe": (("ssse3",), "x64"),
    "Nehalem": (SSE, "sse42"),
    "Westmere": (SSE, "sse42"),
    "SandyBridge": ((*SSE, "avx"), "avx"),
    "IvyBridge": ((*SSE, "avx", "f16c"), "avx-f16c"),
    "Haswell": (HASWELL, "avx2"),
    "Broadwell": (HASWELL, "avx2"),
}
DIED = {-signal.SIGILL, 128 + signal.SIGILL}


@pytest.fixture(scope="module")
def by_variant() -> dict[str, Build]:
    """The builds of this data folder, one a variant."""
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("qemu-x86_64 is not installed")
    folder = os.environ.get("WORKHORSE_TEST_ENGINES")
    found, _ = Builds(Path(folder) if folder else places().engines).all()
    made = {build.manifest.cpu_variant: build for build in found}
    missing = [variant.name for variant in variants() if variant.name not in made]
    if missing:
        pytest.skip(f"no builds of {missing}: workhorse engine build --cpu all")
    return made


def emulated(
    cpu: str, build: Build, program: str, *words: str
) -> "subprocess.CompletedProcess[str]":
    command = ["qemu-x86_64", "-cpu", cpu, str(build.program.with_name(program)), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def one_token(cpu: str, build: Build, model: Path) -> "subprocess.CompletedProcess[str]":
    asked = ("-p", "0", "-n", "1", "-r", "1", "-t", "1", "--no-warmup", "-o", "json")
    return emulated(cpu, build, "llama-bench", "-m", str(model), *asked)


@pytest.mark.parametrize("cpu", CPUS)
def test_the_chosen_build_generates(
    cpu: str, by_variant: dict[str, Build], real_model: Path
) -> None:
    flags, name = CPUS[cpu]
    chosen = choose_variant(flags)
    assert chosen is not None and chosen.name == name
    build = by_variant[name]
    assert not judge_build(build.manifest, (), builders.machine(flags=flags)).blocked
    done = one_token(cpu, build, real_model)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert run["n_gen"] == 1 and run["avg_ts"] > 0


@pytest.mark.parametrize("cpu", CPUS)
def test_the_next_build_is_refused_with_the_one_to_make(
    cpu: str, by_variant: dict[str, Build], real_model: Path
) -> None:
    flags, name = CPUS[cpu]
    ladder = [variant.name for variant in variants()]
    newer = by_variant[ladder[ladder.index(name) + 1]]
    verdict = judge_build(newer.manifest, (), builders.machine(flags=flags))
    assert verdict.blocked
    assert verdict.findings[0].command == f"workhorse engine build --cpu {name}"
    # Without that finding: its version can be asked for, and then it dies.
    assert emulated(cpu, newer, "llama-server", "--version").returncode == 0
    assert one_token(cpu, newer, real_model).returncode in DIED
