"""What is here, what is wanted, what is decided: everything before anything starts."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from workhorse.config import Places
from workhorse.engines.choose_engine import Wanted
from workhorse.engines.find import embedded_build
from workhorse.engines.openmp import ensure_openmp
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.pick import Picked, named_engine
from workhorse.engines.supply.pick_environment import named_environment
from workhorse.errors import EXIT_NO, AppError
from workhorse.machine.probe import probe
from workhorse.models.embedded import embedded_model
from workhorse.models.gguf import read_gguf
from workhorse.models.read import local_checkpoint, local_folder, read_model
from workhorse.models.stored import read_stored, stored_shape
from workhorse.plan.checks import check_cpu
from workhorse.plan.planner import make_plan
from workhorse.plan.pooled import make_pooled_plan
from workhorse.plan.rehearsed import Rehearsed, with_rehearsed
from workhorse.plan.speed import Experience
from workhorse.plan.what_if import Parts, assumed_build, composed_machine
from workhorse.plan.wish import Wish, slots_for
from workhorse.records import EngineBuild, Machine, Model, Plan, Reason, Split, Stored
from workhorse.store import Store
from workhorse.text import Text
from workhorse.tune.builds import builds_at_hand, environments_at_hand
from workhorse.tune.files import file_like
from workhorse.tune.kept import with_kept
from workhorse.up.pick import (
    AUTO,
    LLAMACPP,
    POOLED,
    asks_for_pooled,
    assume,
    is_pooled,
    pick,
    refuse_format,
)
from workhorse.up.projector import Seen, with_projector
from workhorse.up.room import Held, without

Fetching = Callable[[int, int | None], None]
# Which cards: so many, those of these indexes, or all.
ALL: Literal["all"] = "all"
Cards = int | tuple[int, ...] | Literal["all"]

ANY_GGUF = Wanted(("gguf",), 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """What the user asked of `up`; `None`: we decide."""

    model: str | Path | None = None  # as `read_model` takes it
    quant: str | None = None
    engine: Path | None = None
    wish: Wish = field(default_factory=Wish)
    host: str | None = None
    port: int | None = None
    config: Path | None = None  # the settings file; what is asked here goes before it
    skip_golden: bool = False
    measure: bool = True
    machine_root: Path | None = None
    parts: Parts | None = None  # of a machine that is not here
    mmproj: str | None = None  # the projector's file; `none`; None: the one beside the model
    tuned: bool = True  # as `tune` has found it best here, where it has
    gpus: Cards | None = None
    engines: int | None = None  # how many of them serve the model together
    split: Split | None = None  # how cards share the model, where the user says it


@dataclass(frozen=True, slots=True)
class Decision:
    """What is here, what is wanted, what was decided."""

    machine: Machine
    model: Model
    plan: Plan


@dataclass(frozen=True, slots=True)
class Ground:
    """What any model is planned on: the machine, the engine, what was learned here."""

    machine: Machine
    picked: Picked
    history: tuple[Experience, ...]
    rehearsed: tuple[Rehearsed, ...] = ()

    def decide(self, model: Model, wish: Wish, stored: Stored | None = None) -> Decision:
        """The plan for one model; `stored` is the checkpoint that the engine computes with."""
        build = self.picked.build
        if is_pooled(build):
            if stored is None:
                raise needs_checkpoint(model.path)
            plan = make_pooled_plan(self.machine, model, stored, build, wish, self.history)
            return Decision(self.machine, model, self.picked.explain(plan))
        plan = make_plan(self.machine, model, self.picked.build, wish, self.history)
        plan = with_rehearsed(plan, model, self.rehearsed, self.history)
        return Decision(self.machine, model, self.picked.explain(plan))


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that runs and that the next plan shall replace."""

    held: Held
    before: Machine  # as it was before that engine ran


@dataclass(frozen=True, slots=True)
class Question:
    """All that a plan is made of: what is asked, the machine and the engine, the model."""

    ask: Ask
    ground: Ground
    seen: Seen
    stored: Stored | None  # the checkpoint that the engine computes with
    tried: frozenset[tuple[int, int]] = frozenset()  # cards between which copies were tried

    def on(self, machine: Machine, wish: Wish) -> Decision:
        """What is decided for one engine that has this machine, or a part of it, to itself."""
        ground = replace(self.ground, machine=machine)
        return ground.decide(self.seen.model, wish, self.stored)

    def tuned(self, decision: Decision, where: Places) -> Decision:
        """The decision of one engine alone with the plan that was found best here."""
        return as_tuned(decision, self.ask, where, self.stored)

    def noted(self, decision: Decision) -> Decision:
        """The decision with what is to be said of the projector."""
        return replace(decision, plan=self.seen.noted(decision.plan))


def decide(
    ask: Ask, where: Places, fetching: Fetching, instead_of: Running | None = None
) -> Decision:
    """Probe, fetch what is missing, read the model and plan for one engine. Starts nothing; blocks.

    `instead_of`: planned as if that engine had ended already.
    """
    question = ask_around(ask, where, fetching, instead_of)
    found = question.on(question.ground.machine, ask.wish)
    return question.noted(question.tuned(found, where))


def ask_around(
    ask: Ask, where: Places, fetching: Fetching, instead_of: Running | None = None
) -> Question:
    """Probe, fetch what is missing and read the model: all that has to be known to plan; blocks."""
    # A typing error shows before any fetch.
    stored = checkpoint_of(ask)
    asked = read_model(ask.model, quant=ask.quant) if ask.model and stored is None else None
    shape = stored_shape(stored) if stored else asked
    ground = look_around(ask, where, instead_of, wanted_of(ask, shape, stored))
    if stored is not None and not is_pooled(ground.picked.build):
        # No engine that is here reads it: what it would be as a GGUF file.
        shape = read_model(ask.model or "", quant=ask.quant)
    model = shape or read_gguf(embedded_model(where.data, fetching))
    return Question(ask, ground, with_projector(model, ground.picked.build, ask.mmproj), stored)


def as_tuned(decision: Decision, ask: Ask, where: Places, stored: Stored | None = None) -> Decision:
    """The decision with the plan that was found best here, where one was."""
    if not ask.tuned or ask.parts is not None or ask.machine_root is not None:
        return decision
    machine, model, plan = decision.machine, decision.model, decision.plan
    read: dict[str, Model] = {}

    def builds() -> tuple[EngineBuild, ...]:
        return at_hand(ask, where, decision)

    def file_at(path: str) -> Model | None:
        with suppress(AppError):
            read[path] = file_like(Path(path), model)
        return read.get(path)

    pooled = stored if plan.pool is not None else None
    tuned = with_kept(where.tuning, machine, model, plan, ask.wish, builds, file_at, pooled)
    return replace(decision, plan=tuned, model=read.get(tuned.model_path, model))


def at_hand(ask: Ask, where: Places, decision: Decision) -> tuple[EngineBuild, ...]:
    """The builds that may stand in for the plan's: of what was asked for, none of a named one."""
    if decision.plan.pool is None:
        return () if ask.engine else builds_at_hand(where.engines, decision.machine)
    word = AUTO if ask.engine is None else str(ask.engine)
    if word != AUTO and word not in POOLED:
        return ()
    kind = None if word == AUTO else decision.plan.engine.engine
    return environments_at_hand(where.engines, kind)


def checkpoint_of(ask: Ask) -> Stored | None:
    """The checkpoint on this machine that is asked for; None for a GGUF file or one elsewhere."""
    if not ask.model or ask.quant is not None:
        return None
    if (ask.parts or ask.machine_root) and not wants_checkpoint(ask):
        return None
    folder = local_checkpoint(ask.model, first=wants_checkpoint(ask))
    return None if folder is None else read_stored(folder)


def wants_checkpoint(ask: Ask) -> bool:
    """Whether a folder with both a checkpoint and a GGUF file means the checkpoint."""
    return asks_for_pooled(ask.engine)


def wanted_of(ask: Ask, model: Model | None, stored: Stored | None) -> Wanted:
    """What an engine is chosen for."""
    users = slots_for(ask.wish)
    names = (model.name,) if model else ()
    return Wanted(("safetensors",) if stored else ("gguf",), users, names, stored)


def needs_checkpoint(path: str) -> AppError:
    """The engine computes with checkpoints, and this is none of this machine."""
    return AppError(
        Text(f"{path} is no checkpoint on this machine.", f"{path} 不是本机上的原始模型目录。"),
        Text(
            "Name a folder with config.json and safetensors files, or leave out --engine.",
            "请指定含 config.json 和 safetensors 的目录，或去掉 --engine。",
        ),
    )


def look_around(
    ask: Ask,
    where: Places,
    instead_of: Running | None = None,
    wanted: Wanted = ANY_GGUF,
) -> Ground:
    """The machine that is asked about, the engine for it, and what was measured on it."""
    builds = Builds(where.engines)
    if ask.parts is not None or ask.machine_root is not None:
        machine = composed_machine(ask.parts) if ask.parts else probe(ask.machine_root or Path("/"))
        named = None
        if ask.engine is not None and asks_for_pooled(ask.engine):
            here = named_environment(ask.engine, builds)
            named = Picked(here.build) if here else assume(str(ask.engine), machine)
        elif ask.engine is not None and names_a_build(ask.engine):
            named = named_engine(ask.engine, builds)
        return Ground(machine, named or assumed_engine(machine), ())
    folder = local_folder(ask.model) if ask.model else None
    if instead_of is None:
        machine = probe(disk_path=folder or where.models)
    else:  # nothing is measured while an engine works
        now = probe(disk_path=folder or where.models, measure_s=0)
        machine = without(now, instead_of.held, instead_of.before)
    history, rehearsed, doubts = learned_here(where)
    machine = replace(machine, doubts=(*machine.doubts, *doubts))
    picked = pick(ask.engine, builds, machine, wanted, history)
    if is_pooled(picked.build):
        refuse_format(picked.build, wanted)
    if picked.build.kind == "embedded":
        refuse_unfit_cpu(machine, picked.build)
        ensure_openmp()
        picked = replace(picked, build=embedded_build())  # again: it says where the library is
    return Ground(machine, picked, history, rehearsed)


def names_a_build(engine: Path) -> bool:
    """Whether `--engine` names one build, and not a kind of engine."""
    return str(engine) not in (AUTO, LLAMACPP, *POOLED)


def learned_here(
    where: Places,
) -> tuple[tuple[Experience, ...], tuple[Rehearsed, ...], tuple[Text, ...]]:
    """What was measured and rehearsed on this machine, and why that cannot be read."""
    try:
        return Store(where.store).experiences(), Store(where.store).rehearsed(), ()
    except AppError as error:  # a forecast without it is worth more than no service
        return (), (), (error.what,)


def assumed_engine(machine: Machine) -> Picked:
    """The engine for a machine that is not here: with code for its cards, else the embedded."""
    build = assumed_build(machine)
    if build is None:
        return Picked(embedded_build())
    because = Text(
        "Assumed, because the machine is not here: `workhorse engine build` makes such a one.",
        "该机器不在本地，故作此假定：可用 `workhorse engine build` 构建。",
    )
    return Picked(build, (Reason("engine", build.version, because),))


def refuse_unfit_cpu(machine: Machine, build: EngineBuild) -> None:
    """Raise what speaks against this CPU before anything is downloaded for it."""
    for finding in check_cpu(machine, build):
        raise AppError(finding.seen, finding.remedy, exit_code=EXIT_NO)
