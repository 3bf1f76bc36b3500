"""What came of a job: counts, failures and why, tokens, time, share of the bench. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workhorse.batch.capacity import Capacity
from workhorse.batch.item import Cause, Item, Usage
from workhorse.batch.job import Counts, JobRecord, JobState
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_duration, show_rate, show_share, three_digits

EXAMPLES_SHOWN = 3
SEEN_CHARS = 300

CAUSES: dict[Cause, Text] = {
    "unreadable": Text("could not be read", "无法读取"),
    "too long": Text("too long for the context", "超出上下文长度"),
    "refused": Text("refused by the service", "被服务拒绝"),
    "no answer": Text("no answer, however often it was asked", "多次请求均无应答"),
    "not valid": Text("no answer had the form that was asked for", "回答均不符合要求的格式"),
    "crashed": Text("the engine ended each time", "每次请求都导致引擎退出"),
    "template": Text("the template has a fault", "模板有误"),
    "cancelled": Text("cancelled", "已取消"),
}
# One next step for each cause.
ADVICE: dict[Cause, Text] = {
    "unreadable": Text(
        "open them by hand; a scan needs its text recognised first",
        "请手工打开检查；扫描件需先做文字识别",
    ),
    "too long": Text(
        "use a template that splits, or a service with a longer context",
        "请使用会切分文档的模板，或上下文更长的服务",
    ),
    "refused": Text("read what it said, and order them anew", "请查看服务的答复，修改后重新提交"),
    "no answer": Text(
        "see `workhorse status`, then `workhorse batch retry`",
        "请查看 `workhorse status`，再运行 `workhorse batch retry`",
    ),
    "not valid": Text(
        "a larger model keeps to a form better; `workhorse batch retry` asks again",
        "更大的模型更能遵守格式；可用 `workhorse batch retry` 重试",
    ),
    "crashed": Text(
        "see the engine's log with `workhorse diagnose`", "请用 `workhorse diagnose` 查看引擎日志"
    ),
    "template": Text(
        "mend the template, then order the job anew",
        "请修正模板后重新下达任务",
    ),
    "cancelled": Text(
        "`workhorse batch retry` has them wait again", "可用 `workhorse batch retry` 重新排队"
    ),
}
STATES: dict[JobState, Text] = {
    "running": Text("running", "运行中"),
    "stopped": Text("stopped", "已停止"),
    "cancelled": Text("cancelled", "已取消"),
    "done": Text("done", "已完成"),
}


@dataclass(frozen=True, slots=True)
class Failures:
    """Items that failed by one cause, with the words of the first few."""

    cause: Cause
    count: int
    examples: tuple[tuple[str, Text], ...]  # the item's source, what was seen


@dataclass(frozen=True, slots=True)
class Spent:
    """What the runners of a job noted beside the ledger, over all its sessions."""

    worked_s: float = 0.0  # with requests under way or waiting for their turn, windows open
    sessions: int = 0
    streams: int | None = None
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job at one moment."""

    id: str
    template: str
    input: str
    output: str | None
    model: str | None
    state: JobState
    counts: Counts
    failures: tuple[Failures, ...]
    noted: int  # results with a note: repaired, pieces left out
    usage: Usage
    spent: Spent

    @property
    def output_tokens_per_s(self) -> float | None:
        """Generated tokens over the time of work."""
        return self.usage.output_tokens / self.spent.worked_s if self.spent.worked_s > 0 else None

    @property
    def bench_share(self) -> float | None:
        """The time that the bench's speeds need for these tokens, over the time it took."""
        capacity, worked_s = self.spent.capacity, self.spent.worked_s
        if capacity is None or not capacity.benched or worked_s <= 0:
            return None
        computed = self.usage.prompt_tokens - self.usage.cached_tokens
        return capacity.seconds(computed, self.usage.output_tokens) / worked_s


def report_of(record: JobRecord, items: Iterable[Item], usage: Usage, spent: Spent) -> JobReport:
    """The report of a job from its items, which are looked at one by one."""
    counts: dict[Cause, int] = {}
    examples: dict[Cause, list[tuple[str, Text]]] = {}
    noted = 0
    for item in items:
        noted += bool(item.result and item.result.notes)
        if item.state not in ("failed", "cancelled") or item.reason is None:
            continue
        cause = item.reason.cause
        counts[cause] = counts.get(cause, 0) + 1
        seen = examples.setdefault(cause, [])
        if len(seen) < EXAMPLES_SHOWN:
            words = Text(item.reason.seen[:SEEN_CHARS], item.reason.seen_zh[:SEEN_CHARS])
            seen.append((item.source, words))
    failures = tuple(
        Failures(cause, counts[cause], tuple(examples[cause]))
        for cause in sorted(counts, key=lambda one: (-counts[one], one))
    )
    job = record.job
    return JobReport(
        record.id,
        job.template,
        job.input,
        job.output,
        job.model,
        record.state,
        record.counts,
        failures,
        noted,
        usage,
        spent,
    )


HEAD = (Text("figure", "项目"), Text("value", "数值"))


def title_of(report: JobReport) -> Text:
    """One line: which job, how it stands."""
    state = STATES[report.state]
    return Text(
        f"job {report.id}: {report.template} over {report.input}, {state.en}",
        f"任务 {report.id}：{report.template}，输入 {report.input}，{state.zh}",
    )


def rows_of(report: JobReport) -> Sequence[tuple[Text, Text]]:
    """The figures of the report, each with its name."""
    counts, usage, worked_s = report.counts, report.usage, report.spent.worked_s
    computed = usage.prompt_tokens - usage.cached_tokens
    rows = [
        (Text("documents", "文档数"), same(f"{counts.all}")),
        (Text("done", "完成"), same(f"{counts.done}")),
        (Text("failed", "失败"), same(f"{counts.failed}")),
    ]
    if counts.cancelled:
        rows.append((Text("cancelled", "已取消"), same(f"{counts.cancelled}")))
    if left := counts.waiting + counts.leased:
        rows.append((Text("still to do", "待处理"), same(f"{left}")))
    if report.noted:
        rows.append((Text("with notes", "带备注"), same(f"{report.noted}")))
    rows += [
        (
            Text("prompt tokens", "输入 token"),
            Text(
                f"{usage.prompt_tokens} ({computed} computed, the rest from the cache)",
                f"{usage.prompt_tokens}（其中计算 {computed}，其余来自缓存）",
            ),
        ),
        (Text("output tokens", "输出 token"), same(f"{usage.output_tokens}")),
        (Text("requests", "请求数"), same(f"{usage.requests}")),
        (Text("time of work", "工作用时"), same(show_duration(worked_s) if worked_s else UNKNOWN)),
        (
            Text("throughput", "吞吐"),
            Text(
                f"{show_rate(report.output_tokens_per_s)} out, "
                f"{show_rate(computed / worked_s if worked_s else None)} in",
                f"输出 {show_rate(report.output_tokens_per_s)}，"
                f"输入 {show_rate(computed / worked_s if worked_s else None)}",
            ),
        ),
    ]
    if report.bench_share is not None:
        rows.append((Text("share of the bench", "占基准测试的比例"), share_words(report)))
    if report.output:
        rows.append((Text("output", "输出"), same(report.output)))
    return rows


def share_words(report: JobReport) -> Text:
    """The share, and how it is reckoned, in a line."""
    capacity = report.spent.capacity
    if capacity is None or report.bench_share is None:
        return same(UNKNOWN)
    share = show_share(report.bench_share)
    prefill = three_digits(capacity.prefill_tokens_per_s.value)
    decode = three_digits(capacity.decode_tokens_per_s.value)
    return Text(
        f"{share}: (computed prompt tokens / {prefill} + output tokens / {decode}) / time; "
        f"{capacity.source.en}",
        f"{share}：（计算的输入 token ÷ {prefill} + 输出 token ÷ {decode}）÷ 用时；"
        f"{capacity.source.zh}",
    )


def markdown(report: JobReport, language: Language) -> str:
    """The report as a page."""
    lines = [f"# {title_of(report).in_language(language)}", ""]
    lines += ["| " + " | ".join(one.in_language(language) for one in HEAD) + " |", "|---|---|"]
    for name, value in rows_of(report):
        lines.append(f"| {name.in_language(language)} | {_cell(value.in_language(language))} |")
    for group in report.failures:
        cause = CAUSES[group.cause].in_language(language)
        lines += ["", f"**{group.count} × {cause}**: {ADVICE[group.cause].in_language(language)}"]
        lines += [""] + [
            f"- `{_cell(source)}`: {_cell(seen.in_language(language))}"
            for source, seen in group.examples
        ]
    return "\n".join(lines) + "\n"


def _cell(words: str) -> str:
    return " ".join(words.replace("|", "\\|").replace("`", "'").split())
