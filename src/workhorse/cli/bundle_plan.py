"""Whether models run on the machine that a bundle is for, with the engine that comes along."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workhorse.bundle.order import choose_engine_build, left_for_spinning
from workhorse.config import Places
from workhorse.engines.find import EMBEDDED_NEEDS, embedded_build
from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.manifest import Manifest
from workhorse.engines.supply.pick import Picked
from workhorse.engines.supply.proof import Proof, program_sha256, proven_build, read_proof
from workhorse.errors import EXIT_NO, AppError
from workhorse.knowledge.cpu_variants import choose_variant
from workhorse.machine.probe import probe
from workhorse.models.gguf import read_gguf
from workhorse.models.read import local_checkpoint
from workhorse.plan.checks import architecture, usable_gpus
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Finding, Machine, Verdict
from workhorse.text import Text
from workhorse.up.asks import checked
from workhorse.up.decide import Ask, Ground

HERE = "here"


def machine_for(capture: str) -> Machine:
    """The captured machine, or this one; nothing is measured."""
    return probe(Path("/") if capture == HERE else Path(capture).expanduser(), measure_s=0)


def model_paths(words: Sequence[str], where: Places) -> list[Path]:
    """The GGUF files and folders of checkpoints on this machine that were named; AppError."""
    found = []
    for word in dict.fromkeys(words):
        model = checked(Ask(model=word), where.models).model
        folder = local_checkpoint(str(model))
        found.append((folder or Path(str(model)).expanduser()).absolute())
    return found


def chosen_build(machine: Machine, where: Places) -> Build | None:
    """The installed build that comes along; None: the embedded engine is the best there."""
    builds, _ = Builds(where.engines).all()
    manifest = choose_engine_build([build.manifest for build in builds], machine)
    return next((one for one in builds if one.manifest is manifest), None)


def told_of_builds(machine: Machine, build: Build | None, where: Places) -> list[Verdict]:
    """What the user should know of builds that are here and do not come along."""
    if build is not None:
        return []
    builds, _ = Builds(where.engines).all()
    left = left_for_spinning([one.manifest for one in builds], machine)
    return [Verdict((spinning(left),))] if left else []


def plans_for(models: Sequence[Path], machine: Machine, build: Build | None) -> list[Verdict]:
    """What the plan of each model says; AppError, with exit code 3, when it says no."""
    engine = engine_there(machine, build)
    ground = Ground(machine, Picked(engine), ())
    verdicts = []
    if machine.gpus and not usable_gpus(machine, engine):
        verdicts.append(Verdict((no_gpu_code(machine),)))
    for path in models:
        if path.is_dir():
            verdicts.append(Verdict((no_engine(path),)))
            continue
        plan = ground.decide(read_gguf(path), Wish()).plan
        for finding in plan.verdict.findings:
            if finding.level == "blocker":
                raise AppError(
                    Text(f"{path.name}: {finding.seen.en}", f"{path.name}：{finding.seen.zh}"),
                    finding.remedy,
                    exit_code=EXIT_NO,
                )
        told = ("gpu.no_code",)  # above, with what to do here
        findings = plan.verdict.findings
        worth = tuple(f for f in findings if f.level == "warning" and f.code not in told)
        verdicts.append(Verdict(worth))
    return verdicts


def engine_there(machine: Machine, build: Build | None) -> EngineBuild:
    """The engine as a plan for the other machine knows it."""
    embedded = embedded_build()
    if build is None:
        needs = EMBEDDED_NEEDS[machine.cpu.architecture]
        return replace(embedded, needs_flags=needs, library_dir=None)
    # One that does not run here has not said what it knows; it is of the same llama.cpp.
    proof = read_proof(build.folder, build.manifest) or Proof(
        program_sha256=program_sha256(build.manifest),
        when="",
        version=build.manifest.source.engine_version,
        knows=embedded.knows,
        forms=embedded.forms,
        answer="",
        took_s=0.0,
    )
    return proven_build(build.folder, build.manifest, proof)


def no_gpu_code(machine: Machine) -> Finding:
    """That machine has a card, and nothing here has code for it."""
    gpu = machine.gpus[0]
    name = architecture(gpu)
    fitting = choose_variant(machine.cpu.flags, machine.cpu.architecture)
    cpu = f" --cpu {fitting.name}" if fitting else ""
    return Finding(
        code="bundle.no-gpu-code",
        level="warning",
        seen=Text(
            f"{gpu.name} is in that machine, and no build that is here has code for it.",
            f"该机器装有 {gpu.name}，而本机没有含其代码的构建。",
        ),
        why=Text(
            "The model will run on its CPU, many times slower than on the card.",
            "模型将在其 CPU 上运行，比显卡慢很多倍。",
        ),
        remedy=Text(
            "Make such a build here, then the bundle again.", "请先在本机构建，再重新制作离线包。"
        ),
        source="manifest.json of the installed builds",
        command=f"workhorse engine build --gpu {name}{cpu}" if name else None,
    )


def no_engine(folder: Path) -> Finding:
    """A checkpoint comes along, and llama.cpp does not read it."""
    return Finding(
        code="bundle.checkpoint",
        level="warning",
        seen=Text(
            f"{folder.name} is a checkpoint; the engines of the bundle read GGUF files.",
            f"{folder.name} 是原始模型，而离线包中的引擎读取 GGUF 文件。",
        ),
        why=Text(
            "Environments of vLLM and LMDeploy do not come along: the other machine needs its own.",
            "离线包不含 vLLM、LMDeploy 环境，目标机器需自备。",
        ),
        remedy=Text(
            "Take a GGUF file of the same model along as well.", "请同时带上同一模型的 GGUF 文件。"
        ),
        source="engines/llamacpp.py",
    )


def spinning(left: Sequence[Manifest]) -> Finding:
    """Builds of that CPU are here, and the embedded engine is better than them."""
    names, first = ", ".join(one.name for one in left), left[0]
    return Finding(
        code="bundle.spinning-build",
        level="warning",
        seen=Text(
            f"The embedded engine comes along, and not {names}, which is for that CPU.",
            f"离线包使用内置引擎，而不是适用于该 CPU 的 {names}。",
        ),
        why=Text(
            "Threads of that build never give the core back while they wait: one busy program "
            "beside it makes it 20 times slower.",
            "该构建的线程等待时从不让出核心：旁边有一个繁忙程序时会慢 20 倍。",
        ),
        remedy=Text(
            f"Build it anew (workhorse engine remove {first.name}, then the line below), then make "
            "the bundle again.",
            f"请重新构建（先 workhorse engine remove {first.name}，再运行下面的命令），"
            "然后重新制作离线包。",
        ),
        source="manifest.json of the installed builds; engines/supply/bounded_wait.h",
        command=f"workhorse engine build --cpu {first.cpu_variant}",
    )
