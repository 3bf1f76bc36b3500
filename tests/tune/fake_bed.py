"""A machine, a model and a fake engine whose speed depends on what it is told."""

import json
import os
import random
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import builders
from workhorse.bench import load
from workhorse.engines.find import binary_build
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Core, Machine, Plan, Run
from workhorse.run.process import EngineProcess
from workhorse.text import Text
from workhorse.tune.given import Given
from workhorse.tune.trial import Change, Constraints, Goal, Pair, Trial
from workhorse.units import GIB

PATIENCE_S = 300.0
# As llama-server lists its settings, those that the tuner moves.
KNOWN = (
    *("--ctx-size N", "--parallel N", "--model F", "--port N", "--host H", "--alias NAME"),
    *("--threads N", "--threads-batch N", "--batch-size N", "--ubatch-size N"),
    *("--cache-type-k TYPE", "--cache-type-v TYPE", "-fa, --flash-attn [on|off|auto]"),
    *("-lm, --load-mode none|mmap|mlock", "--kv-unified", "--kv-unified-per-slot N"),
    "--api-key KEY",
)


def rule(does: str | None = None, speed_times: float = 1.0, **when: str) -> dict[str, Any]:
    """One rule of a surface; a setting's dashes are written as underscores."""
    settings = {(k if k.isupper() else f"--{k.replace('_', '-')}"): v for k, v in when.items()}
    told = {"when": settings, "speed_times": speed_times}
    return told | ({} if does is None else {"does": does})


def fake_server(
    folder: Path, rules: Sequence[Mapping[str, Any]] = (), *options: str, version: str = "1"
) -> Path:
    """A program that is called like llama-server and is the fake engine with this surface."""
    folder.mkdir(parents=True, exist_ok=True)
    surface, program = folder / "surface.json", folder / "llama-server"
    surface.write_text(json.dumps({"rules": list(rules)}))
    known = " ".join(f'"{setting}"' for setting in KNOWN)
    told = " ".join(options or ("--gap-ms", "4"))
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'--help) printf "%s\\n" {known};;\n'
        f"--version) echo version: {version};;\n"
        f'*) exec {sys.executable} -m workhorse.engines.fake --ignore-unknown "$@" {told} '
        f"--surface {surface};;\n"
        "esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def two_cores(ram_bytes: int = 32 * GIB) -> Machine:
    """A machine of two cores, the first of which is a CPU that this process may use."""
    flags = ("avx2", "bmi2", "f16c", "fma")  # what the embedded engine needs
    plain = builders.machine(cores=2, ram_bytes=ram_bytes, flags=flags)
    first = min(os.sched_getaffinity(0))
    cores = tuple(Core(0, n, 0, (first + n,)) for n in range(2))
    return replace(
        plain,
        cpu=replace(plain.cpu, cores=cores),
        nodes=tuple(replace(node, cpus=(first, first + 1)) for node in plain.nodes),
        limits=replace(plain.limits, cpus=(first, first + 1)),
    )


def plan_on(machine: Machine, program: Path) -> Plan:
    """A plan with one slot for the fake engine."""
    wish = Wish(context_tokens=2048, slots=1)
    return make_plan(machine, builders.model(), binary_build(program), wish)


def given(program: Path, goal: Goal = "decode", ram_bytes: int = 32 * GIB) -> Given:
    """What a tuning of the fake engine is given."""
    machine = two_cores(ram_bytes)
    constraints = Constraints(2048, 1, 0.2)
    return Given(machine, builders.model(), plan_on(machine, program), goal, constraints)


def speak_as_told(patch: pytest.MonkeyPatch) -> None:
    """Rounds take as long as the fake engine's own clock says: what it was told to take.

    All else about them is real. Other work on this machine decides nothing then.
    """

    noise = random.Random(7)  # the same each time: no two rounds of a real machine are alike

    async def measure_round(*asked: Any) -> list[Run]:
        runs = await load.measure_round(*asked)
        return [as_told(run, noise.uniform(0.98, 1.02)) for run in runs]

    patch.setattr("workhorse.tune.side.measure_round", measure_round)
    # Nobody is overdue for waiting for a turn, and a death may need a while to be known.
    patch.setattr("workhorse.tune.experiment.LEAST_SLOW_S", PATIENCE_S)
    ends_within = EngineProcess.ends_within

    async def patiently(process: EngineProcess, wait_s: float) -> bool:
        return await ends_within(process, max(wait_s, 120.0))

    patch.setattr(EngineProcess, "ends_within", patiently)


def as_told(run: Run, times: float) -> Run:
    """The run with so many times the times of the engine's clock, evenly spread."""
    if run.error is not None or run.engine_decode_s is None:
        return run
    first_s, decode_s = times * (run.engine_prefill_s or 0.0), times * run.engine_decode_s
    gaps = max(1, len(run.arrivals_s) - 1)
    arrivals_s = tuple(first_s + decode_s * n / gaps for n in range(len(run.arrivals_s)))
    return replace(run, arrivals_s=arrivals_s, end_s=first_s + decode_s, sent_s=None)


class Listener:
    """Hears what a tuning tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.earlier: list[Trial] = []
        self.trials: list[Trial] = []
        self.pairs = 0

    def begun(self, goal: Goal, budget_s: float | None, earlier: Sequence[Trial]) -> None:
        self.earlier = list(earlier)

    def note(self, words: Text) -> None:
        self.notes.append(words.en)

    def trying(
        self, number: int, change: Change, expected: float | None, ahead: Sequence[str]
    ) -> None:
        assert change.variable not in ahead

    def pair(self, pairs: Sequence[Pair]) -> None:
        self.pairs += 1

    def tried(self, trial: Trial, spent_s: float) -> None:
        self.trials.append(trial)

    def confirming(self, changes: Sequence[Change]) -> None:
        assert changes

    def outcomes(self) -> dict[str, str]:
        return {f"{t.change.variable} {t.change.value}": t.outcome for t in self.trials}
