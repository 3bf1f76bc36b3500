"""What a service says of itself: engine, build, plan. Each service is asked its own way."""

from typing import TypeVar

import aiohttp
import msgspec

from workhorse.bench.service import Service, ask
from workhorse.errors import AppError
from workhorse.records import ServedBy

T = TypeVar("T")

TEXT_MAX = 200
SETTINGS_MAX = 64


class Generation(msgspec.Struct):
    """Part of `/props`."""

    n_ctx: int | None = None


class Props(msgspec.Struct):
    """llama-server's `/props`."""

    build_info: str | None = None
    total_slots: int | None = None
    default_generation_settings: Generation = msgspec.field(default_factory=Generation)


class Version(msgspec.Struct):
    """vLLM's `/version`."""

    version: str


class Words(msgspec.Struct):
    """A text in two languages."""

    en: str = ""


class Setting(msgspec.Struct):
    """One decision of a plan."""

    label: Words
    value: str


class PlanShown(msgspec.Struct):
    """A plan as the gateway tells it."""

    model_name: str | None = None
    engine: str | None = None
    slots: int | None = None
    context_tokens: int | None = None
    settings: list[Setting] = []


class About(msgspec.Struct):
    """The gateway's plans, one an engine."""

    plans: list[PlanShown | None] = []


class EngineProcess(msgspec.Struct):
    """One engine at this moment."""

    model_name: str | None = None
    pid: int | None = None


class ReadingShown(msgspec.Struct):
    """What runs behind the gateway."""

    engines: list[EngineProcess] = []


class State(msgspec.Struct):
    """Our gateway's `/workhorse/state`."""

    version: str
    about: About | None = None
    reading: ReadingShown | None = None


async def who_serves(session: aiohttp.ClientSession, service: Service) -> ServedBy:
    """What can be learned of the service; what it does not tell is None."""
    state = await told(session, service, "/workhorse/state", State)
    props = await told(session, service, "/props", Props) or Props()
    version = None
    if props.build_info is None:
        version = await told(session, service, "/version", Version)
    engine = kind_of(service, props, version)
    plans = plans_for(service, state)
    plan = plans[0]
    slots = [one.slots for one in plans if one.slots]
    return ServedBy(
        engine=engine,
        build=short(props.build_info or (version.version if version else None) or plan.engine),
        model=short(service.model),
        slots=sum(slots) or props.total_slots,
        context_tokens=plan.context_tokens or props.default_generation_settings.n_ctx,
        gateway=short(state.version) if state else None,
        settings=(
            *((("engines", str(len(plans))),) if len(plans) > 1 else ()),
            *(
                (one.label.en[:TEXT_MAX], one.value[:TEXT_MAX])
                for one in plan.settings[:SETTINGS_MAX]
            ),
        ),
        pids=tuple(
            one.pid
            for one in (state.reading.engines if state and state.reading else [])[:SETTINGS_MAX]
            if one.pid is not None and one.pid > 0
        ),
    )


def kind_of(service: Service, props: Props, version: Version | None) -> str | None:
    """Which engine it is, by what only that one answers."""
    if props.build_info is not None or service.tokenizer == "llama.cpp":
        return "llama.cpp"
    if service.tokenizer is not None:
        return service.tokenizer
    return "vllm" if version is not None and service.owner == "vllm" else short(service.owner)


def plans_for(service: Service, state: State | None) -> list[PlanShown]:
    """The plans of the model that is measured, one an engine; an empty one when none is told."""
    plans = [one for one in (state.about.plans if state and state.about else []) if one]
    same = [one for one in plans if one.model_name == service.model]
    return same or plans[:1] or [PlanShown()]


def short(text: str | None) -> str | None:
    """A name of sensible length."""
    return None if text is None else text[:TEXT_MAX]


async def told(
    session: aiohttp.ClientSession, service: Service, path: str, kind: type[T]
) -> T | None:
    """The document at `path`; None where there is none of that kind."""
    try:
        status, body = await ask(session, service, "GET", path)
        return msgspec.json.decode(body, type=kind) if status == 200 else None
    except (AppError, msgspec.DecodeError, UnicodeDecodeError):
        return None
