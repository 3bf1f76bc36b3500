"""All that runs below a process, and its end."""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from workhorse.run.live_processes import PROC, LiveProcess, read_process

TERM_WITHIN_S, KILL_WITHIN_S = 5.0, 15.0
LOOK_EVERY_S = 0.05


def parents(proc: Path = PROC) -> dict[int, tuple[int, str]]:
    """Each process of this machine with its parent and its state; proc(5), `stat`."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                # The name in parentheses may hold anything; state and parent follow it.
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                found[int(entry.name)] = (int(fields[1]), fields[0].decode())
    return found


def descendants(pid: int, proc: Path = PROC) -> tuple[LiveProcess, ...]:
    """The live processes below a process, children of children too."""
    below = defaultdict(list)
    for child, (parent, _) in parents(proc).items():
        below[parent].append(child)
    found, left = [], list(below[pid])
    while left:
        child = left.pop()
        found.append(child)
        left += below[child]
    live = [read_process(one, proc) for one in found]
    return tuple(one for one in live if one is not None)


def end_processes(
    left: Callable[[], Iterable[LiveProcess]],
    *,
    term_within_s: float = TERM_WITHIN_S,
    kill_within_s: float = KILL_WITHIN_S,
    except_pid: int | None = None,
    proc: Path = PROC,
) -> tuple[LiveProcess, ...]:
    """End what `left` finds, asked again and again: what is ending may still start others.

    TERM first, KILL after that. The exit code of `except_pid` is left to who waits for it.
    Returns those that did not end: a device driver holds them.
    """
    for number, within_s in ((signal.SIGTERM, term_within_s), (signal.SIGKILL, kill_within_s)):
        told: set[LiveProcess] = set()
        until_s = time.monotonic() + within_s
        while found := tuple(left()):
            for process in found:
                if process not in told and read_process(process.pid, proc) == process:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, number)
                told.add(process)
            reap(except_pid, proc)
            if time.monotonic() >= until_s:
                break
            time.sleep(LOOK_EVERY_S)
        else:
            return ()
    return tuple(left())


def reap(except_pid: int | None = None, proc: Path = PROC) -> None:
    """Take the exit codes of this process's children that have ended, but for one."""
    me = os.getpid()
    for pid, (parent, state) in parents(proc).items():
        if parent == me and state == "Z" and pid != except_pid:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
