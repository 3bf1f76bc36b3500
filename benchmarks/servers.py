"""Start and end the servers that are compared, and see what CPU time they take."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 300.0
STOP_S = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

EMBEDDED_WITH_DEFAULTS = """
import signal, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel = 4  # what llama-server's own command line makes of its default
server = xllamacpp.Server(params)
while server:
    signal.pause()
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers: its base URL, its process and how it was started."""

    url: str
    pid: int
    command: tuple[str, ...]

    def cpu_s(self) -> float:
        """CPU seconds that it and all its children have taken so far."""
        return sum(cpu_s(pid) for pid in tree(self.pid))


@contextmanager
def running(
    command: Sequence[str], port: int, ready_path: str, *, stop: signal.Signals = signal.SIGTERM
) -> Iterator[Server]:
    """The server of `command`, from its first 200 at `ready_path` to the end of the block."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_ready(process, url + ready_path)
            yield Server(url, process.pid, tuple(command))
        except ServerFailedError:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            end(process, stop)


class ServerFailedError(RuntimeError):
    """A server did not come up."""


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Ask `url` until it says 200; any other answer means: not yet."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise ServerFailedError(f"ended with {process.returncode}")
        if says_200(url):
            return
        time.sleep(0.01)
    raise ServerFailedError(f"no answer at {url} after {START_S:.0f} s")


def says_200(url: str) -> bool:
    """True when a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def end(process: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    """Ask it to end, twice (llama-server ends a busy slot only then), then end it."""
    for number in (stop, stop, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue


def shown(command: Sequence[str]) -> str:
    """A command without the folders of the machine it ran on."""
    return " ".join(Path(word).name if word.startswith("/") else word for word in command)


def free_port() -> int:
    """A port of loopback that nobody holds right now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def busy_cpus(count: int) -> Iterator[None]:
    """`count` processes that do nothing but run, one a CPU in turn."""
    cpus = sorted(os.sched_getaffinity(0))
    loops = []
    for number in range(count):
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(loop.pid, {cpus[number % len(cpus)]})
        loops.append(loop)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@dataclass(frozen=True, slots=True)
class Others:
    """A moment, to tell later what everybody but us has done since."""

    busy_s: float
    ours_s: float
    clock_s: float

    @classmethod
    def now(cls) -> "Others":
        """This moment (proc(5), /proc/stat: columns 4 and 5 of a CPU are idle and iowait)."""
        counts = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        busy_s = (sum(counts) - counts[3] - counts[4]) / TICKS_PER_S
        reaped = os.times()  # what ended meanwhile is in no tree any more
        ours_s = sum(cpu_s(pid) for pid in tree(os.getpid()))
        ours_s += reaped.children_user + reaped.children_system
        return cls(busy_s, ours_s, time.monotonic())

    def cpus_since(self) -> float:
        """CPUs' worth of work that other processes did since then."""
        now = Others.now()
        others_s = (now.busy_s - self.busy_s) - (now.ours_s - self.ours_s)
        return max(0.0, others_s / (now.clock_s - self.clock_s))


def wait_for_quiet(cpus: float, patience_s: float) -> None:
    """Return once others take less than `cpus` for a second, or when patience ends."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        before = Others.now()
        time.sleep(1)
        if before.cpus_since() < cpus:
            return


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:  # the thread ended meanwhile
                continue
    return found


def cpu_s(pid: int) -> float:
    """User and system time of one process; 0 when it is gone (proc(5), fields 14 and 15)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
