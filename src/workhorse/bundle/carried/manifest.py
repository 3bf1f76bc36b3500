"""What a bundle says of itself: `bundle.json`."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from .words import Refusal, Words

MANIFEST = "bundle.json"
FORM = 1
KINDS = ("wheel", "engine", "model", "library", "nvidia", "script")
# A bundle of 40 wheels, ten builds and a model of 200 shards says 60 KB; more than this is none.
_BYTES_MAX = 8_000_000
FILES_MAX = 20_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


@dataclass(frozen=True)
class File:
    """One file, by its path below the bundle's folder."""

    path: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True)
class Part:
    """Some files that belong together: what they are, from where, and under which licence."""

    kind: str  # one of KINDS
    name: str
    version: str
    licence: str
    source: str
    files: tuple[str, ...]
    pythons: tuple[str, ...] = ()  # of a wheel: the versions of Python that it is installed for
    needs_flags: tuple[str, ...] = ()  # of an engine: CPU flags without which it dies
    may_pass_on: bool = True  # False: the user's own copy of what is not free to redistribute


@dataclass(frozen=True)
class Target:
    """The machine that the bundle was made for."""

    architecture: str  # as `uname -m` says
    glibc: str  # the oldest C library on which all of it runs
    pythons: tuple[str, ...]  # 3.11 …
    cpu: str


@dataclass(frozen=True)
class Manifest:
    """All that is in a bundle."""

    workhorse: str  # its version
    made_at: str  # ISO 8601, UTC
    target: Target
    files: tuple[File, ...]
    parts: tuple[Part, ...]

    @property
    def n_bytes(self) -> int:
        """What the files take."""
        return sum(file.n_bytes for file in self.files)

    def of_kind(self, kind: str) -> list[Part]:
        """The parts of one kind."""
        return [part for part in self.parts if part.kind == kind]


def to_document(manifest: Manifest) -> bytes:
    """The manifest as JSON."""
    document = {"form": FORM, **asdict(manifest)}
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle's folder; Refusal where there is none that can be used."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            return parse(file.read(_BYTES_MAX + 1))
    except OSError as error:
        raise Refusal(
            Words(
                f"{folder} is no bundle: it has no {MANIFEST} that can be read.",
                f"{folder} 不是离线包：没有可读的 {MANIFEST}。",
            ),
            Words(
                "Name the folder or the .tar that `workhorse bundle create` made.",
                "请指定 `workhorse bundle create` 生成的目录或 .tar。",
            ),
            2,
        ) from error


def parse(document: bytes) -> Manifest:
    """The manifest in a document from anywhere: no path in it leads out of the bundle."""
    try:
        if len(document) > _BYTES_MAX:
            raise ValueError("too large")
        manifest = _manifest(json.loads(document))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal(
            Words(
                f"{MANIFEST} is damaged or of another version ({_told(error)}).",
                f"{MANIFEST} 已损坏或版本不符（{_told(error)}）。",
            ),
            Words("Do not use this bundle; make it again.", "请勿使用该离线包；请重新制作。"),
        ) from error
    return manifest


def is_inside(path: str) -> bool:
    """True when a relative path, written plainly, stays below its folder."""
    plain = PurePosixPath(path)
    written = path.isprintable() and "\\" not in path and len(path) < 1000
    return written and not plain.is_absolute() and ".." not in plain.parts and str(plain) == path


def _told(error: Exception) -> str:
    said = str(error) or type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in said)[:120]


def _manifest(said: Any) -> Manifest:
    if said["form"] != FORM:
        raise ValueError(f"form {said['form']!r}")
    rows, parts = said["files"], said["parts"]
    if not 0 < len(rows) <= FILES_MAX or len(parts) > FILES_MAX:
        raise ValueError("number of files")
    files = tuple(_file(row) for row in rows)
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise ValueError("a path comes twice")
    made = Manifest(
        _of(str, said["workhorse"]),
        _of(str, said["made_at"]),
        _target(said["target"]),
        files,
        tuple(_part(row) for row in parts),
    )
    named = [path for part in made.parts for path in part.files]
    if set(named) != paths or len(named) != len(paths):
        raise ValueError("files and parts differ")
    return made


def _file(row: Any) -> File:
    file = File(_of(str, row["path"]), _of(str, row["sha256"]), _of(int, row["n_bytes"]))
    if not is_inside(file.path) or file.path in (".", MANIFEST):
        raise ValueError(f"path {file.path[:80]!r}")
    if not _SHA256.fullmatch(file.sha256) or file.n_bytes < 0:
        raise ValueError(f"hash or size of {file.path[:80]!r}")
    return file


def _part(row: Any) -> Part:
    kind = _of(str, row["kind"])
    if kind not in KINDS:
        raise ValueError(f"kind {kind[:40]!r}")
    return Part(
        kind,
        _of(str, row["name"]),
        _of(str, row["version"]),
        _of(str, row["licence"]),
        _of(str, row["source"]),
        _texts(row["files"]),
        _texts(row["pythons"]),
        _texts(row["needs_flags"]),
        _of(bool, row["may_pass_on"]),
    )


def _target(row: Any) -> Target:
    return Target(
        _of(str, row["architecture"]),
        _of(str, row["glibc"]),
        _texts(row["pythons"]),
        _of(str, row["cpu"]),
    )


def _texts(values: Any) -> tuple[str, ...]:
    if len(_of(list, values)) > FILES_MAX:
        raise ValueError("too long a list")
    return tuple(_of(str, value) for value in values)


def _of(kind: type[T], value: Any) -> T:
    # Not isinstance: True is an int.
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value
