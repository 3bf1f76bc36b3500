"""`workhorse rehearse`: a model's memory and speed on this machine, before its weights are here."""

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from workhorse.cli.arguments import add_choices, add_model, ask_of
from workhorse.cli.plan import budget_rows, total_rows
from workhorse.cli.progress import FETCHING, LateBar
from workhorse.cli.show import print_error, print_table, print_verdict
from workhorse.codec import to_json
from workhorse.config import Places, places
from workhorse.errors import EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.plan.words import BASES
from workhorse.text import Language, Text
from workhorse.units import show_bytes, show_duration, show_range, three_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workhorse.records import BudgetLine, Estimate, Plan
    from workhorse.rehearse.result import Rehearsal
    from workhorse.rehearse.source import Part
    from workhorse.rehearse.twin import TwinPlan
    from workhorse.up.decide import Decision

WRITING = Text("writing the twins", "写入缩小模型")
MEASURING = Text("measuring the twins", "测量缩小模型")
UNSTEADY = Text(
    "! The rounds differ widely: other programs kept this machine busy. `workhorse plan` does not "
    "use these figures; rehearse again when it is quiet.",
    "！各轮结果差异很大：有其他程序占用本机。`workhorse plan` 不会采用这些数值；请在空闲时重试。",
)


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `rehearse`."""
    add_model(parser, language)
    add_choices(parser, language)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=Text("one stream at the standard depth only", "只测单路、标准深度").in_language(
            language
        ),
    )


def refuse_other_engines(plan: "Plan") -> None:
    """AppError for an engine that does not read GGUF files: twins are such."""
    if plan.pool is None:
        return
    raise AppError(
        Text(
            f"{plan.engine.version} cannot be rehearsed: twins are GGUF files.",
            f"{plan.engine.version} 无法演练：缩小模型是 GGUF 文件。",
        ),
        Text(
            "Leave out --engine, or name a llama-server.", "请去掉 --engine，或指定 llama-server。"
        ),
        exit_code=EXIT_USAGE,
    )


def run(args: argparse.Namespace) -> int:
    """Memory by the engine's dry run where it has one, speed by twins; stores the forecast."""
    from workhorse.rehearse.job import Wanted, rehearse
    from workhorse.rehearse.source import model_parts
    from workhorse.up.decide import decide

    # Without this a SIGTERM would leave gigabytes behind until the next run.
    signal.signal(signal.SIGTERM, interrupt)
    where = places()
    with LateBar(FETCHING, args.lang) as fetching:
        ask = ask_of(args)
        # Twins are GGUF files: a checkpoint is rehearsed as what it would be converted to.
        ask = replace(ask, engine=ask.engine or Path("llama.cpp"))
        decision = decide(ask, where, fetching.step)
    refuse_other_engines(decision.plan)
    wanted = Wanted(decision.machine, decision.model, decision.plan)
    with model_parts(decision.model.path) as parts:
        budget = memory(decision.plan, parts, where, args)
        with Teller(args.lang) as teller:
            found = rehearse(wanted, parts, where.rehearsals, where.logs, teller, quick=args.quick)
    if found.steady:
        keep(decision, found, where)
    else:
        print(UNSTEADY.in_language(args.lang), file=sys.stderr)
    if args.json:
        print(to_json({"rehearsal": found, "budget": budget}))
        return EXIT_GOOD
    print_table(*memory_table(decision.plan, budget, args.lang), args.lang)
    print_speed(found, args.lang)
    sys.stdout.flush()
    print_verdict(decision.plan.verdict, args.lang)
    return EXIT_GOOD


def interrupt(_: int, __: FrameType | None) -> None:
    """A SIGTERM ends as a Ctrl-C does: in order."""
    raise KeyboardInterrupt


def memory(
    plan: "Plan", parts: "Sequence[Part]", where: Places, args: argparse.Namespace
) -> "tuple[BudgetLine, ...]":
    """The budget by the engine's dry run; without one the planned one, and why is said."""
    from workhorse.rehearse.memory import engine_memory

    try:
        return engine_memory(plan, parts, where.rehearsals)
    except AppError as error:
        print_error(error, args.lang)
        return plan.budget


def keep(decision: "Decision", found: "Rehearsal", where: Places) -> None:
    """Store the forecast for `plan`."""
    from workhorse.rehearse.keep import keep_rehearsal

    keep_rehearsal(where.store, decision.model, decision.plan, found)


class Teller:
    """Bars on stderr for writing and measuring."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._writing = LateBar(WRITING, language)
        # A bar that draws by itself would take time from what is measured.
        self._measuring = LateBar(MEASURING, language, thread=False)

    def __enter__(self) -> "Teller":
        return self

    def __exit__(self, *_: object) -> None:
        self._writing.close()
        self._measuring.close()

    def planned(self, twins: "TwinPlan") -> None:
        """Which twins there will be, and what they take for a while."""
        layers = " + ".join(str(len(twin.layers)) for twin in twins.twins)
        size = show_bytes(twins.n_bytes)
        words = Text(
            f"· {layers} of {twins.layers} layers; {size} on the disk while this runs",
            f"· 取 {twins.layers} 层中的 {layers} 层；运行期间占用磁盘 {size}",
        )
        print(words.in_language(self._language), file=sys.stderr)

    def writing(self, done_bytes: int, total_bytes: int) -> None:
        """The twins are being written."""
        self._writing.step(done_bytes, total_bytes)

    def measuring(self, done: int, total: int) -> None:
        """The twins are being measured."""
        self._writing.close()
        self._measuring.step(done, total)


def memory_table(
    plan: "Plan", budget: "Sequence[BudgetLine]", language: Language
) -> "tuple[Text, tuple[Text, ...], list[tuple[str, ...]]]":
    """The plan's own table of memory, with the engine's figures where it gave any."""
    from dataclasses import replace

    told = replace(plan, budget=tuple(budget))
    head = (
        Text("device", "设备"),
        Text("item", "项目"),
        Text("size", "大小"),
        Text("from", "来源"),
    )
    return Text("Memory", "内存"), head, [*budget_rows(told, language), *total_rows(told, language)]


def print_speed(found: "Rehearsal", language: Language) -> None:
    """The forecast, figure by figure, with its interval and where it comes from."""
    deep, streams = found.deep_tokens, found.streams
    rows: list[tuple[Text, Estimate | None]] = [
        (
            Text(f"decode at depth {found.depth_tokens}", f"深度 {found.depth_tokens} 处解码"),
            found.forecast.decode_tokens_per_s,
        ),
        (Text(f"decode at depth {deep}", f"深度 {deep} 处解码"), found.deep_tokens_per_s),
        (Text(f"{streams} streams, in all", f"{streams} 路合计"), found.streams_tokens_per_s),
        (Text("prefill", "预填充"), found.forecast.prefill_tokens_per_s),
        (Text("ceiling of the memory", "内存带宽上限"), found.forecast.ceiling_tokens_per_s),
    ]
    shown = [
        (name.in_language(language), *show_figure(figure, language))
        for name, figure in rows
        if figure is not None
    ]
    first = found.first_token_s
    took = show_range(first.value, first.low, first.high, show_duration)
    name = Text("first token of 768", "768 词元的首字延迟").in_language(language)
    shown.append((name, took, first.source.in_language(language)))
    print_table(
        Text(f"Speed of {found.model_name}", f"{found.model_name} 的速度"),
        (Text("figure", "指标"), Text("value", "数值"), Text("from", "来源")),
        shown,
        language,
    )


def show_figure(figure: "Estimate", language: Language) -> tuple[str, str]:
    """A speed with its interval, and its basis and source."""
    value = three_digits(figure.value)
    if figure.low != figure.high:
        value = show_range(figure.value, figure.low, figure.high, three_digits)
    basis = BASES[figure.basis].in_language(language)
    return f"{value} {figure.unit}", f"{basis}: {figure.source.in_language(language)}"
