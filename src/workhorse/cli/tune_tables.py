"""What `tune` prints at its end and of what is stored: tables, and the story as a file."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.show import print_table
from workhorse.codec import to_json
from workhorse.errors import AppError
from workhorse.text import Language, Text
from workhorse.tune import tell
from workhorse.units import UNKNOWN

if TYPE_CHECKING:
    from workhorse.tune.replay import Replay
    from workhorse.tune.search import Finished
    from workhorse.tune.tell import Tuned
    from workhorse.tune.trial import Change, Trial
    from workhorse.tune.variables import Space


# With other options than then (context, slots, goal) a tuning begins anew.
STOPPED = Text(
    "Stopped. What was tried is kept: the same command goes on.",
    "已停止。试验记录已保存：再次运行同一命令会继续。",
)


def tell_end(tuned: "Tuned", args: argparse.Namespace) -> None:
    """What was changed, what it gave, how sure; or the whole as JSON."""
    write_report(tuned, args)
    if args.json:
        print(to_json(tuned))
        return
    print_changes(tuned, args.lang)
    print(tell.conclusion(tuned).in_language(args.lang))
    print(tuned.finished.why.in_language(args.lang))
    if tuned.not_kept_because is not None:
        print(tuned.not_kept_because.in_language(args.lang))
    if tuned.kept:
        words = Text(
            "The next `workhorse up` uses it; `workhorse tune --undo` takes it back.",
            "下次 `workhorse up` 会使用它；`workhorse tune --undo` 可撤销。",
        )
        print(words.in_language(args.lang))


def print_changes(tuned: "Tuned", language: Language) -> None:
    """What was changed, what it gave and how sure that is."""
    rows = [
        (
            asked_words(change, language),
            tell.percent_range(trial.ratio, trial.interval),
            str(len(trial.pairs)),
            trial.why.in_language(language),
        )
        for change, trial in tell.gains(tuned)
    ]
    if rows:
        head = (
            Text("changed to", "改为"),
            Text("it gave (95 %)", "收益（95%）"),
            Text("rounds", "轮数"),
            Text("how sure", "可信度"),
        )
        print_table(Text("What was changed", "更改"), head, rows, language)


def print_trials(trials: "tuple[Trial, ...]", language: Language) -> None:
    """Every trial, with why it was what it was."""
    head = (*tell.HEAD, Text("why", "说明"))
    rows = [(*tell.row(trial, language), trial.why.in_language(language)) for trial in trials]
    print_table(Text("Trials", "试验"), head, rows, language)


def check_report(path: Path | None) -> None:
    """An AppError before the trials when their report could not be written after them."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise AppError(
            Text(f"{path} cannot be written.", f"无法写入 {path}。"),
            Text("Name a file in a directory that exists.", "请指定已有目录中的文件。"),
        )


def write_report(tuned: "Tuned", args: argparse.Namespace) -> None:
    """The story as Markdown, where it is wanted."""
    if args.report is None:
        return
    try:
        args.report.write_text(tell.story(tuned, args.lang), encoding="utf-8")
    except OSError as error:
        raise AppError(
            Text(f"{args.report} cannot be written: {error}.", f"无法写入 {args.report}：{error}"),
            Text("`workhorse tune --show --report FILE` writes it again.",
                 "可用 `workhorse tune --show --report FILE` 重新生成。"),
        ) from error  # fmt: skip


def print_space(around: "Space", language: Language) -> None:
    """What would be tried from the plan, in order, and what makes no sense here."""
    rows = []
    for variable in around.variables:
        others = [c for c in variable.choices if c.value != variable.now]
        told = [(tell.shown(variable.name, c.value), tell.percent(c.expected)) for c in others]
        values = ", ".join(f"{value} ({promise})" for value, promise in told)
        name = tell.variable_name(variable.name).in_language(language)
        now, why = tell.shown(variable.name, variable.now), variable.because
        rows.append((name, now, values, why.in_language(language)))
    head = (
        Text("variable", "变量"),
        Text("now", "当前"),
        Text("to try (expected)", "待试（预测）"),
        Text("because", "原因"),
    )
    print_table(Text("What would be tried", "将要尝试"), head, rows, language)
    print_table(
        Text("Not tried", "不尝试"),
        (Text("option", "选项"), Text("because", "原因")),
        [
            (
                tell.variable_name(one.option).in_language(language),
                one.because.in_language(language),
            )
            for one in around.rejected
        ],
        language,
    )


def print_replay(found: "Replay", language: Language) -> None:
    """Each stored trial beside what would be tried and judged today, and what would come then."""
    rows = []
    for step in found.steps:
        today = (
            UNKNOWN if step.outcome is None else tell.OUTCOMES[step.outcome].in_language(language)
        )
        rows.append(
            (
                str(step.trial.number),
                asked_words(step.trial.change, language),
                tell.OUTCOMES[step.trial.outcome].in_language(language),
                asked_words(step.asked, language),
                today,
                UNKNOWN if step.pairs_needed is None else str(step.pairs_needed),
            )
        )
    head = (
        Text("", ""),
        Text("was tried", "已试"),
        Text("verdict", "结论"),
        Text("today", "现在会试"),
        Text("verdict today", "现在的结论"),
        Text("rounds needed", "所需轮数"),
    )
    print_table(Text("The stored trials, decided anew", "重新判定已存的试验"), head, rows, language)
    label = Text("then", "其后").in_language(language)
    print(f"{label}: {asked_words(found.then, language)}")


def asked_words(step: "Change | Finished", language: Language) -> str:
    """A change, or why there is none."""
    from workhorse.tune.trial import Change

    if isinstance(step, Change):
        name = tell.variable_name(step.variable).in_language(language)
        return f"{name} {tell.value_shown(step)}"
    return step.why.in_language(language)
