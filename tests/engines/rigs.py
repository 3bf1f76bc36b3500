"""The engines that the conformance tests run over: each with a build, a model and its plan."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tiny_checkpoint import write_checkpoint, write_gguf

from workhorse.engines.adapter import Adapter, adapter_for
from workhorse.engines.find import binary_build, embedded_build
from workhorse.engines.openmp import ensure_openmp
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.environment import build_of, read_environment
from workhorse.engines.supply.pick_environment import outside_build
from workhorse.engines.supply.proof import proven_build, read_proof
from workhorse.machine.open_root import open_files
from workhorse.machine.probe import read_machine
from workhorse.models.gguf import read_gguf
from workhorse.models.stored import read_stored, stored_shape
from workhorse.plan.planner import make_plan
from workhorse.plan.pooled import make_pooled_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Plan

# The folder of an environment with vLLM for the CPU, such as `workhorse engine install` makes.
VLLM = "WORKHORSE_TEST_VLLM"
# A llama-server, or a folder of engine builds.
ENGINES = "WORKHORSE_TEST_ENGINES"

WISH = Wish(context_tokens=2048, slots=2)


@dataclass(frozen=True)
class Rig:
    """One engine with a model of two layers."""

    name: str
    plan: Plan
    adapter: Adapter
    ready_s: float

    @property
    def chat(self) -> str:
        return "/v1/chat/completions"


def fake(folder: Path) -> Rig:
    build = EngineBuild(
        engine="fake",
        kind="fake",
        command=(sys.executable, "-m", "workhorse.engines.fake", "--gap-ms", "2"),
        version="fake",
        needs_flags=(),
        gpu_architectures=(),
        openmp=None,
        library_dir=None,
        knows=(),
        source="test",
    )
    path = write_gguf(folder / "tiny.gguf")
    plan = make_plan(machine(), read_gguf(path), replace(build, knows=("--model",)), WISH)
    # `--deaf`: it notices a client that left when llama-server would.
    told = replace(build, command=(*build.command, "--deaf"))
    return rig("fake", replace(plan, engine=told), 120.0)


def embedded(folder: Path) -> Rig:
    ensure_openmp()
    return gguf_rig("embedded llama.cpp", embedded_build(), folder)


def installed(folder: Path) -> Rig:
    place = os.environ.get(ENGINES)
    if not place:
        pytest.skip(f"{ENGINES} names no llama-server and no folder of builds")
    if Path(place).is_file():
        return gguf_rig("a llama-server", binary_build(Path(place)), folder)
    for build in Builds(Path(place)).all()[0]:
        proof = read_proof(build.folder, build.manifest)
        if proof is not None and build.manifest.cpu_variant in ("native", "avx2"):
            found = proven_build(build.folder, build.manifest, proof)
            return gguf_rig("installed llama.cpp", found, folder)
    pytest.skip(f"{ENGINES}: no build there has answered on this machine")


def vllm(folder: Path) -> Rig:
    home = os.environ.get(VLLM)
    if not home:
        pytest.skip(f"{VLLM} names no environment with vLLM for the CPU")
    stored = read_stored(write_checkpoint(folder / "tiny"))
    record = read_environment(Path(home))
    build = outside_build(Path(home)) if record is None else build_of(Path(home), record)
    plan = make_pooled_plan(machine(), stored_shape(stored), stored, build, WISH)
    assert plan.verdict.blocked is False, plan.verdict
    return rig("vLLM on the CPU", plan, 600.0)


def gguf_rig(name: str, build: EngineBuild, folder: Path) -> Rig:
    path = write_gguf(folder / "tiny.gguf")
    return rig(name, make_plan(machine(), read_gguf(path), build, WISH), 300.0)


def rig(name: str, plan: Plan, ready_s: float) -> Rig:
    return Rig(name, plan, adapter_for(plan.engine), ready_s)


def machine() -> Machine:
    return read_machine(open_files(Path("/")))


RIGS: dict[str, Callable[[Path], Rig]] = {
    "fake": fake,
    "embedded": embedded,
    "installed": installed,
    "vllm": vllm,
}
