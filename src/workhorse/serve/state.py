"""The whole service in one document: what runs and why, how it does, what is wrong. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workhorse import __version__
from workhorse.records import Alarm, EngineReading, Machine, Plan, Reading
from workhorse.serve.backend import READY, Served
from workhorse.serve.points import Event
from workhorse.serve.templates import Tally
from workhorse.serve.told import Fact, PlanTold, tell_machine, tell_plan
from workhorse.text import Text

OVER_ALARMS_SHOWN = 10
MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Measured:
    """What this service was measured at by the standard protocol, one stream."""

    at_unix_s: float
    decode_tokens_per_s: float
    low_tokens_per_s: float
    high_tokens_per_s: float
    prefill_tokens_per_s: float | None
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the owner of one engine knows of it; `None`: not yet."""

    served: Served
    plan: Plan | None = None
    machine: Machine | None = None
    measured: Measured | None = None
    reason: Text | None = None  # why it is not ready


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What one key has used since a moment."""

    name: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class UsageTold:
    """What was used since a moment, one row a key, the largest first."""

    since_unix_s: float
    keys: tuple[KeyUsage, ...]


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine: what it does, how fast, against what it was measured at and could do."""

    model_name: str
    state: str
    reason: Text | None
    restarts: int
    slots: int | None
    context_tokens: int | None
    now: EngineReading | None
    measured: Measured | None
    on: str = ""  # where it runs: tells engines of one model apart


@dataclass(frozen=True, slots=True)
class About:
    """What changes only with a plan: a reader that knows this revision is not sent it again."""

    machine: tuple[Fact, ...]
    plans: tuple[PlanTold | None, ...]  # one an engine, in their order


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Everything that the dashboard shows but the curves."""

    version: str
    at_unix_s: float
    since_unix_s: float  # when the service was started
    state: str  # ready when any engine is; else what the first is doing
    revision: str
    engines: tuple[EngineState, ...]
    reading: Reading | None
    alarms: tuple[Alarm, ...]  # worst first, those that are over last
    events: tuple[Event, ...]
    usage: UsageTold | None  # None: nobody counts
    templates: tuple[Tally, ...]
    about: About | None  # None: the reader knows this revision


def service_state(
    known: Sequence[Known],
    *,
    at_unix_s: float,
    since_unix_s: float,
    reading: Reading | None = None,
    alarms: Sequence[Alarm] = (),
    events: Sequence[Event] = (),
    usage: UsageTold | None = None,
    templates: Sequence[Tally] = (),
    reader_knows: str | None = None,
) -> ServiceState:
    """One document of what is known at `at_unix_s`.

    `reader_knows`: the revision that a reader has `about` of.
    """
    now = _readings(known, reading)
    revision = revision_of(known)
    states = [one.served.backend.state for one in known]
    return ServiceState(
        __version__,
        at_unix_s,
        since_unix_s,
        READY if READY in states else next(iter(states), "planning"),
        revision,
        tuple(_engine(one, now[index]) for index, one in enumerate(known)),
        reading,
        sorted_alarms(alarms),
        tuple(events),
        usage,
        tuple(templates),
        None if reader_knows == revision else _about(known),
    )


def revision_of(known: Sequence[Known]) -> str:
    """Another word whenever `about` may be another."""
    return f"{hash(tuple((one.served.model_name, one.plan) for one in known)) & MASK:x}"


def _about(known: Sequence[Known]) -> About:
    machine = next((one.machine for one in known if one.machine is not None), None)
    return About(
        () if machine is None else tell_machine(machine),
        tuple(None if one.plan is None else tell_plan(one.plan, one.machine) for one in known),
    )


def _readings(known: Sequence[Known], reading: Reading | None) -> list[EngineReading | None]:
    """The reading of each engine: by place among those of its name, as `Live` gives them."""
    left = list(reading.engines) if reading else []
    found: list[EngineReading | None] = []
    for one in known:
        match = next((e for e in left if e.name == one.served.name), None)
        if match is not None:
            left.remove(match)
        found.append(match)
    return found


def _engine(one: Known, now: EngineReading | None) -> EngineState:
    capacity, backend = one.served.capacity, one.served.backend
    return EngineState(
        one.served.model_name,
        backend.state,
        None if backend.state == READY else one.reason,
        backend.restarts,
        None if capacity is None else capacity.slots,
        None if capacity is None else capacity.context_tokens,
        now,
        one.measured,
        one.served.on,
    )


_ORDER: dict[Literal["blocker", "cause", "warning", "note", "good"], int] = {
    "blocker": 0,
    "cause": 1,
    "warning": 2,
    "note": 3,
    "good": 4,
}


def sorted_alarms(alarms: Sequence[Alarm]) -> tuple[Alarm, ...]:
    """Those in force, worst first, then the latest ones that are over."""
    on = [alarm for alarm in alarms if alarm.over_unix_s is None]
    over = [alarm for alarm in alarms if alarm.over_unix_s is not None]
    on.sort(key=lambda alarm: (_ORDER[alarm.finding.level], -alarm.since_unix_s))
    over.sort(key=lambda alarm: -(alarm.over_unix_s or 0))
    return (*on, *over[:OVER_ALARMS_SHOWN])
