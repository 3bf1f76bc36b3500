"""`workhorse host`: show the settings of the host, change them, and bring the originals back."""

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workhorse.cli.parser import not_taken
from workhorse.cli.show import console, print_table
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.doctor.host import Advice, advise
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.knowledge.host_settings import knobs
from workhorse.machine.host import Outcome, apply, read_only, read_settings, undo
from workhorse.machine.host_journal import Journal, read_journal
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN

ROOT = Path("/")
STATES = {
    "change": Text("to change", "待更改"),
    "by hand": Text("by hand", "手动"),
    "good": Text("good", "良好"),
    "no matter": Text("no matter", "无关"),
    "not here": Text("not here", "不可用"),
    "unknown": Text("unknown", "未知"),
}
ENDINGS = {
    "changed": Text("changed", "已更改"),
    "restored": Text("restored", "已恢复"),
    "as it was": Text("nothing to do", "无需操作"),
    "left": Text("left as it is", "保持不变"),
    "failed": Text("failed", "失败"),
}
HEAD = (
    Text("setting", "设置"),
    Text("now", "当前"),
    Text("best", "建议"),
    Text("verdict", "结论"),
)


@dataclass(frozen=True, slots=True)
class HostView:
    """What `host show --json` prints: advice on each setting, and the originals that are kept."""

    advice: tuple[Advice, ...]
    originals: Journal | None


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `host`."""
    names = ", ".join(knob.name for knob in knobs())
    parser.add_argument(
        "action",
        choices=("show", "apply", "undo"),
        help=Text(
            "show: each setting, the best value, why, what it costs; apply: keep the originals,"
            " then change; undo: bring the originals back",
            "show：各项设置、建议值、原因与代价；apply：先保存原值再更改；undo：恢复原值",
        ).in_language(language),
    )
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        type=_knob,
        metavar="KNOB",
        help=Text(f"only these settings: {names}", f"仅限这些设置：{names}").in_language(language),
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help=Text("apply without asking", "不询问，直接更改").in_language(language),
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help=Text(
            "undo what somebody else has changed since as well", "连他人之后改过的值也一并恢复"
        ).in_language(language),
    )
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help=Text(
            "show for a captured machine instead of this one", "查看采集到的另一台机器"
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Show, change or restore the settings."""
    if args.root is not None and args.action != "show":
        raise _usage(Text("--root only goes with `host show`.", "--root 只能与 `host show` 同用。"))
    if args.force and args.action != "undo":
        raise _usage(
            Text("--force only goes with `host undo`.", "--force 只能与 `host undo` 同用。")
        )
    actions = {"show": run_show, "apply": run_apply, "undo": run_undo}
    return actions[args.action](args)


def run_show(args: argparse.Namespace) -> int:
    """Print each setting; nothing is changed."""
    advice = look(args.root or ROOT, args.only)
    originals = None if args.root is not None else read_journal(places().host)
    if args.json:
        print(to_json(HostView(advice, originals)))
        return EXIT_GOOD
    print_settings(advice, args.lang)
    print_reasons(advice, args.lang)
    if originals is not None:
        print_originals(originals, args.lang)
    return EXIT_GOOD


def run_apply(args: argparse.Namespace) -> int:
    """Show what will change, ask, change it; exit 1 when a setting could not be changed."""
    advice = look(ROOT, args.only)
    changes = [change for one in advice for change in one.changes]
    if not changes:
        return _nothing_to_change(advice, args)
    require_root([change.path for change in changes], args)
    if not args.yes and not agreed([one for one in advice if one.changes], args):
        print(_DECLINED.in_language(args.lang), file=sys.stderr)
        return EXIT_FAILED
    try:
        outcomes = apply(ROOT, places().host, changes)
    except KeyboardInterrupt:
        print(_BROKEN_OFF.in_language(args.lang), file=sys.stderr)
        raise
    print_outcomes(outcomes, args)
    if not args.json and any(outcome.ending == "changed" for outcome in outcomes):
        console().print(_HOW_LONG.in_language(args.lang))
    return EXIT_FAILED if any(outcome.ending == "failed" for outcome in outcomes) else EXIT_GOOD


def run_undo(args: argparse.Namespace) -> int:
    """Restore; exit 1 when something could not be, 3 when something was left as it is."""
    folder = places().host
    journal = read_journal(folder)
    if journal is None:
        if args.json:
            print("[]")
        else:
            print(_NOTHING_KEPT.in_language(args.lang))
        return EXIT_GOOD
    require_root([original.path for original in journal.originals], args)
    outcomes = undo(ROOT, folder, only=args.only, force=args.force)
    print_outcomes(outcomes, args)
    endings = {outcome.ending for outcome in outcomes}
    if "left" in endings and not args.json:
        console().print(_left(folder).in_language(args.lang))
    return EXIT_FAILED if "failed" in endings else EXIT_NO if "left" in endings else EXIT_GOOD


def look(root: Path, only: Collection[str] | None) -> tuple[Advice, ...]:
    """Advice on the settings of the machine at `root`, those named or all."""
    from workhorse.machine.open_root import open_files
    from workhorse.machine.probe import read_machine

    files = open_files(root)
    current = read_settings(files)
    locked = read_only(root, current) if root == ROOT else frozenset()
    advice = advise(read_machine(files), current, locked)
    return tuple(one for one in advice if only is None or one.knob in only)


def require_root(paths: Iterable[str], args: argparse.Namespace) -> None:
    """AppError with the command to type when this user may not write the settings."""
    if os.geteuid() == 0 or all(os.access(ROOT / path, os.W_OK) for path in paths):
        return
    raise AppError(
        Text("Only root may change these settings.", "只有 root 才能更改这些设置。"),
        Text(f"Type: {root_command(args)}", f"请输入：{root_command(args)}"),
    )


def root_command(args: argparse.Namespace) -> str:
    """The same command for sudo, which knows neither our environment nor our PATH."""
    home = os.environ.get("WORKHORSE_HOME")
    words = ["sudo", *(["env", f"WORKHORSE_HOME={home}"] if home else [])]
    words += [sys.executable, "-m", "workhorse", "host", args.action]
    words += [f"--{name}" for name in ("yes", "force", "json") if getattr(args, name)]
    words += ["--only", *args.only] if args.only else []
    return shlex.join(words)


def agreed(advice: Sequence[Advice], args: argparse.Namespace) -> bool:
    """Show what would change and ask; AppError when there is no terminal to ask at."""
    if args.json or not sys.stdin.isatty():
        raise AppError(
            Text(
                "Nobody can be asked here, so nothing was changed.",
                "此处无法询问，因此未做任何更改。",
            ),
            Text(
                "Add --yes to change without asking; `workhorse host show` shows what would.",
                "加上 --yes 可不询问直接更改；`workhorse host show` 可查看将更改的内容。",
            ),
            exit_code=EXIT_USAGE,
        )
    print_settings(advice, args.lang)
    print_reasons(advice, args.lang)
    sys.stdout.flush()
    question = Text("Change these settings? [y/N] ", "更改以上设置？[y/N] ")
    print(question.in_language(args.lang), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes", "是", "好")


def print_settings(advice: Sequence[Advice], language: Language) -> None:
    """One row a setting."""
    print_table(
        Text("Settings of this host", "本机设置"),
        HEAD,
        (
            (
                one.label.in_language(language),
                one.current or UNKNOWN,
                one.recommended or UNKNOWN,
                STATES[one.state].in_language(language),
            )
            for one in advice
        ),
        language,
    )


def print_reasons(advice: Sequence[Advice], language: Language) -> None:
    """Why, the cost and the commands of what is to change; why not of what is not."""
    cost = Text("Cost: ", "代价：").in_language(language)
    takes = Text("Takes: ", "可选：").in_language(language)
    comma = Text(", ", "、").in_language(language)
    grouped: dict[tuple[str, str], list[Advice]] = {}
    for one in advice:
        if one.state != "good":
            why = one.why.in_language(language)
            grouped.setdefault((STATES[one.state].in_language(language), why), []).append(one)
    for (state, why), group in grouped.items():
        names = comma.join(f"{one.label.in_language(language)} ({one.knob})" for one in group)
        print_indented(state + Text(": ", "：").in_language(language) + names, 0, style="bold")
        print_indented(why, 4)
        for one in group:
            if one.state not in ("change", "by hand"):
                continue
            if one.offered:
                print_indented(takes + comma.join(one.offered), 4, style="dim")
            if one.cost is not None:
                print_indented(cost + one.cost.in_language(language), 4, style="dim")
            for command in one.commands:
                # Never folded: it is to be copied.
                console().print(f"      $ {command}", markup=False, soft_wrap=True)


def print_indented(words: str, indent: int, style: str = "") -> None:
    """One paragraph, its further lines as far in as the first."""
    from rich.padding import Padding
    from rich.text import Text as Paragraph

    console().print(Padding(Paragraph(words, style=style), (0, 0, 0, indent)))


def print_originals(journal: Journal, language: Language) -> None:
    """What is kept, and how to bring it back."""
    names = ", ".join(dict.fromkeys(original.knob for original in journal.originals))
    text = Text(
        f"`host apply` keeps originals since {journal.stored_at}: {names}."
        " `workhorse host undo` brings them back.",
        f"`host apply` 自 {journal.stored_at} 起保存着原值：{names}。"
        "用 `workhorse host undo` 恢复。",
    )
    console().print(text.in_language(language), markup=False)


def print_outcomes(outcomes: Sequence[Outcome], args: argparse.Namespace) -> None:
    """One row for all files of a setting that went the same way."""
    if args.json:
        print(to_json(outcomes))
        return
    labels = {knob.name: Text(knob.en, knob.zh) for knob in knobs()}
    alike = Counter((o.knob, o.before, o.now, o.ending, o.why) for o in outcomes)
    rows = []
    for (knob, before, now, ending, why), files in alike.items():
        result = ENDINGS[ending].in_language(args.lang)
        colon = Text(": ", "：").in_language(args.lang)
        said = f"{result}{colon}{why.in_language(args.lang)}" if why else result
        label = labels[knob].in_language(args.lang)
        shown = f"{label} (×{files})" if files > 1 else label
        rows.append((shown, before or UNKNOWN, now or UNKNOWN, said))
    head = (HEAD[0], Text("before", "原先"), Text("now", "当前"), Text("result", "结果"))
    print_table(Text("Settings of this host", "本机设置"), head, rows, args.lang)


def _nothing_to_change(advice: Sequence[Advice], args: argparse.Namespace) -> int:
    """Say so; of settings that were named the answer is no when they cannot be set here."""
    if args.json:
        print("[]")
    else:
        print(_NOTHING_TO_CHANGE.in_language(args.lang))
        print_reasons([one for one in advice if one.state != "no matter"], args.lang)
    unable = any(one.state not in ("good", "no matter") for one in advice)
    return EXIT_NO if args.only and unable else EXIT_GOOD


def _knob(word: str) -> str:
    if word not in {knob.name for knob in knobs()}:
        raise not_taken(Text(f"no setting is called {word!r}", f"没有名为 {word!r} 的设置"))
    return word


def _usage(what: Text) -> AppError:
    return AppError(
        what,
        Text("`workhorse host --help` shows the options.", "选项见 `workhorse host --help`。"),
        exit_code=EXIT_USAGE,
    )


def _left(folder: Path) -> Text:
    return Text(
        "`workhorse host undo --force` overwrites what somebody else has set;"
        f" the originals stay in {folder} until then.",
        f"`workhorse host undo --force` 会覆盖他人所设的值；在此之前原值保留在 {folder}。",
    )


_DECLINED = Text("Nothing was changed.", "未做任何更改。")
_NOTHING_KEPT = Text(
    "No originals are kept: there is nothing to undo.", "没有保存的原值，无需恢复。"
)
_NOTHING_TO_CHANGE = Text("There is nothing to change here.", "此处没有需要更改的设置。")
_BROKEN_OFF = Text(
    "Broken off. The originals are kept: `workhorse host undo` brings them back.",
    "已中断。原值已保存，可用 `workhorse host undo` 恢复。",
)
_HOW_LONG = Text(
    "These values hold until the machine restarts; `workhorse host undo` brings the originals"
    " back before that.",
    "这些设置在重启前有效；之前可用 `workhorse host undo` 恢复原值。",
)
