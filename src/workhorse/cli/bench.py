"""`workhorse bench`: measure a running service by the fixed protocol."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from workhorse import __version__
from workhorse.bench.doubts import doubts
from workhorse.bench.load import Progress, measure
from workhorse.bench.scenario import STANDARD, Scenario, scenario_for
from workhorse.bench.service import service_url
from workhorse.bench.stats import Spread, Summary, summarise
from workhorse.cli.arguments import positive
from workhorse.cli.parser import not_taken
from workhorse.cli.progress import MEASURING, LateBar
from workhorse.cli.show import print_table, print_verdict
from workhorse.codec import to_json
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, AppError
from workhorse.machine.probe import probe
from workhorse.records import Conditions, Measurement
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_duration, show_range, three_digits

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "WORKHORSE_API_KEY"
STREAMS_MAX = 256  # up to here the client itself was checked not to be what is measured


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The verb's own options."""

    def words(en: str, zh: str) -> str:
        return Text(en, zh).in_language(language)

    add = parser.add_argument
    add(
        "url",
        metavar="URL",
        nargs="?",
        default=DEFAULT_URL,
        help=words(
            f"an OpenAI-compatible service (default {DEFAULT_URL})",
            f"兼容 OpenAI 的服务地址（默认 {DEFAULT_URL}）",
        ),
    )
    add(
        "--streams",
        type=stream_counts,
        default=(STANDARD.streams,),
        metavar="N[,N…]",
        help=words(
            "requests at the same time; several counts are measured in turn (default 1)",
            "同时进行的请求数；给出多个则依次测量（默认 1）",
        ),
    )
    counts = (
        ("--prompt-tokens", STANDARD.prompt_tokens, "length of each prompt", "每个提示词的长度"),
        ("--output-tokens", STANDARD.output_tokens, "length of each answer", "每个回答的长度"),
        ("--repeats", STANDARD.repeats, "how often each count is measured", "每种并发重复的次数"),
    )
    for option, default, en, zh in counts:
        about = words(f"{en} (default {default})", f"{zh}（默认 {default}）")
        add(option, type=positive, default=default, metavar="N", help=about)
    add(
        "--save",
        type=Path,
        metavar="FILE",
        help=words("write the raw measurements to this JSON file", "把原始测量数据写入 JSON 文件"),
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help=words(
            f"a file that holds the service's API key (or set {KEY_VARIABLE})",
            f"保存服务 API 密钥的文件（也可设置环境变量 {KEY_VARIABLE}）",
        ),
    )


def stream_counts(word: str) -> tuple[int, ...]:
    """Counts such as `1,4,8`."""
    counts = tuple(positive(part) for part in word.split(","))
    if max(counts) > STREAMS_MAX:
        raise not_taken(same(f"{max(counts)} > {STREAMS_MAX}"))
    return counts


def run(args: argparse.Namespace) -> int:
    """Measure, print, save; EXIT_FAILED when stopped or when no request succeeded."""
    url = service_url(args.url)
    key = api_key(args.api_key_file)
    check_writable(args.save)
    scenarios = [
        scenario_for(
            streams=streams,
            prompt_tokens=args.prompt_tokens,
            output_tokens=args.output_tokens,
            repeats=args.repeats,
        )
        for streams in args.streams
    ]
    done: list[Measurement] = []
    ended_early: AppError | KeyboardInterrupt | None = None
    try:
        with LateBar(MEASURING, args.lang, thread=False) as bar:
            measure_all(done, scenarios, url, key, bar)
    except (AppError, KeyboardInterrupt) as early:
        ended_early = early
    if done:
        save(done, args.save)
        report(done, url, args)
    if isinstance(ended_early, AppError):
        raise ended_early
    if ended_early:
        print(Text("Stopped.", "已停止。").in_language(args.lang), file=sys.stderr)
    good = all(any(run.error is None for run in one.runs) for one in done)
    return EXIT_GOOD if good and not ended_early else EXIT_FAILED


def measure_all(
    done: list[Measurement],
    scenarios: Sequence[Scenario],
    url: str,
    key: str | None,
    bar: LateBar,
) -> None:
    """Measure one scenario after the other into `done`.

    Complete rounds get there also when an error or Ctrl-C ends it.
    """
    machine = probe(measure_s=0) if is_loopback(url) else None
    expected = sum(scenario.generated_tokens for scenario in scenarios)
    before = 0
    finished = Progress((), 0)

    def keep(progress: Progress) -> None:
        nonlocal finished
        finished = progress
        bar.step(before + progress.pieces, expected)

    for scenario in scenarios:
        finished = Progress((), 0)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            asyncio.run(measure(url, scenario, on_progress=keep, api_key=key))
        finally:
            if finished.runs:
                conditions = Conditions(when, machine, None, url, __version__)
                done.append(scenario.measurement(finished.runs, conditions))
        before += scenario.generated_tokens


def is_loopback(url: str) -> bool:
    """True when the service runs on this machine, as far as its address tells."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def api_key(path: Path | None) -> str | None:
    """The key from the file, else from the environment; an `AppError` for a file without one."""
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AppError(
            Text(f"The key file cannot be read: {error}.", f"无法读取密钥文件：{error}。"),
            Text("Give a file that holds the key alone.", "请指定只含密钥的文件。"),
        ) from error
    if not key or not key.isascii() or not key.isprintable():
        raise AppError(
            Text(f"{path} does not hold one API key.", f"{path} 中不是一个 API 密钥。"),
            Text("Write the key on one line, alone.", "请把密钥单独写在一行里。"),
        )
    return key


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


def report(done: Sequence[Measurement], url: str, args: argparse.Namespace) -> None:
    """The table and the doubts; with --json the measurements, and the doubts on stderr."""
    if args.json:
        print(to_json(done))
    else:
        prompt, answer = done[0].prompt_tokens, done[0].output_tokens
        title = Text(
            f"{url}: prompts of {prompt} tokens, answers of {answer}; decode is per stream",
            f"{url}：提示词 {prompt} token，回答 {answer} token",
        )
        rows = [row(summarise(one)) for one in done]
        print_table(title, HEAD, rows, args.lang)
    for one in done:
        verdict = doubts(one)
        if verdict.findings and len(done) > 1:
            label = Text(f"{one.streams} streams:", f"{one.streams} 路并发：")
            print(label.in_language(args.lang), file=sys.stderr if args.json else sys.stdout)
        print_verdict(verdict, args.lang, stderr=args.json)


HEAD = (
    Text("streams", "并发"),
    Text("first token", "首字延迟"),
    Text("decode tok/s", "每路解码 tok/s"),
    Text("total tok/s", "总 tok/s"),
    Text("prefill tok/s", "预填充 tok/s"),
)


def row(summary: Summary) -> tuple[str, ...]:
    """One line of the table: medians, with least and most where a user feels them."""
    ttft, decode = summary.ttft_s, summary.decode_tokens_per_s
    total, prefill = summary.total_tokens_per_s, summary.prefill_tokens_per_s
    return (
        str(summary.streams),
        show_spread(ttft, show_duration) if ttft else UNKNOWN,
        show_spread(decode, three_digits) if decode else UNKNOWN,
        three_digits(total.median) if total else UNKNOWN,
        three_digits(prefill.median) if prefill else UNKNOWN,
    )


def show_spread(values: Spread, show: Callable[[float], str]) -> str:
    """A median with least and most."""
    return show_range(values.median, values.low, values.high, show)
