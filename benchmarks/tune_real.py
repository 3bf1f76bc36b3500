"""What `workhorse tune` finds on this machine, beside what else people do for the same speed.

    python benchmarks/tune_real.py MODEL.gguf OUT.json --bin FOLDER [--optimus llama-optimus]
        [--budget 20m] [--rounds 8] [--skip-golden]

FOLDER holds llama-server and llama-bench of one build; everybody gets that build. First each finds
its settings: `workhorse plan`, `workhorse tune`, a sweep of llama-bench over threads, flash
attention, KV type and mmap, and llama-optimus. Then their servers are started in turn, in the next
round backwards, and asked by the bench's protocol for one stream; the ratio of tuned to each other
comes with its 95 % interval. Run it on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from servers import Others, free_port, running, wait_for_quiet
from workhorse import __version__
from workhorse.bench.compare import compare
from workhorse.bench.load import measure
from workhorse.bench.scenario import scenario_for
from workhorse.bench.stats import decode_tokens_per_s, known
from workhorse.codec import to_json
from workhorse.machine.probe import probe

TUNED = "workhorse tune"
DEPTH_TOKENS = 768
SWEEP = ("-fa", "0,1", "-ctk", "f16,q8_0", "-lm", "mmap,none", "-p", "0", "-d", str(DEPTH_TOKENS))


@dataclass(frozen=True)
class Contender:
    """A server to be started, and how long its settings took to find."""

    name: str
    command: tuple[str, ...]  # without the port
    found_in_s: float


def main() -> None:
    """Let each find its settings, compare the servers, print and store."""
    args = parse()
    with tempfile.TemporaryDirectory() as home:
        contenders, story = found(args, Path(home))
        figures: dict[str, list[float]] = {one.name: [] for one in contenders}
        others: list[float] = []
        for number in range(args.rounds):
            for one in contenders[:: -1 if number % 2 else 1]:
                wait_for_quiet(0.1, args.patience_s)
                before = Others.now()
                figures[one.name].append(asked(one, args))
                others.append(round(before.cpus_since(), 2))
            print(number + 1, {name: round(x[-1], 1) for name, x in figures.items()}, flush=True)
    rows = [row(one, figures) for one in contenders]
    print_rows(rows)
    document = {
        "benchmark": "tune_real",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "workhorse": __version__,
        "model": args.model.name,
        "prompt_tokens": DEPTH_TOKENS,
        "output_tokens": args.output_tokens,
        "rows": rows,
        "figures": figures,
        "other_cpus": others,
        "tuning": story,
    }
    machine = json.loads(to_json(probe(measure_s=0)))
    args.out.write_text(json.dumps(document | {"machine": machine}, ensure_ascii=False) + "\n")
    print(f"stored: {args.out}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bin", type=Path, required=True, help="llama-server and llama-bench")
    parser.add_argument("--optimus", type=Path, help="the program llama-optimus")
    parser.add_argument("--budget", default="20m", help="for workhorse tune")
    parser.add_argument("--optimus-trials", type=int, default=15)
    parser.add_argument("--bench-repeats", type=int, default=3, help="of llama-bench, a setting")
    parser.add_argument("--bench-tokens", type=int, default=64, help="of llama-bench, a repeat")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="answers a round")
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--patience-s", type=float, default=120.0, help="for a quiet machine")
    parser.add_argument("--skip-golden", action="store_true", help="random weights")
    return parser.parse_args()


def found(args: argparse.Namespace, home: Path) -> tuple[list[Contender], Any]:
    """Every contender with the settings that it found, and the tuning's own result."""
    server, model = str(args.bin / "llama-server"), str(args.model)
    contenders = [
        Contender("llama-server's defaults", (server, "-m", model), 0.0),
        Contender("workhorse plan", planned(args, home), 0.0),
    ]
    began_s = monotonic()
    golden = ["--skip-golden"] if args.skip_golden else []
    story = workhorse(home, args, "tune", "--budget", args.budget, *golden)
    contenders.append(Contender(TUNED, planned(args, home), monotonic() - began_s))
    print(
        f"tuned: {[change['value'] for change in story['changes']]}, {story['ratio']}", flush=True
    )
    began_s = monotonic()
    best = swept(args)
    contenders.append(Contender("llama-bench sweep", best, monotonic() - began_s))
    if args.optimus:
        began_s = monotonic()
        contenders.append(Contender("llama-optimus", optimised(args), monotonic() - began_s))
    return contenders, story


def workhorse(home: Path, args: argparse.Namespace, verb: str, *words: str) -> Any:
    """What a verb says about the model with this build, as JSON."""
    named = [str(args.model), "--engine", str(args.bin / "llama-server"), *words, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "workhorse", verb, *named],
        env={**os.environ, "WORKHORSE_HOME": str(home)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def planned(args: argparse.Namespace, home: Path) -> tuple[str, ...]:
    """The command of the next `workhorse up`, without its port."""
    launch: Mapping[str, Any] = workhorse(home, args, "up", "--dry-run")["launch"]
    words = ["env", *(f"{name}={value}" for name, value in launch["env"].items())]
    if launch["cpus"]:
        words += ["taskset", "-c", ",".join(map(str, launch["cpus"]))]
    argv = list(launch["argv"])
    at = argv.index("--port")
    return (*words, *argv[:at], *argv[at + 2 :])


def swept(args: argparse.Namespace) -> tuple[str, ...]:
    """llama-server with the best settings of a sweep of llama-bench over every combination."""
    cores = len(os.sched_getaffinity(0))
    threads = ",".join(map(str, sorted({max(1, cores // 2), max(1, cores - 1), cores})))
    sizes = ("-n", str(args.bench_tokens), "-r", str(args.bench_repeats))
    program = str(args.bin / "llama-bench")
    done = subprocess.run(
        [program, "-m", str(args.model), "-t", threads, *SWEEP, *sizes, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    rows = [one for one in json.loads(done.stdout) if one["n_gen"]]
    best = max(rows, key=lambda one: one["avg_ts"])
    print(f"sweep: best of {len(rows)}: {best['avg_ts']:.1f} tok/s", flush=True)
    server = (str(args.bin / "llama-server"), "-m", str(args.model))
    flash = "on" if best["flash_attn"] else "off"
    words = ("-t", str(best["n_threads"]), "-fa", flash, "-ctk", best["type_k"])
    return (*server, *words, "-lm", best["load_mode"])


def optimised(args: argparse.Namespace) -> tuple[str, ...]:
    """llama-server as llama-optimus says at its end."""
    words = ["--llama-bin", str(args.bin), "--model", str(args.model), "--metric", "tg"]
    words += ["--trials", str(args.optimus_trials), "--ngl-max", "0", "--override-mode", "none"]
    words += ["--n-tokens", str(args.bench_tokens), "--repeat", str(args.bench_repeats)]
    done = subprocess.run(
        [str(args.optimus), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = re.search(r"llama-server --model \$MODEL (.*)", done.stdout)
    if said is None:
        raise RuntimeError(f"llama-optimus named no command:\n{done.stdout[-2000:]}")
    print(f"llama-optimus: {said[1]}", flush=True)
    # It writes the flag without a value; newer llama-servers want one.
    told = re.sub(r"--flash-attn(?!\s+(?:on|off|auto))", "--flash-attn on", said[1]).split()
    return (str(args.bin / "llama-server"), "-m", str(args.model), *told)


def asked(one: Contender, args: argparse.Namespace) -> float:
    """Decode of one stream on a fresh start of its server: the median of some answers."""
    scenario = scenario_for(
        prompt_tokens=DEPTH_TOKENS, output_tokens=args.output_tokens, repeats=args.repeats
    )
    port = free_port()
    with running((*one.command, "--port", str(port)), port, "/health") as server:
        runs = asyncio.run(measure(server.url, scenario, on_progress=lambda _: None))
    speeds = known(map(decode_tokens_per_s, runs))
    if not speeds:
        raise RuntimeError(f"{one.name}: {[run.error for run in runs]}")
    return median(speeds)


def row(one: Contender, figures: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One contender's figures, and how much faster the tuned plan is."""
    mine = figures[one.name]
    versus = compare(figures[TUNED], mine)
    return {
        "name": one.name,
        "command": list(one.command),
        "found_in_s": round(one.found_in_s, 1),
        "tokens_per_s": round(median(mine), 2),
        "low": round(min(mine), 2),
        "high": round(max(mine), 2),
        "tuned_over_it": round(versus.ratio, 4),
        "interval": None if versus.interval is None else [round(x, 4) for x in versus.interval],
        "outcome": versus.outcome,
    }


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """A Markdown table."""
    print("\n| settings of | found in | decode tok/s | tuned ÷ it | 95 % interval | |")
    print("|---|---|---|---|---|---|")
    for one in rows:
        low_high = one["interval"]
        span = "—" if low_high is None else f"{low_high[0]:.3f}–{low_high[1]:.3f}"
        speed = f"{one['tokens_per_s']:.1f} ({one['low']:.1f}–{one['high']:.1f})"
        ratio = f"{one['tuned_over_it']:.3f}"
        said = "" if one["name"] == TUNED else f"tuned is {one['outcome']}"
        took = f"{one['found_in_s']:.0f} s"
        print(f"| {one['name']} | {took} | {speed} | {ratio} | {span} | {said} |")


if __name__ == "__main__":
    main()
