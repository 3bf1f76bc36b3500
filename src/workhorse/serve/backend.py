"""The engines behind the gateway: which models they serve, who owns them, what they can take."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from workhorse.plan.several_users import total_of
from workhorse.records import EngineName, Plan
from workhorse.records.reading import engine_name
from workhorse.run.address import Address

READY = "ready"


class Backend(Protocol):
    """An engine that may be starting, ready, dying or being started again."""

    @property
    def state(self) -> str:
        """`ready`, or one word for what it is doing instead."""
        ...

    @property
    def restarts(self) -> int:
        """How often the engine was started again after it had died."""
        ...

    async def address(self, wait_s: float) -> Address:
        """Where the ready engine answers.

        Waits up to `wait_s` seconds while it is being started; raises an `AppError` that says
        why and who speaks when it is not ready by then.
        """
        ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one engine can take: from its plan, then from what was measured."""

    slots: int
    context_tokens: int  # of one slot
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None  # of one stream alone
    total_tokens_per_s: float | None = None  # of all slots together
    images: bool | None = None  # it takes images; None: not known before it is asked


def capacity_of(plan: Plan) -> Capacity:
    """What the plan promises that its engine can take."""
    forecast = plan.forecast
    decode = forecast.decode_tokens_per_s
    most = total_of(plan, plan.slots)
    return Capacity(
        plan.slots,
        plan.context_tokens,
        forecast.prefill_tokens_per_s.value,
        None if decode is None else decode.value,
        None if most is None else most.value,
        images_of(plan),
    )


def images_of(plan: Plan) -> bool | None:
    """Whether its engine takes images; None where the model itself decides."""
    if plan.engine.engine != "llama.cpp":
        return None
    return plan.projector is not None and plan.projector.images


@dataclass(frozen=True, slots=True)
class Served:
    """One engine behind the gateway."""

    model_name: str  # the id under which clients see the model
    backend: Backend
    capacity: Capacity | None = None  # None: not planned yet
    engine: EngineName = "llama.cpp"  # how it wants to be asked
    on: str = ""  # where it runs, such as GPU 0: tells engines of one model apart

    @property
    def name(self) -> str:
        """The engine among all of them: its model, and where it runs when that is told."""
        return engine_name(self.model_name, self.on)


class Roster:
    """The engines behind one gateway; they change while it is open (reload, a lost card)."""

    def __init__(self, served: Iterable[Served] = ()) -> None:
        self._known = self._served = tuple(served)

    @property
    def served(self) -> tuple[Served, ...]:
        """All that are asked, in the order in which they came."""
        return self._served

    @property
    def known(self) -> tuple[Served, ...]:
        """All of them, those included that are asked no more because they are lost."""
        return self._known

    def models(self) -> tuple[str, ...]:
        """The models that clients can ask for, each once."""
        return tuple(dict.fromkeys(one.model_name for one in self._served))

    def serving(self, model: str | None) -> tuple[Served, ...]:
        """The engines that serve a model; with one model, whatever the client calls it."""
        if len(self.models()) == 1:
            return self._served
        return tuple(one for one in self._served if one.model_name == model)

    def put(self, new: Served, *, instead_of: Served | None = None) -> None:
        """Take one in, in the place of another when there is one."""
        asked = {id(one) for one in self._served} - {id(instead_of)} | {id(new)}
        if instead_of in self._known:
            self._known = tuple(new if one is instead_of else one for one in self._known)
        else:
            self._known = (*self._known, new)
        self._served = tuple(one for one in self._known if id(one) in asked)

    def set_aside(self, one: Served) -> None:
        """Ask it no more; it stays known, and comes back when it is `put` again."""
        self._served = tuple(other for other in self._served if other is not one)

    def drop(self, one: Served) -> None:
        """Ask it no more; requests that it answers go on."""
        self.set_aside(one)
        self._known = tuple(other for other in self._known if other is not one)
