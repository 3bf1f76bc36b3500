"""How jobs, forecasts and reports are shown."""

import time
from collections.abc import Sequence
from datetime import datetime

from workhorse.batch.capacity import Range
from workhorse.batch.forecast import Forecast
from workhorse.batch.job import JobRecord, Window
from workhorse.batch.pace import local_minute
from workhorse.batch.report import ADVICE, CAUSES, HEAD, STATES, JobReport, rows_of, title_of
from workhorse.batch.windows import ends_at_s, open_s_a_day, show_window
from workhorse.cli.show import console, print_table
from workhorse.text import Language, Text, same
from workhorse.units import show_duration, show_range

JOBS_HEAD = (
    Text("job", "任务"),
    Text("state", "状态"),
    Text("template", "模板"),
    Text("done", "完成"),
    Text("failed", "失败"),
    Text("of", "总数"),
    Text("ordered", "下达时间"),
    Text("input", "输入"),
)
FORECAST_HEAD = (
    Text("figure", "项目"),
    Text("forecast", "预测"),
    Text("where it is from", "依据"),
)


def print_jobs(records: Sequence[JobRecord], language: Language) -> None:
    """All jobs, one a row."""
    rows = [
        (
            one.id,
            STATES[one.state].in_language(language),
            one.job.template,
            str(one.counts.done),
            str(one.counts.failed),
            str(one.counts.all),
            datetime.fromtimestamp(one.created_unix_s).astimezone().strftime("%Y-%m-%d %H:%M"),
            one.job.input,
        )
        for one in records
    ]
    print_table(Text("batch jobs", "批处理任务"), JOBS_HEAD, rows, language)


def print_report(report: JobReport, language: Language) -> None:
    """The figures, then each kind of failure with its advice."""
    from rich.markup import escape

    rows = [
        (name.in_language(language), value.in_language(language)) for name, value in rows_of(report)
    ]
    print_table(title_of(report), HEAD, rows, language)
    out = console()
    for group in report.failures:
        cause = CAUSES[group.cause].in_language(language)
        out.print(f"[bold]{group.count} × {escape(cause)}[/]")
        for source, seen in group.examples:
            out.print(f"    {escape(source)}: {escape(seen.in_language(language))}", style="dim")
        out.print(f"    → {escape(ADVICE[group.cause].in_language(language))}")


def print_forecast(
    found: Forecast, title: Text, windows: Sequence[Window], language: Language
) -> None:
    """What the job will take, each figure with its band and where it is from."""
    counted = found.counted_documents
    readable = found.documents - found.unreadable
    all_counted = counted >= readable
    how = Text(
        f"the model's own tokenizer, {'all' if all_counted else f'{counted} by chance'}",
        f"模型自身的分词器，{'全部统计' if all_counted else f'随机抽样 {counted} 篇'}",
    )
    unreadable = same("")
    if found.unreadable:
        unreadable = Text(f"{found.unreadable} unreadable", f"{found.unreadable} 篇无法读取")
    rows = [
        (Text("documents", "文档数"), str(found.documents), unreadable),
        (Text("their tokens", "文档 token"), band(found.document_tokens), how),
        (
            Text("requests", "请求数"),
            str(found.requests),
            Text(f"at most {found.streams} at once", f"最多 {found.streams} 个并发"),
        ),
        (
            Text("tokens in", "输入 token"),
            band(found.prompt_tokens),
            Text(
                "computed; the template's own words come from the cache",
                "需计算的部分；模板自身的文字来自缓存",
            ),
        ),
        (Text("tokens out", "输出 token"), band(found.output_tokens), found.answers_source),
        (Text("time of work", "工作用时"), hours(found.seconds), found.speed_source),
    ]
    if windows and found.seconds is not None:
        rows.append(end_row(found.seconds, windows))
    shown = [
        (name.in_language(language), value, why.in_language(language)) for name, value, why in rows
    ]
    print_table(title, FORECAST_HEAD, shown, language)


def end_row(seconds: Range, windows: Sequence[Window]) -> tuple[Text, str, Text]:
    """When it ends, with the hours of the day that it may run in."""
    at_s = ends_at_s(windows, time.time(), seconds.value, local_minute)
    when = "> 1 a"
    if at_s is not None:
        when = datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M")
    spans = ", ".join(show_window(one) for one in windows)
    hours_a_day = open_s_a_day(windows) / 3600
    words = Text(
        f"within {spans}: {hours_a_day:.1f} h a day", f"时段 {spans}，每天 {hours_a_day:.1f} 小时"
    )
    return Text("end", "结束时间"), when, words


def band(tokens: Range) -> str:
    """A count of tokens with its least and most, where they differ."""
    if tokens.high - tokens.low < 1:
        return f"{tokens.value:.0f}"
    return show_range(tokens.value, tokens.low, tokens.high, lambda count: f"{count:.0f}")


def hours(seconds: Range | None) -> str:
    """A time with its least and most."""
    if seconds is None:
        return show_duration(None)
    return show_range(seconds.value, seconds.low, seconds.high, show_duration)
