"""`workhorse up` against the same engine started by hand, one loaded at a time, in turns.

    python benchmarks/service_vs_default.py MODEL.gguf [--llama-server PATH] [--hogs 2]

Without --llama-server both sides run the embedded engine: ours as planned, the other with its
own defaults. With --llama-cpp-python the other side is `python -m llama_cpp.server`.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGINT

from servers import EMBEDDED_WITH_DEFAULTS, Server, busy_cpus, free_port, running
from turns import (
    PATIENCE_S,
    Case,
    Outcome,
    counted,
    decode,
    outcome,
    print_outcomes,
    store,
    take_turns,
    total,
)
from workhorse.bench.scenario import STANDARD, scenario_for

STORED = Path(__file__).parent.parent / "docs" / "measured"


def main() -> None:
    """Parse, start both, measure each case, print and store."""
    args = parse()
    with ExitStack() as servers:
        ours = servers.enter_context(workhorse_up(args))
        theirs = servers.enter_context(by_hand(args))
        cases, outcomes = [], []
        for hogs in (0, args.hogs) if args.hogs else (0,):
            for streams in args.streams:
                case = measure_case(args, ours, theirs, streams, hogs)
                cases.append(case)
                outcomes += compare_case(case, streams)
        sides = ("workhorse up", "llama-cpp-python" if args.llama_cpp_python else "by hand")
        print_outcomes(*sides, outcomes)
        notes = fair_shares(outcomes)
        for name, share in notes.items():
            print(f"{name}: {share:.0%}")
        commands = (shlex.join(ours.command), shlex.join(theirs.command))
        out = args.out or STORED / f"service_vs_default_{args.model.stem}.json"
        store(out, "service_vs_default", commands, outcomes, notes, cases)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path, help="this binary on both sides")
    parser.add_argument("--llama-cpp-python", type=Path, help="a Python that has llama_cpp")
    parser.add_argument("--hogs", type=int, default=0, help="also with so many busy processes")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=STANDARD.prompt_tokens)
    parser.add_argument("--output-tokens", type=int, default=STANDARD.output_tokens)
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


@contextmanager
def workhorse_up(args: argparse.Namespace) -> Iterator[Server]:
    """Our service as a user starts it, the gateway included."""
    port = free_port()
    command = [sys.executable, "-m", "workhorse", "up", str(args.model), "--port", str(port)]
    # The twin's answers are no text, and a measurement of its own would disturb ours.
    command += ["--skip-golden", "--no-measure"]
    if args.llama_server:
        command += ["--engine", str(args.llama_server)]
    with running(command, port, "/healthz", stop=SIGINT) as server:
        yield server


@contextmanager
def by_hand(args: argparse.Namespace) -> Iterator[Server]:
    """The other side, with every setting at its default."""
    port = free_port()
    model, number = str(args.model), str(port)
    if args.llama_cpp_python:
        command = [str(args.llama_cpp_python), "-m", "llama_cpp.server"]
        command += ["--model", model, "--port", number]
        ready = "/v1/models"
    elif args.llama_server:
        command = [str(args.llama_server), "-m", model, "--port", number]
        ready = "/health"
    else:
        command = [sys.executable, "-c", EMBEDDED_WITH_DEFAULTS, model, number]
        ready = "/health"
    with running(command, port, ready) as server:
        yield server


def measure_case(
    args: argparse.Namespace, ours: Server, theirs: Server, streams: int, hogs: int
) -> Case:
    """All pairs of one number of streams, with or without other work on the cores."""
    name = counted(streams)
    if hogs:
        name += f", {hogs} busy processes"
    scenario = scenario_for(
        streams=streams, prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens
    )
    with busy_cpus(hogs):
        return take_turns(name, ours, theirs, scenario, args.pairs, patience_s=args.patience_s)


def compare_case(case: Case, streams: int) -> list[Outcome]:
    """Decode a stream, and with several streams what they got in all."""
    outcomes = [outcome(case, "decode tok/s a stream", decode)]
    if streams > 1:
        outcomes.append(outcome(case, "total tok/s", total))
    return outcomes


def fair_shares(outcomes: list[Outcome]) -> dict[str, float]:
    """How much of half its quiet speed each side keeps on one stream between busy processes.

    Half: one busy process a core leaves a fair scheduler that much.
    """
    one = [o for o in outcomes if o.case.startswith("1 stream")]
    if len(one) < 2:
        return {}
    quiet, busy = one[0], one[1]
    return {
        "share of the fair half, workhorse": busy.a.median / quiet.a.median * 2,
        "share of the fair half, the other": busy.b.median / quiet.b.median * 2,
    }


if __name__ == "__main__":
    main()
