"""The engine for a plan: by name, by path, or the best that is installed."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse.engines.find import binary_build, embedded_build
from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.choose import Candidate, choose_build
from workhorse.engines.supply.proof import program_sha256, proven_build, read_proof
from workhorse.errors import EXIT_NO, AppError
from workhorse.models.part_file import sha256_of
from workhorse.plan.checks import check_cpu
from workhorse.records import EngineBuild, Machine, Plan, Reason, Rejected
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Picked:
    """The engine of a plan, why, and what was not taken."""

    build: EngineBuild
    reasons: tuple[Reason, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def explain(self, plan: Plan) -> Plan:
        """The plan with the reasons for its engine."""
        return replace(
            plan,
            reasons=(*self.reasons, *plan.reasons),
            rejected=(*plan.rejected, *self.rejected),
        )


def named_engine(word: Path, builds: Builds) -> Picked:
    """What the user named: an installed build's name, or the path of a llama-server."""
    name = str(word)
    if os.sep in name or name not in builds.names():
        if os.sep not in name and not word.exists() and (names := builds.names()):
            raise no_such_engine(name, names)
        return Picked(binary_build(word))
    build = builds.get(name)
    proof = read_proof(build.folder, build.manifest)
    if proof is None or not is_unaltered(build):
        raise AppError(
            Text(
                f"The build {name!r} as it is has not answered on this machine yet.",
                f"构建 {name!r} 的当前文件尚未在本机验证。",
            ),
            Text(
                f"Try it: workhorse engine verify {name}", f"请验证：workhorse engine verify {name}"
            ),
            exit_code=EXIT_NO,
        )
    return Picked(proven_build(build.folder, build.manifest, proof))


def pick_engine(
    builds: Builds, machine: Machine, embedded: Callable[[], EngineBuild] = embedded_build
) -> Picked:
    """The best of the installed builds and the embedded engine for this machine."""
    found, _ = builds.all()
    sound = [build for build in found if is_unaltered(build)]
    own: EngineBuild | None = None
    missing: AppError | None = None
    try:
        own = embedded()
    except AppError as error:
        missing = error
    proofs = [(b.manifest, read_proof(b.folder, b.manifest)) for b in sound]
    candidates = [
        Candidate(manifest, proof is not None, proof is not None and proof.card_right is False)
        for manifest, proof in proofs
    ]
    choice = choose_build(candidates, own.needs_flags if own else None, machine)
    reasons = (choice.reason,) if found else ()
    for build in sound:
        proof = read_proof(build.folder, build.manifest)
        if build.manifest.name == choice.name and proof is not None:
            chosen = proven_build(build.folder, build.manifest, proof)
            return Picked(chosen, reasons, choice.rejected)
    if own is None:
        raise missing or AssertionError("an embedded engine is there or missing")
    for finding in check_cpu(machine, own):
        step = Text(
            "Make an engine for this CPU: workhorse engine build",
            "请为本机 CPU 构建引擎：workhorse engine build",
        )
        raise AppError(finding.seen, step, exit_code=EXIT_NO)
    return Picked(own, reasons, choice.rejected)


def is_unaltered(build: Build) -> bool:
    """True when the program is still the one of its record (15 MB: some 20 ms)."""
    with suppress(OSError):
        return sha256_of(build.program) == program_sha256(build.manifest)
    return False


def no_such_engine(name: str, names: list[str]) -> AppError:
    """Neither a build nor a file."""
    listed = ", ".join(names)
    return AppError(
        Text(
            f"{name!r} is neither an installed build nor a file.",
            f"{name!r} 既不是已安装的构建，也不是文件。",
        ),
        Text(f"Installed: {listed}.", f"已安装：{listed}。"),
    )
