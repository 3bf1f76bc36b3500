"""What the actions of `engine` do; what they say is in `engine.py`."""

import asyncio
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from workhorse.config import Places
from workhorse.engines.find import binary_build
from workhorse.engines.supply.build import Order, make_builds, unfinished
from workhorse.engines.supply.builds import Build, Builds, disk_bytes
from workhorse.engines.supply.card_check import (
    ATTENTION,
    PLAIN,
    card_finding,
    card_not_seen,
    compare,
    has_test,
)
from workhorse.engines.supply.check import answered, damaged_files, judge_build
from workhorse.engines.supply.choose import gpu_nearness
from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER, cuda_order
from workhorse.engines.supply.install import downloads, install_build
from workhorse.engines.supply.manifest import PROOF, Manifest
from workhorse.engines.supply.nvcc import system_nvcc
from workhorse.engines.supply.proof import (
    Proof,
    program_sha256,
    proven_build,
    read_proof,
    write_proof,
)
from workhorse.engines.supply.recipe import build_name, jobs
from workhorse.engines.supply.toolchain import CompilerKind
from workhorse.errors import EXIT_NO, AppError
from workhorse.knowledge.cpu_variants import NATIVE, variants
from workhorse.knowledge.engine_sources import llamacpp_source
from workhorse.machine.open_root import open_files
from workhorse.machine.probe import read_machine
from workhorse.models.embedded import embedded_model
from workhorse.models.part_file import local_errors
from workhorse.records import Finding, Machine, Verdict
from workhorse.run.prove import first_answer
from workhorse.text import Text

ROOT = Path("/")


class Teller(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""

    def progress(self, done: int, total: int | None) -> None:
        """Steps or bytes of this stage."""

    def found(self, verdict: Verdict) -> None:
        """What is worth knowing of a build."""


@dataclass(frozen=True, slots=True)
class Work:
    """Where things lie, and whom to tell."""

    where: Places
    tell: Teller

    @property
    def builds(self) -> Builds:
        """The builds of this installation."""
        return Builds(self.where.engines)


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards that CUDA code is asked for."""

    architectures: Sequence[str]  # sm_70 …, auto
    options: Sequence[str]
    cublas: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One build in the list."""

    manifest: Manifest
    proven_at: str | None  # ISO 8601; None: it has not answered on this machine
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """What `engine list` prints."""

    builds: tuple[Row, ...]
    damaged: tuple[Text, ...]  # folders that are no builds, and why
    tools_bytes: int
    unfinished_bytes: int


def list_builds(work: Work) -> Listing:
    """What is there, with its disk use; nothing is hashed or started."""
    found, errors = work.builds.all()
    rows = []
    for build in found:
        proof = read_proof(build.folder, build.manifest)
        rows.append(Row(build.manifest, proof.when if proof else None, disk_bytes(build.folder)))
    begun = [*unfinished(work.builds), downloads(work.builds.folder)]
    return Listing(
        tuple(rows),
        tuple(error.what for error in errors),
        disk_bytes(work.where.tools),
        sum(disk_bytes(folder) for folder in begun),
    )


def build_here(
    work: Work,
    wanted: Sequence[str],
    *,
    name: str | None,
    compiler: CompilerKind,
    jobs_asked: int | None,
    gpu: Cards | None = None,
) -> list[Build]:
    """Make a build for each of the variants by name; raises AppError."""
    source = llamacpp_source()
    known = {variant.name: variant for variant in variants(platform.machine())}
    machine = read_machine(open_files(ROOT))
    cuda = cuda_order(gpu.architectures, gpu.options, machine) if gpu else None
    if cuda is not None and compiler == "system":
        system_nvcc(cuda, os.environ)  # refuses before anything is compiled
    at_once = jobs(jobs_asked, len(machine.limits.cpus), machine.memory.available_bytes)
    orders = []
    for word in wanted:
        variant = None if word == NATIVE else known[word]
        called = name or build_name(variant, source, cuda.name if cuda else None)
        cublas = gpu is not None and gpu.cublas
        orders.append(Order(called, source, variant, compiler, at_once, cuda, cublas))

    def prove(folder: Path, manifest: Manifest) -> None:
        verdict = judge_build(manifest, damaged_files(folder, manifest), machine)
        if not verdict.blocked:
            verdict = Verdict((*verdict.findings, *try_out(work, folder, manifest, machine)))
        work.tell.found(verdict)  # of another CPU: made all the same, for the machine it is for

    return make_builds(orders, work.builds, work.where.tools, work.where.logs, prove, work.tell)


def install_from(work: Work, origin: str, *, name: str | None, sha256: str | None) -> Build:
    """Install a build that runs here; raises AppError, exit 3 when it does not."""
    machine = read_machine(open_files(ROOT))

    def prove(folder: Path, manifest: Manifest) -> None:
        # Its files were compared with the record just before.
        verdict = judge_build(manifest, (), machine)
        refuse_blocked(verdict)
        work.tell.found(Verdict((*verdict.findings, *try_out(work, folder, manifest, machine))))

    work.tell.stage(Text("fetching the build", "获取构建"))
    return install_build(
        origin, work.builds, prove, name=name, sha256=sha256, progress=work.tell.progress
    )


def verify_builds(work: Work, names: Sequence[str]) -> dict[str, Verdict]:
    """What is to be said of each build: those named, or all."""
    machine, there = read_machine(open_files(ROOT)), work.builds.names()
    verdicts = {}
    for name in dict.fromkeys(names or there):
        try:
            build = work.builds.get(name)
        except AppError as error:
            if name not in there:
                raise
            verdicts[name] = Verdict((unreadable(name, error),))
        else:
            verdicts[name] = verify_one(work, build, machine)
    return verdicts


def verify_one(work: Work, build: Build, machine: Machine) -> Verdict:
    """Hashes, CPU, C library and GPU code; then an answer, unless something speaks against it."""
    manifest = build.manifest
    work.tell.stage(Text(f"checking {manifest.name}", f"检查 {manifest.name}"))
    verdict = judge_build(manifest, damaged_files(build.folder, manifest), machine)
    # What was proven once is proven no more: no plan may take it before it answers again.
    with local_errors(build.folder):
        (build.folder / PROOF).unlink(missing_ok=True)
    if verdict.blocked:
        return verdict
    try:
        return Verdict((*verdict.findings, *try_out(work, build.folder, manifest, machine)))
    except AppError as error:
        return Verdict((*verdict.findings, does_not_answer(manifest, error)))


def try_out(work: Work, folder: Path, manifest: Manifest, machine: Machine) -> list[Finding]:
    """Have it answer the golden prompt with the embedded model; keeps the proof beside it.

    Where a card is here that it has code for, the card has to compute as the CPU does.
    """
    work.tell.stage(Text("fetching the model", "下载模型"))
    model = embedded_model(work.where.data, work.tell.progress)
    work.tell.stage(Text(f"asking {manifest.name}", f"测试 {manifest.name}"))
    asked = binary_build(folder / manifest.program)
    proof = Proof(
        program_sha256=program_sha256(manifest),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        version=asked.version,
        knows=asked.knows,
        forms=asked.forms,
        answer="",
        took_s=0.0,
    )
    log_path = work.where.logs / f"verify-{manifest.name}.log"
    answer = asyncio.run(first_answer(proven_build(folder, manifest, proof), model, log_path))
    proof = replace(proof, answer=answer.text, took_s=round(answer.took_s, 2))
    found = [answered(manifest, answer.text, answer.took_s)]
    if gpu_nearness(manifest, machine):
        told, proof = try_card(work, folder, manifest, proof, sees=asked.gpu_architectures != ())
        found += told
    write_proof(folder, proof)
    return found


def try_card(
    work: Work, folder: Path, manifest: Manifest, proof: Proof, *, sees: bool
) -> tuple[list[Finding], Proof]:
    """What the card says of the build's code, and the proof with it."""
    if not sees:
        return [card_not_seen(manifest)], replace(proof, card_right=False)
    if not has_test(manifest):
        return [], proof
    logs, found = work.where.logs, []
    plain, attention = Text("arithmetic", "运算"), Text("flash attention", "flash attention")
    work.tell.stage(Text("comparing the card with the CPU", "对比显卡与 CPU 的结果"))
    of_all = compare(folder, PLAIN, logs / f"card-{manifest.name}.log")
    found.append(card_finding(manifest, of_all, plain))
    of_attention = compare(folder, ATTENTION, logs / f"card-attention-{manifest.name}.log")
    found.append(card_finding(manifest, of_attention, attention))
    return found, replace(
        proof,
        card_right=of_all.good if of_all else None,
        attention_right=of_attention.good if of_attention else None,
    )


def remove_builds(work: Work, names: Sequence[str], *, tools: bool) -> int:
    """Remove builds, with `tools` the compiler and what was begun; returns the bytes freed."""
    builds = work.builds
    with builds.alone():
        missing = [name for name in names if name not in builds.names()]
        for name in missing:
            builds.get(name)  # raises
        folders = [builds.folder / name for name in names]
        begun = [*unfinished(builds), downloads(builds.folder), work.where.tools] if tools else []
        freed_bytes = sum(disk_bytes(folder) for folder in (*folders, *begun))
        for name in dict.fromkeys(names):
            builds.remove(name)
        # cuBLAS is larger than all builds, and of use to those with code for cards alone.
        cublas, rest = builds.folder / CUBLAS_FOLDER, builds.all()[0]
        if cublas.is_dir() and not any(one.manifest.sass or one.manifest.ptx for one in rest):
            freed_bytes += disk_bytes(cublas)
            begun.append(cublas)
        for folder in begun:
            if folder.exists():
                with local_errors(folder):
                    shutil.rmtree(folder)
    return freed_bytes


def refuse_blocked(verdict: Verdict) -> None:
    """AppError with exit code 3 when something speaks against the build here."""
    for finding in verdict.findings:
        if finding.level == "blocker":
            command = f" {finding.command}" if finding.command else ""
            step = Text(f"{finding.remedy.en}{command}", f"{finding.remedy.zh}{command}")
            raise AppError(finding.seen, step, exit_code=EXIT_NO)


def unreadable(name: str, error: AppError) -> Finding:
    """A folder among the builds whose record cannot be read."""
    return Finding(
        code="engine.record-unreadable",
        level="blocker",
        seen=error.what,
        why=Text("Without its record nothing is known of it.", "没有记录就无法了解它。"),
        remedy=Text("Remove it and install it again.", "请删除后重新安装。"),
        source="manifest.json",
        command=f"workhorse engine remove {name}",
    )


def does_not_answer(manifest: Manifest, error: AppError) -> Finding:
    """The build's files are right, and still it does not run."""
    return Finding(
        code="engine.no-answer",
        level="blocker",
        seen=Text(f"{manifest.name}: {error.what.en}", f"{manifest.name}：{error.what.zh}"),
        why=Text("An engine that does not answer serves nobody.", "无法回答的引擎没有用处。"),
        remedy=error.next_step,
        source="golden prompt",
        share_lost=1.0,
    )
