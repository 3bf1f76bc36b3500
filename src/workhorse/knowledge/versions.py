"""Dotted versions and ranges of them, as drivers, toolkits, wheels, kernels and glibc have them."""

import re
from dataclasses import dataclass
from functools import cache

# A long run of digits is no version; `int` of it would cost time.
_READABLE = re.compile(r"\s*[vb]?(\d{1,9}(?:\.\d{1,9}){0,7})(.{0,200})", re.DOTALL | re.ASCII)
_BEFORE_RELEASE = re.compile(r"[.\-_]?(?:a|b|rc|dev|alpha|beta|pre)\.?\d*(?![a-z])", re.IGNORECASE)
_CLAUSE = re.compile(r"(>=|<|=)(\d{1,9}(?:\.\d{1,9}){0,7})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version:
    """The numbers of a dotted version; what follows them counts only as before the release."""

    numbers: tuple[int, ...]
    released: bool = True

    def before(self, other: "Version") -> bool:
        """True when this one is older; missing numbers count as 0, so 12.0 equals 12."""
        size = max(len(self.numbers), len(other.numbers))
        mine = self.numbers + (0,) * (size - len(self.numbers))
        theirs = other.numbers + (0,) * (size - len(other.numbers))
        return (mine, self.released) < (theirs, other.released)

    def within(self, family: "Version") -> bool:
        """True when it is `family` or one below it in dots: 580.95.05 is within 580."""
        size = len(family.numbers)
        return (self.numbers + (0,) * size)[:size] == family.numbers


def version(text: str) -> Version | None:
    """`0.19.1+cu128`, `580.95.05`, `6.12.0-1-amd64`, `b4935`, `3.0rc1`; None when unreadable."""
    found = _READABLE.match(text)
    if found is None:
        return None
    numbers = tuple(int(part) for part in found[1].split("."))
    return Version(numbers, _BEFORE_RELEASE.match(found[2]) is None)


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from `at_least`, before `below`, within `family`; None: no such bound."""

    at_least: Version | None = None
    below: Version | None = None
    family: Version | None = None

    def holds(self, value: Version) -> bool:
        """True when `value` is in the range."""
        return (
            (self.at_least is None or not value.before(self.at_least))
            and (self.below is None or value.before(self.below))
            and (self.family is None or value.within(self.family))
        )


@cache
def version_range(text: str) -> Range:
    """Reads `>=7.0,<7.5`, `<580` or `=470` (470 and all below it in dots).

    There is no `<=` and no `>`: `<=12.9` would leave out 12.9.1, which nobody means. Raises
    `ValueError` for anything else, two bounds of one kind, or a range that nothing is in.
    """
    bounds: dict[str, Version] = {}
    for clause in text.split(","):
        found = _CLAUSE.fullmatch(clause)
        if found is None or found[1] in bounds:
            raise ValueError(f"not a range: {text!r}")
        bounds[found[1]] = Version(tuple(int(part) for part in found[2].split(".")))
    low, high = bounds.get(">="), bounds.get("<")
    if low is not None and high is not None and not low.before(high):
        raise ValueError(f"nothing is in the range {text!r}")
    return Range(low, high, bounds.get("="))
