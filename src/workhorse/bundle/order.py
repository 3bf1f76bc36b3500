"""What goes into a bundle: the engine, the tags of wheels, the lines of the lock. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.engines.find import EMBEDDED_NEEDS
from workhorse.engines.supply.choose import (
    Candidate,
    choose_build,
    gpu_nearness,
    spins,
    unfit,
)
from workhorse.engines.supply.manifest import Manifest
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.knowledge.cpu_variants import choose_variant
from workhorse.knowledge.versions import Version, version
from workhorse.records import Machine
from workhorse.text import Text

PYTHONS = ("3.11", "3.12", "3.13")
# What a machine has whose C library nobody told: Debian 10, RHEL 8 and newer (PEP 600, 2018).
GLIBC_ASSUMED = "2.28"
# The oldest C library that wheels are tagged for (PEP 600; manylinux1 is 2.5).
_OLDEST_MINOR = 5
_OLD_NAMES = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}
_MARKER = re.compile(r"python_full_version (<|>=) '(\d+(?:\.\d+)*)'")
_NAMED_MARKER = re.compile(r"(\w+) (==|!=) '([\w-]+)'")
# What the markers of our locks ask beside the version.
_HERE = {
    "sys_platform": "linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}


@dataclass(frozen=True, slots=True)
class Order:
    """The machine that a bundle is for, as far as it decides what goes in."""

    architecture: str
    glibc: str
    glibc_told: bool
    cpu: str
    pythons: tuple[str, ...]


def order_for(machine: Machine, pythons: Sequence[str] = PYTHONS) -> Order:
    """The order for a captured machine; AppError when the capture does not say enough."""
    cpu = machine.cpu
    if not cpu.flags:
        raise AppError(
            Text(
                "The capture does not tell the CPU's instruction sets, so no engine can be chosen.",
                "采集中没有 CPU 指令集信息，无法选择引擎。",
            ),
            Text(
                "Save one on that machine: workhorse probe --save DIR, or the output of lscpu.",
                "请在该机器上采集：workhorse probe --save 目录，或保存 lscpu 的输出。",
            ),
            exit_code=EXIT_USAGE,
        )
    if cpu.architecture not in EMBEDDED_NEEDS:
        raise AppError(
            Text(
                f"There are no engines for {cpu.architecture}.",
                f"没有适用于 {cpu.architecture} 的引擎。",
            ),
            Text(
                "Name a capture of a 64-bit Linux server: workhorse probe --save DIR on it.",
                "请在 64 位 Linux 服务器上采集：workhorse probe --save 目录。",
            ),
            exit_code=EXIT_NO,
        )
    told = machine.system.glibc
    known = version(told or "")
    glibc = ".".join(map(str, known.numbers[:2])) if known and len(known.numbers) > 1 else None
    return Order(
        cpu.architecture,
        glibc or GLIBC_ASSUMED,
        glibc is not None,
        cpu.name or cpu.architecture,
        tuple(pythons),
    )


def choose_engine_build(manifests: Sequence[Manifest], machine: Machine) -> Manifest | None:
    """The build to bring along; None: the embedded engine, which always comes, is the best.

    AppError when none runs on that CPU.
    """
    needs = EMBEDDED_NEEDS[machine.cpu.architecture]
    # Whether it answers there is shown there, before it is installed.
    candidates = [Candidate(manifest, proven=True) for manifest in manifests]
    choice = choose_build(candidates, needs, machine)
    if choice.name is not None:
        return next(one for one in manifests if one.name == choice.name)
    missing = sorted(set(needs) - set(machine.cpu.flags))
    if missing:
        raise _no_engine(machine, missing)
    return None


def left_for_spinning(manifests: Sequence[Manifest], machine: Machine) -> list[Manifest]:
    """The builds for that CPU that stay here because their waiting threads never sleep."""
    return [
        one
        for one in manifests
        if spins(one)
        and unfit(Candidate(one, proven=True), machine) is None
        and not gpu_nearness(one, machine)
        and set(EMBEDDED_NEEDS[machine.cpu.architecture]) <= set(machine.cpu.flags)
    ]


def _no_engine(machine: Machine, missing: Sequence[str]) -> AppError:
    fitting = choose_variant(machine.cpu.flags, machine.cpu.architecture)
    variant = fitting.name if fitting else "native"
    name, lacks = machine.cpu.name or machine.cpu.architecture, ", ".join(missing)
    return AppError(
        Text(
            f"No engine that is here runs on {name}: the embedded one needs {lacks}, and no "
            "installed build is for that CPU.",
            f"本机没有可在 {name} 上运行的引擎：内置引擎需要 {lacks}，"
            "已安装的构建也都不适合该 CPU。",
        ),
        Text(
            f"Make one here first: workhorse engine build --cpu {variant}",
            f"请先在本机构建：workhorse engine build --cpu {variant}",
        ),
        exit_code=EXIT_NO,
    )


def wheel_platforms(architecture: str, glibc: str) -> list[str]:
    """The platform tags of wheels that run there, the newest first (PEP 600 and its old names)."""
    newest = int(glibc.split(".")[1])
    tags = [f"manylinux_2_{minor}_{architecture}" for minor in range(newest, _OLDEST_MINOR - 1, -1)]
    old = [f"{name}_{architecture}" for name, minor in _OLD_NAMES.items() if newest >= minor]
    return tags + old


def glibc_of(wheel: str) -> str | None:
    """The oldest C library that a wheel runs on, by its file name; None: it has no compiled code.

    A wheel with several tags runs where any of them does.
    """
    tags = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    minors = [int(found[1]) for tag in tags if (found := re.match(r"manylinux_2_(\d+)_", tag))]
    minors += [_OLD_NAMES[name] for tag in tags if (name := tag.partition("_")[0]) in _OLD_NAMES]
    return f"2.{min(minors)}" if minors else None


@dataclass(frozen=True, slots=True)
class Pinned:
    """One package of the lock, with the hashes of all its files."""

    name: str
    version: str
    hashes: frozenset[str]

    def line(self) -> str:
        """As pip reads it from a file."""
        hashes = " ".join(f"--hash=sha256:{one}" for one in sorted(self.hashes))
        return f"{self.name}=={self.version} {hashes}"


def pinned_for(lock: str, python: str) -> list[Pinned]:
    """The packages of a lock that a version of Python takes.

    pip judges the markers of a file by the Python that runs it and not by the one it downloads
    for, so they are judged here. Raises ValueError for a marker that is none of ours.
    """
    found: dict[Pinned, None] = {}  # two locks may say the same of a package
    for block in blocks_of(lock):
        head, *rest = block.replace("\\\n", "\n").splitlines()
        match = re.fullmatch(r"([\w.-]+)==([\w.+!-]+)\s*(?:;\s*(.+?))?\s*", head)
        if match is None:
            raise ValueError(f"{head!r} is no line of a lock")
        if match[3] and not all(_holds(one, python) for one in match[3].split(" and ")):
            continue
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", "\n".join(rest)))
        found[Pinned(match[1], match[2], hashes)] = None
    return list(found)


def blocks_of(lock: str) -> list[str]:
    """The packages of a lock, each with its hashes, as they stand there."""
    return re.split(r"\n(?=\S)", lock.strip())


def _holds(marker: str, python: str) -> bool:
    named = _NAMED_MARKER.fullmatch(marker.strip())
    if named is not None and named[1] in _HERE:
        return (_HERE[named[1]] == named[3]) == (named[2] == "==")
    match = _MARKER.fullmatch(marker.strip())
    asked = version(python)
    if match is None or asked is None:
        raise ValueError(f"{marker!r} is no marker of a lock")
    limit = Version(tuple(map(int, match[2].split("."))))
    return asked.before(limit) == (match[1] == "<")
