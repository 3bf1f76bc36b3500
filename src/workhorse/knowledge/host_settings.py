"""Settings of the host that decide speed: where they are, what is best when, and why."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows

KnobKind = Literal["word", "bracketed", "number", "memlock", "persistence", "power"]


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: its places in the kernel's files and how its value is written there."""

    name: str  # what `--only` takes
    en: str
    zh: str
    kind: KnobKind
    written: bool  # False: only suggested
    source: str
    date: str
    places: tuple[str, ...] = ()  # patterns, see host_settings.toml
    choices: str | None = None  # the file beside a place that lists the values
    commands: tuple[str, ...] = ()  # for the user to type; {value} and {gpu} stand in them

    def is_place(self, path: str) -> bool:
        """True when `path` is one of this knob's files; nothing else may ever be written."""
        return any(place_pattern(place).fullmatch(path) for place in self.places)

    def value_in(self, text: str | None) -> str | None:
        """The value that a file of this knob's kind holds; None when there is no sound one."""
        match = _VALUES[self.kind].search((text or "")[:_TEXT_MAX].strip())
        return match[1] if match else None

    def offered(self, text: str | None, choices: str | None) -> tuple[str, ...]:
        """The values that the kernel takes, by the file itself or the one beside it; () unknown."""
        listed = text if self.kind == "bracketed" else choices
        words = (listed or "")[:_TEXT_MAX].replace("[", " ").replace("]", " ").split()
        return tuple(word for word in words if _WORD.fullmatch(word))


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best value of a knob where the conditions hold; no value: it does not matter there."""

    knob: str
    en: str
    zh: str
    source: str
    date: str
    value: str | None = None
    fine: tuple[str, ...] = ()  # as good
    fine_to: int | None = None  # numbers up to this are as good
    cost_en: str | None = None
    cost_zh: str | None = None
    nodes_from: int | None = None  # memory nodes
    nodes_to: int | None = None
    swap: bool | None = None
    glibc_below: str | None = None  # a known version below this one
    huge_pages_free: bool | None = None  # some of the reserved pages are free


_TEXT_MAX = 4096
_WORD = re.compile(r"[A-Za-z0-9_+-]{1,64}", re.ASCII)
_NOTHING = re.compile(r"(?!)()")
_VALUES: dict[KnobKind, re.Pattern[str]] = {
    "word": re.compile(rf"\A({_WORD.pattern})\Z", re.ASCII),
    "bracketed": re.compile(rf"\[({_WORD.pattern})\]", re.ASCII),
    "number": re.compile(r"\A([0-9]{1,18})\Z", re.ASCII),
    "memlock": re.compile(r"(?m)^Max locked memory +([0-9]{1,19}|unlimited) ", re.ASCII),
    "persistence": _NOTHING,  # the driver says them, no file
    "power": _NOTHING,
}


@cache
def knobs() -> tuple[Knob, ...]:
    """All settings, in the order in which they are shown, written and restored."""
    return rows("host_settings", "knob", Knob)


@cache
def recommendations() -> tuple[Recommendation, ...]:
    """All recommendations; of one knob the first that holds counts."""
    return rows("host_settings", "recommendation", Recommendation)


@cache
def place_pattern(place: str) -> re.Pattern[str]:
    """The places as a pattern: `*` is a number of up to four digits, as CPUs have."""
    return re.compile(re.escape(place).replace(r"\*", "[0-9]{1,4}"))
