"""`workhorse fleet up`: all nodes as one service, told on stderr, summed up on stdout."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.arguments import port, positive, share
from workhorse.cli.progress import LateBar
from workhorse.cli.show import console
from workhorse.codec import to_json
from workhorse.config import HOST, PORT, places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.text import Language, Text
from workhorse.units import show_duration

if TYPE_CHECKING:
    from workhorse.fleet.fleet_plan import FleetPlan
    from workhorse.fleet.up import FleetAsk, FleetUp

AUTO = "auto"
WORKING = Text("preparing", "准备中")
OPTIONS = {
    "model": Text(
        "GGUF files or a checkpoint's folder on this machine, pulled models by name; several "
        "are one model in several sizes, of which each kind of node gets the one that suits "
        "it; left out: the embedded model",
        "本机上的 GGUF 文件、模型目录，或已下载模型的名称；给出多个时视为同一模型的不同大小，"
        "每类节点选用最合适的一个；省略则用内置模型",
    ),
    "replicas": Text(
        "how many replicas there are (default auto: one in every place that a node has)",
        "副本数（默认 auto：节点的每个可用位置各一个）",
    ),
    "min": Text(
        "let the number follow the queue, and never be less than this (default 1)",
        "按排队情况自动增减副本，最少保留的个数（默认 1）",
    ),
    "max": Text(
        "… and never more than this (default: every place)",
        "自动增减时最多的副本数（默认不限）",
    ),
    "users": Text(
        "people who chat at a time: start no more replicas than they need",
        "同时使用的人数：只启动所需数量的副本",
    ),
    "context": Text("context of one slot", "每个槽位的上下文长度"),
    "slots": Text("requests that one replica answers at a time", "每个副本同时应答的请求数"),
    "for": Text(
        "what it is for: sets context and slots where you do not",
        "用途：决定未指定的上下文和槽位",
    ),
    "engine": Text(
        "auto, llama.cpp, vllm or lmdeploy (default auto: the best on each node)",
        "auto、llama.cpp、vllm 或 lmdeploy（默认 auto：各节点自动选择）",
    ),
    "headroom": Text(
        "share of each device that stays free (default: 20%%)",
        "每个设备保留的余量（默认 20%%）",
    ),
    "config": Text(
        "settings of the service in a TOML file (docs/settings.md)",
        "服务的 TOML 配置文件（docs/settings.md）",
    ),
    "host": Text(
        f"address to listen on (default {HOST}: this machine alone)",
        f"监听地址（默认 {HOST}，仅限本机）",
    ),
    "port": Text(f"port to listen on (default {PORT})", f"监听端口（默认 {PORT}）"),
    "trust": Text(
        "hold on several nodes together what no node has room for, by llama.cpp's RPC, "
        "which asks for no key: only on a network that nobody else is on",
        "用 llama.cpp 的 RPC 把单个节点放不下的模型放在多个节点上；RPC 没有任何认证，"
        "仅可用于没有他人接入的网络",
    ),
    "dry": Text("print the plan; start nothing", "只打印方案，不启动"),
    "golden": Text(
        "do not judge the golden answer (models with random weights)",
        "不检查标准回答（用于随机权重模型）",
    ),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `fleet up`."""
    said = {key: text.in_language(language) for key, text in OPTIONS.items()}
    add = parser.add_argument
    add("model", nargs="*", metavar="MODEL", help=said["model"])
    add("--replicas", default=AUTO, metavar="auto|N", help=said["replicas"])
    add("--min", type=positive, metavar="N", help=said["min"])
    add("--max", type=positive, metavar="N", help=said["max"])
    add("--users", type=positive, metavar="N", help=said["users"])
    add("--context", type=positive, metavar="TOKENS", help=said["context"])
    add("--slots", type=positive, metavar="N", help=said["slots"])
    add("--for", dest="purpose", choices=("chat", "long", "batch"), help=said["for"])
    add("--engine", metavar="ENGINE", help=said["engine"])
    add("--headroom", type=share, metavar="PERCENT", help=said["headroom"])
    add("--config", type=Path, metavar="FILE", help=said["config"])
    add("--host", metavar="ADDRESS", help=said["host"])
    add("--port", type=port, metavar="N", help=said["port"])
    add("--trust-link", action="store_true", help=said["trust"])
    add("--dry-run", action="store_true", help=said["dry"])
    add("--skip-golden", action="store_true", help=said["golden"])


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; with `--dry-run` only say what would be done."""
    from workhorse.fleet.connect import connect
    from workhorse.fleet.member import this_member

    ask, where = ask_of(args), places()
    member = this_member(where)
    if not member.head:
        raise not_the_head(member.address)
    speaker = Speaker(args.lang, as_json=args.json)
    # Before there is an event loop: Ray sets signal handlers of its own when it connects.
    cluster = connect(member)
    from workhorse.fleet.on_ray.deploy import Deployments
    from workhorse.fleet.up import FleetUp

    # What happens is told in our words; Ray would print the stack of each node that dies.
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    job = FleetUp(ask, where, member, cluster, Deployments(cluster), speaker)
    try:
        return asyncio.run(dry_run(job, speaker) if args.dry_run else serve(job, speaker))
    finally:
        cluster.close()


def ask_of(args: argparse.Namespace) -> "FleetAsk":
    """What the user asked for; an AppError where it contradicts itself."""
    from workhorse.fleet.up import FleetAsk
    from workhorse.plan.wish import HEADROOM, Wish

    replicas = replicas_asked(args.replicas)
    if replicas is not None and (args.min or args.max or args.users):
        raise AppError(
            Text(
                "--replicas N fixes the number that --min, --max and --users leave open.",
                "--replicas N 固定了副本数，不能与 --min、--max、--users 同时使用。",
            ),
            Text("Give the one or the others.", "请只用其中一种。"),
            exit_code=EXIT_USAGE,
        )
    if args.min and args.max and args.min > args.max:
        raise AppError(
            Text(
                f"--min {args.min} is above --max {args.max}.",
                f"--min {args.min} 大于 --max {args.max}。",
            ),
            Text("Give a smaller --min.", "请减小 --min。"),
            exit_code=EXIT_USAGE,
        )
    headroom = HEADROOM if args.headroom is None else args.headroom
    return FleetAsk(
        files=tuple(args.model),
        engine=args.engine,
        wish=Wish(args.context, args.slots, args.purpose, headroom),
        replicas=replicas,
        least=args.min,
        most=args.max,
        users=args.users,
        host=args.host,
        port=args.port,
        config=args.config,
        skip_golden=args.skip_golden,
        trust_link=args.trust_link,
    )


def replicas_asked(word: str) -> int | None:
    """The number of replicas; None for `auto`."""
    if word == AUTO:
        return None
    if word.isascii() and word.isdecimal() and 1 <= int(word) <= 100_000:
        return int(word)
    raise AppError(
        Text(f"{word[:40]!r} is no number of replicas.", f"{word[:40]} 不是有效的副本数。"),
        Text("Give a number from 1 on, or auto.", "请给出 1 以上的整数，或 auto。"),
        exit_code=EXIT_USAGE,
    )


def not_the_head(address: str) -> AppError:
    """`fleet up` and its gateway run where the fleet is led."""
    return AppError(
        Text(
            f"This machine is not the head of its fleet; {address} is.",
            f"本机不是集群的主节点，主节点为 {address}。",
        ),
        Text("Run this on the head.", "请在主节点上运行。"),
        exit_code=EXIT_NO,
    )


async def dry_run(job: "FleetUp", speaker: "Speaker") -> int:
    """Only the plan."""
    try:
        plan = await job.plan()
    finally:
        speaker.close()
    speaker.planned(plan)
    return EXIT_GOOD if plan.replicas else EXIT_NO


async def serve(job: "FleetUp", speaker: "Speaker") -> int:
    """Run the service until SIGINT, SIGTERM or a closed terminal, which end it in order."""
    from workhorse.cli.until_stopped import until_stopped

    try:
        ended = await until_stopped(job.serve())
    finally:
        speaker.close()
    return EXIT_GOOD if ended is None else ended


class Speaker:
    """Tells the user how far `fleet up` is: stages on stderr, the outcome on stdout."""

    def __init__(self, language: Language, *, as_json: bool) -> None:
        self.language, self.as_json = language, as_json
        self._err = console(stderr=True)
        self._bar = LateBar(WORKING, language)

    def close(self) -> None:
        """Take down a bar that is still shown."""
        self._bar.close()

    def stage(self, words: Text) -> None:
        """A new stage begins."""
        from workhorse.cli.up import reader_may_leave

        self.close()
        with reader_may_leave():
            self._err.print(f"· {words.in_language(self.language)}", markup=False)

    def progress(self, done: int, total: int | None) -> None:
        """Steps or bytes of this stage."""
        self._bar.step(done, total)

    def planned(self, plan: "FleetPlan") -> None:
        """What each node will do."""
        from workhorse.cli.fleet_plan_tables import print_fleet_plan
        from workhorse.cli.up import reader_may_leave

        self.close()
        with reader_may_leave():
            if self.as_json:
                print(to_json(plan), flush=True)
            else:
                print_fleet_plan(plan, self.language)
                sys.stdout.flush()

    def ready(self, model_name: str, url: str, took_s: float, *, keyed: bool) -> None:
        """The service answers: where, under which name."""
        from workhorse.cli.up import reader_may_leave

        with reader_may_leave():
            if self.as_json:
                print(to_json({"url": f"{url}/v1", "model": model_name}), flush=True)
                return
            took = show_duration(took_s)
            words = Text(f"ready after {took}", f"就绪，用时 {took}").in_language(self.language)
            stop = Text("Ctrl-C drains and ends it.", "按 Ctrl-C 排空并停止。")
            key = " -H 'Authorization: Bearer wh-…'" if keyed else ""
            body = '{"messages":[{"role":"user","content":"Name three colours."}]}'
            print(f"\n{model_name}  {url}/v1  ({words})")
            print(
                f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
                f"-d '{body}'"
            )
            print(f"  {stop.in_language(self.language)}\n", flush=True)
