"""The operating system, and the few facts that only a running kernel and C library tell."""

import ctypes
import os
from dataclasses import dataclass, field

import msgspec

from workhorse.machine.enclosure import (
    container_of,
    dmi_word,
    read_container,
    read_hypervisor,
)
from workhorse.machine.files import CAPTURE_NOTE, HostFiles
from workhorse.machine.iommu import read_iommu
from workhorse.machine.kernel_text import CPUS_MAX, cpu_list, fields, words
from workhorse.records import System
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Running:
    """What no file of a machine tells: asked of the running system, or noted in a capture."""

    architecture: str | None = None
    affinity: tuple[int, ...] | None = None
    glibc: str | None = None
    libgomp: bool | None = None
    container: str | None = None  # as the environment of the process says
    learned_from: dict[str, str] = field(default_factory=dict)  # where texts stand for files


def ask_running() -> Running:
    """The facts of the system that runs this process."""
    return Running(
        architecture=os.uname().machine,
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        glibc=_glibc(),
        libgomp=_libgomp(),
        container=container_of(os.environ),
    )


@dataclass(frozen=True, slots=True)
class _Note:
    architecture: str | None = None
    glibc: str | None = None
    libgomp: bool | None = None
    affinity: tuple[int, ...] | None = None
    unknown_texts: tuple[str, ...] = ()  # of texts pasted together
    cores_inferred: bool = False
    learned_from: dict[str, str] = field(default_factory=dict)
    container: str | None = None


def read_note(files: HostFiles) -> tuple[Running, tuple[Text, ...]]:
    """The facts noted in a captured tree's `workhorse-capture.json`, if it has one."""
    document = files.text(CAPTURE_NOTE)
    if document is None:
        return Running(), ()
    try:
        note = msgspec.json.decode(document, type=_Note)
    except (ValueError, RecursionError):
        doubt = Text(
            f"{CAPTURE_NOTE} could not be read: architecture and C library are unknown.",
            f"无法读取 {CAPTURE_NOTE}：架构与 C 库版本未知。",
        )
        return Running(), (doubt,)
    doubts: list[Text] = []
    if note.unknown_texts:
        listed = ", ".join(words(name) or "?" for name in note.unknown_texts[:40])
        doubts.append(
            Text(
                f"Texts that were not recognised and not used: {listed}.",
                f"以下文本无法识别，未被使用：{listed}。",
            )
        )
    if note.cores_inferred:
        doubts.append(
            Text(
                "Which CPUs share a physical core is inferred from the counts that lscpu gives;"
                " `lscpu -e` would tell.",
                "逻辑 CPU 与物理核心的对应关系是按 lscpu 的数目推断的；`lscpu -e` 可给出准确结果。",
            )
        )
    affinity = note.affinity and cpu_list(",".join(map(str, note.affinity[:CPUS_MAX])))
    running = Running(
        architecture=words(note.architecture),
        affinity=affinity or None,
        glibc=words(note.glibc),
        libgomp=note.libgomp,
        container=words(note.container, longest=40),
        learned_from={
            group: told
            for group in ("cpu", "nodes", "memory")
            if (told := words(note.learned_from.get(group))) is not None
        },
    )
    return running, tuple(doubts)


def read_system(files: HostFiles, running: Running, flags: tuple[str, ...] = ()) -> System:
    """Kernel, distribution, C library and OpenMP run time; what is around them, and the board.

    `flags` are the CPU's: a hypervisor shows itself there.
    """
    release = fields(files.text("etc/os-release") or files.text("usr/lib/os-release"), "=")
    name = release.get("PRETTY_NAME") or release.get("NAME")
    return System(
        kernel=words(files.text("proc/sys/kernel/osrelease")),
        distribution=words(name.strip("\"'")) if name else None,
        glibc=running.glibc,
        libgomp=running.libgomp,
        board=read_board(files),
        hypervisor=read_hypervisor(files, flags),
        container=read_container(files, running.container),
        iommu=read_iommu(files),
    )


def read_board(files: HostFiles) -> str | None:
    """Maker and product of the server, else of the board; the files with serials stay closed."""
    for kind in (("sys_vendor", "product_name"), ("board_vendor", "board_name")):
        found = [dmi_word(files, name) for name in kind]
        if found[1] is not None:
            return " ".join(word for word in found if word is not None)
    return None


def _glibc() -> str | None:
    """The C library's version; None when it is not glibc (musl has no such name)."""
    try:
        answer = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None
    return words(answer.removeprefix("glibc")) if answer else None


def _libgomp() -> bool:
    """Whether the dynamic linker finds libgomp.so.1, asked the way an engine asks it."""
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return False
    return True
