"""`workhorse bench`: measure a running service."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from workhorse.bench.doubts import doubts
from workhorse.bench.job import Asked, Where, bench
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import service_url
from workhorse.bench.suites import EVERYTHING, Sizes, What
from workhorse.cli.arguments import positive, share
from workhorse.cli.bench_compare import compare_runs
from workhorse.cli.bench_tables import label_of, print_measurements
from workhorse.cli.parser import not_taken
from workhorse.cli.progress import MEASURING, LateBar
from workhorse.cli.service_options import (
    DEFAULT_URL,
    add_access,
    add_counts,
    add_url,
    api_key,
    authorities,
)
from workhorse.cli.show import print_error, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.records import Measurement
from workhorse.store import Store
from workhorse.text import Language, Text, same
from workhorse.units import show_duration

STREAMS_MAX = 256  # up to here the client itself was checked not to be what is measured
TOLD_FROM_S = 20.0  # shorter waits are over before they are read about


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The verb's own options."""

    def words(en: str, zh: str) -> str:
        return Text(en, zh).in_language(language)

    add = parser.add_argument
    add_url(parser, language)
    add(
        "--what",
        type=suites,
        metavar="SUITE[,…]",
        help=words(
            "standard (768 tokens in, 200 out), ladder (1, 2, 4, 8 … streams), prompts (lengths), "
            "depths (of the context), chat (people who talk), prefix (shared beginnings), or all",
            "standard（输入 768、输出 200 token）、ladder（并发 1、2、4、8…）、"
            "prompts（提示词长度）、depths（上下文深度）、chat（多人对话）、"
            "prefix（共同前缀），或 all",
        ),
    )
    add(
        "--streams",
        type=stream_counts,
        metavar="N[,N…]",
        help=words(
            "requests at the same time; several counts are measured in turn (default 1)",
            "同时进行的请求数；给出多个则依次测量（默认 1）",
        ),
    )
    counts = (
        ("--prompt-tokens", None, Text("length of each prompt", "每个提示词的长度")),
        ("--output-tokens", None, Text("length of each answer", "每个回答的长度")),
        ("--repeats", None, Text("how often each is measured", "每项重复的次数")),
    )
    add_counts(parser, language, counts)
    add_comparing(parser, language)
    add_save(parser, language)
    add_access(parser, language)


def add_comparing(parser: argparse.ArgumentParser, language: Language) -> None:
    """What compares two services or two runs."""
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help=Text(
            "two addresses, measured in turns; or two stored runs (a number of `report --list`, a "
            "file of --save). Exit code 3: B is surely slower",
            "两个服务地址（交替测量），或两次已存的测量（report --list 的编号或 --save 的文件）。"
            "退出码 3 表示 B 确实更慢",
        ).in_language(language),
    )
    parser.add_argument(
        "--max-loss",
        type=share,
        metavar="PERCENT",
        help=Text(
            "with --compare: so much slower B may be (default: 0%%)",
            "配合 --compare：允许 B 变慢的幅度（默认 0%%）",
        ).in_language(language),
    )


def add_save(parser: argparse.ArgumentParser, language: Language) -> None:
    """Where the raw result goes besides."""
    words = Text("write the raw measurements to this JSON file", "把原始测量数据写入 JSON 文件")
    parser.add_argument("--save", type=Path, metavar="FILE", help=words.in_language(language))


def suites(word: str) -> tuple[What, ...]:
    """Suites such as `ladder,prefix`; `all` is every one."""
    names = tuple(dict.fromkeys(word.split(",")))
    if "all" in names:
        return EVERYTHING
    found = tuple(suite for suite in EVERYTHING if suite in names)
    if unknown := [name for name in names if name not in EVERYTHING]:
        known = ", ".join((*EVERYTHING, "all"))
        raise not_taken(
            Text(f"{unknown[0]!r} is none of {known}", f"{unknown[0]!r} 不在 {known} 之中")
        )
    return found


def stream_counts(word: str) -> tuple[int, ...]:
    """Counts such as `1,4,8`."""
    counts = tuple(positive(part) for part in word.split(","))
    if max(counts) > STREAMS_MAX:
        raise not_taken(same(f"{max(counts)} > {STREAMS_MAX}"))
    return counts


def run(args: argparse.Namespace) -> int:
    """Measure, print, save; EXIT_FAILED when stopped or when no request succeeded."""
    check_writable(args.save)
    if args.compare is None and args.max_loss is not None:
        raise alone("--max-loss", "--compare")
    if args.compare is not None:
        if args.url is not None:
            raise alone_not(args.url)
        return compare_runs(args, [asked_of(args, one) for one in args.compare])
    asked = asked_of(args, args.url or DEFAULT_URL)
    url = service_url(asked.where.url)
    done: list[Measurement] = []
    ended_early: AppError | KeyboardInterrupt | None = None
    try:
        with LateBar(MEASURING, args.lang, thread=False) as bar:
            asyncio.run(bench(asked, done, Screen(bar, args.lang)))
    except (AppError, KeyboardInterrupt) as early:
        ended_early = early
    if done:
        save(done, args.save)
        report(done, url, args)
        keep(done, args.lang)
    if isinstance(ended_early, AppError):
        raise ended_early
    if ended_early:
        print(Text("Stopped.", "已停止。").in_language(args.lang), file=sys.stderr)
    good = bool(done) and all(any(run.error is None for run in one.runs) for one in done)
    return EXIT_GOOD if good and not ended_early else EXIT_FAILED


def asked_of(args: argparse.Namespace, url: str) -> Asked:
    """What the user asked for; an `AppError` for a file that cannot be used."""
    sizes = Sizes(args.streams, args.prompt_tokens, args.output_tokens, args.repeats)
    where = Where(url, api_key(args.api_key_file), args.model, authorities(args.ca_file))
    return Asked(where, args.what or ("standard",), sizes)


class Screen:
    """Tells on stderr what will be measured and how far it is."""

    def __init__(self, bar: LateBar, language: Language) -> None:
        self._bar, self._language = bar, language

    def expected(self, scenarios: Sequence[Scenario], seconds: tuple[float, float]) -> None:
        """One line, when it takes long enough to be read."""
        least_s, most_s = seconds
        if most_s < TOLD_FROM_S:
            return
        spans = [show_duration(least_s)]
        if most_s > 1.2 * least_s:
            spans.append(show_duration(most_s))
        count = len(scenarios)
        words = Text(
            f"{count} measurement{'s' if count > 1 else ''}, about {' to '.join(spans)}; "
            "Ctrl-C keeps what is done.",
            f"共 {count} 项测量，约需 {' 至 '.join(spans)}；"
            "按 Ctrl-C 可提前结束，已完成的部分会保留。",
        )
        print(words.in_language(self._language), file=sys.stderr)

    def step(self, scenario: Scenario, done: int, total: int) -> None:  # noqa: ARG002
        """Move the bar."""
        self._bar.step(done, total)


def alone(option: str, needs: str) -> AppError:
    """An option that means nothing without another one."""
    return AppError(
        Text(f"{option} needs {needs}.", f"{option} 需要与 {needs} 一起使用。"),
        Text(
            "Such as: workhorse bench --compare 11 12 --max-loss 3%",
            "例如：workhorse bench --compare 11 12 --max-loss 3%",
        ),
        exit_code=EXIT_USAGE,
    )


def alone_not(url: str) -> AppError:
    """An address beside the two that are compared."""
    return AppError(
        Text(
            f"--compare names both sides; {url} is one too many.",
            f"--compare 已指定两方，{url} 是多余的。",
        ),
        Text("Leave it out.", "请去掉它。"),
        exit_code=EXIT_USAGE,
    )


def check_writable(path: Path | None) -> None:
    """An `AppError` before the measurement when its file could not be written after it."""
    if path is None or (path.parent.is_dir() and not path.is_dir()):
        return
    raise AppError(
        Text(f"{path} cannot be written.", f"无法写入 {path}。"),
        Text("Name a file in a directory that exists.", "请指定已有目录中的文件。"),
    )


def save(done: Sequence[Measurement], path: Path | None) -> None:
    """The measurements as a JSON array."""
    if path is None:
        return
    try:
        path.write_text(to_json(done) + "\n", encoding="utf-8")
    except OSError as error:
        raise AppError(
            Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
            Text("Name another file with --save.", "请用 --save 指定其他文件。"),
        ) from error


def keep(done: Sequence[Measurement], language: Language) -> None:
    """Keep the run in the store; one that cannot be used costs no measurement."""
    served_by = done[0].conditions.served_by
    try:
        number = Store(places().store).keep_bench(
            done, model_name=served_by.model if served_by else None
        )
    except AppError as error:
        print_error(error, language)
        return
    words = Text(f"Kept as run {number}.", f"已保存为第 {number} 次测量。")
    print(words.in_language(language), file=sys.stderr)


def report(done: Sequence[Measurement], url: str, args: argparse.Namespace) -> None:
    """The tables and the doubts; with --json the measurements, and the doubts on stderr."""
    if args.json:
        print(to_json(done))
    else:
        print_measurements(done, url, args.lang)
    for one in done:
        verdict = doubts(one)
        if verdict.findings and len(done) > 1:
            label = label_of(one).in_language(args.lang)
            print(label, file=sys.stderr if args.json else sys.stdout)
        print_verdict(verdict, args.lang, stderr=args.json)
