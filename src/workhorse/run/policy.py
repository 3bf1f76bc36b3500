"""What an engine's end means, and when to start it again. Pure."""

import re
import signal
from collections.abc import Sequence

from workhorse.errors import Cause
from workhorse.text import Text, same

# A death long after the start is an accident, several soon after it are a habit. An engine that
# ran for STEADY_S begins with a clean record.
STEADY_S = 120.0

# The wait before each restart of a series: none at first, since people wait; then long enough
# for memory on a card to be given back or a full machine to become emptier. After the last one
# it is a crash loop.
DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

_ERROR = re.compile(r"error|failed", re.IGNORECASE)
# llama-server's last line repeats that there was an error, not which.
_EMPTY_ERROR = re.compile(r"exiting due to", re.IGNORECASE)
# llama-server 0.5.0 (tried, 2026-11) and what the C library says.
_PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)


def next_delay_s(deaths: Sequence[float], now: float) -> float | None:
    """How long to wait before the next start, in seconds; None: give up, it is a crash loop.

    `deaths` are the times of the deaths and failed starts since the engine last ran steadily,
    the newest last, by the same clock as `now`. Time that has passed since then counts.
    """
    if not deaths:
        return 0.0
    if len(deaths) > len(DELAYS_S):
        return None
    return max(0.0, deaths[-1] + DELAYS_S[len(deaths) - 1] - now)


def last_error(lines: Sequence[str]) -> Cause | None:
    """The last line of a log that speaks of an error, when there is one."""
    for line in reversed(lines):
        if _ERROR.search(line) and not _EMPTY_ERROR.search(line):
            return Cause(same(line.strip()))
    return None


def says_port_taken(lines: Sequence[str]) -> bool:
    """Whether the log says that another process has the port."""
    return any(_PORT_TAKEN.search(line) for line in lines)


def describe_exit(returncode: int) -> Text:
    """How a process ended, from its return code (negative: minus the signal)."""
    if returncode >= 0:
        return Text(f"exit code {returncode}", f"退出码 {returncode}")
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    meaning = {
        "SIGILL": Text(
            "the build uses instructions that this CPU does not have",
            "该构建使用了本机 CPU 不支持的指令",
        ),
        "SIGKILL": Text("often the kernel, short of memory", "常见原因：内存不足，被内核终止"),
        "SIGSEGV": Text("a crash inside the engine", "引擎内部崩溃"),
        "SIGABRT": Text("the engine gave up by itself", "引擎主动中止"),
        "SIGBUS": Text("a file or memory page could not be read", "文件或内存页无法读取"),
    }.get(name)
    if meaning is None:
        return Text(f"ended by {name}", f"被 {name} 终止")
    return Text(f"ended by {name}: {meaning.en}", f"被 {name} 终止：{meaning.zh}")
