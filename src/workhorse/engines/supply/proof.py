"""That a build has generated a text on this machine: kept beside it, of no use elsewhere."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_json
from workhorse.doctor.gpu_code import code_for
from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER
from workhorse.engines.supply.manifest import PROOF, Manifest
from workhorse.errors import AppError
from workhorse.knowledge.gpus import cards
from workhorse.models.part_file import local_errors
from workhorse.records import EngineBuild


@dataclass(frozen=True, slots=True)
class Proof:
    """What a build said of itself and answered, and when."""

    program_sha256: str
    when: str  # ISO 8601, UTC
    version: str
    knows: tuple[str, ...]
    forms: tuple[str, ...]
    answer: str
    took_s: float  # from the start of the process to the end of the answer
    # Whether a card that is here computed attention as the CPU does; None: not asked.
    attention_right: bool | None = None
    # Whether it saw the card and computed the rest so too.
    card_right: bool | None = None


def program_sha256(manifest: Manifest) -> str:
    """The hash of the build's llama-server by its record."""
    return next(file.sha256 for file in manifest.files if file.path == manifest.program)


def write_proof(folder: Path, proof: Proof) -> None:
    """Keep the proof beside the build."""
    path = folder / PROOF
    with local_errors(path):
        part = path.with_name(f".{PROOF}.part")
        part.write_text(to_json(proof) + "\n", "utf-8")
        part.replace(path)


def read_proof(folder: Path, manifest: Manifest) -> Proof | None:
    """The proof of this very program; None when there is none."""
    with suppress(OSError, AppError):
        proof = from_json(Proof, (folder / PROOF).read_bytes(), what=PROOF)
        if proof.program_sha256 == program_sha256(manifest):
            return proof
    return None


def proven_build(folder: Path, manifest: Manifest, proof: Proof) -> EngineBuild:
    """The build as plans know it; nothing is started, the proof has what it said of itself."""
    return EngineBuild(
        engine="llama.cpp",
        kind="binary",
        command=(str(folder / manifest.program),),
        version=f"llama-server {manifest.source.engine_version}, {manifest.name}",
        needs_flags=manifest.needs_flags,
        gpu_architectures=architectures_reached(manifest),
        openmp=manifest.openmp,
        bounded_wait=manifest.bounded_wait,
        library_dir=cublas_dir(folder, manifest),
        knows=proof.knows,
        source=f"{manifest.source.package} {manifest.source.version}, {manifest.compiler}",
        forms=proof.forms,
        flash_attention=(
            manifest.flash_attention != "unproven"
            if proof.attention_right is None
            else proof.attention_right
        ),
    )


def cublas_dir(folder: Path, manifest: Manifest) -> str | None:
    """The cuBLAS that was fetched for CUDA builds; None: there is none, or no need of it."""
    fetched = folder.parent / CUBLAS_FOLDER
    return str(fetched) if (manifest.sass or manifest.ptx) and fetched.is_dir() else None


def architectures_reached(manifest: Manifest) -> tuple[str, ...]:
    """`sm_70` …: what it has machine code for, and known cards that it reaches another way.

    A card also runs code for an older one of its generation, and the driver compiles PTX.
    """
    known = sorted({card.capability for card in cards()})
    codes = (
        (major, minor, code_for((major, minor), manifest.sass, manifest.ptx))
        for major, minor in known
    )
    reached = (f"sm_{major}{minor}" for major, minor, code in codes if code and code.kind != "none")
    return tuple(dict.fromkeys((*manifest.sass, *reached)))
