"""What a tuning tells while it goes on, and its story at the end: tables, Markdown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol as Interface

from workhorse.text import Language, Text, same
from workhorse.tune.search import Finished
from workhorse.tune.trial import JOINT, Change, Goal, Outcome, Pair, Trial
from workhorse.units import UNKNOWN, show_duration, three_digits

OUTCOMES: dict[Outcome, Text] = {
    "accepted": Text("accepted", "采用"),
    "no difference": Text("no difference", "无差别"),
    "worse": Text("worse", "更慢"),
    "crashed": Text("crashed", "崩溃"),
    "out of memory": Text("out of memory", "内存不足"),
    "wrong output": Text("wrong output", "输出错误"),
    "refused": Text("refused", "拒绝"),
}
GOALS: dict[Goal, Text] = {
    "decode": Text("decode of one stream", "单路解码"),
    "total": Text("all streams together", "多路合计"),
    "prefill": Text("prefill", "预填充"),
}
VARIABLES = {
    "quant": Text("quant", "量化"),
    "engine": Text("engine", "引擎"),
    "slots": Text("slots", "槽位"),
    "cpus": Text("CPUs", "CPU 集合"),
    "threads": Text("threads", "线程"),
    "numa": Text("memory nodes", "内存节点"),
    "load": Text("load mode, pages", "加载方式与内存页"),
    "spin": Text("spinning", "自旋"),
    "flash attention": Text("flash attention", "flash attention"),
    "kv": Text("KV type", "KV 类型"),
    "batch": Text("batch", "批大小"),
    "micro-batch": Text("micro-batch", "微批大小"),
    "gpu layers": Text("layers on cards", "显卡上的层数"),
    "expert layers": Text("experts in main memory", "内存中的专家层数"),
    "split": Text("split", "切分方式"),
    "drafts": Text("drafts", "草拟"),
}
# What is told of beside them, and not tried.
FIXED = {"prefix cache": Text("prefix cache", "前缀缓存")}
HEAD = (
    Text("", ""),
    Text("variable", "变量"),
    Text("value", "取值"),
    Text("expected", "预测"),
    Text("seen (95 %)", "实测（95%）"),
    Text("verdict", "结论"),
    Text("took", "用时"),
)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a tuning ended with.

    Figures are tok/s of the goal, of the last measurement in turns: the start against the best.
    They are None when nothing better was found, `ratio` too.
    """

    model: str
    engine: str
    goal: Goal
    began_at: str
    changes: tuple[Change, ...]
    trials: tuple[Trial, ...]
    finished: Finished
    pairs: tuple[Pair, ...]
    ratio: float | None
    interval: tuple[float, float] | None
    start_tokens_per_s: float | None
    best_tokens_per_s: float | None
    kept: bool  # the next `up` uses it
    took_s: float
    not_kept_because: Text | None = None


class Teller(Interface):
    """Who tells the user how far a tuning is."""

    def begun(self, goal: Goal, budget_s: float | None, earlier: Sequence[Trial]) -> None:
        """It begins, or goes on after these trials."""

    def note(self, words: Text) -> None:
        """Something to know, such as why it begins anew."""

    def trying(
        self, number: int, change: Change, expected: float | None, ahead: Sequence[str]
    ) -> None:
        """A trial begins: the candidate is being started. `ahead`: the variables after this one."""

    def pair(self, pairs: Sequence[Pair]) -> None:
        """One more round of both sides."""

    def tried(self, trial: Trial, spent_s: float) -> None:
        """A trial has ended."""

    def confirming(self, changes: Sequence[Change]) -> None:
        """The best is measured against the start once more."""


def variable_name(variable: str) -> Text:
    """A variable in the reader's words, or several that change together."""
    known = VARIABLES | FIXED
    names = [known.get(name, same(name)) for name in variable.split(JOINT)]
    return Text(JOINT.join(name.en for name in names), JOINT.join(name.zh for name in names))


def value_shown(change: Change) -> str:
    """The value as it is shown; of a file its name alone."""
    return JOINT.join(shown(part.variable, part.value) for part in change.parts)


def shown(variable: str, value: str) -> str:
    """The value of one variable as it is shown."""
    return PurePath(value).name if variable == "quant" else value


def percent(ratio: float | None) -> str:
    """A ratio as a gain: `+12.3 %`; `—` when unknown."""
    return UNKNOWN if ratio is None else f"{(ratio - 1) * 100:+.1f} %"


def percent_range(ratio: float | None, interval: tuple[float, float] | None) -> str:
    """A gain with its interval: `+12.3 % (+10.1 to +14.0)`."""
    if ratio is None or interval is None:
        return percent(ratio)
    low, high = ((end - 1) * 100 for end in interval)
    return f"{percent(ratio)} ({low:+.1f}–{high:+.1f})"


def row(trial: Trial, language: Language) -> tuple[str, ...]:
    """One line of the table of trials."""
    again = "²" if trial.second_pass else ""
    return (
        f"{trial.number}{again}",
        variable_name(trial.change.variable).in_language(language),
        value_shown(trial.change),
        percent(trial.expected),
        percent_range(trial.ratio, trial.interval),
        OUTCOMES[trial.outcome].in_language(language),
        show_duration(trial.took_s),
    )


def line(trial: Trial) -> Text:
    """A trial in one line, for a log."""
    change, value = trial.change, value_shown(trial.change)
    name, seen = variable_name(change.variable), percent_range(trial.ratio, trial.interval)
    verdict = OUTCOMES[trial.outcome]
    return Text(
        f"{trial.number}. {name.en} {value}: {verdict.en}, {seen}, expected "
        f"{percent(trial.expected)}, {show_duration(trial.took_s)}: {trial.why.en}",
        f"{trial.number}. {name.zh} {value}：{verdict.zh}，{seen}，预测 "
        f"{percent(trial.expected)}，{show_duration(trial.took_s)}：{trial.why.zh}",
    )


def gains(tuned: Tuned) -> list[tuple[Change, Trial]]:
    """What was changed, in order, and the trial that speaks for it."""
    accepted = (trial for trial in tuned.trials if trial.outcome == "accepted")
    last = {part: trial for trial in accepted for part in trial.change.parts}
    return [(change, last[change]) for change in tuned.changes if change in last]


def conclusion(tuned: Tuned) -> Text:
    """The whole in one sentence."""
    number = len(tuned.trials)
    if not tuned.trials:
        return Text("No trial was decided.", "没有试验得出结论。")
    if not tuned.changes:
        return Text(
            f"Nothing was better than the plan in {number} trial{'s' * (number != 1)}.",
            f"{number} 次试验中没有比原方案更快的设置。",
        )
    seen = percent_range(tuned.ratio, tuned.interval)
    goal = GOALS[tuned.goal]
    before, after = figure(tuned.start_tokens_per_s), figure(tuned.best_tokens_per_s)
    return Text(
        f"{goal.en}: {before} → {after} tok/s, {seen}, measured in turns at the end.",
        f"{goal.zh}：{before} → {after} tok/s，{seen}（最后交替实测）。",
    )


def figure(value: float | None) -> str:
    """A speed with three digits; `—` when unknown."""
    return UNKNOWN if value is None else three_digits(value)


def story(tuned: Tuned, language: Language) -> str:
    """The tuning as Markdown: what it gave, what was changed, and every trial."""

    def said(words: Text) -> str:
        return words.in_language(language)

    title = Text(f"Tuning of {tuned.model}", f"{tuned.model} 调优记录")
    lines = [f"# {said(title)}", "", said(conclusion(tuned)), ""]
    lines += [f"{tuned.began_at}, {tuned.engine}. {said(tuned.finished.why)}", ""]
    if tuned.not_kept_because is not None:
        lines += [said(tuned.not_kept_because), ""]
    if changed := gains(tuned):
        head = (Text("changed to", "改为"), Text("it gave (95 %)", "收益（95%）"),
                Text("rounds", "轮数"), Text("why", "说明"))  # fmt: skip
        lines += markdown_head([said(words) for words in head])
        for change, trial in changed:
            name = f"{said(variable_name(change.variable))} {value_shown(change)}"
            seen = percent_range(trial.ratio, trial.interval)
            lines.append(markdown_row((name, seen, str(len(trial.pairs)), said(trial.why))))
        lines.append("")
    lines += [f"## {said(Text('Every trial', '全部试验'))}", ""]
    lines += markdown_head([*(said(words) or "#" for words in HEAD), said(Text("why", "说明"))])
    lines += [markdown_row((*row(trial, language), said(trial.why))) for trial in tuned.trials]
    return "\n".join(lines) + "\n"


def markdown_head(names: Sequence[str]) -> list[str]:
    """The first two lines of a Markdown table."""
    return [markdown_row(names), markdown_row(["---"] * len(names))]


def markdown_row(cells: Sequence[str]) -> str:
    """One row of a Markdown table."""
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"
