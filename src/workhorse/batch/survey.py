"""What a service offers a job: its slots, its speeds, whether people chat. Asked of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from workhorse.batch.capacity import Capacity, benched_capacity, guessed_capacity, together
from workhorse.batch.pace import PaceKeeper
from workhorse.bench.identify import told, who_serves
from workhorse.bench.service import Service
from workhorse.errors import AppError
from workhorse.store import Store
from workhorse.text import Text

# How often a service is asked whether people chat; an answer of an old machine takes longer.
LOOK_S = 2.0
RUNS_LOOKED_AT = 20  # a run of many streams is megabytes to read
STATUS_PATH, STATE_PATH = "/workhorse/status", "/workhorse/state"


class ReadingShown(msgspec.Struct):
    """What an engine does at this moment."""

    generating: int = 0
    waiting: int = 0
    giving_way: int | None = None
    giving_way_in_line: int | None = None


class EngineShown(msgspec.Struct):
    """One engine in the gateway's status."""

    model_name: str
    state: str = ""
    reading: ReadingShown | None = None


class StatusShown(msgspec.Struct):
    """The gateway's status."""

    engines: list[EngineShown] = []


class MeasuredShown(msgspec.Struct):
    """What the service was measured at when it started: one stream."""

    decode_tokens_per_s: float
    prefill_tokens_per_s: float | None = None


class EngineStateShown(msgspec.Struct):
    """One engine in the gateway's state."""

    model_name: str
    slots: int | None = None
    context_tokens: int | None = None
    measured: MeasuredShown | None = None


class StateShown(msgspec.Struct):
    """The gateway's state."""

    engines: list[EngineStateShown] = []


@dataclass(frozen=True, slots=True)
class Offer:
    """A service as a job sees it; None: not known."""

    service: Service
    slots: int | None  # of all engines of the model
    context_tokens: int | None  # of one slot
    capacity: Capacity | None


async def survey(client: aiohttp.ClientSession, service: Service, store: Store) -> Offer:
    """What is known of the service, by its own word and by what was measured of it here."""
    state = await told(client, service, STATE_PATH, StateShown)
    engines = [one for one in (state.engines if state else []) if one.model_name == service.model]
    slots = [one.slots for one in engines]
    contexts = [one.context_tokens for one in engines if one.context_tokens]
    known = sum(one for one in slots if one) if slots and all(slots) else None
    context_tokens = min(contexts, default=None)
    if known is None or context_tokens is None:
        said = await who_serves(client, service)
        known, context_tokens = known or said.slots, context_tokens or said.context_tokens
    # The store is a file: nobody else waits for this loop yet, and a run is read in milliseconds.
    capacity = stored_capacity(store, service, known)
    if capacity is None:
        capacity = started_capacity(engines, known)
    return Offer(service, known, context_tokens, capacity)


def stored_capacity(store: Store, service: Service, slots: int | None) -> Capacity | None:
    """The latest bench of this model at this address that measured several stream counts.

    One of another number of slots was of another plan, and says nothing of this one.
    """
    try:
        runs = [one for one in store.runs() if one.kind == "bench"]
    except AppError:  # a store that cannot be used costs a forecast, not a job
        return None
    same = [one for one in runs if one.model_name == service.model]
    here = [one for one in same if (one.url or "").rstrip("/") == service.url.rstrip("/")]
    for run in here[:RUNS_LOOKED_AT]:
        try:
            measurements = store.run(run.name)
        except AppError:
            continue
        said = measurements[0].conditions.served_by if measurements else None
        if said is None or said.slots in (None, slots) or slots is None:
            found = benched_capacity(measurements, run.name)
            if found is not None:
                return found
    return None


def started_capacity(engines: Sequence[EngineStateShown], slots: int | None) -> Capacity | None:
    """From what the service measured when it started, one stream of each engine."""
    source = Text(
        "one stream, measured when the service started; `workhorse bench --what ladder` "
        "measures several",
        "服务启动时测得的单路速度；可用 `workhorse bench --what ladder` 测量多路",
    )
    known = next((one.measured for one in engines if one.measured is not None), None)
    if known is None:
        return None
    found = []
    for one in engines:
        seen = one.measured or known  # the others of a model are much like it
        own = one.slots if len(engines) > 1 else slots
        found.append(
            guessed_capacity(own, seen.prefill_tokens_per_s, seen.decode_tokens_per_s, source)
        )
    return together([one for one in found if one is not None])


async def chats_of(client: aiohttp.ClientSession, service: Service, own: int) -> int | None:
    """How many requests of people are under way; None: the service does not tell.

    `own`: requests of this job that are under way, for a gateway that does not say whose are.
    """
    status = await told(client, service, STATUS_PATH, StatusShown)
    if status is None:
        return None
    readings = [
        one.reading
        for one in status.engines
        if one.reading is not None and service.model in (None, one.model_name)
    ]
    if not readings:
        return 0
    # Engines of one model share one line: each of them tells the whole of it.
    if any(one.giving_way is None for one in readings):
        in_line = max(one.waiting for one in readings)
        return max(0, sum(one.generating for one in readings) + in_line - own)
    if any(one.giving_way_in_line is None for one in readings):  # a gateway of an earlier version
        return sum(one.generating + one.waiting - (one.giving_way or 0) for one in readings)
    in_slots = sum(
        one.generating - (one.giving_way or 0) + (one.giving_way_in_line or 0) for one in readings
    )
    return in_slots + max(one.waiting - (one.giving_way_in_line or 0) for one in readings)


async def watch_chat(client: aiohttp.ClientSession, service: Service, pace: PaceKeeper) -> None:
    """Tell the pace of people who chat, until cancelled or the service does not tell."""
    while True:
        chats = await chats_of(client, service, pace.under_way)
        if chats is not None:
            pace.chat_seen(chats)
        await asyncio.sleep(LOOK_S)
