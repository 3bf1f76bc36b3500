"""How a forecast came about: its terms, largest first, and what each constant rests on."""

from dataclasses import dataclass

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
