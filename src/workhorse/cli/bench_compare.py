"""`workhorse bench --compare A B`: two services in turns, or two stored runs."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workhorse.bench.against import Compared, Outcome, compare_all, matched
from workhorse.bench.doubts import doubts
from workhorse.bench.job import Asked, find
from workhorse.bench.load import load_session
from workhorse.bench.service import service_url
from workhorse.bench.suites import scenarios_for
from workhorse.bench.turns import PAIRS, take_turns
from workhorse.cli.progress import MEASURING, LateBar
from workhorse.cli.show import print_table, print_verdict
from workhorse.codec import from_json, to_json
from workhorse.config import places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.records import Measurement
from workhorse.store import DOCUMENT_BYTES_MAX, Store
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_range, show_share, three_digits

FIGURES = {
    "decode": Text("decode tok/s", "每路解码 tok/s"),
    "total": Text("total tok/s", "总 tok/s"),
    "prefill": Text("prefill tok/s", "预填充 tok/s"),
}
WORDS: dict[Outcome, Text] = {
    "faster": Text("B is faster", "B 更快"),
    "slower": Text("B is slower", "B 更慢"),
    "no difference": Text("no difference", "没有差别"),
    "too few": Text("too few to tell", "样本太少，无法判断"),
}
HEAD = (
    Text("scenario", "场景"),
    Text("figure", "指标"),
    Text("A", "A"),
    Text("B", "B"),
    Text("B / A", "B / A"),
    Text("", ""),
)
APART = Text(
    "The two runs were not measured in turns: what changed on the machine in between is part of "
    "the difference. Two addresses are measured in turns.",
    "两次测量并非交替进行：其间机器的变化也会计入差别。若给出两个地址，则会交替测量。",
)


def compare_runs(args: argparse.Namespace, sides: Sequence[Asked]) -> int:
    """Compare and print; EXIT_NO when B is surely slower than is allowed.

    EXIT_FAILED when Ctrl-C ended it and no such loss was seen.
    """
    names = args.compare
    live = [is_address(name) for name in names]
    if any(live) and not all(live):
        raise mixed_sides()
    if all(live):
        for name in names:
            service_url(name)
        pairs, whole = measure_both(args, *sides)
    else:
        pairs, whole = stored_pairs(*names), True
    apart = not all(live)
    found = compare_all(pairs, apart=apart)
    if not found:
        raise nothing_measured(pairs)
    lost = [one for one in found if one.lost_more_than(args.max_loss or 0.0)]
    if args.save is not None:
        args.save.write_text(to_json([one for pair in pairs for one in pair]) + "\n", "utf-8")
    show(args, pairs, found, lost, apart=apart)
    if lost:
        return EXIT_NO
    return EXIT_GOOD if whole else EXIT_FAILED


def is_address(name: str) -> bool:
    """True for what is written like an address of a service."""
    return name.startswith(("http://", "https://"))


def measure_both(
    args: argparse.Namespace, a: Asked, b: Asked
) -> tuple[list[tuple[Measurement, Measurement]], bool]:
    """Both services, scenario by scenario, in turns; False when Ctrl-C ended it before the end."""
    done: list[tuple[Measurement, Measurement]] = []

    async def turns(bar: LateBar) -> None:
        async with load_session() as client:
            found = [await find(client, one.where) for one in (a, b)]
            known = [one.served_by for one in found]
            scenarios = scenarios_for(
                a.what,
                replace(a.sizes, repeats=a.sizes.repeats or PAIRS),
                slots=min((one.slots for one in known if one.slots), default=None),
                context_tokens=min(
                    (one.context_tokens for one in known if one.context_tokens), default=None
                ),
            )
            total = 2 * sum(scenario.generated_tokens for scenario in scenarios)
            before = 0
            for scenario in scenarios:

                def told(pieces: int, earlier: int = before) -> None:
                    bar.step(min(total, earlier + pieces), total)

                await take_turns(client, found[0], found[1], scenario, done, told)
                before += 2 * scenario.generated_tokens

    try:
        with LateBar(MEASURING, args.lang, thread=False) as bar:
            asyncio.run(turns(bar))
    except KeyboardInterrupt:
        if not done:
            raise
        print(Text("Stopped.", "已停止。").in_language(args.lang), file=sys.stderr)
        return done, False
    return done, True


def stored_pairs(a: str, b: str) -> list[tuple[Measurement, Measurement]]:
    """The scenarios that two stored runs have in common; an `AppError` when there is none."""
    first, second = (read_run(name) for name in (a, b))
    pairs = list(matched(first, second))
    if not pairs:
        raise AppError(
            Text(
                f"{a} and {b} have no scenario in common.",
                f"{a} 与 {b} 没有相同的场景。",
            ),
            Text(
                "Measure both with the same --what, --streams and lengths.",
                "请用相同的 --what、--streams 和长度测量两者。",
            ),
            exit_code=EXIT_USAGE,
        )
    return pairs


def read_run(name: str) -> tuple[Measurement, ...]:
    """A stored run: a file that `--save` wrote, or a number in the store."""
    path = Path(name)
    if not path.is_file():
        return Store(places().store).run(name)
    try:
        with path.open("rb") as file:
            document = file.read(DOCUMENT_BYTES_MAX)
    except OSError as error:
        raise AppError(
            Text(f"{path} cannot be read: {error}.", f"无法读取 {path}：{error}。"),
            Text("Name a file of `bench --save`.", "请指定 bench --save 写出的文件。"),
        ) from error
    return from_json(tuple[Measurement, ...], document, what=str(path))


def mixed_sides() -> AppError:
    """One side runs and the other is stored."""
    return AppError(
        Text(
            "--compare takes two addresses or two stored runs, not one of each.",
            "--compare 需要两个地址或两次已存的测量，不能各取其一。",
        ),
        Text(
            "Measure the service first: workhorse bench URL, then compare the two runs.",
            "请先用 workhorse bench URL 测量该服务，再比较两次测量。",
        ),
        exit_code=EXIT_USAGE,
    )


def nothing_measured(pairs: Sequence[tuple[Measurement, Measurement]]) -> AppError:
    """No request of one side gave a figure."""
    errors = [run.error for pair in pairs for one in pair for run in one.runs if run.error]
    first = errors[0] if errors else "—"
    return AppError(
        Text(f"There is no figure to compare: {first}", f"没有可比较的数字：{first}"),
        Text("Look into the services' logs.", "请查看服务日志。"),
        exit_code=EXIT_FAILED,
    )


def show(
    args: argparse.Namespace,
    pairs: Sequence[tuple[Measurement, Measurement]],
    found: Sequence[Compared],
    lost: Sequence[Compared],
    *,
    apart: bool,
) -> None:
    """The table, the doubts about both sides, and the sentence that the exit code means."""
    if args.json:
        print(to_json(found))
    else:
        a, b = args.compare
        print_table(
            Text(f"A: {a}  B: {b}", f"A：{a}  B：{b}"),
            HEAD,
            [row(one, args.lang) for one in found],
            args.lang,
        )
        if apart:
            print(APART.in_language(args.lang))
    for pair in pairs:
        for side, one in zip("AB", pair, strict=True):
            verdict = doubts(one)
            if verdict.findings:
                print(f"{side}:", file=sys.stderr if args.json else sys.stdout)
                print_verdict(verdict, args.lang, stderr=args.json)
    for figure in lost:
        words = loss_of(figure, args.max_loss or 0.0)
        print(words.in_language(args.lang), file=sys.stderr if args.json else sys.stdout)


def loss_of(one: Compared, allowed: float) -> Text:
    """How much slower B surely is."""
    low, high = one.interval or (1.0, 1.0)
    most, least = show_share(1 - low), show_share(1 - high)
    figure = FIGURES[one.figure]
    limit = show_share(allowed)
    return Text(
        f"B lost {least} to {most} of {figure.en} in {one.scenario}; {limit} is allowed.",
        f"B 在 {one.scenario} 场景的 {figure.zh} 下降了 {least} 至 {most}，允许 {limit}。",
    )


def row(one: Compared, language: Language) -> tuple[str, ...]:
    """One line of the table."""
    interval = UNKNOWN if one.interval is None else f"{one.interval[0]:.3f}–{one.interval[1]:.3f}"
    detail = {"prompts": one.prompt_tokens, "depths": one.prompt_tokens}.get(
        one.scenario, one.streams
    )
    return (
        f"{one.scenario} {detail}",
        FIGURES[one.figure].in_language(language),
        show_range(one.a.median, one.a.low, one.a.high, three_digits),
        show_range(one.b.median, one.b.low, one.b.high, three_digits),
        f"{one.ratio:.3f} ({interval})",
        WORDS[one.outcome].in_language(language),
    )
