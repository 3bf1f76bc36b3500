"""Ends the engines of a service that died without a word, and nothing else.

The kernel ends an engine with its owner (`enter`), but not what an engine has started in a session
of its own, nor an engine whose death signal was lost. Those hold memory and cards that the next
plan counts on. A process is ended when it carries the marker of a service that is dead and, where
it was written down, is still the very same one: id, start time and program.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.run.live_processes import PROC, LiveProcess, carrying, read_process
from workhorse.run.run_file import ServiceFile, service_files
from workhorse.text import Text

GRACE_S = 10.0  # as llama-server may need for an orderly end
AFTER_KILL_S = 5.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Ended:
    """An orphan, and whether it has gone."""

    process: LiveProcess
    port: int  # of the service that it belonged to
    gone: bool

    @property
    def told(self) -> Text:
        """What happened, in a sentence."""
        pid, port = self.process.pid, self.port
        if self.gone:
            return Text(
                f"ended an engine that a dead service on port {port} had left (process {pid})",
                f"已结束端口 {port} 上一个已终止服务遗留的引擎（进程 {pid}）",
            )
        return Text(
            f"an engine that a dead service on port {port} had left (process {pid}) does not end: "
            "a device driver holds it; a restart of the machine frees it",
            f"端口 {port} 上一个已终止服务遗留的引擎（进程 {pid}）无法结束：被设备驱动占住，"
            "重启机器可以释放",
        )


def left_behind(file: ServiceFile, marked: Iterable[LiveProcess]) -> tuple[LiveProcess, ...]:
    """Which of the processes that carry a dead service's marker are its own. Pure.

    An id that was written down must still mean the same process; one that was not is something
    that an engine has started, and cannot be older than its service.
    """
    written = {engine.pid: engine for engine in file.engines}
    return tuple(
        process
        for process in marked
        if process == written.get(process.pid, process)
        and process.start_ticks >= file.service.start_ticks
        and process.pid != file.service.pid
    )


def end_orphans(
    folder: Path, proc: Path = PROC, *, on_found: Callable[[LiveProcess], None] = lambda _: None
) -> tuple[Ended, ...]:
    """End what the dead services of a folder left, and forget those services; blocks.

    What lives, or was started on another host or in another container, is left alone.
    """
    ended: list[Ended] = []
    for path, file in service_files(folder):
        if file.lives(proc) is not False:
            continue
        orphans = left_behind(file, carrying(file.marker, proc))
        for process in orphans:
            on_found(process)
        ended += [Ended(process, file.port, gone) for process, gone in end_all(orphans, proc)]
        path.unlink(missing_ok=True)
    return tuple(ended)


def end_all(
    processes: Iterable[LiveProcess],
    proc: Path = PROC,
    grace_s: float = GRACE_S,
    after_kill_s: float = AFTER_KILL_S,
) -> list[tuple[LiveProcess, bool]]:
    """TERM, then KILL; each process with whether it has gone. Never another with the same id."""
    all_of_them = tuple(processes)
    left = all_of_them
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, after_kill_s)):
        for process in left:
            # Looked at again just before: meanwhile its id may have gone to another.
            if read_process(process.pid, proc) == process:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, number)
        left = _still_there(left, proc, time.monotonic() + wait_s)
    return [(process, process not in left) for process in all_of_them]


def _still_there(
    processes: tuple[LiveProcess, ...], proc: Path, deadline_s: float
) -> tuple[LiveProcess, ...]:
    """Those that have not ended when all have, or at the deadline."""
    while True:
        # A process that is ending has no program to be seen any more, and is still there.
        left = tuple(
            one
            for one in processes
            if (now := read_process(one.pid, proc)) and now.start_ticks == one.start_ticks
        )
        if not left or time.monotonic() >= deadline_s:
            return left
        time.sleep(LOOK_EVERY_S)
