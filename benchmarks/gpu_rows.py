"""What a plan promises for a card, beside what NVML and the clock say of it there.

Whole models of published shapes with random valid weights are made, planned, started as `up`
starts them (directly, without the gateway) and measured: memory of each card against the budget,
one stream of the fixed protocol and 2, 4, 8 streams against the forecast. Plans for a smaller
card that is not here are started as well, for their memory: experts or layers in main memory.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import pynvml

from servers import free_port, running
from workhorse.bench.load import measure
from workhorse.bench.scenario import scenario_for
from workhorse.bench.stats import decode_tokens_per_s, rounds, total_tokens_per_s, ttft_s
from workhorse.engines.llamacpp import launch
from workhorse.models.gguf import read_gguf
from workhorse.plan.planner import make_plan
from workhorse.plan.what_if import Parts, composed_machine
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Plan
from workhorse.units import GIB, MIB

sys.path.append(str(Path(__file__).parent.parent / "tests/models"))

SHAPES = {
    "Qwen2.5-0.5B Q8_0": ("Qwen2.5-0.5B", "q8_0", "qwen2"),
    "Qwen2.5-7B Q4_K": ("Qwen2.5-7B", "q4_k", "qwen2"),
    "Qwen2.5-7B Q8_0": ("Qwen2.5-7B", "q8_0", "qwen2"),
    "Qwen2.5-7B F16": ("Qwen2.5-7B", "f16", "qwen2"),
    "Qwen3-30B-A3B Q4_K": ("Qwen3-30B-A3B", "q4_k", "qwen2"),
    "Gemma-3-12B Q4_K": ("Gemma-3-12B", "q4_k", "gemma-4"),
    "Qwen3.5-27B Q4_K": ("Qwen3.5-27B", "q4_k", "qwen35"),
}
ELSEWHERE = ("Tesla V100-PCIE-16GB", "Tesla P4")  # plans that are only started for their memory
STREAMS = (1, 2, 4, 8)


@dataclass
class Row:
    """One model under one plan: promised and seen."""

    name: str
    plan_for: str
    flags: str
    memory_promised_mib: list[float]
    memory_seen_mib: list[float]
    decode_promised: list[float] | None = None  # value, low, high of one stream
    decode_seen: list[float] = field(default_factory=list)
    totals_promised: dict[int, float] = field(default_factory=dict)
    totals_seen: dict[int, float] = field(default_factory=dict)
    ttft_seen_s: list[float] = field(default_factory=list)

    def markdown(self) -> str:
        """The row of the table."""
        memory = " + ".join(
            f"{a:.0f} / {b:.0f} ({a / b - 1:+.1%})" if b else f"{a:.0f} / 0"
            for a, b in zip(self.memory_promised_mib, self.memory_seen_mib, strict=True)
        )
        speed = "—"
        if self.decode_promised and self.decode_seen:
            value, low, high = self.decode_promised
            seen = median(self.decode_seen)
            inside = "" if low <= seen <= high else ", outside"
            speed = (
                f"{value:.0f} ({low:.0f}–{high:.0f}) / {seen:.0f}: {value / seen - 1:+.0%}{inside}"
            )
        totals = ", ".join(
            f"{n}: {self.totals_promised.get(n, 0):.0f} / {seen:.0f}"
            for n, seen in self.totals_seen.items()
        )
        return f"| {self.name} | {self.plan_for} | {memory} | {speed} | {totals or '—'} |"


def check(name: str, path: Path, machine: Machine, build: EngineBuild) -> Iterator[Row]:
    """The model as planned for this machine, then as planned for the cards elsewhere."""
    model = read_gguf(path)
    plan = make_plan(machine, model, build, Wish())
    yield run(name, machine.gpus[0].name, plan, speeds=True)
    for card in ELSEWHERE:
        there = composed_machine(Parts(card, 1, 128 * GIB, 2, "Xeon E5-2690 v4"))
        other = make_plan(there, model, build, Wish())
        if not other.verdict.blocked and other.gpu_index is not None:
            # The CPUs and nodes of the other machine are not here; its split is what matters.
            yield run(name, card, here(other, plan), speeds=False)


def here(other: Plan, plan: Plan) -> Plan:
    """The plan for another machine's card with the CPUs of this one."""
    return replace(other, threads=plan.threads, cpus=plan.cpus, memory_nodes=plan.memory_nodes)


def run(name: str, plan_for: str, plan: Plan, *, speeds: bool) -> Row:
    """Start the plan's engine and see what it takes and gives."""
    before = used_mib()
    start = launch(plan, free_port())
    with environment(start.env), running(start.argv, start.port, start.health_path) as server:
        row = Row(name, plan_for, " ".join(start.argv[1:]), promised_mib(plan), [])
        # Buffers grow with the first prompt; what a plan promises is the peak.
        measure_runs(server.url, 1, 1)
        row.memory_seen_mib = [a - b for a, b in zip(used_mib(), before, strict=True)][
            : len(row.memory_promised_mib)
        ]
        if speeds:
            decode = plan.forecast.decode_tokens_per_s
            row.decode_promised = [decode.value, decode.low, decode.high] if decode else None
            row.totals_promised = {
                s.streams: s.total_tokens_per_s.value for s in plan.forecast.streams
            }
            for streams in STREAMS:
                if streams > max(plan.slots, 1) and streams > 1:
                    continue
                runs = measure_runs(server.url, streams, 3)
                if streams == 1:
                    row.decode_seen = [v for r in runs if (v := decode_tokens_per_s(r))]
                    row.ttft_seen_s = [v for r in runs if (v := ttft_s(r))]
                totals = [v for one in rounds(runs) if (v := total_tokens_per_s(one))]
                row.totals_seen[streams] = median(totals)
        return row


def measure_runs(url: str, streams: int, repeats: int) -> Any:
    """The runs of the fixed protocol at so many streams."""
    return asyncio.run(
        measure(url, scenario_for(streams=streams, repeats=repeats), on_progress=lambda _: None)
    )


def promised_mib(plan: Plan) -> list[float]:
    """The budget of each card in the plan, in the order of the cards."""
    cards = sorted({line.device for line in plan.budget if line.device.startswith("GPU")})
    return [
        sum(line.n_bytes for line in plan.budget if line.device == card) / MIB for card in cards
    ]


def used_mib() -> list[float]:
    """Memory in use on each card, as NVML says."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetMemoryInfo(handle).used / MIB for handle in handles]
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def environment(more: dict[str, str]) -> Iterator[None]:
    """The variables set for children started in the block."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
