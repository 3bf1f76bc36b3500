"""Ways to start something that EngineProcess can own, and what a test looks at afterwards."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from workhorse.records import Launch
from workhorse.run.process import free_port

PATIENCE_S = 120.0  # for what must come true on a machine with other work


def command(*argv: str, port: int | None = None, stop_grace_s: float = PATIENCE_S) -> Launch:
    """Any command as an engine."""
    return Launch(
        argv=argv,
        env={},
        cpus=(),
        memory_nodes=None,
        host="127.0.0.1",
        port=free_port("127.0.0.1") if port is None else port,
        health_path="/health",
        stop_grace_s=stop_grace_s,
    )


def fake(*options: str, port: int | None = None, stop_grace_s: float = PATIENCE_S) -> Launch:
    """The fake engine with some options."""
    port = free_port("127.0.0.1") if port is None else port
    argv = (sys.executable, "-m", "workhorse.engines.fake", "--port", str(port), *options)
    return command(*argv, port=port, stop_grace_s=stop_grace_s)


def lives(pid: int | None) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def is_reaped(pid: int | None) -> bool:
    """Whether not even a zombie is left."""
    return not Path(f"/proc/{pid}").exists()


def status_of(pid: int | None, field: str) -> str:
    """A line of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(field + ":"))


def one_cpu() -> int:
    """A CPU on which this process may run."""
    return max(os.sched_getaffinity(0))


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (processes set no events)
            await asyncio.sleep(0.005)
