"""The processes of this machine as /proc shows them: who each is, so that no other is mistaken."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LARGEST_ENVIRONMENT_BYTES = 4 * 1024 * 1024  # more than Linux lets a process start with

# The variable that an engine and all it starts carry; the value is a service's own.
MARKER_NAME = "workhorse_service"


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """One process. An id comes again for another process, a start time with it does not."""

    pid: int
    start_ticks: int  # since the machine started; proc(5), `starttime`
    executable: str | None  # None: not to be seen by this user


def birthplace(proc: Path = PROC) -> str:
    """This start of this host and this process namespace: where a process id means one process.

    The folder of a service may lie on a disk that several hosts or containers use.
    """
    boot = _text(proc / "sys/kernel/random/boot_id").strip()
    try:
        namespace = str((proc / "self/ns/pid").readlink())
    except OSError:
        namespace = "?"
    return f"{boot} {namespace}"


def read_process(pid: int, proc: Path = PROC) -> LiveProcess | None:
    """A process that has not ended; None for one that has, a zombie too."""
    # The name in parentheses may hold anything; the state follows it.
    fields = _text(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    try:
        # An update of the package replaces the file under a running program.
        executable = str((proc / str(pid) / "exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        executable = None
    return LiveProcess(pid, int(fields[19]), executable)


def carrying(marker: str, proc: Path = PROC) -> Iterator[LiveProcess]:
    """The live processes that were started with this marker in their environment."""
    wanted = f"{MARKER_NAME}={marker}".encode()
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        if wanted in _bytes(entry / "environ").split(b"\0"):
            process = read_process(int(entry.name), proc)
            if process is not None:
                yield process


def _text(path: Path) -> str:
    return _bytes(path).decode(errors="replace")


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_ENVIRONMENT_BYTES)
    except OSError:
        return b""
