"""What a run of the tuner is given: machine, plan to start from, what may be used. Pure."""

from dataclasses import dataclass, replace

from workhorse.plan.speed import Experience
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Model, Plan, Stored
from workhorse.text import Text
from workhorse.tune.trial import Constraints, Goal


@dataclass(frozen=True, slots=True)
class Given:
    """Everything that decides what can be tried; it stays the same for the whole run.

    `plan` is the one tuning starts from, made for `model` on `machine`. `builds` are other engine
    builds at hand, `files` other files of the same model that the user named; `divergences` are
    their KL divergences from the start's file where they were measured before.
    """

    machine: Machine
    model: Model
    plan: Plan
    goal: Goal
    constraints: Constraints
    builds: tuple[EngineBuild, ...] = ()
    files: tuple[Model, ...] = ()
    history: tuple[Experience, ...] = ()
    divergences: tuple[tuple[str, float], ...] = ()
    stored: Stored | None = None  # the checkpoint, of an engine with one pool of KV

    def known_divergence(self, plan: Plan) -> float | None:
        """The KL divergence of a plan from the start; None: only an experiment can tell.

        What was measured of a file holds for the KV type that it was measured with alone.
        """
        if (plan.kv_type_k, plan.kv_type_v) != (self.plan.kv_type_k, self.plan.kv_type_v):
            return None
        return dict(self.divergences).get(plan.model_path)

    def file_at(self, path: str) -> Model | None:
        """The other file at this path; None for the start's own."""
        return next((m for m in self.files if m.path == path != self.model.path), None)

    @property
    def wish(self) -> Wish:
        """What plans are made for: the context and slots of the start, room as constrained."""
        return Wish(
            context_tokens=self.plan.context_tokens,
            slots=self.plan.slots,
            headroom=self.constraints.memory_headroom_share,
        )

    @property
    def by_constants(self) -> "Given":
        """The same without what was measured here: what was learned of one setting holds for it
        alone, so two settings are only compared by the constants of both."""
        return replace(self, history=())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a change cannot be made: no such setting, no room, or less than is asked for."""

    because: Text
    memory: bool = False  # it would fit if something else took less
