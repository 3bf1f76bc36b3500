"""Whether a bundle runs on this machine, before anything is written."""

import ctypes
import os
import platform
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .manifest import Manifest, Part
from .words import Refusal, Words, listed, shown_bytes

EMBEDDED = "xllamacpp"
# Compiled Python, logs and scratch beside what is unpacked; 9 MB were seen (2026-11).
BESIDE_BYTES = 50 * 1024**2
_ANOTHER = Words(
    "Make a bundle for this machine: workhorse probe --save DIR here, then workhorse bundle create "
    "--for DIR.",
    "请为本机制作离线包：先在本机运行 workhorse probe --save 目录，再用 workhorse bundle create "
    "--for 目录。",
)


@dataclass(frozen=True)
class Here:
    """What this machine is, as far as it decides what runs."""

    python: str  # 3.11 …
    bits: int
    architecture: str
    glibc: str | None  # None: another C library
    flags: frozenset[str]  # of the CPU; empty: not told
    openmp: bool  # the loader finds libgomp.so.1


def look() -> Here:
    """This machine."""
    return Here(
        python="{}.{}".format(*sys.version_info),
        bits=64 if sys.maxsize > 2**32 else 32,
        architecture=platform.machine(),
        glibc=_glibc(),
        flags=_flags(Path("/proc/cpuinfo")),
        openmp=_has_openmp(),
    )


def refuse_unfit(manifest: Manifest, here: Here) -> None:
    """Refusal, with exit code 3, when what is in the bundle cannot run here. Pure."""
    target = manifest.target
    if here.architecture != target.architecture or here.bits != 64:
        raise _no(
            f"The bundle is for {target.architecture}, this machine and its Python are "
            f"{here.architecture}, {here.bits} bits.",
            f"离线包用于 {target.architecture}，本机及其 Python 是 {here.architecture}、"
            f"{here.bits} 位。",
        )
    if here.glibc is None or _numbers(here.glibc) < _numbers(target.glibc):
        found = f"glibc {here.glibc}" if here.glibc else "no glibc"
        found_zh = f"glibc {here.glibc}" if here.glibc else "没有 glibc"
        raise _no(
            f"The bundle needs glibc {target.glibc}, this system has {found}.",
            f"离线包需要 glibc {target.glibc}，本系统：{found_zh}。",
        )
    if here.python not in target.pythons:
        others = [f"python{name}" for name in target.pythons if shutil.which(f"python{name}")]
        step = (
            Words(f"Type: {others[0]} install.py", f"请输入：{others[0]} install.py")
            if others
            else _ANOTHER
        )
        raise Refusal(
            Words(
                f"The bundle is for Python {', '.join(target.pythons)}; this is {here.python}.",
                f"离线包适用于 Python {', '.join(target.pythons)}；当前为 {here.python}。",
            ),
            step,
            3,
        )
    if not any(runs(part, here) for part in engines(manifest)):
        lacks = {
            part.name: sorted(set(part.needs_flags) - here.flags) for part in engines(manifest)
        }
        said = "; ".join(f"{name}: {listed(flags)}" for name, flags in lacks.items())
        raise _no(
            f"No engine of the bundle runs on this CPU, which lacks: {said}.",
            f"离线包中没有引擎能在本机 CPU 上运行，缺少指令集：{said}。",
        )


def engines(manifest: Manifest) -> list[Part]:
    """The engines of a bundle: the builds, and the embedded one among the wheels."""
    embedded = [part for part in manifest.of_kind("wheel") if part.name == EMBEDDED]
    return [*manifest.of_kind("engine"), *embedded]


def runs(part: Part, here: Here) -> bool:
    """Whether the CPU has what an engine needs; of an unknown CPU the answer shows it."""
    return not here.flags or set(part.needs_flags) <= here.flags


def refuse_full(bundle: Path, manifest: Manifest, prefix: Path, python: str) -> None:
    """Refusal when the disk has not room for what will be written."""
    place = prefix
    while not place.exists() and place != place.parent:
        place = place.parent
    needed_bytes = BESIDE_BYTES + sum(
        _unpacked_bytes(bundle / path)
        for part in manifest.of_kind("wheel")
        if python in part.pythons
        for path in part.files
    )
    sizes = {file.path: file.n_bytes for file in manifest.files}
    for part in manifest.parts:
        if part.kind in ("engine", "model", "nvidia"):
            needed_bytes += sum(sizes[path] for path in part.files if not (prefix / path).exists())
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        raise Refusal(
            Words(
                f"{place} has {shown_bytes(free_bytes)} left, {shown_bytes(needed_bytes)} are "
                "needed.",
                f"{place} 所在磁盘剩余 {shown_bytes(free_bytes)}，需要 "
                f"{shown_bytes(needed_bytes)}。",
            ),
            Words(
                "Free some space, or name a folder on another disk: --prefix FOLDER.",
                "请清理磁盘空间，或用 --prefix 指定其他磁盘上的目录。",
            ),
        )


def _unpacked_bytes(wheel: Path) -> int:
    try:
        with zipfile.ZipFile(wheel) as packed:
            return sum(entry.file_size for entry in packed.infolist())
    except (OSError, zipfile.BadZipFile):
        return 0  # its hash is right, so pip will say what is wrong with it


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _glibc() -> str | None:
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl has no such name
        return None
    return said.rpartition(" ")[2] or None


def _flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _has_openmp() -> bool:
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return False
    return True


def _no(en: str, zh: str) -> Refusal:
    return Refusal(Words(en, zh), _ANOTHER, 3)
