"""`workhorse explain`: where the time of a token goes, from the ceiling to what was measured."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from workhorse.bench.attribution_job import Experiment, explain
from workhorse.bench.service import service_url
from workhorse.cli.bench import add_save, check_writable
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
from workhorse.cli.show import console, print_error, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, AppError
from workhorse.records import Attribution, Bound, Estimate, Term
from workhorse.store import Store
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_duration, show_range, three_digits

BAR_WIDTH = 26
EIGHTHS = " ▏▎▍▌▋▊▉"
STANDARD = Experiment()


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The verb's own options."""
    add_url(parser, language)
    counts = (
        ("--rounds", STANDARD.rounds, Text("rounds of requests", "请求轮数")),
        ("--prompt-tokens", STANDARD.prompt_tokens, Text("length of the prompt", "提示词的长度")),
        (
            "--output-tokens",
            STANDARD.output_tokens,
            Text("length of each answer", "每个回答的长度"),
        ),
    )
    add_counts(parser, language, counts)
    ceiling = Text(
        "the memory's ceiling, where no plan tells it: bandwidth over bytes per token",
        "内存上限（没有方案可查时）：带宽÷每个 token 的字节数",
    )
    parser.add_argument(
        "--ceiling", type=speed, metavar="TOK/S", help=ceiling.in_language(language)
    )
    add_save(parser, language)
    add_access(parser, language)


def speed(word: str) -> float:
    """Tokens a second above 0, as argparse wants it."""
    number = float(word)
    if not 0 < number < 1e9:
        raise not_taken(Text(f"{word} is no speed above 0", f"{word} 不是大于 0 的速度"))
    return number


def run(args: argparse.Namespace) -> int:
    """Ask, reckon, keep and show."""
    check_writable(args.save)
    experiment = Experiment(args.prompt_tokens, args.output_tokens, args.rounds)
    where = places()
    with LateBar(MEASURING, args.lang, thread=False) as bar:
        found = asyncio.run(
            explain(
                service_url(args.url or DEFAULT_URL),
                experiment,
                where,
                on_progress=bar.step,
                api_key=api_key(args.api_key_file),
                ceiling=None if args.ceiling is None else given(args.ceiling),
                model=args.model,
                tls=authorities(args.ca_file),
            )
        )
    document = to_json(found)
    try:
        number = Store(where.store).keep_attribution(found)
    except AppError as error:  # a store that cannot be used costs no measurement
        print_error(error, args.lang)
    else:
        words = Text(f"Kept as explain-{number}.", f"已保存为 explain-{number}。")
        print(words.in_language(args.lang), file=sys.stderr)
    if args.save is not None:
        save(document, args.save)
    if args.json:
        print(document)
    else:
        show(found, args.lang)
    return EXIT_GOOD


def given(tokens_per_s: float) -> Estimate:
    """The user's own ceiling."""
    source = Text("given with --ceiling", "由 --ceiling 给出")
    return Estimate(tokens_per_s, tokens_per_s, tokens_per_s, "tok/s", "estimated", source)


def save(document: str, path: Path) -> None:
    """Write the attribution to a file."""
    try:
        path.write_text(document + "\n", encoding="utf-8")
    except OSError as error:
        raise AppError(
            Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
            Text("Name another file with --save.", "请用 --save 指定其他文件。"),
        ) from error


HEAD = (
    Text("part", "组成"),
    Text("ms per token", "毫秒/token"),
    Text("95 % interval", "95 % 区间"),
    Text("tok/s left", "剩余 tok/s"),
    Text("bar", "图示"),
)


def show(found: Attribution, language: Language) -> None:
    """The bar as a table, how each part was found, and what is doubtful."""
    measured = three_digits(1 / found.token_s)
    if found.low_s > 0:
        low, high = 1 / found.high_s, 1 / found.low_s
        measured = show_range(1 / found.token_s, low, high, three_digits)
    ceiling = found.ceiling_tokens_per_s
    above = Text("", "")
    if ceiling is not None:
        above = Text(
            f" of {three_digits(ceiling.value)} that the memory allows",
            f"，内存上限 {three_digits(ceiling.value)}",
        )
    title = Text(
        f"{found.url}: one stream at {measured} tok/s{above.en}; rounds: {len(found.rounds)}",
        f"{found.url}：单路 {measured} tok/s{above.zh}；轮数：{len(found.rounds)}",
    )
    ends = list(accumulate(term.seconds for term in found.terms))
    rows = [row(term, end, found, language) for term, end in zip(found.terms, ends, strict=True)]
    print_bars(title, rows, language)
    notes(found.terms, language)
    print_verdict(found.verdict, language)


def print_bars(title: Text, rows: Sequence[Sequence[str]], language: Language) -> None:
    """The table; its bars are never broken into lines."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title.in_language(language)), box=box.SIMPLE_HEAD, title_justify="left"
    )
    for place, label in enumerate(HEAD):
        table.add_column(
            label.in_language(language),
            style="bold" if not place else None,
            justify="right" if 1 <= place <= 3 else "left",
            no_wrap=place > 0,
            min_width=BAR_WIDTH if place == 4 else None,
        )
    for cells in rows:
        table.add_row(*map(escape, cells))
    console().print(table)


def row(term: Term, end_s: float, found: Attribution, language: Language) -> Sequence[str]:
    """One part: its time, and what speed is left after it."""
    return (
        term.what.in_language(language),
        milliseconds(term.seconds),
        f"{milliseconds(term.low_s)}–{milliseconds(term.high_s)}",
        three_digits(1 / end_s) if end_s > 0 else UNKNOWN,
        bar(end_s - term.seconds, term.seconds, found.token_s),
    )


def milliseconds(seconds: float) -> str:
    """Milliseconds with two decimals, so that the column adds up."""
    return f"{seconds * 1000:.2f}"


def bar(start_s: float, seconds: float, whole_s: float) -> str:
    """A piece of the whole bar, in its place; shaded where it goes back."""
    first, last = sorted((start_s, start_s + seconds))
    first, last = (min(max(0.0, at / whole_s), 1.0) * BAR_WIDTH for at in (first, last))
    before = " " * min(int(first), BAR_WIDTH - 1)
    if seconds < 0:
        return before + "░" * max(1, round(last - first))
    full, rest = divmod(round((last - first) * 8), 8)
    return before + "█" * full + EIGHTHS[rest].strip()


def notes(terms: Sequence[Term], language: Language) -> None:
    """How each part was found, and what bounds its own parts."""
    from rich.markup import escape

    out = console()
    for term in terms:
        what, how = term.what.in_language(language), term.how.in_language(language)
        colon = Text(": ", "：").in_language(language)
        out.print(f"[bold]{escape(what)}[/]{colon}{escape(how)}", style="dim")
        for bound in term.bounds:
            out.print(f"    {escape(bound_words(bound).in_language(language))}", style="dim")
    out.print()


def bound_words(bound: Bound) -> Text:
    """One bound as a line."""
    low, high = show_duration(bound.low_s), show_duration(bound.high_s)
    if bound.low_s > 0:
        return Text(
            f"{bound.what.en}: {low} to {high} ({bound.how.en})",
            f"{bound.what.zh}：{low} 至 {high}（{bound.how.zh}）",
        )
    return Text(
        f"{bound.what.en}: at most {high} ({bound.how.en})",
        f"{bound.what.zh}：最多 {high}（{bound.how.zh}）",
    )
