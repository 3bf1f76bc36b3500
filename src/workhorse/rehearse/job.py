"""A rehearsal from the header to the forecast: plan twins, write them, measure, remove them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol as Interface

from workhorse.errors import EXIT_NO, AppError
from workhorse.records import Machine, Model, Plan
from workhorse.rehearse.measure import measure_twins
from workhorse.rehearse.protocol import protocol_for
from workhorse.rehearse.result import Rehearsal, conclude
from workhorse.rehearse.scratch import check_room, scratch
from workhorse.rehearse.source import Part
from workhorse.rehearse.twin import Twin, TwinPlan, last_level_cache, plan_twins
from workhorse.rehearse.twin_file import write_twin
from workhorse.text import Text

# Both twins run at once, beside whatever else the machine does.
MEMORY_SHARE = 0.7


class Teller(Interface):
    """Who tells the user how far we are."""

    def planned(self, twins: TwinPlan) -> None:
        """Which twins there will be, and what they take."""

    def writing(self, done_bytes: int, total_bytes: int) -> None:
        """The twins are being written."""

    def measuring(self, done: int, total: int) -> None:
        """The twins are being measured; the units are of equal duration."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is rehearsed: the model's plan on this machine."""

    machine: Machine
    model: Model
    plan: Plan


def rehearse(
    wanted: Wanted, parts: Sequence[Part], folder: Path, logs: Path, tell: Teller, *, quick: bool
) -> Rehearsal:
    """The model's speed here, from twins in `folder` that are gone afterwards.

    AppError when the method does not hold for the model, or the disk, the memory or the engine
    do not allow it.
    """
    machine, model, plan = wanted.machine, wanted.model, wanted.plan
    if plan.embeddings:
        raise embeds(model)
    on_gpu = plan.gpu_index is not None
    cache_bytes = last_level_cache(machine, gpu=on_gpu)
    twins = plan_twins(model, cache_bytes, memory_room(wanted))
    header_bytes = parts[0].header.data_offset_bytes
    check_room(folder, twins.n_bytes + len(twins.twins) * header_bytes)
    tell.planned(twins)
    protocol = protocol_for(plan, twins.share, quick=quick)
    with scratch(folder) as own:
        plans = []
        written = 0
        for twin in twins.twins:
            path = own / f"twin-{len(twin.layers)}.gguf"
            before = written

            def progress(n_bytes: int, before: int = before) -> None:
                tell.writing(before + n_bytes, twins.n_bytes)

            write_twin(parts[0], twin, model.architecture, model.layers, path, progress)
            written += path.stat().st_size
            plans.append((plan_for(plan, twin, path), len(twin.layers)))
        total = sum(protocol.cost(layers) for _, layers in plans)
        times = asyncio.run(
            measure_twins(plans, protocol, logs, lambda done: tell.measuring(done, total))
        )
    return conclude(plan, model.quantisation, twins, protocol, times)


def plan_for(plan: Plan, twin: Twin, path: Path) -> Plan:
    """The model's plan with a twin in its place: the same settings, the same share of layers."""
    share = (len(twin.layers) + 1) / plan.layers
    return replace(
        plan,
        model_path=str(path),
        model_name=path.stem,
        layers=len(twin.layers) + 1,
        gpu_layers=round(plan.gpu_layers * share),
        layer_split=tuple(round(count * share) for count in plan.layer_split),
        expert_layers_in_ram=round(plan.expert_layers_in_ram * share),
        prompt_cache_bytes=0,
        projector=None,  # made for the model's width, not for the twin's
    )


def memory_room(wanted: Wanted) -> int | None:
    """Memory of the plan's device that both twins may take together; None: not known."""
    machine, plan = wanted.machine, wanted.plan
    if plan.gpu_index is None:
        free = machine.memory.available_bytes
        if machine.limits.memory_bytes is not None and free is not None:
            free = min(free, machine.limits.memory_bytes - (machine.limits.memory_used_bytes or 0))
    else:
        free = next(
            (gpu.memory_free_bytes for gpu in machine.gpus if gpu.index == plan.gpu_index), None
        )
    return None if free is None else int(free * MEMORY_SHARE)


def embeds(model: Model) -> AppError:
    """Models for embeddings or ranking generate nothing that could be timed."""
    return AppError(
        Text(
            f"{model.name} makes embeddings or scores: there is no decoding to rehearse.",
            f"{model.name} 是嵌入或重排序模型，没有可预演的解码过程。",
        ),
        Text("`workhorse plan` says what memory it takes.", "可用 `workhorse plan` 查看内存需求。"),
        exit_code=EXIT_NO,
    )
