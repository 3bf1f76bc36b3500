"""Known troubles: what a log shows of each, which facts speak for or against it, what to do."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from workhorse.knowledge.rows import rows

_EN_CHECK = "Start it again and give the new log to workhorse diagnose: this finding is gone."
_ZH_CHECK = "重新启动，再用 workhorse diagnose 查看新日志：此项应不再出现。"


@dataclass(frozen=True, slots=True)
class FactRule:
    """One fact of the machine or the log, and what it means for a trouble.

    `when` is a comparison such as `<8.0`, `>=570`, `=true`, `!=Volta`. `makes` the trouble
    `certain`, `likelier`, `unlikelier` or `impossible`. A fact that is not known says nothing.
    """

    fact: str
    when: str
    makes: Literal["certain", "likelier", "unlikelier", "impossible"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One known trouble.

    `lines` are regular expressions (any case) for single lines; one that matches shows the
    trouble, with confidence `sure` (0 to 1). Each of `near` that matches somewhere in the log
    raises it, one of `never` rules it out. `explains` names troubles that are its consequences.
    `en`/`zh` say the cause, `*_step` what to do, `*_check` how to see that it is mended. With
    `needs_near`, a line alone shows nothing until one of `near` was seen too; with `needs_fact`
    not until a fact spoke for it. A `generic` one (a crash without a reason) is the consequence of
    any surer trouble. One `at_start` was no cause where the same run of the program tried again
    and served. One `in_answers` is looked for in prompts and answers too, which else may hold any
    sentence. Without `lines` it is found in figures only (behaviour.py).
    """

    code: str
    level: Literal["cause", "behaviour"]
    lines: tuple[str, ...]
    sure: float
    en: str
    zh: str
    en_step: str
    zh_step: str
    source: str
    date: str
    en_check: str = _EN_CHECK
    zh_check: str = _ZH_CHECK
    commands: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    needs_near: bool = False
    needs_fact: bool = False
    generic: bool = False
    at_start: bool = False
    in_answers: bool = False
    explains: tuple[str, ...] = ()
    facts: tuple[FactRule, ...] = ()


@cache
def troubles() -> tuple[Trouble, ...]:
    """All known troubles, in the order of their files and rows."""
    folder = files("workhorse.knowledge").joinpath("diagnoses")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return tuple(
        trouble
        for name in names
        for trouble in rows(f"diagnoses/{name.removesuffix('.toml')}", "trouble", Trouble)
    )
