"""Progress on stderr, with an ETA, for whatever takes longer than two seconds."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from workhorse.cli.show import console
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from rich.progress import Progress

# Shorter waits need no bar: it would flash and be gone.
SHOW_AFTER_S = 2.0


class LateBar:
    """A progress bar that appears once the work has taken `SHOW_AFTER_S`, and goes when it ends.

    Nothing is drawn where stderr is no terminal. Without its `thread` it draws at each step
    alone, and takes no time from a measurement between them.
    """

    def __init__(self, label: Text, language: Language, *, thread: bool = True) -> None:
        self._label = label.in_language(language)
        self._thread = thread
        self._began_s: float | None = None
        self._shown: Progress | None = None

    def step(self, done: int, total: int | None) -> None:
        """`done` of `total` is behind us; the clock starts with the first step."""
        if self._began_s is None:
            self._began_s = time.monotonic()
        if self._shown is None and time.monotonic() - self._began_s >= SHOW_AFTER_S:
            self._shown = open_bar(self._label, total, thread=self._thread)
        if self._shown is not None:
            task = self._shown.task_ids[0]
            self._shown.update(task, completed=done, total=total, refresh=not self._thread)

    def close(self) -> None:
        """Takes the bar down; the next step begins anew."""
        if self._shown is not None:
            self._shown.stop()
        self._began_s, self._shown = None, None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def open_bar(label: str, total: int | None, *, thread: bool) -> "Progress":
    """A started bar with one task."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    opened = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        auto_refresh=thread,
        disable=not sys.stderr.isatty(),
    )
    opened.add_task(label, total=total)
    opened.start()
    return opened


FETCHING = Text("fetching the model", "下载模型")
MEASURING = Text("measuring", "测速中")
