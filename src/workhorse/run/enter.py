"""Become the engine: set what only a process can set for itself, then execute its command.

Started as `python -I -S enter.py --parent PID [--cpus 0,1] [--memory-nodes 0] -- argv...`. It
imports nothing but the standard library's core, so it costs little more than Python's own start,
and it ends in execve, so the engine has the process id that was started. What goes wrong is one
line on stderr and the exit code 127.
"""

import ctypes
import errno
import os
import signal
import sys

EXIT_CODE = 127  # what a shell returns for a command that cannot be run

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MPOL_BIND, MPOL_INTERLEAVE = 2, 3  # linux/mempolicy.h
# arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h: glibc has no wrapper.
SET_MEMPOLICY_CALL = {"x86_64": 238, "aarch64": 237}
BITS_PER_LONG = 64

# Of 1000, added to the share of memory that a process holds; proc(5), `oom_score_adj`.
OOM_SCORE = 300

LIBC = ctypes.CDLL(None, use_errno=True)


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise _os_error("prctl(PR_SET_PDEATHSIG)")
    # A parent that ended before the call above sends nothing any more.
    if os.getppid() != parent_pid:
        raise OSError(errno.ESRCH, "workhorse ended while it started the engine")


def use_cpus(cpus: set[int]) -> None:
    """Run on these CPUs alone."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise OSError(error.errno, f"CPUs {sorted(cpus)}: {error.strerror}") from error


def use_memory_nodes(nodes: set[int]) -> None:
    """Take memory from these NUMA nodes alone.

    One node is bound, not preferred: a node that is full of file cache (the model was just
    written or read) gives the cache up under a binding, while a preference quietly takes the
    other node's memory, and decode is slower by what the link between them costs. Several nodes
    are interleaved: a binding would fill the first one before it touches the second, and so read
    with the bandwidth of one.
    """
    call = SET_MEMPOLICY_CALL.get(os.uname().machine)
    if call is None:
        raise OSError(errno.ENOSYS, f"memory policy is not known for {os.uname().machine}")
    words = max(nodes) // BITS_PER_LONG + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // BITS_PER_LONG] |= 1 << node % BITS_PER_LONG
    mode = MPOL_BIND if len(nodes) == 1 else MPOL_INTERLEAVE
    # The kernel reads one bit less than it is told, get_nodes() in mm/mempolicy.c.
    if LIBC.syscall(call, mode, mask, words * BITS_PER_LONG + 1) == 0:
        return
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        # Containers forbid the call by default. The CPUs are set, and the kernel gives a thread
        # memory of its own node while there is some: slower at worst, so no reason to refuse.
        _say(f"memory policy for nodes {sorted(nodes)} is not allowed here; going on without")
        return
    raise _os_error(f"set_mempolicy for nodes {sorted(nodes)}")


def go_first() -> None:
    """Have the kernel end this process before others when memory runs out.

    The engine is started again and its log says why; the gateway, a database or a login would
    leave people without a word. Anybody may raise this figure, and only root may lower it.
    """
    path = "/proc/self/oom_score_adj"
    try:
        with open(path) as file:  # noqa: PTH123  (pathlib costs as much as all the rest)
            now = int(file.read())
        if now < OOM_SCORE:
            with open(path, "w") as file:  # noqa: PTH123
                file.write(str(OOM_SCORE))
    except (OSError, ValueError):
        return  # it is no reason to go without an engine


def clean_signals() -> None:
    """Undo what Python and a shell's background jobs leave: ignored and blocked signals."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def execute(argv: list[str]) -> None:
    """Become the command; returns only by raising."""
    try:
        os.execvp(argv[0], argv)  # noqa: S606  (an argv list, no shell)
    except OSError as error:
        raise OSError(error.errno, f"{argv[0]}: {error.strerror}") from error


def _os_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def _say(line: str) -> None:
    sys.stderr.write(f"workhorse: {line}\n")
    sys.stderr.flush()


def _numbers(value: str) -> set[int]:
    return {int(part) for part in value.split(",")}


def main(arguments: list[str]) -> int:
    """Set up this process and become the command; returns only when that failed."""
    try:
        end = arguments.index("--")
        settings = dict(zip(arguments[0:end:2], arguments[1:end:2], strict=True))
        argv = arguments[end + 1 :]
        die_with(int(settings["--parent"]))
        if "--cpus" in settings:
            use_cpus(_numbers(settings["--cpus"]))
        if "--memory-nodes" in settings:
            use_memory_nodes(_numbers(settings["--memory-nodes"]))
        go_first()
        clean_signals()
        execute(argv)
    except OSError as error:
        _say(f"error: cannot start the engine: {error.strerror or error}")
    except (ValueError, KeyError, IndexError) as error:
        _say(f"error: cannot start the engine: wrong arguments: {error!r}")
    return EXIT_CODE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
