"""What the gateway adds: through it against direct, with the fake engine, in turns.

    python benchmarks/gateway_overhead.py [--streams 1 8 64] [--pairs 10]

The fake engine gives the first token after 50 ms and one more each 30 ms, so what is late was
made late on the way.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from servers import Server, free_port, running
from turns import (
    PATIENCE_S,
    Case,
    Outcome,
    counted,
    decode,
    first_token,
    outcome,
    print_outcomes,
    store,
    take_turns,
)
from turns import total as total_tokens_per_s
from workhorse.bench.scenario import scenario_for
from workhorse.records import Measurement

STORED = Path(__file__).parent.parent / "docs" / "measured" / "gateway_overhead.json"
HERE = Path(__file__).parent


def main() -> None:
    """Parse, start both, measure each number of streams, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=100)
    parser.add_argument("--ttft-ms", type=float, default=50)
    parser.add_argument("--gap-ms", type=float, default=30)
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S)
    parser.add_argument("--out", type=Path, default=STORED)
    args = parser.parse_args()
    cases: list[Case] = []
    outcomes: list[Outcome] = []
    notes: dict[str, float] = {}
    with fake_engine(args) as engine, gateway(engine) as through:
        for streams in args.streams:
            scenario = scenario_for(
                streams=streams, prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens
            )
            name = counted(streams)
            case = take_turns(
                name,
                through,
                engine,
                scenario,
                args.pairs,
                patience_s=args.patience_s,
                apart=False,
            )
            cases.append(case)
            outcomes += compare_case(case)
            notes |= added(case)
        print_outcomes("through the gateway", "direct", outcomes)
        for name, value in notes.items():
            print(f"{name}: {value:.3f}")
        commands = (" ".join(through.command), " ".join(engine.command))
        store(args.out, "gateway_overhead", commands, outcomes, notes, cases)


@contextmanager
def fake_engine(args: argparse.Namespace) -> Iterator[Server]:
    """The fake engine, with a slot for every stream."""
    port = free_port()
    command = [sys.executable, "-m", "workhorse.engines.fake", "--port", str(port)]
    command += ["--slots", str(max(args.streams)), "--gap-ms", str(args.gap_ms)]
    command += ["--ttft-ms", str(args.ttft_ms)]
    with running(command, port, "/health") as server:
        yield server


@contextmanager
def gateway(engine: Server) -> Iterator[Server]:
    """The gateway in a process of its own."""
    port = free_port()
    command = [sys.executable, str(HERE / "gateway_alone.py"), engine.url, str(port)]
    with running(command, port, "/healthz") as server:
        yield server


def compare_case(case: Case) -> list[Outcome]:
    """Time to first token, decode, throughput."""
    return [
        outcome(case, "first token, s", first_token),
        outcome(case, "decode tok/s a stream", decode),
        outcome(case, "total tok/s", total_tokens_per_s),
    ]


def added(case: Case) -> dict[str, float]:
    """What the gateway adds, medians of the pairs' differences."""
    pairs = list(zip(case.a, case.b, strict=True))
    first_ms = [1000 * (first_token(a) - first_token(b)) for a, b in pairs]
    token_ms = [1000 * (1 / decode(a) - 1 / decode(b)) for a, b in pairs]
    loss = [1 - total_tokens_per_s(a) / total_tokens_per_s(b) for a, b in pairs]
    return {
        f"{case.name}: added to the first token, ms": median(first_ms),
        f"{case.name}: added to each token, ms": median(token_ms),
        f"{case.name}: throughput lost, %": 100 * median(loss),
        # The warm-up requests are in it, too: a little more than the chunks took.
        f"{case.name}: gateway CPU a chunk, us": 1e6 * sum(case.a_cpu_s) / chunks(case.a),
    }


def chunks(measurements: Sequence[Measurement]) -> int:
    """Pieces of text that came through."""
    return sum(len(run.arrivals_s) for one in measurements for run in one.runs)


if __name__ == "__main__":
    main()
