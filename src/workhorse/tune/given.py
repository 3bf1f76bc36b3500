"""What a run of the tuner is given: machine, plan to start from, what may be used. Pure."""

from dataclasses import dataclass, replace

from workhorse.plan.speed import Experience
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Model, Plan
from workhorse.text import Text
from workhorse.tune.trial import Constraints, Goal


@dataclass(frozen=True, slots=True)
class Given:
    """Everything that decides what can be tried; it stays the same for the whole run.

    `plan` is the one tuning starts from, made for `model` on `machine`. `builds` are other engine
    builds at hand, `files` other files of the same model that the user named.
    """

    machine: Machine
    model: Model
    plan: Plan
    goal: Goal
    constraints: Constraints
    builds: tuple[EngineBuild, ...] = ()
    files: tuple[Model, ...] = ()
    history: tuple[Experience, ...] = ()

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
