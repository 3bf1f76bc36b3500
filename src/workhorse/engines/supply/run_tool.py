"""Runs one tool of a build: its words in the log, its progress told, its children ended with us."""

import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from workhorse.engines.supply.recipe import failure, step
from workhorse.errors import AppError
from workhorse.models.fetch import Progress
from workhorse.text import Text

LAST_LINES = 400
# ninja removes half-written objects when it is asked to stop.
FAREWELL_S = 10.0

# (done, all) of a line that the tool said; None: the line is no step.
Steps = Callable[[str], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class ToolRunner:
    """Runs tools one after the other, with one log."""

    environment: Mapping[str, str]
    log: IO[str]
    log_path: Path
    lock: int  # the descriptor of the builds' lock
    progress: Progress

    def run(self, command: Sequence[str], steps: Steps = step) -> None:
        """Run one tool; raises AppError with the line that says why when it fails."""
        lines: deque[str] = deque(maxlen=LAST_LINES)
        self.log.write(f"$ {' '.join(command)}\n")
        try:
            tool = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self.environment,
                pass_fds=(self.lock,),  # killed ourselves, we leave no second build to our compiler
                start_new_session=True,  # a Ctrl-C reaches us alone, and we end the tool in order
            )
        except OSError as error:
            raise self.failed(str(error)) from error
        with tool:
            try:
                for line in tool.stdout or ():
                    self.log.write(line)
                    lines.append(line)
                    if found := steps(line):
                        self.progress(*found)
            except BaseException:
                end_group(tool)
                raise
        if tool.returncode:
            raise self.failed(failure(list(lines)))

    def with_environment(self, added: Mapping[str, str]) -> "ToolRunner":
        """The same, with more variables."""
        return replace(self, environment={**self.environment, **added})

    def failed(self, cause: str) -> AppError:
        """The build failed for this cause."""
        return AppError(
            Text(f"The build failed: {cause}", f"构建失败：{cause}"),
            Text(
                f"Read the log {self.log_path}; the next run goes on with what was compiled.",
                f"请查看日志 {self.log_path}；再次运行会沿用已编译的部分。",
            ),
        )


def end_group(tool: "subprocess.Popen[str]") -> None:
    """Ask the tool and its children to stop, and make them when they do not."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(tool.pid, number)
        with suppress(subprocess.TimeoutExpired):
            tool.wait(FAREWELL_S)
            return
