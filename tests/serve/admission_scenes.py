"""An admission in a test's hands: one engine, one chat, and what came of a request."""

from dataclasses import replace

from workhorse.serve.admission import Admission
from workhorse.serve.decisions import Bid, Grant, Lane, Refusal, Standing

# One second a hundred prompt tokens, one second ten generated ones.
LANE = Lane(1, "m", 2, True, 100.0, 10.0)
CHAT = Bid("m", prompt_tokens=100, output_tokens=90)  # ten seconds


def admission(*lanes: Lane, **options: float) -> Admission:
    made = Admission(**options)  # type: ignore[arg-type]
    made.set_engines(lanes or (LANE,), 0)
    return made


def waits(decision: Grant | Standing | Refusal) -> Standing:
    assert isinstance(decision, Standing), decision
    return decision


def refused(decision: Grant | Standing | Refusal) -> Refusal:
    assert isinstance(decision, Refusal), decision
    return decision


def granted(decisions: list[Grant]) -> list[int]:
    return [one.ticket for one in decisions]


def two(slots: int = 1, **of_second: object) -> Admission:
    second = replace(LANE, number=2, slots=slots)
    return admission(replace(LANE, slots=slots), replace(second, **of_second))  # type: ignore[arg-type]
