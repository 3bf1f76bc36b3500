"""The first process of a host of `fleet_rig.py`: makes its own /tmp, names it, and waits.

    python -I -S fleet_host.py NAME ADDRESS KEPT…

Started as process 1 of new namespaces. What lies under /tmp or /dev/shm is its own; the KEPT paths
(programs, the repository) are there too. Prints a line when all is made. Ends with its standard
input, which its starter holds: however that one ends, the kernel then ends all that runs here and
takes the network, the mounts and the files with it.
"""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

OWN = (Path("/tmp"), Path("/dev/shm"))
MS_BIND, MS_REC = 4096, 16384  # linux/mount.h
TMP_SIZE = "size=8g"  # at the most; takes what is written and no more


def main() -> None:
    """Make the host, then wait for the end."""
    name, address, *kept = sys.argv[1:]
    signal.signal(signal.SIGCHLD, reap)
    socket.sethostname(name)
    own_folders([Path(path) for path in kept])
    # No name server answers in here, and none shall be waited for.
    own_file(Path("/etc/resolv.conf"), "")
    own_file(Path("/etc/hosts"), f"127.0.0.1 localhost\n{address} {name}\n")
    print("made", flush=True)
    sys.stdin.buffer.read()


def own_folders(kept: list[Path]) -> None:
    """Lay an empty folder over each of OWN, and what is kept back into it."""
    inside = [path for path in kept if any(path.is_relative_to(own) for own in OWN)]
    held = {path: os.open(path, os.O_PATH) for path in inside}
    for own in OWN:
        mount("tmpfs", own, "tmpfs", 0, f"{TMP_SIZE},mode=1777")
    for path, file in held.items():
        if Path(f"/proc/self/fd/{file}").is_dir():
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        mount(f"/proc/self/fd/{file}", path, "", MS_BIND | MS_REC, "")
        os.close(file)


def own_file(path: Path, text: str) -> None:
    """Lay a file of our own over one of the system's, where there is one."""
    if path.exists():
        instead = Path("/tmp") / f".{path.name}"
        instead.write_text(text, encoding="utf-8")
        mount(str(instead), path, "", MS_BIND, "")


def mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    """mount(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), str(target).encode(), kind.encode())
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {target}: {os.strerror(number)}")


def reap(*_: object) -> None:
    """Take in what has ended: process 1 is the parent of all orphans."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
