"""Measurement: what happened, as raw samples with their conditions."""

from dataclasses import dataclass

from workhorse.records.machine import Machine
from workhorse.records.plan import Plan


@dataclass(frozen=True, slots=True)
class Run:
    """One request's raw times, in seconds since it was sent.

    `arrivals_s` are the arrivals of the pieces of text; an engine may put several tokens into
    one piece, so `output_tokens` is what the engine counted.
    """

    stream: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    arrivals_s: tuple[float, ...]
    end_s: float
    error: str | None = None
    sent_s: float | None = None  # when, since the measurement began; `Sample.at_s` has that zero
    asked_prompt_tokens: int | None = None  # None: as the measurement says
    asked_output_tokens: int | None = None
    engine_prefill_s: float | None = None  # by the engine's own clock
    engine_decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class CardSample:
    """One GPU at one moment of a measurement; `None`: the driver does not say."""

    index: int
    sm_clock_mhz: int | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    busy_share: float | None = None
    throttled_by: tuple[str, ...] | None = None  # the driver's reasons in force
    link_generation: int | None = None
    link_width: int | None = None
    energy_j: float | None = None  # since the driver was loaded


@dataclass(frozen=True, slots=True)
class Sample:
    """The machine at one moment of a measurement; `None`: not known.

    What is taken over a time is of the time since the sample before.
    """

    at_s: float  # since the measurement began; below 0: just before it
    cards: tuple[CardSample, ...] = ()
    cpu_mhz: float | None = None  # median of the CPUs that may be used
    cpu_energy_j: float | None = None  # of all packages, since some moment before the first sample
    other_cpus: float | None = None  # CPUs' worth of work by neither client nor service
    client_cpus: float | None = None  # what the measuring process itself took
    late_s: float | None = None  # how late the client was woken at the worst
    quota_waited_s: float | None = None  # CPU time withheld by a control group since it exists
    cpu_throttles: int | None = None  # how often cores slowed down for heat, since the boot


@dataclass(frozen=True, slots=True)
class ServedBy:
    """What a service says of itself; `None`: it does not."""

    engine: str | None = None  # llama.cpp, vllm, lmdeploy …
    build: str | None = None
    model: str | None = None
    slots: int | None = None
    context_tokens: int | None = None  # of one slot
    gateway: str | None = None  # the version of workhorse in front of it
    settings: tuple[tuple[str, str], ...] = ()  # of the plan: name and value
    pids: tuple[int, ...] = ()  # of engines, as the gateway tells them


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was so while the figures were taken."""

    when: str  # ISO 8601, UTC
    machine: Machine | None
    plan: Plan | None
    url: str
    workhorse: str
    served_by: ServedBy | None = None
    samples: tuple[Sample, ...] = ()  # in the order of time


@dataclass(frozen=True, slots=True)
class Measurement:
    """What happened: raw samples and conditions, never only means."""

    scenario: str
    prompt_tokens: int  # of each request; the mean where they differ
    output_tokens: int
    streams: int
    runs: tuple[Run, ...]
    conditions: Conditions
    shared_tokens: int = 0  # with which all prompts begin
    cache_asked: bool = False  # the service was asked to reuse what it has computed
    seed: int | None = None  # of the prompts
