"""A model on the card that is here, before and after `workhorse tune`: 1 to 16 streams.

`gpu_check.py --tune 2m` calls it for each shape. The plan and the tuned plan are started in turn,
in the next round backwards, and measured by the bench's protocol through the engine's own port.
The share is of the card's rated bandwidth, by the bytes that a token reads.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from gpu_rows import used_mib
from servers import free_port, running
from workhorse.bench.load import measure
from workhorse.bench.scenario import scenario_for
from workhorse.bench.stats import decode_tokens_per_s, known, rounds, total_tokens_per_s
from workhorse.records import Machine

STREAMS = (1, 2, 4, 8, 16)
SLOTS = ("--slots", str(max(STREAMS)), "--context", "2048")


@dataclass
class Side:
    """One plan: its command, and what was seen of it."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    decode: list[float] = field(default_factory=list)  # of one stream, tok/s
    totals: dict[int, list[float]] = field(default_factory=dict)  # of so many streams, tok/s
    memory_mib: list[float] = field(default_factory=list)


def before_and_after(
    model: Path, engine: Path, machine: Machine, budget: str, turns: int = 2
) -> dict[str, Any]:
    """What tuning changed, both plans' speeds, and the share of the card's bandwidth reached."""
    with tempfile.TemporaryDirectory() as home:
        before, plan = planned(home, model, engine, "plan")
        words = [*SLOTS, "--budget", budget, "--skip-golden"]
        story = workhorse(home, "tune", model, engine, *words)
        after, _ = planned(home, model, engine, "tuned")
        for number in range(turns):
            for side in (before, after)[:: -1 if number % 2 else 1]:
                look(side)
    rated = machine.gpus[0].rated_bandwidth_bytes_per_s
    n_bytes = plan["forecast"]["bytes_per_token"]
    return {
        "model": model.name,
        "tuning": story,
        "bytes_per_token": n_bytes,
        "rated_bandwidth_bytes_per_s": rated,
        "sides": [
            {
                "name": side.name,
                "command": list(side.command),
                "decode": side.decode,
                "totals": side.totals,
                "memory_mib": side.memory_mib,
                "share_of_bandwidth": None
                if not rated or not side.decode
                else median(side.decode) * n_bytes / rated,
            }
            for side in (before, after)
        ],
    }


def markdown(name: str, seen: Mapping[str, Any]) -> Iterator[str]:
    """Rows of the table, one a side."""
    for side in seen["sides"]:
        totals = " / ".join(f"{median(all_):.0f}" for all_ in side["totals"].values())
        share = side["share_of_bandwidth"]
        told = "—" if share is None else f"{share:.0%}"
        decode = f"{median(side['decode']):.1f}" if side["decode"] else "—"
        yield f"| {name} | {side['name']} | {decode} | {told} | {totals} |"


def workhorse(home: str, verb: str, model: Path, engine: Path, *words: str) -> Any:
    """What a verb says about the model, as JSON."""
    named = [verb, str(model), "--engine", str(engine), *words, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "workhorse", *named],
        env={**os.environ, "WORKHORSE_HOME": home},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{verb}: {done.stderr[-800:]}")
    return json.loads(done.stdout)


def planned(
    home: str, model: Path, engine: Path, name: str, words: Sequence[str] = SLOTS
) -> tuple[Side, Any]:
    """What the next `workhorse up` would start, and its plan."""
    found = workhorse(home, "up", model, engine, *words, "--dry-run")
    argv: Sequence[str] = found["launch"]["argv"]
    at = argv.index("--port")
    side = Side(name, (*argv[:at], *argv[at + 2 :]), found["launch"]["env"])
    return side, found["plan"]


def look(side: Side) -> None:
    """A fresh start of the side's server, measured at each number of streams."""
    port = free_port()
    free = used_mib()
    words = ("env", *(f"{name}={value}" for name, value in side.env.items()))
    with running((*words, *side.command, "--port", str(port)), port, "/health") as server:
        for streams in STREAMS:
            scenario = scenario_for(
                streams=streams, prompt_tokens=512, output_tokens=128, repeats=2
            )
            runs = asyncio.run(measure(server.url, scenario, on_progress=lambda _: None))
            if streams == 1:
                side.decode += known(map(decode_tokens_per_s, runs))
            seen = known(map(total_tokens_per_s, rounds(runs)))
            side.totals.setdefault(streams, []).extend(seen)
        side.memory_mib.append(sum(used_mib()) - sum(free))
