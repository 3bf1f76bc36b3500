"""`workhorse fleet plan`: how many of which box a number of users takes; starts nothing."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.arguments import add_choices, positive, share
from workhorse.cli.parser import not_taken
from workhorse.cli.progress import LateBar
from workhorse.codec import to_json
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.fleet.capacity import Goals, Lengths, Load
    from workhorse.fleet.capacity_answer import Answer

# Near the chats of a large cloud: prompts of 1020 and answers of 129 tokens in the median (Azure's
# conversation trace; Patel et al., Splitwise, ISCA 2024). Our own round numbers.
PROMPT_TOKENS, OUTPUT_TOKENS = 1000.0, 250.0
# How far the 95th percentile lies above the mean where only the mean is told: a chat's lengths
# spread about as widely as an exponential distribution.
P95_OF_MEAN = 3.0
# No log-normal distribution has its 95th percentile further out.
P95_MOST = 3.86
FIRST_TOKEN_S = 5.0
RATE_MOST_PER_S = 1e5
TOKENS_MOST = 10_000_000
BOXES_MOST = 10_000
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
RECKONING = Text("simulating", "模拟中")

WORDS = {
    "model": Text(
        "with --machine: the model, as `plan` takes it; several are one model in several sizes",
        "与 --machine 同用：模型（写法同 `plan`）；给出多个时视为同一模型的不同大小",
    ),
    "users": Text("how many people use it", "用户数"),
    "rate": Text(
        "requests of each user, such as 2/h; without --users of all together, such as 5/s",
        "每位用户的请求频率，如 2/h；不带 --users 时为总频率，如 5/s",
    ),
    "think": Text(
        "instead of --rate: each user asks again this long after an answer, such as 60s",
        "代替 --rate：每位用户得到回答后隔多久再次提问，如 60s",
    ),
    "prompt": Text(
        "tokens of a prompt: their mean, or mean:95th percentile (default 1000:3000)",
        "提示词词元数：均值，或 均值:95百分位（默认 1000:3000）",
    ),
    "output": Text(
        "tokens of an answer, in the same way (default 250:750)",
        "回答词元数，写法相同（默认 250:750）",
    ),
    "cached": Text(
        "share of each prompt that replicas have cached: a template, earlier turns",
        "提示词中已被副本缓存的比例：模板、之前的对话",
    ),
    "first": Text(
        "wished for: 95 of 100 first tokens come within this time (default 5s)",
        "目标：95%% 的请求在此时间内得到首个词元（默认 5s）",
    ),
    "speed": Text(
        "wished for: 95 of 100 answers are written this fast, in tok/s (default 5.3: as people "
        "read)",
        "目标：95%% 的回答达到此生成速度，单位 tok/s（默认 5.3，即阅读速度）",
    ),
    "machine": Text(
        "a box: a capture, `probe --json`, or texts of a machine; with =COUNT so many of it; "
        "left out: the running fleet",
        "机器：捕获文件、`probe --json` 的输出或机器文本；加 =数量 表示台数；"
        "省略则用正在运行的集群",
    ),
    "status": Text(
        "a fleet as `fleet status --json` showed it, instead of the running one",
        "用 `fleet status --json` 保存的集群代替正在运行的集群",
    ),
    "quant": Text("which file of a repository", "选择仓库中的哪个文件"),
    "queue": Text("requests that may wait in line (default 128)", "允许排队的请求数（默认 128）"),
    "seeds": Text(
        "how often it is simulated for the intervals (2 to 10, default 5)",
        "为得出区间而模拟的次数（2 到 10，默认 5）",
    ),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `fleet plan`."""
    said = {key: text.in_language(language) for key, text in WORDS.items()}
    add = parser.add_argument
    add("model", nargs="*", metavar="MODEL", help=said["model"])
    add("--users", type=positive, metavar="N", help=said["users"])
    add("--rate", type=rate, metavar="N/h", help=said["rate"])
    add("--think", type=duration, metavar="TIME", help=said["think"])
    add("--prompt", type=lengths, metavar="TOKENS", help=said["prompt"])
    add("--output", type=lengths, metavar="TOKENS", help=said["output"])
    add("--cached", type=share, default=0.0, metavar="PERCENT", help=said["cached"])
    add("--first-token", type=duration, default=FIRST_TOKEN_S, metavar="TIME", help=said["first"])
    add("--speed", type=speed, metavar="TOK/S", help=said["speed"])
    add("--machine", type=counted, action="append", metavar="FILE[=N]", help=said["machine"])
    add("--status", type=Path, metavar="FILE", help=said["status"])
    add("--queue", type=positive, metavar="N", help=said["queue"])
    add("--seeds", type=seeds, default=5, metavar="N", help=said["seeds"])
    add("--quant", metavar="TYPE", help=said["quant"])
    add_choices(parser, language, projector=False)


def run(args: argparse.Namespace) -> int:
    """Print how the boxes do and how many it takes; exit 3 when those that are there do not do."""
    from workhorse.cli.fleet_boxes import from_fleet, from_machines
    from workhorse.fleet.capacity_answer import answer
    from workhorse.fleet.queue_simulation import Rules

    load, goals = load_of(args), goals_of(args)
    offered = from_machines(args) if args.machine else from_fleet(args)
    for words in offered.told:
        print(words.in_language(args.lang), file=sys.stderr)
    rules = Rules() if args.queue is None else Rules(queue_length=args.queue)
    with LateBar(RECKONING, args.lang) as bar:
        found = answer(
            offered.there, offered.kinds, load, goals, rules, args.seeds, progress=bar.step
        )
    if args.json:
        print(to_json(found))
        return exit_code(found)
    from workhorse.cli.fleet_capacity_tables import print_answer

    print_answer(found, args.lang)
    return exit_code(found)


def exit_code(found: "Answer") -> int:
    """0: the boxes that are there do, or without any some number of one kind does; 3: no."""
    if found.outcome is not None:
        return EXIT_GOOD if found.outcome.holds else EXIT_NO
    return EXIT_GOOD if any(one.count is not None for one in found.alone) else EXIT_NO


def load_of(args: argparse.Namespace) -> "Load":
    """What is asked of the fleet; AppError when too little or too much is said of it."""
    from workhorse.fleet.capacity import Lengths, Load

    if args.rate is not None and args.think is not None:
        raise usage(
            Text("--rate and --think are two kinds of users.", "--rate 与 --think 互相矛盾。"),
            Text("Leave one of them out.", "请去掉其中一个。"),
        )
    if args.rate is None and (args.users is None or args.think is None):
        raise usage(
            Text("It is not told how much is asked.", "未说明请求量。"),
            Text(
                "Say --users 300 --rate 2/h, or --users 300 --think 60s, or --rate 5/s.",
                "例如：--users 300 --rate 2/h，或 --users 300 --think 60s，或 --rate 5/s。",
            ),
        )
    prompt = args.prompt or Lengths(PROMPT_TOKENS, PROMPT_TOKENS * P95_OF_MEAN)
    output = args.output or Lengths(OUTPUT_TOKENS, OUTPUT_TOKENS * P95_OF_MEAN)
    if args.rate is None:
        return Load(prompt, output, users=args.users, think_s=args.think, cached_share=args.cached)
    requests_per_s = args.rate * (args.users or 1)
    return Load(prompt, output, requests_per_s, args.users, cached_share=args.cached)


def goals_of(args: argparse.Namespace) -> "Goals":
    """What is wished for."""
    from workhorse.fleet.capacity import Goals
    from workhorse.fleet.fleet_plan import READING_TOKENS_PER_S

    return Goals(args.first_token, args.speed or READING_TOKENS_PER_S)


def usage(what: Text, next_step: Text) -> AppError:
    """Options that do not go together."""
    return AppError(what, next_step, exit_code=EXIT_USAGE)


def rate(word: str) -> float:
    """Requests a second from `2/h`, `0.5/s`, `10/min`, as argparse wants it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/\s*(s|min|h|d)", word.strip())
    found = float(match[1]) / SECONDS[match[2]] if match else 0.0
    if not 0 < found <= RATE_MOST_PER_S:
        raise not_taken(
            Text(f"{word} is no rate (such as 2/h or 5/s)", f"{word} 不是频率（如 2/h 或 5/s）")
        )
    return found


def duration(word: str) -> float:
    """Seconds from `60s`, `2min`, `1h` or `60`, as argparse wants it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)?", word.strip())
    found = float(match[1]) * SECONDS[match[2] or "s"] if match else 0.0
    if not 0 < found <= SECONDS["d"]:
        raise not_taken(
            Text(f"{word} is no time (such as 60s or 2min)", f"{word} 不是时间（如 60s 或 2min）")
        )
    return found


def lengths(word: str) -> "Lengths":
    """Lengths from `800` or `800:2400` (mean and 95th percentile), as argparse wants it."""
    from workhorse.fleet.capacity import Lengths

    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?", word.strip())
    mean = float(match[1]) if match else 0.0
    p95 = float(match[2]) if match and match[2] else mean * P95_OF_MEAN
    if not 1 <= mean <= p95 <= TOKENS_MOST:
        raise not_taken(
            Text(
                f"{word} is no length (such as 800 or 800:2400)",
                f"{word} 不是长度（如 800 或 800:2400）",
            )
        )
    if p95 > mean * P95_MOST:
        raise not_taken(
            Text(
                f"{word}: no lengths spread so far; at most {mean * P95_MOST:.0f} after the colon",
                f"{word}：分布过散；冒号后最多 {mean * P95_MOST:.0f}",
            )
        )
    return Lengths(mean, p95)


def speed(word: str) -> float:
    """Tokens a second above 0, as argparse wants it."""
    found = float(word)
    if not 0 < found < 1e6:
        raise not_taken(Text(f"{word} is no speed", f"{word} 不是速度"))
    return found


def counted(word: str) -> tuple[Path, int | None]:
    """A file and how many of it from `FILE` or `FILE=COUNT`, as argparse wants it."""
    name, sign, count = word.rpartition("=")
    if not sign or not count.isdigit():
        return Path(word), None
    if not 1 <= int(count) <= BOXES_MOST:
        raise not_taken(
            Text(
                f"{count} is not between 1 and {BOXES_MOST} boxes",
                f"{count} 不在 1 到 {BOXES_MOST} 台之间",
            )
        )
    return Path(name), int(count)


def seeds(word: str) -> int:
    """A number of seeds, as argparse wants it."""
    count = int(word)
    if not 2 <= count <= 10:
        raise not_taken(Text(f"{word} is not between 2 and 10", f"{word} 不在 2 到 10 之间"))
    return count
