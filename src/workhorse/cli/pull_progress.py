"""How far a pull is: a bar with rate and time left, or a line now and then in a log."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from workhorse.cli.show import console
from workhorse.text import Language, Text
from workhorse.units import show_bytes, show_duration

if TYPE_CHECKING:
    from rich.progress import Progress

# A log of a pull that runs unattended gets a line so often.
LINE_EVERY_S = 30.0


class PullBar:
    """Bytes, rate and time left: a bar on a terminal, else a line now and then."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._bar: Progress | None = None
        self._began: tuple[float, int] | None = None
        self._line_s = 0.0

    def step(self, done_bytes: int, total_bytes: int | None) -> None:
        """So many bytes of all are here."""
        now_s = time.monotonic()
        if self._began is None:
            # What was here before the start says nothing of the rate.
            self._began, self._line_s = (now_s, done_bytes), now_s
            if sys.stderr.isatty():
                self._bar = open_byte_bar(done_bytes, total_bytes)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done_bytes, total=total_bytes)
        elif now_s - self._line_s >= LINE_EVERY_S:
            self._line_s = now_s
            began_s, began_bytes = self._began
            rate = (done_bytes - began_bytes) / (now_s - began_s)
            self.say(progress_words(done_bytes, total_bytes, rate))

    def say(self, words: Text) -> None:
        """One line, above the bar where there is one."""
        line = f"· {words.in_language(self._language)}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def progress_words(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> Text:
    """How far a pull is, how fast, and how long it will take."""
    done, rate = show_bytes(done_bytes), f"{show_bytes(bytes_per_s)}/s"
    if total_bytes is None or bytes_per_s <= 0:
        return Text(f"{done}, {rate}", f"{done}，{rate}")
    total, left = show_bytes(total_bytes), show_duration((total_bytes - done_bytes) / bytes_per_s)
    return Text(f"{done} of {total}, {rate}, {left} left", f"{done} / {total}，{rate}，还需 {left}")


def open_byte_bar(done_bytes: int, total_bytes: int | None) -> "Progress":
    """A started bar of bytes."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    opened = Progress(
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    opened.add_task("", total=total_bytes, completed=done_bytes)
    opened.start()
    return opened
