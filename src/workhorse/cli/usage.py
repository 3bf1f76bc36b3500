"""`workhorse usage`: what each key used: requests, tokens, time."""

import argparse
import csv
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from workhorse.cli.parser import not_taken
from workhorse.cli.show import print_table
from workhorse.config import places
from workhorse.errors import EXIT_GOOD
from workhorse.text import Language, Text
from workhorse.units import show_duration

if TYPE_CHECKING:
    from workhorse.serve.usage import UsageRow

NOBODY = Text("(none)", "（无）")
TITLE = Text("Usage, in tokens and time", "用量（token 与时间）")
EMPTY = Text("Nothing was asked in that time.", "这段时间没有请求。")
COLUMNS = {
    "day": Text("day", "日期"),
    "key": Text("key", "密钥"),
    "model": Text("model", "模型"),
    "requests": Text("requests", "请求"),
    "unfinished": Text("unfinished", "未完成"),  # failed, refused, or the client left
    "prompt_tokens": Text("prompt", "输入"),
    "cached_tokens": Text("cached", "缓存"),
    "generated_tokens": Text("output", "输出"),
    "waited_s": Text("waited", "排队"),
    "served_s": Text("in slots", "服务"),
}
_AGO = re.compile(r"(\d{1,4})([hd])")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """What to sum up, from when on, and how to write it."""
    parser.add_argument(
        "--key",
        metavar="NAME",
        help=Text("only this key", "只看这个密钥").in_language(language),
    )
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help=Text(
            "a day such as 2026-11-01, or 24h or 7d ago; left out: everything",
            "起始日期（如 2026-11-01），或最近的 24h、7d；省略则为全部",
        ).in_language(language),
    )
    parser.add_argument(
        "--by",
        nargs="+",
        choices=("day", "key", "model"),
        default=["key"],
        help=Text(
            "one line for each of these, or of their combinations (default: key)",
            "按哪些项分行，可组合（默认：key）",
        ).in_language(language),
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help=Text("print CSV with times in seconds", "输出 CSV，时间以秒计").in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print what was used."""
    from workhorse.serve.usage import read_usage

    since = None if args.since is None else args.since.timestamp()
    rows = read_usage(places().service, by=args.by, key=args.key, since_unix_s=since)
    if args.json:
        print(json.dumps(documents(rows, args.by), ensure_ascii=False))
    elif args.csv:
        write_csv(rows, args.by)
    else:
        show(rows, args.by, args.lang)
    return EXIT_GOOD


def moment(word: str) -> datetime:
    """A day, or some hours or days ago, as argparse wants it."""
    if match := _AGO.fullmatch(word):
        hours = int(match[1]) * (24 if match[2] == "d" else 1)
        return datetime.now(UTC) - timedelta(hours=hours)
    try:
        return datetime.fromisoformat(date.fromisoformat(word).isoformat()).astimezone()
    except (ValueError, OverflowError) as error:
        raise not_taken(
            Text(
                f"{word} is no time (such as 2026-11-01, 24h, 7d)",
                f"{word} 不是时间（如 2026-11-01、24h、7d）",
            )
        ) from error


def documents(rows: Sequence["UsageRow"], by: Sequence[str]) -> list[dict[str, str | float]]:
    """The rows as JSON objects: what they are about, then the figures."""
    from workhorse.serve.usage import figure_names

    return [
        {name: getattr(row, name) for name in dict.fromkeys(by)}
        | {name: getattr(row.totals, name) for name in figure_names()}
        for row in rows
    ]


def write_csv(rows: Sequence["UsageRow"], by: Sequence[str]) -> None:
    """The rows as CSV, with the names of the columns first."""
    from workhorse.serve.usage import figure_names

    names = [*dict.fromkeys(by), *figure_names()]
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(documents(rows, by))


def show(rows: Sequence["UsageRow"], by: Sequence[str], language: Language) -> None:
    """The rows as a table."""
    if not rows:
        print(EMPTY.in_language(language))
        return
    names = [name for name in COLUMNS if name in by or name not in ("day", "key", "model")]
    shown = []
    for row in documents(rows, by):
        row["unfinished"] = sum(int(row[name]) for name in ("failed", "refused", "left_early"))
        shown.append([_cell(name, row[name], language) for name in names])
    print_table(TITLE, [COLUMNS[name] for name in names], shown, language)


def _cell(name: str, value: str | float, language: Language) -> str:
    if isinstance(value, str):
        return value or NOBODY.in_language(language)
    return show_duration(value) if name.endswith("_s") else f"{value:,}"
