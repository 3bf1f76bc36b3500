"""Keeps a node alive: starts Ray's processes, starts them again when they end, ends them all.

`ray stop` would end every Ray of the machine. What the keeper ends are its own descendants: it is
the one to whom the kernel hands what its children leave behind (PR_SET_CHILD_SUBREAPER), so nothing
that was started below it can get away from it.
"""

import asyncio
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.addresses import parted
from workhorse.fleet.descendants import descendants, end_processes, reap
from workhorse.fleet.member import Member, path_of, read_member, write_member
from workhorse.fleet.ray_start import NodeStart, arguments, cluster_environment, without_ray
from workhorse.run import enter
from workhorse.run.live_processes import (
    MARKER_NAME,
    LiveProcess,
    birthplace,
    carrying,
    read_process,
)
from workhorse.text import Text

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STARTED = b"Ray runtime started."  # `ray start` of 2.60.0, once the head knows the node
# Ray waits 30 s for its own raylet (node.py), whatever else the machine has to do; the next try
# finds its files in memory.
SLOW, SLOW_TRIES = "timed out during startup", 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
GOOD_AFTER_S = 60.0  # who lived so long starts again at once
LOOK_EVERY_S = 0.2
LOOK_FOR_HEAD_EVERY_S = 2.0
# Ray tells the head that the node goes and waits for its replicas; then its own processes end.
DRAIN_S = 30
STOP_WITHIN_S = 60.0
REAP_EVERY_S = 5.0
TAIL_BYTES = 16 * 1024
START_SAYS_BYTES = 256 * 1024
LOG_LIMIT_BYTES = 16 * 1024 * 1024

Told = Callable[[Text], None]


def lock_path(where: Places) -> Path:
    """Held by the keeper of this machine's node."""
    return path_of(where).with_suffix(".lock")


def log_path(where: Places) -> Path:
    """What the keeper and Ray's own start say."""
    return where.logs / f"{path_of(where).stem}.log"


@contextmanager
def held(path: Path, taken: Callable[[], AppError]) -> Iterator[None]:
    """A file or folder locked for as long as this lasts; the error when another process has it."""
    opened = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise taken() from error
        yield
    finally:
        os.close(opened)


def place_held(where: Places) -> AbstractContextManager[None]:
    """This machine's place as a node of this data folder."""
    path = lock_path(where)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch()
    return held(path, lambda: already_member(read_member(where)))


def folder_held(temp_dir: str) -> AbstractContextManager[None]:
    """This machine's place as a node of this fleet, whoever's data folder it is of.

    A lock on the folder itself also keeps systemd-tmpfiles from taking out what is old in it
    (tmpfiles.d(5)).
    """
    other = AppError(
        Text(
            "Another node of this fleet runs on this machine, with another data folder.",
            "本机上已有该集群的另一个节点（使用另一个数据目录）。",
        ),
        Text("One is enough: it has all cards.", "一个节点即可使用本机全部显卡。"),
        exit_code=EXIT_NO,
    )
    return held(Path(temp_dir), lambda: other)


def already_member(member: Member | None) -> AppError:
    """The error for a second node on a machine."""
    of = Text("", "") if member is None else Text(f" ({member.address})", f"（{member.address}）")
    return AppError(
        Text(
            f"This machine is a node of a fleet already{of.en}.",
            f"本机已经是集群的节点{of.zh}。",
        ),
        Text(
            "`workhorse fleet status` shows it; `workhorse fleet leave` ends it.",
            "用 `workhorse fleet status` 查看；用 `workhorse fleet leave` 退出。",
        ),
        exit_code=EXIT_NO,
    )


def clear_dead_node(where: Places) -> None:
    """End what a keeper that died without a word has left, and forget it. Holds no lock itself."""
    member = read_member(where)
    if member is None:
        return
    if member.birthplace == birthplace():
        end_processes(lambda: carrying(member.marker))
        with suppress(AppError, OSError), folder_held(member.temp_dir):
            shutil.rmtree(member.temp_dir, ignore_errors=True)
    path_of(where).unlink(missing_ok=True)


class Keeper:
    """The owner of one node's processes, from the start to the end. Runs in the main thread."""

    def __init__(self, start: NodeStart, where: Places, *, told: Told = lambda _: None) -> None:
        self.start = start
        self._where = where
        self._told = told
        self._marker = secrets.token_hex(16)
        self._process: asyncio.subprocess.Process | None = None
        self._log = log_path(where)

    async def run(self, on_ready: Callable[[Member], None]) -> None:
        """Start the node and keep it until this is cancelled.

        `on_ready` is called at each start. Raises AppError when the first start fails.
        """
        become_reaper()
        with folder_held(self.start.temp_dir):
            await self._kept(on_ready)

    async def _kept(self, on_ready: Callable[[Member], None]) -> None:
        reaping = asyncio.create_task(self._reap())
        pause_s, ready_once, tries = FIRST_PAUSE_S, False, 0
        try:
            while True:
                began_s = time.monotonic()
                if await self._started():
                    ready_once = True
                    on_ready(self._written())
                    await self._ended()
                else:
                    tries += 1
                    slow = SLOW in self._last_words() and tries < SLOW_TRIES
                    if not ready_once and not slow:
                        raise self._not_started()
                self._end_rest()
                if time.monotonic() - began_s > GOOD_AFTER_S:
                    pause_s = FIRST_PAUSE_S
                self._told(
                    Text(
                        f"the node ended ({self._last_words()}); starting it again",
                        f"节点已结束（{self._last_words()}），正在重新启动",
                    )
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                if not self.start.head:
                    await self._head_answers()
        finally:
            reaping.cancel()
            await self._stop()
            shutil.rmtree(self.start.temp_dir, ignore_errors=True)
            path_of(self._where).unlink(missing_ok=True)

    async def _started(self) -> bool:
        """Start Ray's processes; whether the head knows the node."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._log.exists() and self._log.stat().st_size > LOG_LIMIT_BYTES:
            self._log.unlink()
        # In order: with -I neither a file of the working folder nor PYTHONPATH is taken for enter.
        command = [sys.executable, "-I", "-S", enter.__file__, "--parent", str(os.getpid()), "--"]
        command += [sys.executable, "-u", "-m", "ray.scripts.scripts", *arguments(self.start)]
        with self._log.open("ab") as log:
            began_bytes = log.tell()
            # No pipe: who is left behind would hold it, and the end could not be waited for.
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        while self._process.returncode is None:
            if STARTED in self._said_since(began_bytes):
                return True
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    def _said_since(self, began_bytes: int) -> bytes:
        with self._log.open("rb") as log:
            log.seek(began_bytes)
            return log.read(START_SAYS_BYTES)

    def _environment(self) -> dict[str, str]:
        start = self.start
        environment = without_ray(os.environ)
        environment.update(cluster_environment(start.token_file, start.temp_dir, start.ports))
        environment[MARKER_NAME] = self._marker
        # On the head there is nobody to drain to.
        environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0" if start.head else str(DRAIN_S)
        if "WORKHORSE_HOME" in environment:  # replicas run in a folder of Ray's
            environment["WORKHORSE_HOME"] = str(self._where.data.absolute())
        return environment

    def _written(self) -> Member:
        start = self.start
        me = read_process(os.getpid()) or LiveProcess(os.getpid(), 0, None)
        member = Member(
            birthplace=birthplace(),
            keeper=me,
            marker=self._marker,
            name=start.name,
            address=start.address,
            node_address=start.node_address,
            head=start.head,
            token_file=start.token_file,
            temp_dir=start.temp_dir,
            ports=start.ports,
            started_unix_s=time.time(),
        )
        write_member(self._where, member)
        return member

    async def _ended(self) -> None:
        if self._process is not None:
            await self._process.wait()

    async def _head_answers(self) -> None:
        """Wait until the head takes a connection."""
        host, port = parted(self.start.address)
        while True:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(LOOK_FOR_HEAD_EVERY_S):
                    _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return
            await asyncio.sleep(LOOK_FOR_HEAD_EVERY_S)

    async def _stop(self) -> None:
        """TERM for Ray's own start, which ends its processes in order; then whatever is left."""
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
        self._end_rest()

    def _end_rest(self) -> None:
        pid = self._process.pid if self._process else None
        end_processes(lambda: descendants(os.getpid()), except_pid=pid)

    async def _reap(self) -> None:
        """Take the exit codes of what was handed to us; nobody else waits for them."""
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            reap(except_pid=self._process.pid if self._process else None)

    def _last_words(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return "?"
        return next((line.strip() for line in reversed(lines) if line.strip()), "?")[:300]

    def _not_started(self) -> AppError:
        return AppError(
            Text(
                f"The node did not start: {self._last_words()}",
                f"节点未能启动：{self._last_words()}",
            ),
            Text(f"{self._log} has Ray's own words.", f"详情见 {self._log}。"),
        )


def become_reaper() -> None:
    """Have the kernel hand to this process what its descendants leave behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
