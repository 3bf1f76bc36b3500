"""A plan's memory with the engine's own figures in the place of arithmetic."""

from collections.abc import Sequence
from pathlib import Path

from workhorse.records import BudgetLine, Plan
from workhorse.rehearse.scratch import scratch
from workhorse.rehearse.skeleton import dry_run, dry_run_program, engine_budget, write_skeleton
from workhorse.rehearse.source import Part

# What the dry run's three figures hold (llama.cpp 0c1e57098, common/fit.cpp, 2026-10-01).
TOLD = {
    "weights": "weights",
    "tables": "weights",
    "kv": "kv",
    "state": "kv",
    "compute": "compute",
}


def engine_memory(plan: Plan, parts: Sequence[Part], folder: Path) -> tuple[BudgetLine, ...]:
    """The plan's budget as the engine states it from the header alone (in whole MiB).

    What the engine does not state (its process, the card's context, the prompt cache) stays as
    planned. AppError without a dry run beside the engine, or when it fails.
    """
    dry_run_program(plan.engine)
    with scratch(folder) as own:
        told = engine_budget(dry_run(plan, write_skeleton(parts, own)), plan.gpu_indexes)
    return merged(plan.budget, told)


def merged(planned: Sequence[BudgetLine], told: Sequence[BudgetLine]) -> tuple[BudgetLine, ...]:
    """The engine's lines, then those planned ones that it says nothing about."""
    stated = {(line.device, line.item) for line in told}
    rest = [line for line in planned if (line.device, TOLD.get(line.item)) not in stated]
    return (*(line for line in told if line.n_bytes), *rest)
