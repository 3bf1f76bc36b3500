"""Verdict: what it means, as findings with a remedy and a source."""

from dataclasses import dataclass
from typing import Literal

from workhorse.text import Text

# `cause`: why something that was tried failed, found in its log.
Level = Literal["good", "note", "warning", "blocker", "cause"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice: what was seen, why it matters, what to do, who says so."""

    code: str
    level: Level
    seen: Text
    why: Text
    remedy: Text
    source: str
    command: str | None = None
    evidence: tuple[str, ...] = ()  # what this machine said, in its own words and figures
    share_lost: float | None = None  # of speed (1: does not run at all); None: not known
    sure: Literal["certain", "likely", "possible"] = "certain"
    confidence: float | None = None  # 0 to 1, of a cause that was found in a log
    check: Text | None = None  # how to see that the remedy worked
    consequences: tuple[Text, ...] = ()  # what else was seen and follows from it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What it means. A blocker says no."""

    findings: tuple[Finding, ...] = ()

    @property
    def blocked(self) -> bool:
        """True when something cannot work."""
        return any(f.level == "blocker" for f in self.findings)
