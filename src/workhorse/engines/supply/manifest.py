"""What an engine build is: one JSON record beside its files."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from workhorse.codec import from_json, to_json
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.part_file import local_errors, sha256_of
from workhorse.text import Text

MANIFEST = "manifest.json"
PROOF = "proof.json"  # that it runs on this machine; it does not travel
OURS = (MANIFEST, PROOF)
PROGRAM = "llama-server"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
# A manifest is some 3 KB; a larger one is no manifest.
_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """One file of a build, by its path below the build's folder."""

    path: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SourcePackage:
    """The source that a build was made from."""

    package: str
    version: str
    sha256: str
    engine_version: str
    commit: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One engine build: where it comes from, what it needs, and what it holds.

    `sass` and `ptx` are what was read from the files, not what was asked of the compiler.
    """

    name: str
    engine: Literal["llama.cpp"]
    source: SourcePackage
    files: tuple[BuiltFile, ...]
    program: str  # path of llama-server below the folder
    architecture: str  # as `uname -m` says
    cpu_variant: str
    needs_flags: tuple[str, ...]  # CPU flags without which it dies of an illegal instruction
    sass: tuple[str, ...]  # sm_70 …
    ptx: tuple[str, ...]  # compute_70 …
    compiler: str
    options: tuple[str, ...]
    openmp: bool
    glibc: str | None  # the oldest C library that has all it asks for; None: linked without
    licences: tuple[str, ...]
    built_at: str  # ISO 8601, UTC
    minutes: float | None  # None: not known
    fetched: tuple[str, ...] = ()  # what CUDA code was made with: package, version, use, licence
    # Whether attention on a card was seen to be right: clang has got it wrong (cuda_recipe.py).
    # `unproven`: plans leave it off until the card has shown it. None: there is no doubt of it.
    flash_attention: Literal["unproven", "proven"] | None = None
    bounded_wait: bool = False  # its own threads sleep when they wait (bounded_wait.h)
    form: Literal[1] = 1  # of this record

    @property
    def n_bytes(self) -> int:
        """What its files take on the disk."""
        return sum(file.n_bytes for file in self.files)


def check_name(name: str) -> str:
    """`name` when a build may be called so; an AppError otherwise."""
    if _NAME.fullmatch(name):
        return name
    raise AppError(
        Text(f"A build cannot be called {name[:80]!r}.", f"构建不能命名为 {name[:80]!r}。"),
        Text(
            "Use up to 64 letters, digits, dots, dashes and underscores.",
            "请使用不超过 64 个字母、数字、点、短横线或下划线。",
        ),
        exit_code=EXIT_USAGE,
    )


def read_manifest(folder: Path) -> Manifest:
    """The record in `folder`; AppError when there is none that can be used."""
    path = folder / MANIFEST
    if not path.is_file():
        raise AppError(
            Text(f"{folder} has no {MANIFEST}.", f"{folder} 中没有 {MANIFEST}。"),
            Text(
                "Name a folder or an archive that `workhorse engine build` made.",
                "请给出由 `workhorse engine build` 生成的目录或归档。",
            ),
        )
    with local_errors(path), path.open("rb") as file:
        document = file.read(_BYTES_MAX + 1)
    return parse_manifest(document[:_BYTES_MAX], str(path))


def parse_manifest(document: bytes, what: str) -> Manifest:
    """The record in a document from anywhere: no path in it leads out of the build's folder."""
    manifest = from_json(Manifest, document, what=what)
    check_name(manifest.name)
    paths = [file.path for file in manifest.files]
    strange = next((path for path in paths if not is_inside(path) or path in OURS), None)
    if strange is not None or len(set(paths)) != len(paths) or manifest.program not in paths:
        named = repr(strange) if strange is not None else manifest.program
        raise AppError(
            Text(
                f"{what} lists its files wrongly ({named}).", f"{what} 的文件列表有误（{named}）。"
            ),
            Text("Do not use this build.", "请勿使用该构建。"),
        )
    return manifest


def is_inside(path: str) -> bool:
    """True when a relative path, written plainly, stays below its folder."""
    parts = PurePosixPath(path).parts
    plain = bool(parts) and not path.startswith("/") and "\\" not in path and "\0" not in path
    return plain and ".." not in parts and str(PurePosixPath(path)) == path


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the record into the build's folder."""
    path = folder / MANIFEST
    with local_errors(path):
        path.write_text(to_json(manifest) + "\n", "utf-8")


def files_of(folder: Path) -> tuple[BuiltFile, ...]:
    """Every file below `folder` with its hash, but for our own records."""
    with local_errors(folder):
        return tuple(
            BuiltFile(relative, sha256_of(path), path.stat().st_size)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and (relative := path.relative_to(folder).as_posix()) not in OURS
        )
