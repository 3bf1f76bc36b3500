"""How far a batch job is: a bar with ETA on a terminal, a line a minute elsewhere; on stderr."""

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from workhorse.batch.forecast import TimeLeft
from workhorse.batch.job import Counts, JobRecord
from workhorse.batch.pace import PaceKeeper, local_minute
from workhorse.batch.progress import Progress
from workhorse.batch.windows import ends_at_s
from workhorse.cli.show import console
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_duration, show_rate

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

# Tokens a second are those of the latest while: long enough for a document of a slow machine.
FLOW_S = 120.0
LINE_EVERY_S = 60.0


class BatchBar:
    """Shows documents done and failed, tokens a second and the time that is left."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._terminal = sys.stderr.isatty()
        self._shown: RichProgress | None = None
        self._began_s = self._line_s = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque()  # seconds, output tokens until then
        self._counts = Counts()
        self._ended_before = 0
        self._time_left = TimeLeft((), sure=False)
        self._record: JobRecord | None = None
        self._pace: PaceKeeper | None = None

    def begins(self, record: JobRecord, time_left: TimeLeft, pace: PaceKeeper) -> None:
        """The job begins, or goes on, with so many documents ended already."""
        self._record, self._time_left, self._pace = record, time_left, pace
        self._counts, self._ended_before = record.counts, record.counts.ended
        self._began_s = self._line_s = time.monotonic()
        if self._terminal:
            self._shown = open_bar(record.id, record.counts.all)

    def note(self, words: Text) -> None:
        """Something to know, such as an engine that is away."""
        said = words.in_language(self._language)
        if self._shown is not None:
            from rich.markup import escape

            self._shown.console.print(f"[dim]·[/] {escape(said)}")
        else:
            print(f"· {said}", file=sys.stderr)

    def seen(self, progress: Progress) -> None:
        """How the job stands, about once a second."""
        now_s = time.monotonic()
        self._counts = progress.counts
        self._time_left.ended(progress.counts.ended - self._ended_before)
        self._marks.append((now_s, progress.usage.output_tokens))
        while len(self._marks) > 2 and now_s - self._marks[1][0] >= FLOW_S:
            self._marks.popleft()
        self._draw()
        if not self._terminal and now_s - self._line_s >= LINE_EVERY_S:
            self._line_s = now_s
            print(self.line().in_language(self._language), file=sys.stderr)

    def line(self) -> Text:
        """Everything in one line."""
        job = self._record.id if self._record else UNKNOWN
        flow, left, counts = show_rate(self._flow()), self._left(), self._counts
        return Text(
            f"job {job}: {counts.done} of {counts.all} done, {counts.failed} failed, {flow}, "
            f"{left.en}",
            f"任务 {job}：完成 {counts.done}/{counts.all}，失败 {counts.failed}，{flow}，{left.zh}",
        )

    def _flow(self) -> float | None:
        if len(self._marks) < 2:
            return None
        (since_s, before), (now_s, made) = self._marks[0], self._marks[-1]
        return (made - before) / (now_s - since_s) if now_s > since_s else None

    def _left(self) -> Text:
        """The time that is left; with windows, when it ends."""
        if self._pace is None or self._record is None:
            return Text("", "")
        left_s = self._time_left.left_s(time.monotonic() - self._began_s - self._pace.held_s)
        if left_s is None:
            return Text("time left: not known yet", "剩余时间：尚未知")
        windows = self._record.job.pace.windows
        if windows:
            at_s = ends_at_s(windows, time.time(), left_s, local_minute)
            if at_s is not None:
                when = time.strftime("%m-%d %H:%M", time.localtime(at_s))
                return Text(f"ends {when}", f"预计 {when} 结束")
        left = show_duration(round(left_s) if left_s >= 1 else left_s)
        return Text(f"{left} left", f"剩余 {left}")

    def _draw(self) -> None:
        if self._shown is None:
            return
        counts = self._counts
        failed = Text(f"{counts.failed} failed", f"失败 {counts.failed}")
        self._shown.update(
            self._shown.task_ids[0],
            completed=counts.ended,
            failed=failed.in_language(self._language) if counts.failed else "",
            flow=show_rate(self._flow()),
            left=self._left().in_language(self._language),
        )

    def close(self) -> None:
        """Take the bar down."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def open_bar(job_id: str, total: int) -> "RichProgress":
    """A started bar for a job of so many documents."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    opened = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[red]{task.fields[failed]}"),
        TextColumn("{task.fields[flow]}"),
        TextColumn("{task.fields[left]}"),
        console=console(stderr=True),
        transient=True,
        refresh_per_second=1,  # more would take time from an engine on the same cores
    )
    opened.add_task(job_id, total=total, failed="", flow="", left="")
    opened.start()
    return opened
