"""The locked wheels for another machine's Python and C library, by the user's own pip."""

import email
import hashlib
import re
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from workhorse.bundle.order import Order, Pinned, blocks_of, pinned_for, wheel_platforms
from workhorse.engines.supply.packages import run_pip, write_requirements
from workhorse.errors import EXIT_NO, AppError
from workhorse.models.fetch import Progress
from workhorse.models.part_file import local_errors, sha256_of
from workhorse.text import Text

# Made by scripts/lock: what workhorse needs to run; the same with an extra of pyproject.toml.
LOCK = "run.lock"
EXTRAS = ("documents", "fleet", "report")
_WHOLE = "whole"  # names the lock whose wheels a folder has
_LICENCE_MAX = 120
# pip's words (26.3) where an index has no fitting file, and where it reaches no index.
_NO_WHEEL = "Could not find a version that satisfies"


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel: what it is, and for which versions of Python it is installed."""

    path: Path
    name: str
    version: str
    licence: str
    pythons: tuple[str, ...]


def read_lock(extras: Sequence[str] = ()) -> str:
    """The lock of what workhorse and these of `EXTRAS` need to run."""
    blocks: dict[str, None] = {}  # the same versions in each: a package once
    for name in (LOCK, *(f"{extra}.lock" for extra in extras)):
        lock = files("workhorse.bundle").joinpath(name).read_text("utf-8")
        blocks |= dict.fromkeys(blocks_of(lock))
    return "\n".join(blocks)


def bring_wheels(order: Order, lock: str, store: Path, progress: Progress) -> list[Wheel]:
    """Every locked wheel for each Python of the order; kept below `store` for the next bundle.

    Asks the network only for what is not there. Raises AppError when pip gets no fitting wheel
    or one that is not the lock's.
    """
    found: dict[str, tuple[Path, list[str]]] = {}
    for python in order.pythons:
        packages = pinned_for(lock, python)
        folder = store / f"{order.architecture}-glibc{order.glibc}-py{python}"
        for path in _downloaded(packages, python, order, folder, progress):
            found.setdefault(path.name, (path, []))[1].append(python)
    return [_described(path, tuple(pythons)) for path, pythons in found.values()]


def _downloaded(
    packages: Sequence[Pinned], python: str, order: Order, folder: Path, progress: Progress
) -> list[Path]:
    lines = [package.line() for package in packages]
    mark = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    with suppress(OSError):
        if (folder / _WHOLE).read_text("ascii") == mark and len(_wheels(folder)) == len(packages):
            return _checked(folder, packages)
    with local_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        wanted = write_requirements(folder / "wanted.txt", lines)
    tags = [
        word
        for tag in wheel_platforms(order.architecture, order.glibc)
        for word in ("--platform", tag)
    ]
    _download(python, order, tags, wanted, progress)
    named = {_plain(package.name): package.version for package in packages}
    for path in _wheels(folder):  # of an earlier lock
        name, number = path.name.split("-")[:2]
        if named.get(_plain(name)) != number:
            path.unlink()
    paths = _checked(folder, packages)
    with local_errors(folder):
        (folder / _WHOLE).write_text(mark, "ascii")
    return paths


def _download(
    python: str, order: Order, tags: Sequence[str], wanted: Path, progress: Progress
) -> None:
    """Have pip bring the wheels beside the file that names them; those that are there stay."""
    what = Text(
        f"The packages for Python {python} and glibc {order.glibc}",
        f"适用于 Python {python}、glibc {order.glibc} 的软件包",
    )
    folder = wanted.parent
    try:
        run_pip(
            ["download", "--no-deps", "--only-binary=:all:", "--require-hashes",
             "--dest", str(folder), "--python-version", python, "--implementation", "cp",
             *tags, "-r", str(wanted)],
            what,
            progress,
            scratch=folder / "scratch",
        )  # fmt: skip
    except AppError as error:
        if _NO_WHEEL not in error.what.en:
            raise
        raise AppError(
            error.what,
            Text(
                "Check that pip reaches its index (PIP_INDEX_URL). If it does, no wheel fits so "
                "old a C library (NumPy: glibc 2.27 or newer, 2026-11) or this Python (--python).",
                "请确认 pip 能访问软件源（PIP_INDEX_URL）。若能访问，则没有适合这么旧的 C 库"
                "（NumPy 需 glibc 2.27 或更新，2026-11）或该 Python（--python）的 wheel。",
            ),
            exit_code=EXIT_NO,
        ) from error


def _checked(folder: Path, packages: Sequence[Pinned]) -> list[Path]:
    """The wheels of a folder when each is one of the lock's; AppError else."""
    known = {digest for package in packages for digest in package.hashes}
    paths = _wheels(folder)
    for path in paths:
        with local_errors(path):
            right = sha256_of(path) in known
        if not right:
            raise AppError(
                Text(
                    f"{path.name} is not the file that the lock names.",
                    f"{path.name} 与锁定文件中的哈希不符。",
                ),
                Text(
                    f"Remove {folder} and run the command again.", f"请删除 {folder} 后重新运行。"
                ),
            )
    if len(paths) != len(packages):
        raise AppError(
            Text(
                f"{folder} has {len(paths)} wheels, the lock names {len(packages)}.",
                f"{folder} 中有 {len(paths)} 个 wheel，锁定文件要求 {len(packages)} 个。",
            ),
            Text(f"Remove {folder} and run the command again.", f"请删除 {folder} 后重新运行。"),
        )
    return paths


def _wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def _described(path: Path, pythons: tuple[str, ...]) -> Wheel:
    with zipfile.ZipFile(path) as packed:
        member = next(
            name
            for name in packed.namelist()
            if name.count("/") == 1 and name.endswith(".dist-info/METADATA")
        )
        said = email.message_from_bytes(packed.read(member))
    name = _plain(str(said["Name"]))
    return Wheel(path, name, str(said["Version"]), licence_of(said), pythons)


def licence_of(said: "email.message.Message") -> str:
    """The licence that a package's metadata tells, in one line."""
    told = said["License-Expression"] or said["License"] or ""
    classifiers = [
        str(line).rpartition(" :: ")[2]
        for line in said.get_all("Classifier", [])
        if str(line).startswith("License ::")
    ]
    first = str(told).strip().splitlines()[:1]
    if first and len(first[0]) <= _LICENCE_MAX:
        return first[0]
    return ", ".join(classifiers) or "see the wheel"


def describe_own(path: Path, pythons: tuple[str, ...]) -> Wheel:
    """The wheel of workhorse itself, for every Python of the order."""
    return _described(path, pythons)


def _plain(name: str) -> str:
    """A package's name as registries compare them (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
