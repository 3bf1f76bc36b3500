"""What the NVIDIA driver's lines in the kernel's log mean."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows

Blame = Literal[
    "application", "bus", "consequence", "driver", "hardware", "link", "memory", "record", "support"
]


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """What one or several Xid numbers mean; `en`/`zh` the cause, `*_step` what to do."""

    numbers: tuple[int, ...]
    blame: Blame
    level: Literal["note", "warning"]
    en: str
    zh: str
    en_step: str
    zh_step: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class NvrmMeaning:
    """What a line of the driver without an Xid means; `pattern` is searched in it."""

    pattern: str
    blame: Blame
    level: Literal["note", "warning"]
    en: str
    zh: str
    en_step: str
    zh_step: str
    source: str
    date: str


@cache
def xid_meanings() -> dict[int, XidMeaning]:
    """Every Xid number that is known."""
    return {number: row for row in rows("xids", "xid", XidMeaning) for number in row.numbers}


@cache
def nvrm_meanings() -> tuple[NvrmMeaning, ...]:
    """Every line without a number that is known."""
    return rows("xids", "nvrm", NvrmMeaning)
