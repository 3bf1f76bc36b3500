"""`workhorse up`: the main job, told on stderr, summed up on stdout."""

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.bench.scenario import STANDARD, Scenario
from workhorse.cli.arguments import add_cards, add_choices, add_model, ask_of, port
from workhorse.cli.plan import add_split, print_plan
from workhorse.cli.progress import FETCHING, MEASURING, LateBar
from workhorse.cli.show import console, print_error, print_table, print_verdict
from workhorse.codec import to_json
from workhorse.config import HOST, PORT, places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, AppError
from workhorse.plan.memory import device_bytes
from workhorse.text import Language, Text
from workhorse.units import (
    show_bytes,
    show_duration,
    show_range,
    show_rate,
    show_share,
    three_digits,
)

# A terminal may send one Ctrl-C twice; the second that counts is a new wish.
SECOND_SIGNAL_S = 1.0
END_ANYWAY_S = 3.0

if TYPE_CHECKING:
    from workhorse.bench.load import Progress
    from workhorse.bench.stats import Summary
    from workhorse.records import Launch, Plan, Verdict
    from workhorse.run.supervisor import Status
    from workhorse.up.decide import Ask, Decision


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `up`."""
    words = {
        "config": Text(
            "settings of the service in a TOML file (docs/settings.md)",
            "服务的 TOML 配置文件（docs/settings.md）",
        ),
        "host": Text(
            f"address to listen on (default {HOST}: this machine alone)",
            f"监听地址（默认 {HOST}，仅限本机）",
        ),
        "port": Text(f"port to listen on (default {PORT})", f"监听端口（默认 {PORT}）"),
        "dry": Text("print the plan and the engine's command; start nothing", "只打印方案与命令"),
        "golden": Text(
            "do not judge the golden answer (models with random weights)",
            "不检查标准回答（用于随机权重模型）",
        ),
        "measure": Text("do not measure after the start", "启动后不测速"),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    add_model(parser, language)
    add_choices(parser, language)
    add_cards(parser, language)
    add_split(parser, language)
    parser.add_argument("--config", type=Path, metavar="FILE", help=said["config"])
    parser.add_argument("--host", metavar="ADDRESS", help=said["host"])
    parser.add_argument("--port", type=port, metavar="N", help=said["port"])
    parser.add_argument("--dry-run", action="store_true", help=said["dry"])
    parser.add_argument("--skip-golden", action="store_true", help=said["golden"])
    parser.add_argument("--no-measure", action="store_true", help=said["measure"])


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; with `--dry-run` only say what would be done."""
    ask = ask_of(
        args,
        config=args.config,
        host=args.host,
        port=args.port,
        skip_golden=args.skip_golden,
        measure=not args.no_measure,
        gpus=args.gpus,
        engines=args.engines,
        split=args.split,
    )
    if args.dry_run:
        return dry_run(ask, args)
    return asyncio.run(serve(ask, Speaker(args.lang, as_json=args.json)))


def dry_run(ask: "Ask", args: argparse.Namespace) -> int:
    """The plan and the exact engine command, of each model that would be served."""
    from workhorse.settings import Settings, read_settings
    from workhorse.up.asks import asks_of, from_here
    from workhorse.up.several import decide_parts

    settings = read_settings(ask.config) if ask.config else Settings()
    with LateBar(FETCHING, args.lang) as fetching:
        asked = [from_here(one, places().models) for one in asks_of(ask, settings)]
        decisions = [
            (one, part.decision)
            for one in asked
            for part in decide_parts(one, places(), fetching.step)
        ]
    documents = [show_dry(*both, args) for both in decisions]
    if args.json:
        print(to_json(documents[0] if len(documents) == 1 else documents))
    good = all(would_start(decision) for _, decision in decisions)
    return EXIT_GOOD if good else EXIT_NO


def would_start(decision: "Decision") -> bool:
    """False when something speaks against the plan, or its engine cannot read what is here."""
    from workhorse.models.read import local_folder

    model, plan = decision.model, decision.plan
    unread = model.format != "gguf" and plan.pool is None and local_folder(model.path) is not None
    return not plan.verdict.blocked and not unread


def show_dry(
    ask: "Ask", decision: "Decision", args: argparse.Namespace
) -> dict[str, "Plan | Launch"]:
    """One plan and its engine command, printed unless they are wanted as a document."""
    from workhorse.engines.adapter import adapter_for
    from workhorse.engines.llamacpp import command_line
    from workhorse.models.read import local_folder, needs_local_file
    from workhorse.run.process import free_port

    start = adapter_for(decision.plan.engine).launch(decision.plan, free_port(HOST))
    if not args.json:
        print_plan(decision.plan, args.lang)
        print_verdict(decision.plan.verdict, args.lang)
        print(f"\n{command_line(start)}")
        here = decision.model.format == "gguf" or decision.plan.pool is not None
        if ask.model and (local_folder(ask.model) is None or not here):
            print_error(needs_local_file(decision.model.path), args.lang)
    return {"plan": decision.plan, "launch": start}


async def serve(ask: "Ask", speaker: "Speaker") -> int:
    """Run the main job until SIGINT, SIGTERM or a closed terminal, which end it in order."""
    from workhorse.up.job import up

    job = asyncio.ensure_future(up(ask, places(), speaker))
    stopping, stopping_since_s = False, 0.0
    loop = asyncio.get_running_loop()

    def stop() -> None:
        nonlocal stopping, stopping_since_s
        if not stopping:
            stopping, stopping_since_s = True, loop.time()
            job.cancel()
            speaker.stage(Text("stopping; again ends at once", "正在停止；再按一次立即结束"))
        elif loop.time() - stopping_since_s > SECOND_SIGNAL_S:
            job.cancel()  # ends what is in order's way
            # A stalled download holds a thread, and a thread the interpreter.
            end = threading.Timer(END_ANYWAY_S, os._exit, (EXIT_FAILED,))
            end.daemon = True
            end.start()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        loop.add_signal_handler(signal.SIGHUP, stop)
    try:
        return await job
    except asyncio.CancelledError:
        return EXIT_GOOD if stopping else EXIT_FAILED
    finally:
        speaker.close()


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """A service goes on when nobody reads its output any more: the rest is dropped.

    Such as after `| head`, or when its terminal was closed.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Speaker:
    """Tells the user how far `up` is: stages on stderr, the outcome on stdout."""

    def __init__(self, language: Language, *, as_json: bool) -> None:
        self.language = language
        self.as_json = as_json
        self._err = console(stderr=True)
        self._fetch_bar = LateBar(FETCHING, language)
        self._measure_bar = LateBar(MEASURING, language)
        self._verdict: Verdict | None = None  # of the plan that was told last

    def close(self) -> None:
        """Takes down whatever bar is still shown."""
        self._fetch_bar.close()
        self._measure_bar.close()

    @reader_may_leave()
    def say(self, words: Text, mark: str = "[dim]·[/]") -> None:
        """One line on stderr."""
        from rich.markup import escape

        self._err.print(f"{mark} {escape(words.in_language(self.language))}")

    def stage(self, words: Text) -> None:
        """A new stage begins."""
        self.close()
        self.say(words)

    def fetching(self, done_bytes: int, total_bytes: int | None) -> None:
        """The download goes on."""
        self._fetch_bar.step(done_bytes, total_bytes)

    @reader_may_leave()
    def decided(self, decision: "Decision", on: str) -> None:
        """The plan, whole when it says no, in one line when it says yes."""
        plan = decision.plan
        told_already, self._verdict = on and plan.verdict == self._verdict, plan.verdict
        self.close()
        if plan.verdict.blocked and not self.as_json:
            print_plan(plan, self.language)
        if self.as_json:
            print(to_json(plan), flush=True)
        if not told_already:
            print_verdict(plan.verdict, self.language, stderr=True)
        if not plan.verdict.blocked:
            self.say(summary_of(plan, on))

    @reader_may_leave()
    def verified(self, verdict: "Verdict", *, golden: bool) -> None:
        """What the engine's log and its answer to the golden prompt say."""
        print_verdict(verdict, self.language, stderr=True)
        if not verdict.findings:
            sound = Text(", its first answer is sound", "，首个回答正常")
            proven = sound if golden else Text("", "")
            words = Text(f"the engine runs as planned{proven.en}", f"引擎按方案运行{proven.zh}")
            self.say(words, "[green]✓[/]")

    @reader_may_leave()
    def ready(self, plan: "Plan", url: str, took_s: float, *, keyed: bool) -> None:
        """The service answers: where, under which name, and how to ask it."""
        if self.as_json:
            print(to_json({"url": f"{url}/v1", "model": plan.model_name}), flush=True)
            return
        took = show_duration(took_s)
        words = Text(f"ready after {took}", f"就绪，用时 {took}").in_language(self.language)
        stop = Text("Ctrl-C stops it.", "按 Ctrl-C 停止。").in_language(self.language)
        path, body = example(plan)
        print(f"\n{plan.model_name}  {url}/v1  ({words})")
        key = " -H 'Authorization: Bearer wh-…'" if keyed else ""
        kind = "-H 'Content-Type: application/json'"
        print(f"  curl {url}{path}{key} {kind} -d '{body}'")
        print(f"  {stop}\n", flush=True)

    def changed(self, status: "Status", on: str) -> None:
        """The engine died, restarts, is ready again, or was given up."""
        reason = status.reason or Text("", "")
        en, zh = "the engine", "引擎"
        if on:
            en, zh = f"{en} on {on}", f"{on} 上的{zh}"
        words = {
            "restarting": Text(
                f"{en} is being restarted: {reason.en}", f"正在重启{zh}：{reason.zh}"
            ),
            "ready": Text(f"{en} is ready again", f"{zh}已恢复"),
            "given_up": Text(
                f"{en} keeps dying and is not restarted any more: {reason.en}",
                f"{zh}反复退出，不再重启：{reason.zh}",
            ),
        }.get(status.state)
        if words is not None:
            self.say(words, "[green]✓[/]" if status.state == "ready" else "[red]![/]")

    def measuring(self, progress: "Progress") -> None:
        """A measurement goes on."""
        self._measure_bar.step(progress.pieces, STANDARD.generated_tokens)

    def gave_way(self) -> None:
        """A client came: the measurement stopped for it."""
        self._measure_bar.close()
        self.say(Text("measuring waits: a client is being served", "有客户端请求，暂停测速"))

    @reader_may_leave()
    def measured(
        self, plan: "Plan", scenario: Scenario, summary: "Summary", doubtful: "Verdict"
    ) -> None:
        """Predicted, measured, ceiling and share, as one table."""
        self.close()
        if self.as_json:
            print(to_json(summary), flush=True)
            return
        print_table(
            Text(
                f"Measured: one stream, {scenario.prompt_tokens} tokens in, "
                f"{scenario.output_tokens} out",
                f"实测：单路，输入 {scenario.prompt_tokens}、输出 {scenario.output_tokens} 词元",
            ),
            (Text("figure", "指标"), Text("value", "数值"), Text("from", "来源")),
            figures(plan, summary, self.language),
            self.language,
        )
        sys.stdout.flush()
        print_verdict(doubtful, self.language, stderr=True)

    @reader_may_leave()
    def not_measured(self, error: AppError) -> None:
        """The measurement could not be taken; the service runs on."""
        self.close()
        print_error(error, self.language)


def summary_of(plan: "Plan", on: str = "") -> Text:
    """The plan in one line; `on`: where among several engines of the model."""
    holders = ("layers", "experts", "output")
    places = dict.fromkeys(g.device for g in plan.placement if g.group in holders)
    where = f"{' + '.join(places) or 'RAM'}{f' ({on})' if on.startswith(('CPU', 'NUMA')) else ''}"
    total = show_bytes(sum(device_bytes(plan.budget, place) for place in places or ("RAM",)))
    pages = "huge" if plan.huge_pages else "small"
    return Text(
        f"{plan.model_name} on {where}: {plan.threads} thread{'s' * (plan.threads != 1)}, "
        f"{plan.slots} slot{'s' * (plan.slots != 1)} of {plan.context_tokens} tokens, "
        f"{pages} pages, {total} in all",
        f"{plan.model_name} 放在 {where}：{plan.threads} 线程，{plan.slots} 个槽位（各 "
        f"{plan.context_tokens} 词元），{'大页' if plan.huge_pages else '小页'}，共 {total}",
    )


def figures(plan: "Plan", summary: "Summary", language: Language) -> list[tuple[str, str, str]]:
    """One row a figure: predicted, measured, ceiling, share; each with where it comes from."""
    runs = Text(f"{summary.runs} runs, median", f"{summary.runs} 次运行的中位数")
    rows: list[tuple[Text, str, Text]] = []
    predicted, ceiling = plan.forecast.decode_tokens_per_s, plan.forecast.ceiling_tokens_per_s
    if predicted is not None:
        shown = show_range(predicted.value, predicted.low, predicted.high, three_digits) + " tok/s"
        rows.append((Text("decode, predicted", "解码（预测）"), shown, predicted.source))
    decode = summary.decode_tokens_per_s
    if decode is not None:
        shown = show_range(decode.median, decode.low, decode.high, three_digits) + " tok/s"
        rows.append((Text("decode, measured", "解码（实测）"), shown, runs))
    if ceiling is not None:
        rows.append(
            (Text("ceiling of the memory", "带宽上限"), show_rate(ceiling.value), ceiling.source)
        )
        if decode is not None:
            share = show_share(decode.median / ceiling.value)
            words = Text("measured over ceiling", "实测 / 上限")
            rows.append((Text("share of the ceiling", "达到上限"), share, words))
    ttft = summary.ttft_s
    if ttft is not None:
        shown = show_range(ttft.median, ttft.low, ttft.high, show_duration)
        rows.append((Text("time to first token", "首字延迟"), shown, runs))
    if summary.prefill_tokens_per_s is not None:
        rows.append(
            (Text("prefill", "预填充"), show_rate(summary.prefill_tokens_per_s.median), runs)
        )
    return [
        (name.in_language(language), value, source.in_language(language))
        for name, value, source in rows
    ]


def example(plan: "Plan") -> tuple[str, str]:
    """A route that the model can answer, and a request for it."""
    if plan.reranks:
        return "/v1/rerank", '{"query":"What is red?","documents":["Blood.","The sea."]}'
    if plan.embeddings:
        return "/v1/embeddings", '{"input":"Name three colours."}'
    asked = '{"messages":[{"role":"user","content":"Name three colours."}]}'
    return "/v1/chat/completions", asked
