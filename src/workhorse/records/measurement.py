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


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was so while the figures were taken."""

    when: str  # ISO 8601, UTC
    machine: Machine | None
    plan: Plan | None
    url: str
    workhorse: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What happened: raw samples and conditions, never only means."""

    scenario: str
    prompt_tokens: int
    output_tokens: int
    streams: int
    runs: tuple[Run, ...]
    conditions: Conditions
