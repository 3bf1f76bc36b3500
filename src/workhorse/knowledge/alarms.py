"""What the guard says of a running service, and from which figure on."""

from functools import cache

from workhorse.knowledge.findings import Wording
from workhorse.knowledge.health import Threshold
from workhorse.knowledge.rows import rows


@cache
def alarm_wordings() -> dict[str, Wording]:
    """The words of every alarm and of every cause of lost speed, by code."""
    return {row.code: row for row in rows("alarms", "alarm", Wording)}


@cache
def _limits() -> dict[str, float]:
    return {row.name: row.value for row in rows("alarms", "limit", Threshold)}


def alarm_limit(name: str) -> float:
    """The limit of that name. KeyError: there is none, a fault of ours."""
    return _limits()[name]
