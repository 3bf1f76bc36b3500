"""Exact memory before the download: the engine's dry run on a file that has only the header."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.llamacpp import environment, settings
from workhorse.errors import AppError
from workhorse.models.part_file import local_errors
from workhorse.records import BudgetLine, EngineBuild, Plan
from workhorse.rehearse.scratch import check_sparse
from workhorse.rehearse.source import Part
from workhorse.text import Text
from workhorse.units import MIB

PROGRAM = "llama-fit-params"
DRY_RUN_TIMEOUT_S = 120.0  # half a second here; a cold driver or a 60 MB header take longer

# The settings of a launch that decide memory. The dry run refuses some of the others.
MEMORY_SETTINGS = frozenset(
    {
        "--ctx-size",
        "--parallel",
        "--batch-size",
        "--ubatch-size",
        "--cache-type-k",
        "--cache-type-v",
        "--n-gpu-layers",
        "--flash-attn",
        "--load-mode",
        "--kv-unified",
        "--no-kv-unified",
        "--n-cpu-moe",
        "--cpu-moe",
        "--override-tensor",
        "--split-mode",
        "--tensor-split",
        "--main-gpu",
    }
)

_DRY_RUN_LINE = re.compile(r"(\S.*?) (\d{1,12}) (\d{1,12}) (\d{1,12})", re.ASCII)
_SOURCE = Text("the engine's dry run on the header", "引擎对文件头的试算")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the engine says it will take of one device, in bytes (printed in whole MiB)."""

    device: str
    model_bytes: int
    context_bytes: int
    compute_bytes: int


def write_skeleton(parts: Sequence[Part], folder: Path) -> Path:
    """The model's files at full size with nothing but their headers; the path of the first.

    Holes take no disk. AppError where the file system has none, or for a part whose header
    cannot be read any more.
    """
    check_sparse(folder)
    paths = []
    for part in parts:
        path = folder / Path(part.name).name
        with local_errors(path), path.open("wb") as file:
            file.write(part.header_bytes())
            file.truncate(part.header.size_bytes)
        paths.append(path)
    return paths[0]


def dry_run_program(build: EngineBuild) -> Path:
    """The dry run beside the build's server; AppError with the way to one when there is none."""
    program = Path(build.command[0]).with_name(PROGRAM)
    if build.kind == "binary" and program.is_file():
        return program
    which = "embedded engine" if build.kind == "embedded" else f"engine {build.command[0]}"
    which_zh = "内置引擎" if build.kind == "embedded" else f"引擎 {build.command[0]}"
    raise AppError(
        Text(
            f"The {which} has no dry run ({PROGRAM}): memory is known by arithmetic only.",
            f"{which_zh}没有试算程序（{PROGRAM}）：内存只能按公式计算。",
        ),
        Text(
            "Build one with its tools: workhorse engine build",
            "请构建带工具的引擎：workhorse engine build",
        ),
    )


def dry_run_arguments(plan: Plan, skeleton: Path) -> tuple[str, ...]:
    """The settings of the plan's launch that decide memory, as the dry run takes them."""
    chosen = ["-m", str(skeleton), "--fit-print", "on"]
    if "--no-repack" in plan.engine.knows:
        # Weights that a CPU repacks lie in a buffer that the dry run does not count: a 1.1B Q4_0
        # model was said to have 54 MiB of weights instead of 675 (llama.cpp 0c1e57098, 2026-11).
        chosen.append("--no-repack")
    asked = False
    for word in settings(plan, 0, "127.0.0.1"):
        if word.startswith("--"):
            asked = word in MEMORY_SETTINGS
        if asked:
            chosen.append(word)
    return tuple(chosen)


def dry_run(plan: Plan, skeleton: Path) -> tuple[DeviceMemory, ...]:
    """What the plan's engine says it will take, a device at a time; starts no service.

    AppError, speaker engine, when it refuses the model or says nothing that we understand.
    """
    program = dry_run_program(plan.engine)
    try:
        said = subprocess.run(
            [program, *dry_run_arguments(plan, skeleton)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DRY_RUN_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
            env={**os.environ, **environment(plan)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_answer(str(error)) from error
    found = read_dry_run(said.stdout)
    if said.returncode or not found:
        lines = [line for line in said.stderr.splitlines() if line.strip()]
        raise _no_answer(lines[-1] if lines else f"exit code {said.returncode}")
    return found


def read_dry_run(text: str) -> tuple[DeviceMemory, ...]:
    """The lines `device model context compute` (MiB) of `llama-fit-params --fit-print on`."""
    found = []
    for line in text.splitlines():
        if told := _DRY_RUN_LINE.fullmatch(line.strip()):
            device, *figures = told.groups()
            found.append(DeviceMemory(device, *(int(figure) * MIB for figure in figures)))
    return tuple(found)


def engine_budget(
    found: Sequence[DeviceMemory], gpu_indexes: Sequence[int] = ()
) -> tuple[BudgetLine, ...]:
    """The engine's figures as lines of a budget; the context holds KV and recurrent state.

    `gpu_indexes` are the cards that the engine was shown, in its order.
    """
    lines: list[BudgetLine] = []
    cards = [memory.device for memory in found if memory.device != "Host"]
    for memory in found:
        device = "RAM"
        if memory.device != "Host":
            place = cards.index(memory.device)
            device = f"GPU {gpu_indexes[place] if place < len(gpu_indexes) else place}"
        lines += [
            BudgetLine(device, "weights", memory.model_bytes, "engine", _SOURCE),
            BudgetLine(device, "kv", memory.context_bytes, "engine", _SOURCE),
            BudgetLine(device, "compute", memory.compute_bytes, "engine", _SOURCE),
        ]
    return tuple(lines)


def _no_answer(cause: str) -> AppError:
    return AppError(
        Text(f"The engine's dry run failed: {cause}", f"引擎试算失败：{cause}"),
        Text(
            "Try a newer engine build; the plan's own arithmetic stands.",
            "请尝试更新的引擎构建；方案自身的计算仍然有效。",
        ),
        speaker="engine",
    )
