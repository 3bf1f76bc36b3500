"""`workhorse doctor`: what is wrong with this machine, what it costs, what to do."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.progress import LateBar
from workhorse.cli.show import LEVELS, console
from workhorse.cli.wrap import wrapped
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.records import Finding, Level, Machine, Verdict
from workhorse.text import Language, Text
from workhorse.units import show_share

if TYPE_CHECKING:
    from rich.console import Console

EXAMINING = Text("examining the machine", "检查本机")
# Below it a figure says no more than the level does.
SHARE_WORTH_TELLING = 0.02
EVIDENCE_LINES = 6
DOUBTFUL = {"likely": Text("likely", "很可能"), "possible": Text("possibly", "可能")}
GOOD = Text("Well", "正常")
NOT_LOOKED_AT = Text("Not looked at", "未能检查")
COUNTS: dict[Level, tuple[Text, Text]] = {
    "blocker": (Text("blocker", "项阻碍运行"), Text("blockers", "项阻碍运行")),
    "warning": (Text("warning", "项警告"), Text("warnings", "项警告")),
    "note": (Text("note", "项提示"), Text("notes", "项提示")),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `doctor`."""
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="CAPTURE",
        help=Text(
            "another machine: what `probe --save` wrote, or texts of its commands",
            "另一台机器：`probe --save` 的结果，或其命令的输出文本",
        ).in_language(language),
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=Text("also whether this model runs here", "同时检查该模型能否在此运行").in_language(
            language
        ),
    )
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="NAME|PATH",
        help=Text(
            "the installed build or llama-server for that model; left out: the embedded engine",
            "运行该模型的已安装构建或 llama-server；省略则用内置引擎",
        ).in_language(language),
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=Text(
            "measure nothing: no bandwidths, no disk speed", "不做测量：带宽、磁盘速度"
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print the verdict; exit 3 when something blocks."""
    verdict = examine(args)
    if args.json:
        print(to_json(verdict))
    else:
        print_examination(verdict, args.lang)
    return EXIT_NO if verdict.blocked else EXIT_GOOD


def examine(args: argparse.Namespace) -> Verdict:
    """Read the machine, and the model if there is one, and judge them."""
    from workhorse.doctor.judge import judge
    from workhorse.engines.find import embedded_build
    from workhorse.engines.supply.builds import Builds
    from workhorse.engines.supply.pick import named_engine
    from workhorse.models.read import read_model

    if args.engine and not args.model:
        raise AppError(
            Text("--engine is for a model, and none was given.", "--engine 需与模型一起使用。"),
            Text("Add --model MODEL.", "请加上 --model MODEL。"),
            exit_code=EXIT_USAGE,
        )
    # What the user typed wrong shows before anything is measured.
    model = read_model(args.model) if args.model else None
    build = None
    if args.engine:
        build = named_engine(args.engine, Builds(places().engines)).build
    elif model is not None:
        build = embedded_build()
    return judge(read(args), model, build)


def read(args: argparse.Namespace) -> Machine:
    """The machine that is asked about."""
    from workhorse.machine.probe import probe
    from workhorse.models.read import local_folder

    if args.machine is not None:
        return read_capture(args.machine)
    folder = local_folder(args.model) if args.model else None
    with LateBar(EXAMINING, args.lang) as bar:
        return probe(
            disk_path=folder or places().models,
            measure_s=0.0 if args.quick else 1.0,
            peers=True,
            on_progress=lambda share: bar.step(round(share * 100), 100),
        )


def read_capture(root: Path) -> Machine:
    """The machine in a capture. AppError when it is none, or tells nothing."""
    from workhorse.machine.probe import probe

    next_step = Text(
        "Write one with `workhorse probe --save DIR` on that machine, or leave out --machine.",
        "请在那台机器上用 `workhorse probe --save DIR` 生成，或省略 --machine 以检查本机。",
    )
    try:
        machine = probe(root)
    except AppError as error:
        raise AppError(error.what, next_step, exit_code=error.exit_code) from error
    facts = (
        machine.cpu.cores, machine.cpu.flags, machine.memory.total_bytes,
        machine.gpus, machine.gpu_troubles, machine.events,
    )  # fmt: skip
    if not any(facts):
        raise AppError(
            Text(f"{root} tells nothing of a machine.", f"{root} 中没有任何机器信息。"), next_step
        )
    return machine


def print_examination(verdict: Verdict, language: Language) -> None:
    """What is wrong, dearest first; what is well; what was not looked at; and a last line."""
    from workhorse.doctor.judge import UNCHECKED

    out = console()
    unchecked = [f for f in verdict.findings if f.code.startswith(UNCHECKED)]
    good = [f for f in verdict.findings if f.level == "good"]
    wrong = [f for f in verdict.findings if f.level != "good" and f not in unchecked]
    for finding in wrong:
        print_finding(out, finding, language)
    print_list(out, GOOD, "✓", good, language)
    print_list(out, NOT_LOOKED_AT, "?", unchecked, language)
    out.print()
    out.print(summary(wrong, language), style="bold", markup=False)
    sys.stdout.flush()


def print_finding(out: "Console", finding: Finding, language: Language) -> None:
    """One finding: seen, why, remedy, command, what follows from it, evidence, source."""
    from rich.markup import escape

    print_head(out, finding, language)
    print_indented(out, finding.why.in_language(language) + cost_words(finding, language), 4)
    print_indented(out, f"→ {finding.remedy.in_language(language)}", 4)
    if finding.command:
        # Whole, in one line: it is to be copied.
        out.print(f"      $ {escape(finding.command)}", style="cyan", soft_wrap=True)
    for text in finding.consequences:
        print_indented(out, f"+ {text.in_language(language)}", 4)
    for fact in finding.evidence[:EVIDENCE_LINES]:
        print_indented(out, f"· {fact}", 4, "dim")
    if (more := len(finding.evidence) - EVIDENCE_LINES) > 0:
        left = Text(f"· {more} more (--json)", f"· 另有 {more} 条（--json）")
        print_indented(out, left.in_language(language), 4, "dim")
    source = Text(f"source: {finding.source}", f"来源：{finding.source}")
    print_indented(out, source.in_language(language), 4, "dim")
    out.print()


def print_head(out: "Console", finding: Finding, language: Language) -> None:
    """Level, what was seen, and the code."""
    from rich.text import Text as Line

    colour, level = LEVELS[finding.level]
    doubt = DOUBTFUL.get(finding.sure)
    label = level.in_language(language)
    if doubt is not None:
        label += Text(f", {doubt.en}", f"（{doubt.zh}）").in_language(language)
    words = f"{label} {finding.seen.in_language(language)} {finding.code}"
    for number, words_of_line in enumerate(wrapped(words, out.width)):
        line = Line(words_of_line, style="bold")
        if number == 0:
            line.stylize(f"not bold {colour}", 0, len(label))
        if words_of_line.endswith(finding.code):
            line.stylize("not bold dim", len(words_of_line) - len(finding.code))
        out.print(line, soft_wrap=True)


def print_indented(out: "Console", words: str, indent: int, style: str = "") -> None:
    """A paragraph, each of its lines `indent` columns from the left."""
    from rich.text import Text as Line

    for line in wrapped(words, max(20, out.width - indent)):
        out.print(Line(" " * indent + line, style=style), soft_wrap=True)


def cost_words(finding: Finding, language: Language) -> str:
    """What it costs of the speed, where that is known."""
    share = finding.share_lost
    if share is None or not SHARE_WORTH_TELLING <= share < 1:
        return ""
    shown = show_share(share)
    return Text(f" Costs about {shown} of tok/s.", f"约损失 {shown} 的 tok/s。").in_language(
        language
    )


def print_list(
    out: "Console", title: Text, mark: str, findings: Sequence[Finding], language: Language
) -> None:
    """A titled list; nothing when it is empty."""
    if not findings:
        return
    out.print(f"[bold]{title.in_language(language)}[/]")
    for finding in findings:
        print_indented(out, f"{mark} {finding.seen.in_language(language)}", 2)


def summary(wrong: Sequence[Finding], language: Language) -> str:
    """The verdict in a line: `Nothing blocks. 2 warnings, 1 note.`"""
    counts = Counter(finding.level for finding in wrong)
    told = [
        f"{counts[level]} {words[counts[level] > 1].in_language(language)}"
        for level, words in COUNTS.items()
        if counts[level]
    ]
    comma, stop = Text(", ", "，").in_language(language), Text(".", "。").in_language(language)
    listed = comma.join(told)
    if counts["blocker"]:
        return listed + stop
    nothing = Text("Nothing blocks. ", "没有阻碍运行的问题。").in_language(language)
    return nothing + (listed + stop if told else Text(
        "Nothing to improve was found.", "没有发现可改进之处。"
    ).in_language(language))  # fmt: skip
