"""Runs on a node: what its engines would be for each weights file that is offered.

The files need not be here: a model is planned from its header, which the head has read. What was
probed, installed and learned on this node decides, as it does for `up`.

While replicas run here, the node is seen as it was before they came: they hold the memory that the
next plan may have, and a plan that came out differently would replace each of them.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from workhorse.codec import from_json, to_json, to_line
from workhorse.config import Places, places
from workhorse.errors import AppError
from workhorse.fleet.engines_here import engines_for, option_of
from workhorse.fleet.fleet_plan import NodePlans, Option
from workhorse.fleet.spec import WeightsSource
from workhorse.plan.wish import Wish
from workhorse.records import Machine, Model, Stored
from workhorse.run.live_processes import birthplace
from workhorse.run.run_file import service_files
from workhorse.text import Text
from workhorse.units import MIB
from workhorse.up.decide import (
    Ask,
    Ground,
    Running,
    assumed_engine,
    look_around,
    wanted_of,
)
from workhorse.up.room import Held

REMEMBERED_LARGEST_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class WantedModel:
    """One weights file, or checkpoint, in which the model is offered; read on the head."""

    model: Model
    stored: Stored | None = None  # a checkpoint, for the engines that compute with one
    # What a node fetches, the file that names the model first; (): the path is there on each node.
    weights: tuple[WeightsSource, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a node is asked to plan; the last two: for a machine that is not here."""

    models: tuple[WantedModel, ...]
    wish: Wish = field(default_factory=Wish)
    engine: str | None = None  # as `up --engine` takes it
    tuned: bool = True  # as `tune` has found it best on this node
    machine_root: Path | None = None  # a capture
    machine: Machine | None = None  # a record

    @property
    def elsewhere(self) -> bool:
        """Whether it asks for another machine."""
        return self.machine_root is not None or self.machine is not None

    @property
    def digest(self) -> str:
        """Its fingerprint: where weights come from decides nothing."""
        models = tuple(
            replace(one, weights=tuple(replace(source, urls=()) for source in one.weights))
            for one in self.models
        )
        return sha256(to_line(replace(self, models=models)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What this node planned last, and how it saw itself then."""

    birthplace: str
    request: str  # its digest
    machine: Machine
    plans: NodePlans


def plan_here(request: PlanRequest, where: Places | None = None) -> NodePlans:
    """The engines of this node for each file. Probes, starts nothing; blocks for some seconds.

    What cannot be planned is told in words: one file among several takes no other away.
    """
    where = where or places()
    if request.elsewhere:
        return planned(request, where, None)[0]
    before = remembered(where) if replicas_live(where) else None
    if before is not None and before.request == request.digest:
        return before.plans
    plans, machine = planned(request, where, None if before is None else before.machine)
    if machine is not None:
        remember(Remembered(birthplace(), request.digest, machine, plans), where)
    return plans


def planned(
    request: PlanRequest, where: Places, before: Machine | None
) -> tuple[NodePlans, Machine | None]:
    """The plans, and the machine that they are for; `before`: seen before replicas ran on it."""
    ask = Ask(
        engine=None if request.engine is None else Path(request.engine),
        wish=request.wish,
        machine_root=request.machine_root,
        tuned=request.tuned and request.machine is None,
    )
    options: list[Option] = []
    refused: list[Text] = []
    grounds: dict[bool, Ground] = {}
    for number, wanted in enumerate(request.models):
        pooled = wanted.stored is not None
        try:
            refuse_absent(wanted, request)
            if pooled not in grounds:
                grounds[pooled] = ground_for(request, ask, wanted, where, before)
            ground = grounds[pooled]
            engines = engines_for(ground, wanted.model, wanted.stored, ask, where)
        except AppError as error:
            refused.append(error.what)
        else:
            options.append(option_of(number, wanted.model, engines))
    machine = next((ground.machine for ground in grounds.values()), None)
    return NodePlans(tuple(options), tuple(refused)), machine


def ground_for(
    request: PlanRequest, ask: Ask, wanted: WantedModel, where: Places, before: Machine | None
) -> Ground:
    """The machine, the engine for this format and what was learned."""
    if request.machine is not None:
        return Ground(request.machine, assumed_engine(request.machine), ())
    asked = wanted_of(ask, wanted.model, wanted.stored)
    if before is None:
        return look_around(ask, where, wanted=asked)
    ground = look_around(ask, where, Running(Held(), before), asked)
    return replace(ground, machine=before)


def refuse_absent(wanted: WantedModel, request: PlanRequest) -> None:
    """AppError for a path that nobody sends to this node and that is not here."""
    path = Path(wanted.model.path)
    if wanted.weights or request.elsewhere or path.exists():
        return
    raise AppError(
        Text(f"{path} is not on this node.", f"本节点上没有 {path}。"),
        Text("Put it there under the same path.", "请将其放到相同路径下。"),
    )


def replicas_live(where: Places) -> bool:
    """Whether replicas of a fleet run on this node."""
    return any(file.lives() for _, file in service_files(where.run / "replicas"))


def remembered(where: Places) -> Remembered | None:
    """What was planned here since this machine was started; None: nothing that can be read."""
    path = memory_of(where)
    try:
        if path.stat().st_size > REMEMBERED_LARGEST_BYTES:
            return None
        found = from_json(Remembered, path.read_text(encoding="utf-8"), what="plans of this node")
    except (OSError, UnicodeDecodeError, AppError):
        return None
    return found if found.birthplace == birthplace() else None


def remember(what: Remembered, where: Places) -> None:
    """Write it whole or not at all; a full disk must not stop a plan."""
    path = memory_of(where)
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(to_json(what), encoding="utf-8")
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()


def memory_of(where: Places) -> Path:
    """The file in which the latest plans are kept."""
    return where.data / "fleet" / "plans.json"
