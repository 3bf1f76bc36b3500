"""The words for each trouble of a machine: why it matters, what to do, who says so."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class Wording:
    """What one finding says; `{name}` in the words stands for a value of the machine."""

    code: str
    level: Literal["note", "warning", "blocker"]
    why_en: str
    why_zh: str
    step_en: str
    step_zh: str
    source: str
    date: str
    command: str | None = None
    command_rpm: str | None = None  # where packages are RPMs: CentOS, RHEL, openEuler
    sure: Literal["certain", "likely", "possible"] = "certain"


@cache
def wordings() -> dict[str, Wording]:
    """The words of every finding, by its code."""
    return {row.code: row for row in rows("findings", "finding", Wording)}
