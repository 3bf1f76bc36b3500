"""What is here, what is wanted, what is decided: everything before anything starts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from workhorse.config import Places
from workhorse.engines.find import embedded_build
from workhorse.engines.openmp import ensure_openmp
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.pick import Picked, named_engine, pick_engine
from workhorse.errors import EXIT_NO, AppError
from workhorse.machine.probe import probe
from workhorse.models.embedded import embedded_model
from workhorse.models.gguf import read_gguf
from workhorse.models.read import local_folder, read_model
from workhorse.plan.checks import check_cpu
from workhorse.plan.planner import make_plan
from workhorse.plan.rehearsed import Rehearsed, with_rehearsed
from workhorse.plan.speed import Experience
from workhorse.plan.what_if import Parts, assumed_build, composed_machine
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Model, Plan, Reason
from workhorse.store import Store
from workhorse.text import Text
from workhorse.up.room import Held, without

Fetching = Callable[[int, int | None], None]


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

    def decide(self, model: Model, wish: Wish) -> Decision:
        """The plan for one model."""
        plan = make_plan(self.machine, model, self.picked.build, wish, self.history)
        plan = with_rehearsed(plan, model, self.rehearsed, self.history)
        return Decision(self.machine, model, self.picked.explain(plan))


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that runs and that the next plan shall replace."""

    held: Held
    before: Machine  # as it was before that engine ran


def decide(
    ask: Ask, where: Places, fetching: Fetching, instead_of: Running | None = None
) -> Decision:
    """Probe, fetch what is missing, read the model and plan. Starts nothing; blocks.

    `instead_of`: planned as if that engine had ended already.
    """
    # A typing error shows before any fetch.
    asked = read_model(ask.model, quant=ask.quant) if ask.model else None
    ground = look_around(ask, where, instead_of)
    model = asked or read_gguf(embedded_model(where.data, fetching))
    return ground.decide(model, ask.wish)


def look_around(ask: Ask, where: Places, instead_of: Running | None = None) -> Ground:
    """The machine that is asked about, the engine for it, and what was measured on it."""
    builds = Builds(where.engines)
    named = named_engine(ask.engine, builds) if ask.engine else None
    if ask.parts is not None or ask.machine_root is not None:
        machine = composed_machine(ask.parts) if ask.parts else probe(ask.machine_root or Path("/"))
        return Ground(machine, named or assumed_engine(machine), ())
    folder = local_folder(ask.model) if ask.model else None
    if instead_of is None:
        machine = probe(disk_path=folder or where.models)
    else:  # nothing is measured while an engine works
        now = probe(disk_path=folder or where.models, measure_s=0)
        machine = without(now, instead_of.held, instead_of.before)
    picked = named or pick_engine(builds, machine)
    if picked.build.kind == "embedded":
        refuse_unfit_cpu(machine, picked.build)
        ensure_openmp()
        picked = replace(picked, build=embedded_build())  # again: it says where the library is
    history: tuple[Experience, ...] = ()
    rehearsed: tuple[Rehearsed, ...] = ()
    try:
        history = Store(where.store).experiences()
        rehearsed = Store(where.store).rehearsed()
    except AppError as error:  # a forecast without it is worth more than no service
        machine = replace(machine, doubts=(*machine.doubts, error.what))
    return Ground(machine, picked, history, rehearsed)


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
