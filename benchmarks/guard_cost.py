"""What the guard takes of the CPU: a look at a streamed block, a reading of the machine.

    python benchmarks/guard_cost.py

Aims: less than 2 microseconds a block, less than half a per cent of one CPU at a reading every
five seconds. With an NVIDIA card its driver is asked as in the service.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from workhorse.guard.garbage import GarbageTap
from workhorse.guard.sensors import Sensors
from workhorse.records import EngineReading

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests/serve/recorded_answers.json"
STREAMS = 64
ROUNDS = 7
READINGS, PERIOD_S = 20, 5.0


@dataclass(frozen=True)
class Served:
    """The engine that an answer comes from."""

    name: str = "model"


def blocks_of(words: list[str], events: int) -> list[bytes]:
    """What an engine streams: chat chunks as llama-server writes them, `events` in a block."""
    chunk = next(
        event
        for event in json.loads(RECORDED.read_text(encoding="utf-8"))["chat"]["stream"]
        if event["choices"] and event["choices"][0]["delta"].get("content")
    )
    chunks = []
    for index, word in enumerate(words):
        chunk["choices"][0]["delta"]["content"] = f" {word}"
        chunk["id"] = f"chatcmpl-{index % STREAMS:032d}"
        chunks.append(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")
    return [b"".join(chunks[at : at + events]) for at in range(0, len(chunks), events)]


def best_s(work: Callable[[], None]) -> float:
    """CPU seconds of the best of some rounds: what disturbs only adds."""
    found = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        work()
        found.append(time.process_time() - began_s)
    return min(found)


def print_tap_cost() -> None:
    """Microseconds of CPU a block."""
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    words = (words * (10_000 // len(words) + 1))[:10_000]
    served = Served()
    for name, blocks in (
        (f"an event a block, {STREAMS} streams", blocks_of(words, 1)),
        ("four events a block", blocks_of(words, 4)),
        ("garbage", blocks_of(["G"] * len(words), 1)),
    ):
        tap = GarbageTap()

        def feed(blocks: list[bytes] = blocks, tap: GarbageTap = tap) -> None:
            for block in blocks:
                tap(served, block)

        print(f"{name}: {best_s(feed) / len(blocks) * 1e6:.2f} us a block")


def print_reading_cost() -> None:
    """Milliseconds of CPU a reading of this process as if it were an engine."""
    engine = EngineReading("model", "ready", 0, 1, 0, 1, None, None, None, None, None, None)
    cpu_s = []
    with closing(Sensors(Path(tempfile.gettempdir()))) as sensors:
        for _ in range(READINGS):
            began_s = time.process_time()
            found = sensors.read(time.time(), (engine,), {"model": os.getpid()}, {})
            cpu_s.append(time.process_time() - began_s)
            time.sleep(0.1)
    usual_s = median(cpu_s[1:])
    print(
        f"a reading of {len(found.cards)} cards: {usual_s * 1e3:.2f} ms (the first "
        f"{cpu_s[0] * 1e3:.0f} ms), {usual_s / PERIOD_S:.3%} of one CPU every {PERIOD_S:g} s"
    )


def main() -> int:
    """Print the table."""
    print_tap_cost()
    print_reading_cost()
    return 0


if __name__ == "__main__":
    sys.exit(main())
