"""`workhorse plan`: decide how a model would run here; starts nothing."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.arguments import (
    Once,
    add_choices,
    add_model,
    ask_of,
    bits,
    cards,
    memory_size,
    positive,
)
from workhorse.cli.plan_tables import (
    device_name,
    item_name,
    print_comparison,
    print_explained,
    print_placement,
)
from workhorse.cli.progress import FETCHING, LateBar
from workhorse.cli.several_tables import print_ways
from workhorse.cli.show import console, print_error, print_table, print_verdict
from workhorse.cli.speed_tables import print_learning, print_speeds
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.plan.checks import doubts_as_findings
from workhorse.plan.compare import compared, ranked
from workhorse.plan.memory import device_bytes
from workhorse.plan.words import BASES, SETTINGS
from workhorse.records import Estimate, Model, Plan, Verdict
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_bytes, show_range, three_digits

if TYPE_CHECKING:
    from workhorse.plan.quality import Quality
    from workhorse.plan.speed import Experience
    from workhorse.plan.what_if import Parts
    from workhorse.up.decide import Ask


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `plan`."""
    add_model(parser, language)
    add_choices(parser, language)
    parser.add_argument(
        "--bits",
        type=bits,
        default=4.0,
        metavar="N",
        help=Text(
            "fewest bits a weight that advice may name (default: 4)",
            "建议中允许的最低每权重位数（默认 4）",
        ).in_language(language),
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help=Text(
            "show every term of memory and speed with its source", "列出内存和速度的每一项及其来源"
        ).in_language(language),
    )
    parser.add_argument(
        "--compare",
        nargs="+",
        metavar="MODEL",
        help=Text(
            "rank models and quants for the machine; a repository or folder counts with all of its",
            "对多个模型和量化排序；仓库或目录按其中全部模型计算",
        ).in_language(language),
    )
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="DIR|FILE",
        help=Text(
            "plan for a captured machine instead of this one", "为捕获的另一台机器制定方案"
        ).in_language(language),
    )
    add_parts(parser, language)


def add_parts(parser: argparse.ArgumentParser, language: Language) -> None:
    """The parts of a machine that is not here."""
    for flag, kind, metavar, words in (
        ("--gpu", str, "NAME", Text(
            "plan for a machine with this card, which need not be here",
            "为装有该显卡的机器制定方案（无需在本机）")),
        ("--gpus", cards, "N|all|LIST", Text(
            "with --gpu how many of them (default: 1); else which cards of the machine to use: so "
            "many, all, or those of these numbers (0,1; one card: 1,)",
            "配合 --gpu 时为显卡数量（默认 1）；否则为要使用的显卡：数量、all 或编号"
            "（0,1；单张卡写作 1,）")),
        ("--engines", positive, "N", Text(
            "engines that serve the model together, each on cards or CPUs of its own",
            "共同提供该模型的引擎数，各用自己的显卡或 CPU")),
        ("--ram", memory_size, "SIZE", Text("its main memory, such as 128GiB", "内存，如 128GiB")),
        ("--numa", positive, "N", Text(
            "its sockets, each a memory node (default: 1)",
            "CPU 路数，每路一个内存节点（默认 1）")),
        ("--cpu", str, "NAME", Text("its CPU, such as Xeon E5-2690 v4", "CPU 型号")),
        ("--cores", positive, "N", Text("cores of one socket", "每路核心数")),
    ):  # fmt: skip
        parser.add_argument(
            flag,
            action=Once,
            type=kind,
            metavar=metavar,
            help=words.in_language(language),
        )
    add_split(parser, language)


def add_split(parser: argparse.ArgumentParser, language: Language) -> None:
    """How several cards are to be used, where the user knows better."""
    parser.add_argument(
        "--split",
        choices=("one", "replicas", "layer", "tensor"),
        help=Text(
            "one engine on one card, one engine a card (replicas), or one over several: whole "
            "layers on each, or a part of every tensor (default: what is expected to be best)",
            "一卡一个引擎 one、每卡一个引擎 replicas，或一个引擎跨多卡：按层 layer、按张量 tensor"
            "（默认：预期最好的方式）",
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; exit 3 when it says no."""
    from workhorse.up.several import decide_ways

    composed = parts_of(args)
    ask = ask_of(
        args,
        machine_root=args.machine,
        parts=composed,
        gpus=None if composed is not None else args.gpus,
        engines=args.engines,
        split=args.split,
    )
    ask = replace(ask, wish=replace(ask.wish, least_bits=args.bits))
    if args.compare:
        return compare(args, ask)
    with LateBar(FETCHING, args.lang) as fetching:
        found, parts = decide_ways(ask, places(), fetching.step)
    plan = found.plan
    if args.json:
        said = any(value is not None for value in (ask.gpus, ask.engines, ask.split))
        print(to_json(found if said or len(found.plans) > 1 else plan))
    else:
        print_ways(found, args.lang)
        print_plan(plan, args.lang)
        if args.explain:
            print_explained(parts[0].decision.model, plan, args.lang)
            print_learning(plan, learned_here(), args.lang)
        sys.stdout.flush()
        print_verdict(plan.verdict, args.lang)
    return EXIT_NO if any(one.verdict.blocked for one in found.plans) else EXIT_GOOD


def learned_here() -> "tuple[Experience, ...]":
    """What was measured on this machine; nothing from a store that cannot be read."""
    from workhorse.store import Store

    try:
        return Store(places().store).experiences()
    except AppError:  # the plan went without it too, and says so
        return ()


def measured_here(model: Model) -> "Quality | None":
    """What `workhorse quantize` measured of this file; None: nothing, or no store to read."""
    from workhorse.models.quantize.quality_store import FILE, QualityStore

    try:
        return QualityStore(places().data / FILE).of_file(Path(model.path))
    except AppError:
        return None


def parts_of(args: argparse.Namespace) -> "Parts | None":
    """The machine that the options put together; None when they do not speak of one.

    Raises AppError when they leave out its memory, or speak of a captured machine too.
    """
    from workhorse.plan.what_if import Parts

    named = {
        flag: value
        for flag in ("gpu", "gpus", "ram", "numa", "cpu", "cores")
        if (value := getattr(args, flag)) is not None
    }
    if named.keys() == {"gpus"}:
        return None  # of the cards that are here, or captured, those to use
    if not named:
        return None
    first = f"--{next(iter(named))}"
    if args.machine is not None:
        raise AppError(
            Text(f"--machine and {first} are two machines.", f"--machine 与 {first} 互相矛盾。"),
            Text("Leave one of them out.", "请去掉其中一个。"),
            exit_code=EXIT_USAGE,
        )
    if args.ram is None or (args.gpu is None and args.gpus is not None):
        missing = "--ram" if args.ram is None else "--gpu"
        raise AppError(
            Text(f"{first} needs {missing} too.", f"使用 {first} 时还需要 {missing}。"),
            Text(
                "Name the whole machine: --gpu NAME --gpus N --ram 128GiB --numa 2.",
                "请完整描述机器：--gpu 名称 --gpus 数量 --ram 128GiB --numa 2。",
            ),
            exit_code=EXIT_USAGE,
        )
    if args.gpus is not None and not isinstance(args.gpus, int):
        raise AppError(
            Text(
                "A machine that is not here has --gpus N cards.", "不在本机的机器用 --gpus 数量。"
            ),
            Text("Give a number, such as --gpus 2.", "请给出数量，例如 --gpus 2。"),
            exit_code=EXIT_USAGE,
        )
    return Parts(args.gpu, args.gpus or 1, args.ram, args.numa or 1, args.cpu, args.cores)


def compare(args: argparse.Namespace, ask: "Ask") -> int:
    """Print the models ranked; exit 3 when none of them fits."""
    from workhorse.models.every import read_every
    from workhorse.up.decide import look_around

    words = [*([str(args.model)] if args.model else []), *args.compare]
    models: list[Model] = []
    broken: list[AppError] = []  # one half download does not take the answer for all others
    for word in dict.fromkeys(words):
        try:
            models += read_every(word, quant=args.quant, broken=broken.append)
        except AppError as error:
            broken.append(error)
    if not models and broken:
        raise broken[0]
    for told in broken:
        print_error(told, args.lang)
    ground = look_around(ask, places())
    rows = ranked(
        compared(model, ground.decide(model, ask.wish).plan, measured_here(model))
        for model in models
    )
    if args.json:
        print(to_json(rows))
    else:
        print_comparison(rows, args.lang)
        print_verdict(Verdict(doubts_as_findings(ground.machine.doubts)), args.lang)
    return EXIT_GOOD if any(row.fit != "no" for row in rows) else EXIT_NO


def print_plan(plan: Plan, language: Language) -> None:
    """The plan as tables: settings with reasons, placement, memory, and what was not taken."""
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
    if plan.placement:
        print_placement(plan, language)
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
    if not any(finding.code == "memory.does_not_fit" for finding in plan.verdict.findings):
        print_forecast(plan, language)  # a speed would read as if it could run
        print_speeds(plan, language)


def budget_rows(plan: Plan, language: Language) -> list[tuple[str, ...]]:
    """One row an item of the memory budget."""
    return [
        (
            device_name(line.device, language),
            item_name(line, language),
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
