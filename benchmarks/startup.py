"""How long `workhorse --help` takes, and what `up` adds to the engine's own start.

    python benchmarks/startup.py [--model MODEL.gguf] [--llama-server PATH] [--runs 20]

`up` is timed from its start to the first 200 of /healthz: a service that has verified its engine
and generated text. The engine's own start is the very command that `up` would run, with the same
environment, from its start to the first 200 of /health.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT

from servers import free_port, running
from turns import now
from workhorse import __version__
from workhorse.bench.stats import Spread, spread
from workhorse.codec import to_json
from workhorse.machine.probe import probe
from workhorse.records import Machine

STORED = Path(__file__).parent.parent / "docs" / "measured" / "startup.json"


@dataclass(frozen=True, slots=True)
class Startup:
    """The stored result: every sample in seconds, in the order of time."""

    when: str
    workhorse: str
    machine: Machine
    help_s: tuple[float, ...]
    up_s: tuple[float, ...]
    engine_s: tuple[float, ...]


def main() -> None:
    """Parse, time, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="left out: the embedded model")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--runs", type=int, default=20, help="of --help")
    parser.add_argument("--starts", type=int, default=7, help="of up, and of the engine alone")
    parser.add_argument("--skip-golden", action="store_true", help="for random weights")
    parser.add_argument("--out", type=Path, default=STORED)
    args = parser.parse_args()
    chosen = [str(args.model)] if args.model else []
    chosen += ["--engine", str(args.llama_server)] if args.llama_server else []
    time_help()  # the first one reads the files from disk
    help_s = [time_help() for _ in range(args.runs)]
    up_s, engine_s = [], []
    for _ in range(args.starts):
        up_s.append(time_up(chosen, skip_golden=args.skip_golden))
        engine_s.append(time_engine(chosen))
    for name, samples in (("--help", help_s), ("up", up_s), ("engine alone", engine_s)):
        show(name, spread(samples))
    show("added by up", spread(a - b for a, b in zip(up_s, engine_s, strict=True)))
    result = Startup(now(), __version__, probe(), tuple(help_s), tuple(up_s), tuple(engine_s))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(to_json(result) + "\n", encoding="utf-8")
    print(f"stored: {args.out}")


def show(name: str, samples: Spread | None) -> None:
    """One line: median, least and most."""
    if samples is not None:
        print(f"{name}: {samples.median:.3f} s ({samples.low:.3f}–{samples.high:.3f})")


def time_help() -> float:
    """Seconds of one `workhorse --help`, by the installed command."""
    command = Path(sys.executable).with_name("workhorse")
    began_s = time.perf_counter()
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def time_up(chosen: list[str], *, skip_golden: bool) -> float:
    """Seconds until `up` serves a verified answer."""
    port = free_port()
    command = [sys.executable, "-m", "workhorse", "up", *chosen, "--port", str(port)]
    command += ["--no-measure", *(["--skip-golden"] if skip_golden else [])]
    began_s = time.perf_counter()
    with running(command, port, "/healthz", stop=SIGINT):
        return time.perf_counter() - began_s


def time_engine(chosen: list[str]) -> float:
    """Seconds until the engine alone is healthy, by the command that `up` would run."""
    dry_run = [sys.executable, "-m", "workhorse", "up", *chosen, "--dry-run", "--json"]
    said = subprocess.run(dry_run, check=True, stdout=subprocess.PIPE, text=True).stdout
    launch = json.loads(said)["launch"]
    port = free_port()
    argv = list(launch["argv"])
    argv[argv.index("--port") + 1] = str(port)
    environment = [f"{name}={value}" for name, value in launch["env"].items()]
    os.sched_setaffinity(0, launch["cpus"] or os.sched_getaffinity(0))
    began_s = time.perf_counter()
    with running(["env", *environment, *argv], port, launch["health_path"]):
        return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
