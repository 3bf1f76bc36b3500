"""Why an engine did not start: what its log says, what it means, what to do."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class EngineCause:
    """One known cause: `pattern` is searched in the log; `en`/`zh` say it, `*_step` what to do."""

    code: str
    pattern: str
    en: str
    zh: str
    en_step: str
    zh_step: str
    source: str
    date: str


@cache
def engine_causes() -> tuple[EngineCause, ...]:
    """All known causes; roots stand before their consequences."""
    return rows("engine_causes", "cause", EngineCause)
