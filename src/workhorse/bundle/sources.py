"""The parts of a bundle and where their files are on this machine."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from workhorse.bundle.carried.manifest import Part
from workhorse.bundle.order import glibc_of
from workhorse.bundle.wheels import Wheel
from workhorse.engines.find import EMBEDDED_NEEDS, PACKAGE
from workhorse.engines.openmp import LIBRARY, download
from workhorse.engines.supply.builds import Build
from workhorse.engines.supply.check import damaged_files
from workhorse.engines.supply.cuda_recipe import CUBLAS_FOLDER
from workhorse.engines.supply.manifest import MANIFEST
from workhorse.errors import EXIT_NO, AppError
from workhorse.knowledge.packaged_libraries import packaged_library
from workhorse.knowledge.packaged_models import packaged_models
from workhorse.models.embedded import DEFAULT_MODEL
from workhorse.models.gguf import read_gguf
from workhorse.models.part_file import local_errors
from workhorse.models.parts import PART_NAME
from workhorse.models.pull_record import read_record
from workhorse.models.stored import read_stored, stored_shape
from workhorse.text import Text

_SCRIPTS = ("check", "files", "install", "main", "manifest", "target", "words", "__init__")
_NOT_TOLD = "not told"
_NOT_OF_A_MODEL = (".part", ".lock", ".tmp")


@dataclass(frozen=True, slots=True)
class Source:
    """One part and the files that it is made of, by their paths in the bundle."""

    part: Part
    files: tuple[tuple[str, Path], ...]
    glibc: str | None = None  # the oldest C library that it runs on; None: any


def wheel_source(wheel: Wheel, architecture: str) -> Source:
    """A wheel; that of the embedded engine says what CPU it needs."""
    path = f"wheels/{wheel.path.name}"
    needs = EMBEDDED_NEEDS[architecture] if wheel.name == PACKAGE else ()
    part = Part(
        "wheel",
        wheel.name,
        wheel.version,
        wheel.licence,
        "this installation" if wheel.name == "workhorse" else "package registry, by the lock",
        (path,),
        wheel.pythons,
        tuple(needs),
    )
    return Source(part, ((path, wheel.path),), glibc_of(wheel.path.name))


def engine_sources(build: Build) -> list[Source]:
    """An engine build, and the cuBLAS that was fetched for it; AppError when it is damaged."""
    manifest = build.manifest
    if damaged := damaged_files(build.folder, manifest):
        raise AppError(
            Text(
                f"The build {manifest.name} is damaged: {', '.join(damaged[:3])}.",
                f"构建 {manifest.name} 已损坏：{', '.join(damaged[:3])}。",
            ),
            Text(
                f"Remove it and make it again: workhorse engine remove {manifest.name}",
                f"请删除后重新构建：workhorse engine remove {manifest.name}",
            ),
            exit_code=EXIT_NO,
        )
    names = (MANIFEST, *(file.path for file in manifest.files))
    there = tuple((f"engines/{manifest.name}/{name}", build.folder / name) for name in names)
    origin = manifest.source
    part = Part(
        "engine",
        manifest.name,
        origin.engine_version,
        "; ".join(manifest.licences),
        f"{origin.package} {origin.version} sha256:{origin.sha256}",
        tuple(path for path, _ in there),
        needs_flags=manifest.needs_flags,
        may_pass_on=not any("NVIDIA" in line for line in manifest.licences),
    )
    found = [Source(part, there, manifest.glibc)]
    cublas = build.folder.parent / CUBLAS_FOLDER
    if (manifest.sass or manifest.ptx) and cublas.is_dir():
        found.append(_cublas(cublas))
    return found


def _cublas(folder: Path) -> Source:
    there = tuple(
        (f"engines/{CUBLAS_FOLDER}/{path.name}", path)
        for path in sorted(folder.iterdir())
        if path.is_file()
    )
    part = Part(
        "nvidia",
        "cuBLAS",
        CUBLAS_FOLDER.rpartition("-")[2],
        "NVIDIA CUDA Toolkit EULA, the user's own copy; do not pass it on",
        "package registry, fetched by the user",
        tuple(path for path, _ in there),
        may_pass_on=False,
    )
    return Source(part, there)


def model_source(path: Path) -> Source:
    """A GGUF file with all its parts, or the folder of a checkpoint; AppError for a bad one."""
    if path.is_dir():
        return _checkpoint(path)
    model = read_gguf(path)
    match = PART_NAME.fullmatch(path.name)
    paths = [path]
    if match and int(match["parts"]) > 1:
        names = range(1, int(match["parts"]) + 1)
        stem = f"{match['stem']}-{{:05d}}-of-{match['parts']}.gguf"
        paths = [path.with_name(stem.format(number)) for number in names]
    there = tuple((f"models/{one.name}", one.resolve()) for one in paths)
    licence, origin = model.licence, _origin(path)
    known = packaged_models()[DEFAULT_MODEL]
    if path.name == known.file_name:
        licence, origin = known.licence, f"{known.package} {known.version}"
    part = Part(
        "model",
        model.name,
        model.quantisation,
        licence or _NOT_TOLD,
        origin,
        tuple(name for name, _ in there),
    )
    return Source(part, there)


def _checkpoint(folder: Path) -> Source:
    shape = stored_shape(read_stored(folder))
    with local_errors(folder):
        found = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and not any(word.startswith(".") for word in path.relative_to(folder).parts)
            and path.suffix not in _NOT_OF_A_MODEL
        ]
    name = folder.resolve().name
    there = tuple(
        (f"models/{name}/{path.relative_to(folder).as_posix()}", path.resolve()) for path in found
    )
    part = Part(
        "model",
        shape.name,
        "checkpoint",
        shape.licence or _NOT_TOLD,
        _origin(folder / "config.json"),
        tuple(name for name, _ in there),
    )
    return Source(part, there)


def _origin(path: Path) -> str:
    """Where a model was pulled from; a path of this machine is nobody's business elsewhere."""
    known = read_record(path.parent).files.get(path.name)
    return known.source if known else "a file of the machine that made the bundle"


def library_source(architecture: str, scratch: Path) -> Source:
    """libgomp, which the embedded engine needs and a small system lacks; raises AppError."""
    known = packaged_library(LIBRARY, architecture)
    if known is None:
        raise AppError(
            Text(
                f"No package has {LIBRARY} for {architecture}.",
                f"没有适用于 {architecture} 的 {LIBRARY}。",
            ),
            Text("Make the bundle for another machine.", "请为其他机器制作离线包。"),
        )
    kept = scratch / f"{known.package}-{known.version}-{architecture}" / LIBRARY
    with local_errors(kept):
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(download(known, kept.parent)) as wheel:
                part = kept.with_name(f"{LIBRARY}.part")
                part.write_bytes(wheel.read(known.member))
                part.replace(kept)
    path = f"libraries/{LIBRARY}"
    part_of = Part(
        "library",
        LIBRARY,
        known.version,
        known.licence,
        f"{known.package} {known.version} sha256:{known.wheel_sha256}",
        (path,),
    )
    return Source(part_of, ((path, kept),))


def script_source(version: str) -> Source:
    """What checks and installs the bundle with the system's Python."""
    with as_file(files("workhorse.bundle.carried")) as carried:
        there: Sequence[tuple[str, Path]] = (
            ("install.py", carried / "entry.py"),
            ("verify.py", carried / "entry.py"),
            ("README.txt", carried / "README.txt"),
            *((f"carried/{name}.py", carried / f"{name}.py") for name in _SCRIPTS),
        )
    part = Part(
        "script",
        "workhorse-bundle",
        version,
        "Apache-2.0",
        "this installation",
        tuple(path for path, _ in there),
    )
    return Source(part, tuple(there))
