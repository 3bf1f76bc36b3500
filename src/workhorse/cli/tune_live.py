"""What a tuning shows while it goes on: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from workhorse.cli.show import console
from workhorse.text import Language, Text
from workhorse.tune import tell
from workhorse.units import show_duration, three_digits

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from workhorse.tune.trial import Change, Goal, Pair, Trial

# More would not fit a terminal of 24 lines with what stands below them.
ROWS_SHOWN = 14


class LiveTeller:
    """Tells on stderr how far a tuning is. It draws between rounds, never during one."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._out = console(stderr=True)
        self._live: Live | None = None
        self._began_s = time.monotonic()
        self._budget_s: float | None = None
        self._trials: list[Trial] = []
        self._now = Text("starting the plan's engine", "启动原方案的引擎")
        self._seen = ""
        self._ahead: Sequence[str] = ()

    def close(self) -> None:
        """Take the table down; what it showed last stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, words: Text) -> None:
        from rich.markup import escape

        self._out.print(f"[dim]·[/] {escape(words.in_language(self._language))}")

    def note(self, words: Text) -> None:
        """Something to know, such as why it begins anew."""
        self._say(words)

    def begun(self, goal: "Goal", budget_s: float | None, earlier: "Sequence[Trial]") -> None:
        """It begins, or goes on after these trials."""
        self._budget_s, self._trials = budget_s, list(earlier)
        name = tell.GOALS[goal]
        within, within_zh = "", ""
        if budget_s is not None:
            within = f", within {show_duration(budget_s)}"
            within_zh = f"，预算 {show_duration(budget_s)}"
        self._say(Text(f"tuning for {name.en}{within}", f"调优目标：{name.zh}{within_zh}"))
        if earlier:
            count = len(earlier)
            trials = f"{count} trial{'s' * (count != 1)}"
            self._say(Text(f"going on after {trials}", f"接着已有的 {count} 次试验继续"))
        if sys.stderr.isatty():
            from rich.live import Live

            # A table that draws by itself would take time from what is measured.
            self._live = Live(self._picture(), console=self._out, auto_refresh=False)
            self._live.start(refresh=True)

    def trying(
        self, number: int, change: "Change", expected: float | None, ahead: Sequence[str]
    ) -> None:
        """A trial begins."""
        name, value = tell.variable_name(change.variable), tell.value_shown(change)
        promise = tell.percent(expected)
        self._now = Text(
            f"trial {number}: {name.en} {value}, expected {promise}",
            f"试验 {number}：{name.zh} {value}，预测 {promise}",
        )
        self._ahead, self._seen = ahead, ""
        self._draw()

    def pair(self, pairs: "Sequence[Pair]") -> None:
        """One more round of both sides."""
        candidate, incumbent = (
            median(pair.candidate for pair in pairs),
            median(pair.incumbent for pair in pairs),
        )
        self._seen = (
            f"{len(pairs)} × {three_digits(candidate)} : {three_digits(incumbent)} tok/s, "
            f"{tell.percent(candidate / incumbent)}"
        )
        self._draw()

    def tried(self, trial: "Trial", spent_s: float) -> None:
        """A trial has ended."""
        self._trials.append(trial)
        if self._live is None:
            words = tell.line(trial)
            left = self._left(spent_s)
            self._say(Text(f"{words.en} {left.en}".rstrip(), f"{words.zh} {left.zh}".rstrip()))
        self._draw()

    def confirming(self, changes: "Sequence[Change]") -> None:
        """The best is measured against the start once more."""
        made = f"{len(changes)} change{'s' * (len(changes) != 1)}"
        self._now = Text(
            f"the best, {made}, against the start, once more",
            f"最优方案（{len(changes)} 项更改）与原方案最后对比",
        )
        self._ahead, self._seen = (), ""
        if self._live is None:
            self._say(self._now)
        self._draw()

    def _left(self, spent_s: float) -> Text:
        if self._budget_s is None:
            return Text(f"({show_duration(spent_s)} so far)", f"（已用 {show_duration(spent_s)}）")
        left = show_duration(max(0.0, self._budget_s - spent_s))
        return Text(f"({left} left at most)", f"（最多还剩 {left}）")

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> "RenderableType":
        from rich import box
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table

        language = self._language
        table = Table(box=box.SIMPLE_HEAD)
        for head in tell.HEAD:
            table.add_column(head.in_language(language))
        for trial in self._trials[-ROWS_SHOWN:]:
            style = {"accepted": "green", "no difference": "dim", "worse": "dim"}
            row = map(escape, tell.row(trial, language))
            table.add_row(*row, style=style.get(trial.outcome, "yellow"))
        left = self._left(time.monotonic() - self._began_s).in_language(language)
        now = f"{self._now.in_language(language)}  {self._seen}"
        names = [tell.variable_name(name).in_language(language) for name in self._ahead]
        label = Text("then", "其后").in_language(language)
        after = f"{label}: {', '.join(names)}  " if names else ""
        lines = [f"[bold]{escape(now)}[/]", f"[dim]{escape(after + left)}[/]"]
        return Group(*([table] if self._trials else []), *lines)
