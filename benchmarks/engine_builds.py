"""One model on several builds of llama.cpp's server, in turns: is the one we choose the fastest?

    python benchmarks/engine_builds.py MODEL.gguf OUT.json NAME=PATH_OF_LLAMA_SERVER …
        [--python-server PYTHON] [--rounds 3] [--streams 1 4]

The embedded engine is always among them. Each round starts every server once, in turn and in the
next round backwards, with the settings that a plan for this CPU gives, and asks it by the bench's
protocol. `--python-server`: a Python with `llama-cpp-python[server]`, whose server has settings
of its own (no parallel slots).
"""

import argparse
import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from servers import free_port, running, wait_for_quiet
from workhorse.bench.load import measure
from workhorse.bench.scenario import Scenario
from workhorse.bench.stats import summarise
from workhorse.engines import embedded
from workhorse.machine.probe import probe
from workhorse.records import Conditions, Run

PROMPT_TOKENS, OUTPUT_TOKENS, SLOTS = 192, 48, 4
Figures = dict[str, dict[str, list[float]]]


def main() -> None:
    """Measure in turns and write medians with least and most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("builds", nargs="*", metavar="NAME=PATH")
    parser.add_argument("--python-server", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    servers = {"embedded": (sys.executable, "-I", embedded.__file__)}
    servers |= {name: (path,) for name, path in (word.split("=", 1) for word in args.builds)}
    if args.python_server:
        servers["llama-cpp-python"] = (str(args.python_server), "-m", "llama_cpp.server")
    figures: Figures = defaultdict(lambda: defaultdict(list))
    loads = []
    for number in range(args.rounds):
        for name in list(servers)[:: -1 if number % 2 else 1]:
            wait_for_quiet(0.2, 120)
            loads.append(round(os.getloadavg()[0], 2))
            ask(name, servers[name], args.model, args.streams, figures)
        print(number, {name: dict(rows) for name, rows in figures.items()}, flush=True)
    write(args.out, args.model, figures, loads)


def ask(
    name: str, command: Sequence[str], model: Path, streams: Sequence[int], figures: Figures
) -> None:
    """Start one server, measure each number of streams once, end it."""
    port = free_port()
    settings = python_settings(model, port) if "-m" in command else our_settings(model, port)
    ready = "/v1/models" if "-m" in command else "/health"
    with running(("env", *ENVIRONMENT, *command, *settings), port, ready) as server:
        for count in streams:
            scenario = Scenario("builds", PROMPT_TOKENS, OUTPUT_TOKENS, count, repeats=2)
            runs = asyncio.run(measure(server.url, scenario, on_progress=lambda _: None))
            keep(scenario, runs, figures[name])


ENVIRONMENT = ("GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "GOMP_SPINCOUNT=1000")


def our_settings(model: Path, port: int) -> tuple[str, ...]:
    """What a plan for a CPU gives llama-server."""
    threads = str(len(os.sched_getaffinity(0)))
    return (
        *("--model", str(model), "--alias", model.stem, "--host", "127.0.0.1"),
        *("--port", str(port), "--ctx-size", str(2048 * SLOTS), "--kv-unified"),
        *("--parallel", str(SLOTS), "--cache-type-k", "f16", "--cache-type-v", "f16"),
        *("--threads", threads, "--threads-batch", threads, "--batch-size", "512"),
        *("--ubatch-size", "512", "--load-mode", "none", "--flash-attn", "on"),
        *("--cache-ram", "0", "--fit", "off", "--no-ui", "--n-gpu-layers", "0"),
        *("--verbosity", "3"),
    )


def python_settings(model: Path, port: int) -> tuple[str, ...]:
    """As near to them as that server's options come."""
    threads = str(len(os.sched_getaffinity(0)))
    return (
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--n_ctx", "2048", "--n_threads", threads, "--n_threads_batch", threads),
        *("--flash_attn", "true", "--use_mmap", "false", "--verbose", "false"),
        *("--interrupt_requests", "false"),  # else a second client ends the first one's answer
    )


def keep(scenario: Scenario, runs: Sequence[Run], rows: dict[str, list[float]]) -> None:
    """The medians of one measurement, under their names."""
    summary = summarise(scenario.measurement(runs, Conditions("", None, None, "", "")))
    errors = {run.error for run in runs if run.error}
    if errors:
        raise SystemExit(f"{scenario.streams} streams: {errors}")
    shown: Mapping[str, object] = {
        "prefill": summary.prefill_tokens_per_s if scenario.streams == 1 else None,
        "decode": summary.decode_tokens_per_s if scenario.streams == 1 else None,
        f"{scenario.streams} streams, total": summary.total_tokens_per_s,
    }
    for what, spread in shown.items():
        if spread is not None:
            rows[what].append(spread.median)  # type: ignore[attr-defined]


def write(out: Path, model: Path, figures: Figures, loads: Sequence[float]) -> None:
    """Medians, least and most of each server, as JSON and as a table."""
    table = {
        name: {
            what: {"median": median(values), "low": min(values), "high": max(values)}
            for what, values in rows.items()
        }
        for name, rows in figures.items()
    }
    document = {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model.name,
        "cpu": probe(measure_s=0).cpu.model,
        "load_before_each": loads,
        "tokens_per_s": table,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for name, rows in table.items():
        shown = "  ".join(
            f"{what} {v['median']:.1f} ({v['low']:.1f}–{v['high']:.1f})" for what, v in rows.items()
        )
        print(f"{name:18} {shown}")


if __name__ == "__main__":
    main()
