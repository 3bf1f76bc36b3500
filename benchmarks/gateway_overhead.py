"""What the gateway adds, and what others add: against direct, with the fake engine, in turns.

    python benchmarks/gateway_overhead.py [--litellm FILE] [--vllm-router FILE]

The fake engine gives the first token after 50 ms and one more each 30 ms, so what is late was
made late on the way. `at once`: all streams begin in the same instant, which is the worst that
can come; `spread`: over one second. `awake`: with processes of the lowest priority that keep the
CPUs from sleeping, so that what a sleeping CPU's waking costs is seen apart.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from servers import Others, Server, free_port, running, shown, tree, wait_for_quiet
from stream_load import Load, Round, run
from turns import now
from workhorse import __version__
from workhorse.codec import to_line
from workhorse.machine.probe import probe

HERE = Path(__file__).parent
STORED = HERE.parent / "docs" / "measured" / "gateway.json"
ENGINE = "workhorse.engines.fake"
QUIET_CPUS = 0.1
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Side:
    """One way to the engine; `most_streams` that it can take within the patience of clients."""

    name: str
    server: Server
    most_streams: int = 1_000_000

    def cpu_s(self) -> dict[int, float]:
        """CPU seconds that each of its processes has taken; direct has none."""
        return {pid: scheduled_s(pid) for pid in tree(self.server.pid) if not is_engine(pid)}

    def cpu_s_since(self, before: dict[int, float]) -> float:
        """CPU seconds of those that are there still: one that ended meanwhile did not serve."""
        return sum(now_s - before.get(pid, 0.0) for pid, now_s in self.cpu_s().items())


@dataclass(slots=True)
class Case:
    """One load with everything that was measured, in the order of time."""

    name: str
    load: Load
    awake: bool
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    others_cpus: list[float] = field(default_factory=list)  # of other processes, round by round


def main() -> None:
    """Start every side, measure each load in turns, print and store."""
    args = parse()
    cases: list[Case] = []
    with ExitStack() as stack:
        sides = open_sides(stack, args)
        for side in sides:
            asyncio.run(run(side.server.url, "m", Load(8, 8)))  # what is loaded late is loaded
        for awake in (False, True):
            for load in loads(args, awake):
                case = Case(named(load, awake), load, awake)
                with kept_awake() if awake else ExitStack():
                    measure(case, sides, args)
                cases.append(case)
    document = {
        "benchmark": "gateway_overhead",
        "when": now(),
        "workhorse": __version__,
        "machine": json.loads(to_line(probe())),
        "commands": {side.name: shown(side.server.command) for side in sides},
        "figures": [row for case in cases for row in figures(case)],
        "cases": [asdict(case) for case in cases],
    }
    print_figures(document["figures"])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document) + "\n", encoding="utf-8")
    print(f"\nstored: {args.out}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--gap-ms", type=float, default=30)
    parser.add_argument("--patience-s", type=float, default=30)
    parser.add_argument("--litellm", type=Path)
    parser.add_argument("--litellm-most", type=int, default=64, help="streams it is asked for")
    parser.add_argument("--vllm-router", type=Path)
    parser.add_argument("--out", type=Path, default=STORED)
    return parser.parse_args()


def loads(args: argparse.Namespace, awake: bool) -> list[Load]:
    """Each number of streams at once and spread; awake only the few, where waking counts."""
    if awake:
        return [Load(streams, args.tokens) for streams in args.streams if streams <= 8]
    at_once = [Load(streams, args.tokens) for streams in args.streams]
    return at_once + [Load(streams, args.tokens, 1.0) for streams in args.streams if streams > 1]


def named(load: Load, awake: bool) -> str:
    """A load in words."""
    begin = "" if load.streams == 1 else ", spread" if load.spread_s else ", at once"
    return f"{load.streams}{begin}{', awake' if awake else ''}"


def open_sides(stack: ExitStack, args: argparse.Namespace) -> list[Side]:
    """Direct, through the gateway, through each peer that is here."""
    slots = max(args.streams)
    words = [sys.executable, "-m", ENGINE, "--slots", str(slots), "--gap-ms", str(args.gap_ms)]
    words += ["--ttft-ms", str(args.ttft_ms), "--model", "m"]
    port = free_port()
    engine = stack.enter_context(running([*words, "--port", str(port)], port, "/health"))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    port = free_port()
    command = [sys.executable, str(HERE / "gateway_alone.py"), engine.url, str(port), str(slots)]
    gateway = stack.enter_context(running(command, port, "/healthz"))
    sides = [Side("direct", engine), Side("workhorse", gateway)]
    peers: dict[str, tuple[Path | None, Callable[[Path, int], list[str]], str]] = {
        "litellm": (
            args.litellm,
            lambda binary, port: litellm_command(binary, port, folder, engine.url),
            "/health/liveliness",
        ),
        "vllm-router": (
            args.vllm_router,
            lambda binary, port: [str(binary), "--worker-urls", engine.url, "--port", str(port)],
            "/health",
        ),
    }
    for name, (binary, command_of, ready) in peers.items():
        if binary is not None:
            port = free_port()
            peer = stack.enter_context(running(command_of(binary, port), port, ready))
            sides.append(Side(name, peer, args.litellm_most if name == "litellm" else 1_000_000))
    return sides


def litellm_command(binary: Path, port: int, folder: Path, engine_url: str) -> list[str]:
    """LiteLLM's proxy with one worker, logging errors alone, as it advises for production."""
    config = folder / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: openai/m\n      api_base: {engine_url}/v1\n      api_key: none\n"
        "litellm_settings:\n  drop_params: false\n  request_timeout: 600\n"
    )
    words = ["env", "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True"]
    # Our service asks nobody on loopback for a key either.
    words += ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true", str(binary)]
    return [*words, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]


def measure(case: Case, sides: Sequence[Side], args: argparse.Namespace) -> None:
    """Every side once a round; who is first changes from round to round."""
    for number in range(args.rounds):
        wait_for_quiet(QUIET_CPUS + (os.cpu_count() or 1) * case.awake, args.patience_s)
        others = Others.now()
        able = [side for side in sides if case.load.streams <= side.most_streams]
        turn = number % len(able)
        for side in (*able[turn:], *able[:turn]):
            before_s = side.cpu_s()
            measured = asyncio.run(run(side.server.url, "m", case.load))
            case.rounds.setdefault(side.name, []).append(measured)
            case.cpu_s.setdefault(side.name, []).append(round(side.cpu_s_since(before_s), 6))
        case.others_cpus.append(round(others.cpus_since(), 3))
        print(f"  {case.name}: round {number + 1} of {args.rounds}", flush=True)


@contextmanager
def kept_awake() -> Iterator[None]:
    """Processes that run only where nobody else wants to: the CPUs never sleep."""
    loops = []
    for cpu in sorted(os.sched_getaffinity(0)):
        loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(loop.pid, {cpu})
        os.sched_setscheduler(loop.pid, os.SCHED_IDLE, os.sched_param(0))
        loops.append(loop)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def figures(case: Case) -> list[dict[str, object]]:
    """What each side adds to direct: medians over the rounds, with a 95 % interval."""
    direct = case.rounds["direct"]
    rows: list[dict[str, object]] = []
    for name, rounds in case.rounds.items():
        if name == "direct":
            continue
        pairs = list(zip(rounds, direct, strict=True))
        added_ms = [1000 * (first_s(a) - first_s(b)) for a, b in pairs]
        slowest_ms = [1000 * (slowest_s(a) - slowest_s(b)) for a, b in pairs]
        lost = [100 * (1 - (a.chunks / a.took_s) / (b.chunks / b.took_s)) for a, b in pairs]
        cpu_us = [1e6 * s / r.chunks for s, r in zip(case.cpu_s[name], rounds, strict=True)]
        rows.append(
            {
                "case": case.name,
                "side": name,
                "added to the first token, ms": spread(added_ms),
                "added to the slowest first token, ms": spread(slowest_ms),
                "throughput lost, %": spread(lost),
                "CPU a chunk, us": spread(cpu_us),
            }
        )
    return rows


def first_s(one: Round) -> float:
    """Seconds to the first token, median of the streams."""
    return median(stream.first_token_s for stream in one.streams)


def slowest_s(one: Round) -> float:
    """Seconds to the first token of the stream that waited longest."""
    return max(stream.first_token_s for stream in one.streams)


def spread(values: Sequence[float]) -> list[float]:
    """Median, and the ends of its 95 % interval by bootstrap."""
    chance = random.Random(0)
    draws = sorted(median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    ends = draws[DRAWS // 40], draws[-DRAWS // 40]
    return [round(value, 3) for value in (median(values), *ends)]


def print_figures(rows: object) -> None:
    """A Markdown table."""
    if not isinstance(rows, list) or not rows:
        return
    names = list(rows[0])
    print("\n| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        cells = [
            value if isinstance(value, str) else "{:.2f} ({:.2f}–{:.2f})".format(*value)
            for value in row.values()
        ]
        print("| " + " | ".join(cells) + " |")


def scheduled_s(pid: int) -> float:
    """CPU seconds of a process by the scheduler's own clock, finer than its ticks."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(task.read_text().split()[0])
        except OSError:  # the thread ended meanwhile
            continue
    return total_ns / 1e9


def is_engine(pid: int) -> bool:
    """Is it a fake engine?"""
    try:
        return ENGINE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


if __name__ == "__main__":
    main()
