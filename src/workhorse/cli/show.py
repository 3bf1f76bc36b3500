"""How the commands speak: language, tables to stdout, progress and errors to stderr."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from workhorse.errors import AppError
from workhorse.records import Verdict
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from rich.console import Console


def choose_language(arguments: Sequence[str]) -> Language:
    """The reader's language: `--lang`, then `WORKHORSE_LANG`, then the locale."""
    words = [part for word in arguments for part in word.split("=", 1)]
    if "--lang" in words[:-1]:
        asked = words[words.index("--lang") + 1]
    else:
        names = ("WORKHORSE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
        asked = next((os.environ[name] for name in names if os.environ.get(name)), "en")
    return "zh" if asked.lower().startswith("zh") else "en"


def console(*, stderr: bool = False) -> "Console":
    """A rich console; as wide as the terminal, 100 columns when there is none."""
    from rich.console import Console  # 60 ms that `--help` need not pay

    class LastingConsole(Console):
        """A console whose reader may go away (`| head`): the error goes to who called it."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the whole program, a service with it

    stream = sys.stderr if stderr else sys.stdout
    return LastingConsole(file=stream, width=None if stream.isatty() else 100, highlight=False)


def print_table(
    title: Text, head: Sequence[Text], rows: Iterable[Sequence[str]], language: Language
) -> None:
    """One table on stdout; the first column is the row's name."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title.in_language(language)), box=box.SIMPLE_HEAD, title_justify="left"
    )
    for position, label in enumerate(head):
        table.add_column(
            label.in_language(language), style="bold" if position == 0 else None, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)


LEVELS = {
    "good": ("green", Text("good", "良好")),
    "note": ("cyan", Text("note", "提示")),
    "warning": ("yellow", Text("warning", "警告")),
    "blocker": ("red", Text("no", "不可行")),
    "cause": ("red", Text("cause", "原因")),
}
_CHECK = Text("check", "验证")
_FOLLOWS = Text("it explains", "由此引起")


def print_verdict(verdict: Verdict, language: Language, *, stderr: bool = False) -> None:
    """Each finding: what was seen, why it matters, what to do."""
    from rich.markup import escape

    out = console(stderr=stderr)
    for finding in verdict.findings:
        colour, name = LEVELS[finding.level]
        texts = (finding.seen, finding.why, finding.remedy)
        seen, why, remedy = (escape(text.in_language(language)) for text in texts)
        sure = "" if finding.confidence is None else f" ({finding.confidence:.0%})"
        out.print(f"[{colour}]{name.in_language(language)}{sure}[/] [bold]{seen}[/]")
        out.print(f"    {why}", style="dim")
        for line in finding.evidence:
            out.print(f"    │ {escape(line)}", style="dim", overflow="fold")
        out.print(f"    → {remedy}")
        for command in (finding.command or "").splitlines():
            out.print(f"      $ {escape(command)}")
        if finding.check:
            out.print(
                f"    {_CHECK.in_language(language)}: {escape(finding.check.in_language(language))}"
            )
        for consequence in finding.consequences:
            words = escape(consequence.in_language(language))
            out.print(f"    {_FOLLOWS.in_language(language)}: {words}", style="dim")


def print_error(error: AppError, language: Language) -> None:
    """What happened and the next step, on stderr, with who speaks."""
    what, step = error.what.in_language(language), error.next_step.in_language(language)
    print(f"{error.speaker}: {what}\n  → {step}", file=sys.stderr)
