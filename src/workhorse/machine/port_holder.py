"""Who holds a port: the process that listens on it, as far as this user may see."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"  # `st` in /proc/net/tcp: TCP_LISTEN, Linux `include/net/tcp_states.h`


@dataclass(frozen=True, slots=True)
class PortHolder:
    """A process that listens on a port."""

    pid: int
    command: str


def find_port_holder(port: int, *, proc: Path = Path("/proc")) -> PortHolder | None:
    """The process that listens on TCP `port`; None when nobody does or it cannot be seen.

    Another user's process can be seen only by root. Source: proc(5), `/proc/net/tcp` and
    `/proc/PID/fd`.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not sockets:
        return None
    for process in proc.glob("[0-9]*"):
        if sockets & set(_open_files(process)):
            return PortHolder(int(process.name), _command(process))
    return None


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    for name in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *rest = line.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                yield rest[5]


def _open_files(process: Path) -> Iterator[str]:
    """Where the process's file descriptors point; nothing when we may not look."""
    try:
        for descriptor in (process / "fd").iterdir():
            try:
                yield str(descriptor.readlink())
            except OSError:  # closed meanwhile
                continue
    except OSError:
        return


def _command(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return b" ".join(words).decode(errors="replace").strip()[:80]
