"""`workhorse status`: how the running services are, also as an exit code."""

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workhorse.cli.arguments import port
from workhorse.cli.show import print_table, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, AppError
from workhorse.records import Verdict
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_duration, show_rate

if TYPE_CHECKING:
    from workhorse.up.status import EngineStatus, ServiceStatus

STATES = {
    "starting": Text("starting", "启动中"),
    "planning": Text("planning", "制定方案"),
    "ready": Text("ready", "就绪"),
    "degraded": Text("degraded: not every engine is ready", "降级：部分引擎未就绪"),
    "down": Text("no engine is ready", "没有就绪的引擎"),
    "failed": Text("failed: the engine keeps dying", "失败：引擎反复退出"),
    "restarting": Text("restarting", "重启中"),
    "stopped": Text("stopped", "已停止"),
    "given_up": Text("given up", "已放弃重启"),
    "out_of_service": Text("out of service", "已停止服务"),
    "reloading": Text("reloading", "重载中"),
    "draining": Text("stopping; running answers may end", "停止中，等待回答结束"),
    "silent": Text("its process lives and does not answer", "进程存在但无应答"),
}
HEAD = (
    Text("model", "模型"),
    Text("state", "状态"),
    Text("restarts", "重启次数"),
    Text("running", "进行中"),
    Text("waiting", "排队"),
    Text("decode", "解码"),
    Text("expected", "预期"),
    Text("prefill", "预填充"),
    Text("TTFT", "首字延迟"),
)


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `status`."""
    words = Text(
        "only the service on this port (default: every one)", "只看该端口的服务（默认全部）"
    )
    parser.add_argument("--port", type=port, metavar="N", help=words.in_language(language))


def run(args: argparse.Namespace) -> int:
    """Show them; 0: all is well, 3: something is not as it should be, 1: none runs."""
    from workhorse.up.outside import services, status_of

    found = [status_of(file) for file in services(places(), args.port)]
    if not found:
        raise not_running(args.port)
    if args.json:
        print(to_json(found[0] if len(found) == 1 else found))
    else:
        for status in found:
            show(status, args.lang)
    return max((status.exit_code for status in found), default=EXIT_GOOD)


def not_running(port_asked: int | None) -> AppError:
    """No service is there: the error of `status` and `reload`."""
    on = Text(f" on port {port_asked}", f"（端口 {port_asked}）") if port_asked else Text("", "")
    return AppError(
        Text(f"No service runs{on.en}.", f"没有正在运行的服务{on.zh}。"),
        Text(
            "`workhorse up` starts one; another user's is seen with that user's WORKHORSE_HOME.",
            "用 `workhorse up` 启动；其他用户的服务需指定其 WORKHORSE_HOME 才能看到。",
        ),
        exit_code=EXIT_FAILED,
    )


def show(status: "ServiceStatus", language: Language) -> None:
    """One service: how it is, its engines, what is wrong."""
    up_s = max(0.0, time.time() - status.started_unix_s)
    state, since = STATES[status.state], show_duration(up_s)
    print_table(
        Text(
            f"{status.url}/v1: {state.en} (process {status.pid}, up {since})",
            f"{status.url}/v1：{state.zh}（进程 {status.pid}，已运行 {since}）",
        ),
        HEAD,
        [engine_row(one, language) for one in status.engines],
        language,
    )
    for engine in status.engines:
        if engine.reason is not None and engine.state != "ready":
            print(f"{engine.name}: {engine.reason.in_language(language)}")
    if status.batches:
        words = Text(
            f"Batches that are being answered: {status.batches}",
            f"正在处理的批处理：{status.batches}",
        )
        print(words.in_language(language))
    on = [alarm.finding for alarm in status.alarms if alarm.over_unix_s is None]
    print_verdict(Verdict(tuple(on)), language)


def engine_row(engine: "EngineStatus", language: Language) -> Sequence[str]:
    """One engine in the table."""
    now = engine.reading
    slots = "" if now is None or now.slots is None else f" / {now.slots}"
    return (
        engine.name,
        STATES[engine.state].in_language(language) if engine.state in STATES else engine.state,
        str(engine.restarts),
        UNKNOWN if now is None else f"{now.generating}{slots}",
        UNKNOWN if now is None else str(now.waiting),
        show_rate(now.decode_tokens_per_s if now else None),
        show_rate(engine.expected_tokens_per_s),
        show_rate(now.prefill_tokens_per_s if now else None),
        show_duration(now.ttft_s if now else None),
    )
