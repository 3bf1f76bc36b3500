"""`workhorse report`: stored runs side by side, as Markdown or one HTML file."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from workhorse import __version__
from workhorse.bench.report.case import Case, clean
from workhorse.bench.report.document import Document
from workhorse.bench.report.markdown import markdown
from workhorse.bench.report.sources import read_cases
from workhorse.bench.report.story import report
from workhorse.bench.stats import summarise
from workhorse.cli.bench import check_writable
from workhorse.cli.show import print_error, print_table
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, AppError
from workhorse.store import Store
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The verb's own options."""

    def words(en: str, zh: str) -> str:
        return Text(en, zh).in_language(language)

    add = parser.add_argument
    add(
        "runs",
        metavar="RUN",
        nargs="*",
        help=words(
            "numbers of stored runs (see --list) or files of `bench --save`; left out: the newest "
            "run and the newest `explain`",
            "已保存测量的编号（见 --list）或 bench --save 写出的文件；省略则取最新的测量与分析",
        ),
    )
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help=words(
            "write one HTML file with plots, which needs nothing else",
            "写出含图表的单个 HTML 文件，无外部依赖",
        ),
    )
    add(
        "--markdown",
        type=Path,
        metavar="FILE",
        help=words(
            "write Markdown to this file (default: to stdout)",
            "把 Markdown 写入文件（默认输出到屏幕）",
        ),
    )
    add("--list", action="store_true", help=words("list the stored runs", "列出已保存的测量"))


def run(args: argparse.Namespace) -> int:
    """Read, put together, write."""
    store = Store(places().store)
    if args.list:
        list_runs(store, as_json=args.json, language=args.lang)
        return EXIT_GOOD
    check_writable(args.html)
    check_writable(args.markdown)
    cases, unread = read_cases(args.runs, store)
    for _, error in unread:
        print_error(error, args.lang)
    if not cases:
        raise unread[0][1] if unread else nothing_kept(store.path)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    document = report(cases, when=now, version=__version__, unread=unread)
    if args.json:
        print(to_json([figures(case) for case in cases]))
    write(document, args)
    return EXIT_GOOD


def write(document: Document, args: argparse.Namespace) -> None:
    """The files that were asked for; Markdown to stdout when none was."""
    wrote: list[Path] = []
    if args.html is not None:
        from workhorse.bench.report.page import page

        write_file(args.html, page(document, args.lang))
        wrote.append(args.html)
    if args.markdown is not None:
        write_file(args.markdown, markdown(document, args.lang))
        wrote.append(args.markdown)
    if not wrote and not args.json:
        print(markdown(document, args.lang), end="")
    for path in wrote:
        told = Text(f"wrote {path}", f"已写入 {path}").in_language(args.lang)
        print(told, file=sys.stderr)


def write_file(path: Path, text: str) -> None:
    """One file of the report."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AppError(
            Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
            Text("Name another file.", "请指定其他文件。"),
        ) from error


def figures(case: Case) -> dict[str, object]:
    """A case's figures for programs."""
    return {
        "name": case.name,
        "when": case.when,
        "url": case.url,
        "model_name": case.model_name,
        "ceiling_tokens_per_s": case.ceiling.value if case.ceiling else None,
        "measurements": [
            {
                "scenario": one.scenario,
                "prompt_tokens": one.prompt_tokens,
                "output_tokens": one.output_tokens,
                "figures": summarise(one),
            }
            for one in case.measurements
        ],
        "attribution": case.attribution,
    }


def list_runs(store: Store, *, as_json: bool, language: Language) -> None:
    """What the store holds, newest first."""
    runs = store.runs()
    if as_json:
        print(to_json(runs))
        return
    head = (
        same("RUN"),
        Text("when (UTC)", "时间（UTC）"),
        Text("model", "模型"),
        Text("label", "标签"),
        Text("address", "地址"),
    )
    rows = [
        (
            one.name,
            one.when[:19].replace("T", " "),
            clean(one.model_name),
            clean(one.label),
            one.url or UNKNOWN,
        )
        for one in runs
    ]
    print_table(Text("Stored runs", "已保存的测量"), head, rows, language)


def nothing_kept(path: Path) -> AppError:
    """An empty store."""
    return AppError(
        Text(f"{path} holds no runs yet.", f"{path} 中还没有测量。"),
        Text("Measure with `workhorse bench` first.", "请先用 workhorse bench 测量。"),
    )
