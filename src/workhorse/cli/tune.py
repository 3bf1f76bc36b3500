"""`workhorse tune`: the settings that are fastest here, found by trying them one at a time."""

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.arguments import add_choices, add_model, ask_of
from workhorse.cli.parser import not_taken
from workhorse.cli.progress import FETCHING, LateBar
from workhorse.cli.show import print_verdict
from workhorse.cli.tune_given import given_of, paths
from workhorse.cli.tune_live import LiveTeller
from workhorse.cli.tune_tables import (
    STOPPED,
    check_report,
    print_replay,
    print_space,
    print_trials,
    tell_end,
)
from workhorse.cli.until_stopped import until_stopped
from workhorse.codec import to_json
from workhorse.config import Places, places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, AppError
from workhorse.text import Language, Text
from workhorse.tune.tell import VARIABLES

if TYPE_CHECKING:
    from workhorse.tune.history import History, Tuning
    from workhorse.up.decide import Ask, Decision

DURATION = re.compile(r"(?:(\d{1,3})h)?(?:(\d{1,4})m)?(?:(\d{1,5})s)?")
# Below it the engine's start and the last measurement leave no time for a trial.
LEAST_BUDGET_S = 30.0
NO_TRIALS = Text("Nothing was tried yet.", "尚无试验。")
EARLIER = Text(
    "An earlier tuned plan is in use again; `workhorse tune --undo` takes that back as well.",
    "更早的调优方案重新生效；再次运行 `workhorse tune --undo` 可一并撤销。",
)


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `tune`."""

    def words(en: str, zh: str) -> str:
        return Text(en, zh).in_language(language)

    add_model(parser, language)
    add_choices(parser, language)
    add = parser.add_argument
    add(
        "--budget",
        type=duration,
        metavar="TIME",
        help=words(
            "how long it may take, such as 20m or 1h30m (default: until nothing is left)",
            "最长用时，如 20m 或 1h30m（默认直到没有可试的设置）",
        ),
    )
    add(
        "--only",
        type=names,
        default=(),
        metavar="VAR[,VAR…]",
        help=words("try these variables alone, such as threads,kv", "只试这些变量，如 threads,kv"),
    )
    add(
        "--quality",
        type=divergence,
        metavar="KL",
        help=words(
            "most that the next token's probabilities may differ from the plan's own, as KL "
            "divergence, such as 0.01 (default: not measured)",
            "下一词元概率与原方案的最大差异（KL 散度，如 0.01；默认不测）",
        ),
    )
    add(
        "--files",
        type=paths,
        default=(),
        metavar="FILE[,FILE…]",
        help=words(
            "other quants of this model to try as well, within --quality",
            "同一模型的其他量化文件，在 --quality 限度内一并试用",
        ),
    )
    add(
        "--skip-golden",
        action="store_true",
        help=words(
            "do not judge the golden answer (models with random weights)",
            "不检查标准回答（用于随机权重模型）",
        ),
    )
    add(
        "--report",
        type=Path,
        metavar="FILE",
        help=words("write the story as Markdown to this file", "把调优过程写成 Markdown 文件"),
    )
    add_other_tasks(parser, words)


def add_other_tasks(parser: argparse.ArgumentParser, words: Callable[[str, str], str]) -> None:
    """The options that do something else than tune."""
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--dry-run",
        action="store_true",
        help=words(
            "start nothing: decide the stored trials anew, or say what would be tried",
            "不启动任何引擎：重新判定已存的试验，或列出将要尝试的设置",
        ),
    )
    other.add_argument(
        "--show",
        action="store_true",
        help=words("show the latest tuning of this model", "显示该模型最近一次调优"),
    )
    other.add_argument(
        "--undo",
        action="store_true",
        help=words(
            "let `up` and `plan` use this model's tuned plan no more; the trials stay",
            "让 `up` 和 `plan` 不再使用该模型的调优方案（试验记录保留）",
        ),
    )


def duration(word: str) -> float:
    """Seconds from `20m`, `90s`, `1h30m`, as argparse wants it."""
    found = DURATION.fullmatch(word.strip().lower())
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total_s = float(hours * 3600 + minutes * 60 + seconds)
    if total_s < LEAST_BUDGET_S:
        raise not_taken(
            Text(
                f"{word} is no time of at least {LEAST_BUDGET_S:.0f} s, such as 20m or 1h30m",
                f"{word} 不是至少 {LEAST_BUDGET_S:.0f} 秒的时长（如 20m、1h30m）",
            )
        )
    return total_s


def names(word: str) -> tuple[str, ...]:
    """Variables from `threads,kv`; known ones alone, as argparse wants it."""
    wanted = tuple(dict.fromkeys(part.strip() for part in word.split(",") if part.strip()))
    unknown = [name for name in wanted if name not in VARIABLES]
    if unknown or not wanted:
        listed = ", ".join(VARIABLES)
        raise not_taken(
            Text(
                f"there is no variable {', '.join(unknown) or word!r}; there are {listed}",
                f"没有变量 {', '.join(unknown) or word!r}；可选：{listed}",
            )
        )
    return wanted


def divergence(word: str) -> float:
    """A KL divergence above zero, as argparse wants it."""
    number = float(word)
    if not 0 < number <= 10:
        raise not_taken(
            Text(f"{word} is no KL divergence (such as 0.01)", f"{word} 不是 KL 散度（如 0.01）")
        )
    return number


def run(args: argparse.Namespace) -> int:
    """Tune, or show what was tuned, or take it back."""
    ask = replace(ask_of(args, skip_golden=args.skip_golden), tuned=False)
    where = places()
    if args.undo:
        return undo(ask, where, args)
    if args.show:
        return show(ask, where, args)
    if args.dry_run:
        return dry_run(ask, where, args)
    check_report(args.report)
    decision = decided(ask, where, args.lang)
    print_verdict(decision.plan.verdict, args.lang, stderr=True)
    if decision.plan.verdict.blocked:
        return EXIT_NO
    from workhorse.tune.job import Wanted, tune

    given = given_of(decision, ask, where, args)
    teller = LiveTeller(args.lang)
    wanted = Wanted(given, args.budget, args.only, golden=not args.skip_golden)
    try:
        tuned = asyncio.run(until_stopped(tune(wanted, where, teller)))
    finally:
        teller.close()
    if tuned is None:
        print(STOPPED.in_language(args.lang), file=sys.stderr)
        return EXIT_FAILED
    tell_end(tuned, args)
    return EXIT_GOOD


def decided(ask: "Ask", where: Places, language: Language) -> "Decision":
    """The plan to start from, without what was tuned before."""
    from workhorse.up.decide import decide

    with LateBar(FETCHING, language) as fetching:
        return decide(ask, where, fetching.step)


def latest(ask: "Ask", where: Places, language: Language) -> "tuple[History, Tuning]":
    """The latest tuning of the asked model; AppError when there is none."""
    from workhorse.tune.fingerprint import model_key
    from workhorse.tune.history import History
    from workhorse.tune.kept import goal_of

    history = History(where.tuning)
    model = None
    if ask.model is not None:
        model = model_key(decided(ask, where, language).model)
    goal = goal_of(ask.wish) if ask.wish.purpose else None
    found = history.latest(model, goal)
    if found is None:
        raise AppError(
            Text("No such model was tuned on this machine.", "本机没有对该模型的调优记录。"),
            Text("Tune it: `workhorse tune MODEL`.", "请先调优：`workhorse tune MODEL`。"),
        )
    return history, found


def show(ask: "Ask", where: Places, args: argparse.Namespace) -> int:
    """Print the latest tuning: its trials, and what it ended with."""
    check_report(args.report)
    history, tuning = latest(ask, where, args.lang)
    trials, result = history.trials(tuning), history.result(tuning)
    if result is not None and len(result.trials) == len(trials):
        if trials and not args.json:
            print_trials(trials, args.lang)
        tell_end(result, args)
        return EXIT_GOOD
    if args.json:
        print(to_json({"about": tuning.about, "began_at": tuning.began_at, "trials": trials}))
    elif not trials:
        print(NO_TRIALS.in_language(args.lang))
    else:
        print_trials(trials, args.lang)
        print(STOPPED.in_language(args.lang))
    return EXIT_GOOD


def undo(ask: "Ask", where: Places, args: argparse.Namespace) -> int:
    """Take the tuned plan of a model out of use."""
    from workhorse.tune.fingerprint import model_key
    from workhorse.tune.kept import GOALS, KeptPlans, goal_of

    model = model_key(decided(ask, where, args.lang).model)
    goal = goal_of(ask.wish) if ask.wish.purpose else None
    kept = KeptPlans(where.tuning)
    count = kept.undo(model, goal, datetime.now(UTC).isoformat("T", "seconds"))
    goals = tuple(GOALS.values()) if goal is None else (goal,)
    earlier = bool(count) and any(kept.latest(model, one) for one in goals)
    words = Text(
        f"{count} tuned plan{'s' * (count != 1)} taken back; the trials stay in the history.",
        f"已撤销 {count} 个调优方案；试验记录保留。",
    )
    if args.json:
        print(to_json({"undone": count, "earlier_in_use": earlier}))
        return EXIT_GOOD if count else EXIT_NO
    print(words.in_language(args.lang))
    if earlier:
        print(EARLIER.in_language(args.lang))
    return EXIT_GOOD if count else EXIT_NO


def dry_run(ask: "Ask", where: Places, args: argparse.Namespace) -> int:
    """Decide the stored trials of the model anew; without any, say what would be tried."""
    from workhorse.tune.fingerprint import model_key
    from workhorse.tune.history import History
    from workhorse.tune.job import PAIRS_MAX
    from workhorse.tune.replay import replay
    from workhorse.tune.search import Limits
    from workhorse.tune.space import space_of

    decision = decided(ask, where, args.lang)
    given = given_of(decision, ask, where, args)
    history = History(where.tuning)
    tuning = history.latest(model_key(decision.model), given.goal)
    trials = () if tuning is None else history.trials(tuning)
    if tuning is None or not trials:
        around = space_of(given, ())
        if args.json:
            print(to_json(around))
        else:
            print_space(around, args.lang)
        return EXIT_GOOD
    then = tuning.given
    found = replay(lambda kept: space_of(then, kept), trials, Limits(), pairs_max=PAIRS_MAX)
    if args.json:
        print(to_json(found))
    else:
        print_replay(found, args.lang)
    return EXIT_GOOD
