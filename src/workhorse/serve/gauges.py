"""The gauges of `/metrics`: the engines, the cards, the memory, the alarms at this moment. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from workhorse import __version__
from workhorse.records import Alarm, CardReading, EngineReading, Reading
from workhorse.serve.backend import Served

# Name, explanation, what a reading says; what it does not say has no sample.
# Several engines may serve one model, also for a moment while one takes another's place: a model
# has one sample, the sum or the mean of theirs.
_Fold = Callable[[Sequence[float]], float]
_Rows = tuple[tuple[str, str, _Fold, Callable[[EngineReading], float | None]], ...]
_CardRows = tuple[tuple[str, str, Callable[[CardReading], float | None]], ...]
_WholeRows = tuple[tuple[str, str, Callable[[Reading], float | None]], ...]

_OF_AN_ENGINE: _Rows = (
    ("num_requests_running", "Requests in the slots of an engine.", sum, lambda e: e.generating),
    # They share one line: each of them has the whole of it.
    ("num_requests_waiting", "Requests in the gateway's queue.", max, lambda e: e.waiting),
    (
        "stream_tokens_per_second",
        "Decode speed of one stream, over the latest answers.",
        fmean,
        lambda e: e.decode_tokens_per_s,
    ),
    (
        "engine_tokens_per_second",
        "Decode speed of all streams together, over the latest seconds.",
        sum,
        lambda e: e.total_tokens_per_s,
    ),
    (
        "engine_resident_memory_bytes",
        "Main memory of the engine's process.",
        sum,
        lambda e: e.resident_bytes,
    ),
    ("engine_swapped_bytes", "Of the engine's process, in swap.", sum, lambda e: e.swapped_bytes),
    (
        "engine_cpu_ratio",
        "Of the CPUs that the engine was given, the share in use.",
        fmean,
        lambda e: e.cpu_share,
    ),
)
_OF_A_CARD: _CardRows = (
    ("gpu_memory_used_bytes", "Memory of a card in use.", lambda c: c.used_bytes),
    ("gpu_memory_total_bytes", "Memory of a card.", lambda c: c.total_bytes),
    ("gpu_utilization_ratio", "Share of the time a kernel was running.", lambda c: c.busy_share),
    ("gpu_power_watts", "Power drawn by a card.", lambda c: c.power_w),
    ("gpu_power_limit_watts", "Power cap in force.", lambda c: c.power_limit_w),
    ("gpu_temperature_celsius", "Temperature of a card.", lambda c: c.temperature_c),
    (
        "gpu_sm_clock_hertz",
        "Clock of a card's processors.",
        lambda c: None if c.sm_clock_mhz is None else c.sm_clock_mhz * 1e6,
    ),
    ("gpu_pcie_link_generation", "Generation of the link now.", lambda c: c.link_generation),
    ("gpu_pcie_link_width", "Lanes of the link now.", lambda c: c.link_width),
    ("gpu_ecc_corrected_errors", "Since the driver was loaded.", lambda c: c.corrected_errors),
    ("gpu_ecc_uncorrected_errors", "Since the driver was loaded.", lambda c: c.uncorrected_errors),
)
_OF_THE_MACHINE: _WholeRows = (
    ("memory_total_bytes", "Main memory.", lambda r: r.memory_total_bytes),
    (
        "memory_available_bytes",
        "Main memory that programs can have.",
        lambda r: r.memory_available_bytes,
    ),
    ("swap_used_bytes", "Swap in use.", lambda r: r.swap_used_bytes),
    ("other_cpus_busy", "CPUs kept busy by other processes.", lambda r: r.other_cpus_busy),
)


def gauges(
    in_flight: int,
    served: Sequence[Served],
    reading: Reading | None,
    alarms: Iterable[Alarm],
) -> Iterator[Metric]:
    """Every gauge; a figure that is unknown has no sample."""
    yield GaugeMetricFamily(
        "workhorse_requests_in_flight",
        "Requests being answered that make the engine work.",
        value=in_flight,
    )
    build = _family("build_info", "1; the version is the label.", ("version",))
    build.add_metric((__version__,), 1)
    yield build
    yield from _of_served(served)
    yield from _of_alarms(alarms)
    if reading is not None:
        yield from _of_reading(reading)


def _of_served(served: Sequence[Served]) -> Iterator[Metric]:
    state = _family("engine_state", "Engines of a model that are in a state.", ("model", "state"))
    restarts = CounterMetricFamily(
        "workhorse_engine_restarts_total",
        "Times the engine of a model was started again after it had died.",
        labels=("model",),
    )
    slots = _family("slots", "Requests that an engine takes at a time.", ("model",))
    context = _family("slot_context_tokens", "Context of one slot.", ("model",))
    for (model, word), engines in Counter((s.model_name, s.backend.state) for s in served).items():
        state.add_metric((model, word), engines)
    for model in dict.fromkeys(one.model_name for one in served):
        same = [one for one in served if one.model_name == model]
        restarts.add_metric((model,), sum(one.backend.restarts for one in same))
        if planned := [one.capacity for one in same if one.capacity is not None]:
            slots.add_metric((model,), sum(capacity.slots for capacity in planned))
            context.add_metric((model,), min(capacity.context_tokens for capacity in planned))
    yield from (state, restarts, slots, context)


def _of_alarms(alarms: Iterable[Alarm]) -> Iterator[Metric]:
    family = _family(
        "alarm_active", "1 for each alarm that is not over.", ("code", "level", "subject")
    )
    active = {(a.finding.code, a.finding.level, a.subject) for a in alarms if not a.over_unix_s}
    for labels in sorted(active):
        family.add_metric(labels, 1)
    yield family


def _of_reading(reading: Reading) -> Iterator[Metric]:
    for name, about, figure in _OF_THE_MACHINE:
        if (value := figure(reading)) is not None:
            yield GaugeMetricFamily(f"workhorse_{name}", about, value=value)
    for name, about, fold, of_engine in _OF_AN_ENGINE:
        family = _family(name, about, ("model",))
        known: dict[str, list[float]] = defaultdict(list)
        for engine in reading.engines:
            if (value := of_engine(engine)) is not None:
                known[engine.model_name].append(value)
        for model, values in known.items():
            family.add_metric((model,), fold(values))
        yield family
    for name, about, of_card in _OF_A_CARD:
        family = _family(name, about, ("gpu", "name"))
        for card in reading.cards:
            if (value := of_card(card)) is not None:
                family.add_metric((str(card.index), card.name), value)
        yield family
    throttled = _family("gpu_throttled", "1 for each of the driver's reasons.", ("gpu", "reason"))
    for card in reading.cards:
        for reason in card.throttled_by or ():
            throttled.add_metric((str(card.index), reason), 1)
    yield throttled


def _family(name: str, about: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"workhorse_{name}", about, labels=labels)
