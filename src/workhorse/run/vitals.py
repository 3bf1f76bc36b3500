"""Signs of life of an engine from outside: processor time, reads, and who waits for it."""

from pathlib import Path

from workhorse.run.live_processes import PROC
from workhorse.run.stillness import Vitals

# `st` in /proc/net/tcp: TCP_ESTABLISHED, Linux `include/net/tcp_states.h`.
_ESTABLISHED = "01"
_TICKS_PER_S = 100  # USER_HZ: the same on every Linux, whatever the kernel's own tick is
_KIB = 1024


def read_vitals(group: int, port: int, proc: Path = PROC) -> Vitals | None:
    """The vitals of the processes of a group, and of the port they listen on; None: none lives."""
    cpu_s, faults, read_bytes, held_bytes, found = 0.0, 0, 0, 0, False
    for entry in proc.glob("[0-9]*"):
        # The name in parentheses may hold anything; proc(5) counts the fields from there.
        fields = _text(entry / "stat").rpartition(")")[2].split()
        if len(fields) < 20 or int(fields[2]) != group or fields[0] in ("Z", "X"):
            continue
        found = True
        faults += int(fields[9])
        cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        read_bytes += _field(entry / "io", "read_bytes:")
        status = entry / "status"
        held_bytes += (_field(status, "RssAnon:") + _field(status, "RssShmem:")) * _KIB
    if not found:
        return None
    return Vitals(cpu_s, faults, read_bytes, held_bytes, open_connections(port, proc))


def open_connections(port: int, proc: Path = PROC) -> int:
    """How many clients are connected to a port of this machine."""
    count = 0
    for name in ("net/tcp", "net/tcp6"):
        for line in _text(proc / name).splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return count


def _field(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
