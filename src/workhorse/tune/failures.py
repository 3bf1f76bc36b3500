"""What ended a trial before its time, and which outcome that is."""

from contextlib import suppress
from pathlib import Path

from workhorse.diagnose.judge import diagnose_lines
from workhorse.errors import AppError
from workhorse.run.process import LINES_OF_CAUSE
from workhorse.text import Text
from workhorse.tune.proof import Failure
from workhorse.tune.side import Overdue, Side

# Causes in a log that say: this did not fit (knowledge/diagnoses/memory*.toml).
OUT_OF_MEMORY = ("engine.gpu_out_of_memory", "engine.out_of_memory", "memory.")


class OutOfTime(Exception):
    """The deadline came in the middle of a round."""


class CandidateFailed(Exception):
    """What went wrong with a candidate; never the end of the tuning."""

    def __init__(self, error: AppError) -> None:
        super().__init__(str(error))
        self.error = error


def failure_of(side: Side, error: AppError, *, killed: bool) -> Failure:
    """The outcome that an error means, by the cause in the engine's log.

    `killed`: the kernel has ended a process for want of memory meanwhile.
    """
    process = side.process
    if isinstance(error, Overdue) and error.slow:
        return Failure("worse", error.what)
    if process is None:
        return Failure("crashed", error.what)
    lines = process.log_tail(LINES_OF_CAUSE)
    found = [f.code for f in diagnose_lines(lines).findings if f.level == "cause"]
    memory = bool(found) and found[0].startswith(OUT_OF_MEMORY)
    if memory or (killed and process.returncode == -9):
        return Failure("out of memory", error.what)
    return Failure("crashed", error.what)


def too_far(distance: float, limit: float) -> Failure:
    """The next tokens differ more than was allowed."""
    why = Text(
        f"KL divergence {distance:.4f} is above {limit:g}.",
        f"KL 散度 {distance:.4f} 超过 {limit:g}。",
    )
    return Failure("refused", why)


def kernel_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes the kernel has ended for want of memory since the start (Linux 4.13)."""
    with suppress(OSError, ValueError):
        for line in vmstat.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def unsound(failure: Failure) -> AppError:
    """The plan to start from is not served right: nothing can be compared with it."""
    return AppError(
        failure.why,
        Text(
            "Start it with `workhorse up` and mend that first; a model with random weights needs "
            "--skip-golden.",
            "请先用 `workhorse up` 启动并解决该问题；随机权重的模型请加 --skip-golden。",
        ),
        speaker="engine",
    )
