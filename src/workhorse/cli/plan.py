"""`workhorse plan`: decide how a model would run here; starts nothing."""

import argparse
import sys
from pathlib import Path

from workhorse.cli.arguments import add_choices, add_model, ask_of
from workhorse.cli.progress import FETCHING, LateBar
from workhorse.cli.show import console, print_table, print_verdict
from workhorse.cli.words import BASES, DEVICES, ITEMS, SETTINGS
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.plan.memory import device_bytes
from workhorse.records import Estimate, Plan
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_bytes, show_range, three_digits


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `plan`."""
    add_model(parser, language)
    add_choices(parser, language)
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="DIR",
        help=Text(
            "plan for a captured machine instead of this one", "为捕获的另一台机器制定方案"
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; exit 3 when it says no."""
    from workhorse.up import decide

    ask = ask_of(args, machine_root=args.machine)
    with LateBar(FETCHING, args.lang) as fetching:
        decision = decide(ask, places(), fetching.step)
    plan = decision.plan
    if args.json:
        print(to_json(plan))
    else:
        print_plan(plan, args.lang)
        sys.stdout.flush()
        print_verdict(plan.verdict, args.lang)
    return EXIT_NO if plan.verdict.blocked else EXIT_GOOD


def print_plan(plan: Plan, language: Language) -> None:
    """The plan as three tables: settings with reasons, memory, and what was not taken."""
    title = Text(
        f"{plan.model_name} on {plan.engine.version}",
        f"{plan.model_name}，引擎 {plan.engine.version}",
    )
    print_table(
        title,
        (Text("setting", "设置"), Text("value", "取值"), Text("because", "原因")),
        (
            (
                SETTINGS[reason.setting].in_language(language),
                reason.value,
                reason.because.in_language(language),
            )
            for reason in plan.reasons
        ),
        language,
    )
    print_table(
        Text("Memory", "内存"),
        (Text("device", "设备"), Text("item", "项目"), Text("size", "大小"), Text("from", "来源")),
        (*budget_rows(plan, language), *total_rows(plan, language)),
        language,
    )
    if plan.rejected:
        print_table(
            Text("Not taken", "未采用"),
            (Text("option", "选项"), Text("because", "原因")),
            ((r.option, r.because.in_language(language)) for r in plan.rejected),
            language,
        )
    print_forecast(plan, language)


def budget_rows(plan: Plan, language: Language) -> list[tuple[str, ...]]:
    """One row an item of the memory budget."""
    return [
        (
            device_name(line.device, language),
            ITEMS[line.item].in_language(language),
            show_bytes(line.n_bytes),
            line.source.in_language(language),
        )
        for line in plan.budget
    ]


def total_rows(plan: Plan, language: Language) -> list[tuple[str, ...]]:
    """The sum for each device."""
    total = Text("total", "合计").in_language(language)
    return [
        (device_name(device, language), total, show_bytes(device_bytes(plan.budget, device)), "")
        for device in dict.fromkeys(line.device for line in plan.budget)
    ]


def device_name(device: str, language: Language) -> str:
    """A device as tables call it."""
    return DEVICES.get(device, same(device)).in_language(language)


def print_forecast(plan: Plan, language: Language) -> None:
    """What is promised and the ceiling, each with its interval and source."""
    decode, ceiling = plan.forecast.decode_tokens_per_s, plan.forecast.ceiling_tokens_per_s
    out = console()
    for label, estimate in (
        (Text("decode, predicted", "解码速度（预测）"), decode),
        (Text("ceiling of the memory", "内存带宽上限"), ceiling),
        (Text("prefill, predicted", "预填充速度（预测）"), plan.forecast.prefill_tokens_per_s),
    ):
        out.print(f"[bold]{label.in_language(language)}[/] {show_estimate(estimate, language)}")


def show_estimate(estimate: Estimate | None, language: Language) -> str:
    """A figure with its interval, basis and source; `—` when unknown."""
    from rich.markup import escape

    if estimate is None:
        return UNKNOWN
    shown = three_digits(estimate.value)
    if estimate.low != estimate.high:
        shown = show_range(estimate.value, estimate.low, estimate.high, three_digits)
    basis = BASES[estimate.basis].in_language(language)
    source = escape(estimate.source.in_language(language))
    return f"{shown} {estimate.unit} [dim]{basis}: {source}[/]"
