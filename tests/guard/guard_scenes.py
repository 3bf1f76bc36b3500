"""Plans, readings and a play of readings over time, for tests of the guard."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from builders import CUDA, EMBEDDED, gpu, machine, model
from workhorse.guard.judge import Judge, News
from workhorse.guard.limits import Limits
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import (
    Alarm,
    AnswerSpeed,
    CardReading,
    EngineReading,
    Estimate,
    Forecast,
    KernelEvent,
    Plan,
    Reading,
    StreamSpeed,
)
from workhorse.records.plan import DepthSpeed
from workhorse.text import same
from workhorse.units import GIB, MIB

PERIOD_S = 5.0
START_S = 1_790_000_000.0


def estimate(value: float, share: float = 0.9, basis: Any = "measured") -> Estimate:
    return Estimate(value, value * share, value / share, "tok/s", basis, same("test"))


def forecast(value: float = 100.0, basis: Any = "measured") -> Forecast:
    """100 tok/s at the protocol's depth, 80 at 8192; 60 each of two streams, 40 of four."""
    return Forecast(
        decode_tokens_per_s=estimate(value, basis=basis),
        uncorrected_tokens_per_s=value,
        ceiling_tokens_per_s=None,
        bytes_per_token=1,
        prefill_tokens_per_s=estimate(value * 10),
        streams=tuple(
            StreamSpeed(n, estimate(value * share), estimate(value * share * n))
            for n, share in ((1, 1.0), (2, 0.6), (4, 0.4))
        ),
        depths=tuple(
            DepthSpeed(n, estimate(value * share)) for n, share in ((2048, 0.95), (8192, 0.8))
        ),
    )


def cpu_plan(**changes: Any) -> Plan:
    """A plan on four CPUs of one node."""
    plan = make_plan(machine(), model(), EMBEDDED, Wish())
    changes = {"forecast": forecast(), "model_name": "horse", "cpus": (0, 1, 2, 3), **changes}
    return replace(plan, **changes)


def gpu_plan(cards: int = 1, **changes: Any) -> Plan:
    """A plan with every layer on cards."""
    plan = make_plan(machine(gpus=tuple(gpu(i) for i in range(cards))), model(), CUDA, Wish())
    assert plan.gpu_layers == plan.layers > 0
    changes = {"forecast": forecast(), "model_name": "horse", "cpus": (0, 1, 2, 3), **changes}
    return replace(plan, **changes)


def engine(**changes: Any) -> EngineReading:
    """A healthy engine that answers one stream."""
    return replace(
        EngineReading(
            model_name="horse",
            state="ready",
            restarts=0,
            generating=1,
            waiting=0,
            slots=4,
            decode_tokens_per_s=100.0,
            total_tokens_per_s=95.0,
            prefill_tokens_per_s=900.0,
            ttft_s=0.5,
            depth_tokens=868,
            streams=1,
            resident_bytes=GIB,
            major_faults=100,
            swapped_bytes=0,
            cpu_share=0.9,
            allowed_cpus=(0, 1, 2, 3),
            prefill_share=0.1,
            queue_limit=16,
            pid=4242,
            pages_on_nodes=(4 * GIB, 0),
            weights_cached_share=1.0,
            loaded_gpu_layers=5,
            garbage_streams=0,
            sane_streams=0,
        ),
        **changes,
    )


def card(**changes: Any) -> CardReading:
    """A healthy V100 at work."""
    return replace(
        CardReading(
            index=0,
            uuid="GPU-1",
            name="Tesla V100-PCIE-16GB",
            used_bytes=10 * GIB,
            total_bytes=16 * GIB,
            busy_share=0.9,
            power_w=200.0,
            power_limit_w=250.0,
            temperature_c=60.0,
            sm_clock_mhz=1300,
            throttled_by=(),
            link_generation=3,
            link_width=16,
            corrected_errors=0,
            uncorrected_errors=0,
            pci_address="0000:18:00.0",
            sm_clock_max_mhz=1380,
            power_limit_default_w=250.0,
            link_generation_max=3,
            link_width_max=16,
            own_bytes=9 * GIB,
            foreign_bytes=0,
        ),
        **changes,
    )


def xid(number: int, address: str | None = "0000:18:00.0") -> KernelEvent:
    return KernelEvent("xid", number, address, f"NVRM: Xid (PCI:{address}): {number}, test")


def answered(engine: EngineReading, at_s: float) -> EngineReading:
    """The engine, an answer having come since the last reading."""
    speed = engine.decode_tokens_per_s
    if speed is None:
        return replace(engine, answers=())
    answer = AnswerSpeed(at_s, speed, engine.depth_tokens, engine.streams, engine.prefill_share)
    return replace(engine, answers=(answer,))


class Play:
    """Feeds a judge with readings, `PERIOD_S` apart; each answer's figures differ a little."""

    def __init__(self, plan: Plan | None = None, limits: Limits | None = None) -> None:
        self.plan = plan or cpu_plan()
        self.judge = Judge(limits)
        self.news: list[News] = []
        self.at_s = START_S
        self.count = 0

    def reading(self, **changes: Any) -> Reading:
        return Reading(
            at_unix_s=self.at_s,
            engines=changes.pop("engines", (engine(),)),
            cards=changes.pop("cards", (card(),) if self.plan.gpu_layers else ()),
            memory_total_bytes=32 * GIB,
            memory_available_bytes=changes.pop("memory_available_bytes", 20 * GIB),
            other_cpus_busy=changes.pop("other_cpus_busy", 0.1),
            cpus=4,
            disk_free_bytes=changes.pop("disk_free_bytes", 100 * GIB),
            disk_total_bytes=500 * GIB,
            **changes,
        )

    def step(self, **changes: Any) -> tuple[News, ...]:
        """One reading."""
        self.at_s += PERIOD_S
        self.count += 1
        reading = self.reading(**changes)
        fresh = tuple(answered(e, self.count) for e in reading.engines)
        news = self.judge.add(replace(reading, engines=fresh), {"horse": self.plan})
        self.news.extend(news)
        return news

    def run(self, times: int, make: Callable[[int], dict[str, Any]] | None = None, **changes: Any):
        """So many readings, each with the same changes or those that `make` gives."""
        for index in range(times):
            self.step(**(make(index) if make else dict(changes)))
        return self

    @property
    def raised(self) -> list[str]:
        """The codes that were told as raised, in order."""
        return [n.alarm.finding.code for n in self.news if n.kind == "raised"]

    @property
    def over(self) -> list[str]:
        return [n.alarm.finding.code for n in self.news if n.kind == "over"]

    @property
    def now(self) -> dict[str, Alarm]:
        """What is wrong now, by code."""
        return {alarm.finding.code: alarm for alarm in self.judge.alarms}


__all__ = ["GIB", "MIB", "Play", "card", "cpu_plan", "engine", "forecast", "gpu_plan", "xid"]
