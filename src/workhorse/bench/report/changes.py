"""What a tuner changed, as a table of a report. Pure; takes plain rows, being below the tuner."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.bench.report.case import clean
from workhorse.bench.report.document import Table
from workhorse.text import Text
from workhorse.units import UNKNOWN


@dataclass(frozen=True, slots=True)
class Changed:
    """One trial: what was set to what, what came of it, and how sure that is."""

    number: int
    variable: str
    value: str
    outcome: Text
    accepted: bool
    ratio: float | None  # candidate over incumbent; None: it never answered
    interval: tuple[float, float] | None
    expected: float | None
    pairs: int
    why: Text


def changes(rows: Sequence[Changed]) -> Table | None:
    """What was changed, what it gave, how sure; None without a trial."""
    if not rows:
        return None
    return Table(
        (
            Text("trial", "试验"),
            Text("change", "更改"),
            Text("gave", "效果"),
            Text("95 % interval", "95 % 区间"),
            Text("expected", "预期"),
            Text("pairs", "配对数"),
            Text("outcome", "结论"),
            Text("why", "原因"),
        ),
        tuple(
            (
                f"{row.number}{' ✓' if row.accepted else ''}",
                f"{clean(row.variable)} = {clean(row.value)}",
                gain(row.ratio),
                f"{gain(row.interval[0])} – {gain(row.interval[1])}" if row.interval else UNKNOWN,
                gain(row.expected),
                str(row.pairs),
                row.outcome,
                row.why,
            )
            for row in rows
        ),
        words=frozenset((1, 6, 7)),
    )


def gain(ratio: float | None) -> str:
    """A ratio as a gain: `+4.2 %`."""
    return UNKNOWN if ratio is None else f"{(ratio - 1) * 100:+.1f} %"
