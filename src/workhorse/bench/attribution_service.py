"""What is known of a service before its time is explained: plan, ceiling, the engine behind it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from workhorse.bench.attribution import Known
from workhorse.bench.own_service import decided_by, own_file
from workhorse.bench.service import Service, ask
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.models.read import read_model
from workhorse.plan.speed import PROTOCOL_DEPTH_TOKENS, kv_read_bytes
from workhorse.records import Estimate, Plan
from workhorse.text import Text

LARGEST_COMMAND_BYTES = 2**20
# What llama-server takes its key from (common/arg.cpp, 0c1e570 of 2026-10).
KEY_VARIABLE = "LLAMA_API_KEY"
# Routes whose requests make an engine work.
GENERATING = ("/v1/completions", "/v1/chat", "/v1/messages", "/v1/responses", "/completion")
# Terms of a forecast that are not part of the rest: reading is the ceiling, attention its own.
NOT_REST = ("memory read", "attention")


@dataclass(frozen=True, slots=True)
class Behind:
    """The service and what stands behind it."""

    known: Known
    engine: Service | None = None  # the engine's own port, where it may be asked
    rated_mhz: float | None = None  # of the CPUs


class Figure(msgspec.Struct):
    """An estimate as the gateway's state tells it."""

    value: float
    low: float
    high: float
    source: Text


class ToldPlan(msgspec.Struct):
    """The part of a plan that is needed here."""

    model_name: str
    ceiling_tokens_per_s: Figure | None = None


class ToldReading(msgspec.Struct):
    """What an engine's reading tells of its process."""

    pid: int | None = None


class ToldEngine(msgspec.Struct):
    """One engine of the state."""

    model_name: str
    now: ToldReading | None = None


class ToldAbout(msgspec.Struct):
    """What changes only with a plan."""

    plans: list[ToldPlan | None] = []


class State(msgspec.Struct):
    """The part of `/workhorse/state` that is read here."""

    version: str
    engines: list[ToldEngine] = []
    about: ToldAbout | None = None


def answered_of(metrics: str) -> float | None:
    """Requests that made an engine work, by a gateway's metrics; None where they are none."""
    try:
        return sum(
            sample.value
            for family in text_string_to_metric_families(metrics)
            for sample in family.samples
            if sample.name == "workhorse_requests_total"
            and sample.labels.get("route", "").startswith(GENERATING)
        )
    except (ValueError, KeyError, IndexError):
        return None


async def state_of(session: aiohttp.ClientSession, service: Service) -> State | None:
    """What a workhorse gateway says of itself; None from anything else."""
    status, body = await ask(session, service, "GET", "/workhorse/state")
    if status != 200:
        return None
    try:
        return msgspec.json.decode(body, type=State)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def look_behind(
    session: aiohttp.ClientSession,
    service: Service,
    where: Places,
    *,
    depth_tokens: float,
    ceiling: Estimate | None,
) -> Behind:
    """All that the gateway and its files tell; `ceiling` is the user's own figure."""
    state = await state_of(session, service)
    if state is None:
        return Behind(Known(ceiling))
    named = [one for one in state.engines if one.model_name == service.model] or state.engines[:1]
    pid = next((one.now.pid for one in named if one.now is not None), None)
    plan, rated_mhz = None, None
    if ceiling is None:
        ceiling = told_ceiling(told_plan(state, service.model))
        decided = await decided_by(session, service, where)
        plan = None if decided is None else decided.plan
        machine = None if decided is None else decided.machine
        rated_mhz = None if machine is None else machine.cpu.max_mhz
    known = Known(ceiling, has_gateway=True)
    if plan is not None and ceiling is not None:
        known = known_of(plan, ceiling, depth_tokens)
    file = own_file(where, service.url)
    if file is None:
        return Behind(known, rated_mhz=rated_mhz)
    ours = [engine.pid for engine in file.engines]
    return Behind(known, engine_at(pid, service.model) if pid in ours else None, rated_mhz)


def told_plan(state: State, model: str | None) -> ToldPlan | None:
    """The plan of this model, else the first."""
    plans = [plan for plan in (state.about.plans if state.about else []) if plan is not None]
    return next((plan for plan in plans if plan.model_name == model), plans[0] if plans else None)


def told_ceiling(plan: ToldPlan | None) -> Estimate | None:
    """The plan's ceiling; None where the bandwidth is not known."""
    told = None if plan is None else plan.ceiling_tokens_per_s
    if told is None or not 0 < told.low <= told.value <= told.high:
        return None
    return Estimate(told.value, told.low, told.high, "tok/s", "measured", told.source)


def known_of(plan: Plan, ceiling: Estimate, depth_tokens: float) -> Known:
    """What a plan tells of a token's time at this depth."""
    devices = tuple(dict.fromkeys(p.device for p in plan.placement if p.group == "layers"))
    known = Known(
        ceiling,
        devices=devices,
        expected=tuple(
            (
                term.what if len(devices) < 2 else Text(f"{term.device}: {term.what.en}",
                                                        f"{term.device}：{term.what.zh}"),
                term.seconds,
            )
            for term in plan.forecast.terms
            if term.what.en not in NOT_REST
        ),
        has_gateway=True,
    )  # fmt: skip
    try:
        model = read_model(plan.model_path)
    except AppError:
        return known  # the file has gone; what its layers keep is not known without it
    types = (plan.kv_type_k, plan.kv_type_v)
    at_protocol = kv_read_bytes(model, PROTOCOL_DEPTH_TOKENS, *types)
    here = kv_read_bytes(model, round(depth_tokens), *types)
    n_bytes = plan.forecast.bytes_per_token
    share = (n_bytes - at_protocol + here) / n_bytes  # of the bytes at the protocol's depth
    scaled = replace(
        ceiling,
        value=ceiling.value / share,
        low=ceiling.low / share,
        high=ceiling.high / share,
    )
    # On several devices the KV lies beside the layers: its share of the bytes stands for its time.
    return replace(known, ceiling=scaled, kv_s=here / (n_bytes * share) / scaled.value)


def engine_at(pid: int | None, model: str | None, proc: Path = Path("/proc")) -> Service | None:
    """The own port of an engine of ours, by its command line; None where it cannot be asked."""
    if pid is None:
        return None
    words = zero_separated(proc / str(pid) / "cmdline")
    if "--port" not in words[:-1]:
        return None
    port = words[words.index("--port") + 1]
    if not port.isdecimal():
        return None
    variables = zero_separated(proc / str(pid) / "environ")
    key = next((v.partition("=")[2] for v in variables if v.startswith(f"{KEY_VARIABLE}=")), "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Service(f"http://127.0.0.1:{port}", model, headers)


def zero_separated(path: Path) -> list[str]:
    """The words of a file of /proc; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_COMMAND_BYTES)
    except OSError:
        return []
    return [os.fsdecode(word) for word in text.split(b"\0")]
