"""A report before it is Markdown or HTML: sections of words, tables and plots. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.records import Attribution, Finding
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first column names the row, figures stand in the others.

    Cells are `str` where both languages write the same.
    """

    head: tuple[Text, ...]
    rows: tuple[tuple[Text | str, ...], ...]
    words: frozenset[int] = frozenset()  # columns that hold words, and are not aligned as figures


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph."""

    text: Text


@dataclass(frozen=True, slots=True)
class Advice:
    """Findings about one case."""

    about: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One figure with its least and most, over `x`."""

    x: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """What one case adds to a plot; `place` is the case's, and gives its colour."""

    label: str
    place: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """Figures over a count or a length, which goes by powers of two; both axes where `log`."""

    title: Text
    x: Text
    y: Text
    series: tuple[Series, ...]
    log: bool = True
    dashed: tuple[Series, ...] = ()  # beside them, thinner: what is per stream


@dataclass(frozen=True, slots=True)
class Roof:
    """The two limits of one case, in tok/s: the memory's for one token a step, the arithmetic's."""

    label: str
    place: int
    ceiling: float | None
    compute: float | None
    points: tuple[Point, ...]  # over the tokens of a step


@dataclass(frozen=True, slots=True)
class Roofline:
    """Speed over the tokens that one reading of the weights serves."""

    title: Text
    roofs: tuple[Roof, ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """One forecast and what came of it, tok/s."""

    label: Text
    place: int
    predicted: Point
    measured: Point


@dataclass(frozen=True, slots=True)
class Promises:
    """Measured over predicted, one row a promise."""

    title: Text
    promises: tuple[Promise, ...]


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Where a token's time went."""

    title: Text
    found: Attribution


Plot = Curves | Roofline | Promises | Waterfall
Part = Table | Words | Advice | Plot


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: Text
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The whole report."""

    title: Text
    subtitle: Text
    sections: tuple[Section, ...]


def section(title: Text, parts: Sequence[Part | None]) -> Section | None:
    """A section of the parts that are there; None without any."""
    there = tuple(part for part in parts if part is not None)
    return Section(title, there) if there else None
