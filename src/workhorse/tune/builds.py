"""The engines that are at hand on this machine: what a tuning may try."""

from contextlib import suppress
from pathlib import Path

from workhorse.engines.find import embedded_build
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.pick import is_unaltered
from workhorse.engines.supply.pick_environment import contenders
from workhorse.engines.supply.proof import proven_build, read_proof
from workhorse.errors import AppError
from workhorse.records import EngineBuild, EngineName, Machine


def builds_at_hand(folder: Path, machine: Machine) -> tuple[EngineBuild, ...]:
    """Each installed llama.cpp that is proven and unaltered, and the embedded one where it runs."""
    found: list[EngineBuild] = []
    builds, _ = Builds(folder).all()
    for build in builds:
        proof = read_proof(build.folder, build.manifest)
        # A build whose card gave other figures than the CPU must not serve.
        if proof is not None and proof.card_right is not False and is_unaltered(build):
            found.append(proven_build(build.folder, build.manifest, proof))
    with suppress(AppError):
        own = embedded_build()
        if own.library_dir is not None or machine.system.libgomp:
            found.append(own)
    return tuple(found)


def environments_at_hand(folder: Path, kind: EngineName | None) -> tuple[EngineBuild, ...]:
    """Every installed environment with vLLM or LMDeploy, or those of one of the two."""
    return tuple(found.build for found in contenders(Builds(folder), kind))
