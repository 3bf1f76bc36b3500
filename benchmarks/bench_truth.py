"""Does the bench report what happened? The fake engine against its own notes, 1 to 256 streams.

    python benchmarks/bench_truth.py OUT.json [--counts 1,16,256] [--gap-ms 100]

For each count of streams: what the engine was told, what it did by its own notes, what the bench
reported, and how much of a CPU the bench took. Aims: within 1 % of what the engine did; the
client far from a whole CPU at 256 streams.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from workhorse.bench.conditions import sampling
from workhorse.bench.load import Progress, load_session, measure_service
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import find_service
from workhorse.bench.stats import decode_tokens_per_s, known, rounds, total_tokens_per_s, ttft_s
from workhorse.config import HOST
from workhorse.records import Run, Sample, ServedBy
from workhorse.run.process import free_port

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPT_TOKENS, OUTPUT_TOKENS, ROUNDS = 64, 40, 2
# The engine reads requests one after the other, so many of them need a longer time to the first
# token for that to be small beside it.
TTFT_MS = 1000.0
START_S = 30.0


@dataclass(frozen=True, slots=True)
class Truth:
    """One count of streams; speeds in tok/s, errors as shares of what was done."""

    streams: int
    told_decode: float
    done_decode: float
    reported_decode: float
    decode_error: float
    done_first_token_s: float  # from the bench's sending to the engine's first token
    reported_first_token_s: float
    first_token_error: float
    done_total: float
    reported_total: float
    total_error: float
    client_cpus: float | None
    late_ms: float | None
    pieces_per_s: float


@contextmanager
def noting_engine(notes: Path, *options: str) -> Iterator[str]:
    """The engine on a free port; its address."""
    port = free_port(HOST)
    script = Path(__file__).with_name("noting_fake.py")
    command = [sys.executable, str(script), str(notes), "--port", str(port), *options]
    with subprocess.Popen(command) as engine:
        try:
            asyncio.run(healthy(f"http://{HOST}:{port}", engine))
            yield f"http://{HOST}:{port}"
        finally:
            engine.kill()


async def healthy(url: str, engine: "subprocess.Popen[bytes]") -> None:
    """Wait until it answers."""
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as http:
        while engine.poll() is None and time.monotonic() < deadline:
            try:
                async with http.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
    raise RuntimeError("the engine does not answer")


async def taken(url: str, scenario: Scenario) -> tuple[tuple[Run, ...], float, tuple[Sample, ...]]:
    """The runs, the moment that their times count from, and the samples."""
    seen: list[Progress] = []
    async with load_session() as client:
        service = await find_service(client, url)
        async with sampling(url, ServedBy()) as sampler:
            runs = await measure_service(client, service, scenario, on_progress=seen.append, seed=1)
    began_s = seen[-1].began_s or 0.0
    return runs, began_s, sampler.samples(began_s)


def compare(
    streams: int, gap_s: float, runs: Sequence[Run], began_s: float, notes: Sequence[list[float]]
) -> dict[str, Any]:
    """What the engine did beside what the bench reported."""
    done_decode = median((len(sent) - 1) / (sent[-1] - sent[0]) for sent in notes)
    reported_decode = median(known(map(decode_tokens_per_s, runs)))
    sent_s = [began_s + (run.sent_s or 0.0) for run in runs]
    first_s = sorted(sent[0] for sent in notes)
    done_first_s = median(first_s) - median(sent_s)
    reported_first_s = median(s + (ttft_s(run) or 0) for s, run in zip(sent_s, runs, strict=True))
    reported_first_s -= median(sent_s)
    totals: list[float] = []
    for number, one_round in enumerate(rounds(runs)):
        begin_s = min(began_s + (run.sent_s or 0.0) for run in one_round)
        of_round = sorted(notes, key=lambda sent: sent[0])[number * streams :][:streams]
        tokens = sum(len(sent) for sent in of_round)
        totals.append(tokens / (max(sent[-1] for sent in of_round) - begin_s))
    done_total = median(totals)
    reported_total = median(known(map(total_tokens_per_s, rounds(runs))))
    return {
        "streams": streams,
        "told_decode": 1 / gap_s,
        "done_decode": done_decode,
        "reported_decode": reported_decode,
        "decode_error": reported_decode / done_decode - 1,
        "done_first_token_s": done_first_s,
        "reported_first_token_s": reported_first_s,
        "first_token_error": reported_first_s / done_first_s - 1,
        "done_total": done_total,
        "reported_total": reported_total,
        "total_error": reported_total / done_total - 1,
    }


def truth_at(streams: int, gap_ms: float) -> Truth:
    """One count of streams against an engine of its own."""
    # A few requests say little on a machine that does other work, too.
    rounds_wanted = max(ROUNDS, min(8, 16 // streams))
    scenario = Scenario("truth", PROMPT_TOKENS, OUTPUT_TOKENS, streams, rounds_wanted)
    with tempfile.TemporaryDirectory() as folder:
        notes_path = Path(folder) / "notes.jsonl"
        options = ("--slots", str(streams), "--ttft-ms", str(TTFT_MS), "--gap-ms", str(gap_ms))
        with noting_engine(notes_path, *options) as url:
            runs, began_s, samples = asyncio.run(taken(url, scenario))
        lines = [json.loads(line) for line in notes_path.read_text().splitlines()]
    failed = [run.error for run in runs if run.error]
    if failed:
        raise RuntimeError(f"{streams} streams: {failed[0]}")
    # The one for warming up came first, before the measurement began.
    notes = [line["sent_s"] for line in lines if line["stream"] and line["arrived_s"] >= began_s]
    work = known(one.client_cpus for one in samples if one.at_s > 0)
    late_s = known(one.late_s for one in samples if one.at_s > 0)
    spans = [run.arrivals_s[-1] - run.arrivals_s[0] for run in runs]
    return Truth(
        **compare(streams, gap_ms / 1000, runs, began_s, notes),
        client_cpus=median(work) if work else None,
        late_ms=1000 * median(late_s) if late_s else None,
        pieces_per_s=streams * (OUTPUT_TOKENS - 1) / median(spans),
    )


def main() -> None:
    """Measure every count, print a table, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)))
    parser.add_argument("--gap-ms", type=float, default=100.0)
    args = parser.parse_args()
    found: list[Truth] = []
    print("| streams | told | did | reported | error | first token error | total error | client |")
    print("|---|---|---|---|---|---|---|---|")
    for count in map(int, args.counts.split(",")):
        one = truth_at(count, args.gap_ms)
        found.append(one)
        client = "—" if one.client_cpus is None else f"{one.client_cpus:.1%} of a CPU"
        print(
            f"| {one.streams} | {one.told_decode:.2f} | {one.done_decode:.3f} | "
            f"{one.reported_decode:.3f} | {one.decode_error:+.2%} | {one.first_token_error:+.2%} "
            f"| {one.total_error:+.2%} | {client} |",
            flush=True,
        )
    document = {
        "benchmark": "bench_truth",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "gap_ms": args.gap_ms,
        "rows": [asdict(one) for one in found],
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
