"""How a forecast came about: its terms, largest first, and what each constant rests on."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.plan.speed.learned import Experience, kept_promises
from workhorse.records import Forecast
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Explained:
    """One row for a reader: what takes how long, its share of a token, and the source."""

    device: str
    what: Text
    seconds: float
    share: float  # of a token's time
    source: Text


def explain(forecast: Forecast) -> tuple[Explained, ...]:
    """The terms of one token of one stream, largest first; empty without a decode forecast."""
    total = sum(term.seconds for term in forecast.terms)
    if not total:
        return ()
    ordered = sorted(forecast.terms, key=lambda term: -term.seconds)
    return tuple(
        Explained(term.device, term.what, term.seconds, term.seconds / total, term.source)
        for term in ordered
    )


def explain_learning(history: Sequence[Experience]) -> Text | None:
    """How often measurements here fell into the promised interval; None before the first."""
    kept, judged = kept_promises(history)
    if not judged:
        return None
    return Text(
        f"{kept} of {judged} measurements here fell into the interval that was promised.",
        f"本机 {judged} 次实测中有 {kept} 次落在预测区间内。",
    )
