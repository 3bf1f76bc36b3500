"""Why a replica cannot start, through Ray's report of an exception and back. Pure.

Ray hands on what an actor raised as a traceback in text, wrapped in words of its own.
"""

import re
from dataclasses import dataclass

from workhorse.codec import from_json, to_line
from workhorse.errors import AppError, Speaker
from workhorse.text import Text

_MARK = "workhorse-cannot-start: "
_SAID = re.compile(re.escape(_MARK) + r"(\{[^\r\n]*\})")


@dataclass(frozen=True, slots=True)
class CannotStart:
    """What kept a replica from starting, as a user is told it."""

    what: Text
    next_step: Text
    speaker: Speaker = "workhorse"


def in_a_line(error: AppError) -> str:
    """The words with which a replica fails, so that `read_report` finds the error in them."""
    return _MARK + to_line(CannotStart(error.what, error.next_step, error.speaker))


def read_report(report: str) -> CannotStart | None:
    """The newest of our errors in what Ray reports; None when there is none."""
    for said in reversed(_SAID.findall(report)):
        try:
            return from_json(CannotStart, said, what="report")
        except AppError:  # cut off, or written by another program
            continue
    return None
