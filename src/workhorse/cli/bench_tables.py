"""The tables of `bench`: one for each kind of scenario, with the figures that it is for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from workhorse.bench.stats import Spread, Summary, summarise
from workhorse.cli.show import print_table
from workhorse.records import Measurement
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_duration, show_range, show_share, three_digits


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a measurement, its figures, and those of all lines."""

    of: Measurement
    figures: Summary
    all: Sequence[Summary]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a table."""

    head: Text
    shown: Callable[[Row], str]


def median_of(values: Spread | None, show: Callable[[float], str] = three_digits) -> str:
    """The median alone."""
    return show(values.median) if values else UNKNOWN


def spread_of(values: Spread | None, show: Callable[[float], str] = three_digits) -> str:
    """A median with least and most, where there is more than one."""
    if values is None:
        return UNKNOWN
    return show_range(values.median, values.low, values.high, show)


def tokens_per_j(figures: Summary) -> str:
    """Generated tokens per joule."""
    return UNKNOWN if figures.tokens_per_j is None else three_digits(figures.tokens_per_j)


def serial_share(summary: Summary, rows: Sequence[Summary]) -> str:
    """How many times faster all streams together are than the same requests one by one."""
    alone = next((row.total_tokens_per_s for row in rows if row.streams == 1), None)
    if alone is None or summary.total_tokens_per_s is None:
        return UNKNOWN
    return f"{summary.total_tokens_per_s.median / alone.median:.2f} ×"


STREAMS = Column(Text("streams", "并发"), lambda row: str(row.of.streams))
TTFT = Column(
    Text("first token", "首字延迟"), lambda row: spread_of(row.figures.ttft_s, show_duration)
)
DECODE = Column(
    Text("decode tok/s", "每路解码 tok/s"),
    lambda row: spread_of(row.figures.decode_tokens_per_s),
)
TOTAL = Column(
    Text("total tok/s", "总 tok/s"), lambda row: median_of(row.figures.total_tokens_per_s)
)
PREFILL = Column(
    Text("prefill tok/s", "预填充 tok/s"),
    lambda row: median_of(row.figures.prefill_tokens_per_s),
)
SERIAL = Column(Text("against serial", "对比串行"), lambda row: serial_share(row.figures, row.all))
PROMPT = Column(Text("prompt tokens", "提示词 token"), lambda row: str(row.of.prompt_tokens))
DEPTH = Column(Text("context tokens", "上下文 token"), lambda row: str(row.of.prompt_tokens))
SHARED = Column(Text("shared tokens", "共同前缀 token"), lambda row: str(row.of.shared_tokens))
HIT = Column(Text("from cache", "缓存命中"), lambda row: show_share(row.figures.cached_share))
REQUESTS = Column(Text("requests", "请求数"), lambda row: str(row.figures.runs))
ENERGY = Column(Text("tok/J", "tok/J"), lambda row: tokens_per_j(row.figures))

COLUMNS: dict[str, tuple[Column, ...]] = {
    "ladder": (STREAMS, TTFT, DECODE, TOTAL, SERIAL),
    "prompts": (PROMPT, TTFT, PREFILL),
    "depths": (DEPTH, DECODE),
    "prefix": (SHARED, HIT, TTFT, PREFILL),
    "chat": (STREAMS, REQUESTS, TTFT, DECODE, TOTAL, HIT),
}
USUAL = (STREAMS, TTFT, DECODE, TOTAL, PREFILL)


def title_of(url: str, rows: Sequence[Measurement]) -> Text:
    """What the rows have in common."""
    one = rows[0]
    prompt, answer = one.prompt_tokens, one.output_tokens
    titles = {
        "ladder": Text(
            f"{url}: more requests at a time; prompts of {prompt} tokens, answers of {answer}",
            f"{url}：并发阶梯；提示词 {prompt} token，回答 {answer} token",
        ),
        "prompts": Text(f"{url}: prompts", f"{url}：提示词长度"),
        "depths": Text(f"{url}: depths", f"{url}：上下文深度"),
        "prefix": Text(
            f"{url}: prompts of {prompt} tokens, begun alike",
            f"{url}：有共同前缀的提示词，{prompt} token",
        ),
        "chat": Text(
            f"{url}: chats; prompts of {prompt} tokens and answers of {answer} on average",
            f"{url}：对话；平均提示词 {prompt} token，回答 {answer} token",
        ),
    }
    usual = Text(
        f"{url}: prompts of {prompt} tokens, answers of {answer}; decode is per stream",
        f"{url}：提示词 {prompt} token，回答 {answer} token",
    )
    return titles.get(one.scenario, usual)


def print_measurements(done: Sequence[Measurement], url: str, language: Language) -> None:
    """A table for each scenario."""
    for name, group in groupby(done, key=lambda one: one.scenario):
        rows = list(group)
        summaries = [summarise(one) for one in rows]
        columns = COLUMNS.get(name, USUAL)
        if any(summary.tokens_per_j is not None for summary in summaries):
            columns += (ENERGY,)
        print_table(
            title_of(url, rows),
            [column.head for column in columns],
            [
                [column.shown(Row(one, summary, summaries)) for column in columns]
                for one, summary in zip(rows, summaries, strict=True)
            ],
            language,
        )


def label_of(one: Measurement) -> Text:
    """Which of several measurements a doubt is about."""
    detail = {
        "prompts": Text(f"prompts of {one.prompt_tokens} tokens", f"提示词 {one.prompt_tokens}"),
        "depths": Text(f"context of {one.prompt_tokens} tokens", f"上下文 {one.prompt_tokens}"),
        "prefix": Text(f"{one.shared_tokens} shared tokens", f"共同前缀 {one.shared_tokens}"),
        "chat": Text(f"chats of {one.streams} users", f"{one.streams} 位用户的对话"),
    }
    plural = "" if one.streams == 1 else "s"
    streams = Text(f"{one.streams} stream{plural}", f"{one.streams} 路并发")
    found = detail.get(one.scenario, streams)
    return Text(f"{found.en}:", f"{found.zh}：")
