"""The literal text that a regular expression cannot match without.

A log is searched once for all literals together; only lines that hold one are shown to the
expressions. So each expression needs a literal, and this finds it in the expression itself.
"""

import re
from re import _parser  # type: ignore[attr-defined]
from typing import Any

# In bytes: two Chinese characters are six.
SHORTEST = 4


def anchors(pattern: str) -> tuple[str, ...]:
    """Lower-case literals, one of which is in every line that `pattern` matches; () if none."""
    return _best(_parser.parse(pattern, re.IGNORECASE))


def _best(parts: Any) -> tuple[str, ...]:
    """The choice with the longest shortest literal among all that the sequence requires."""
    choices: list[tuple[str, ...]] = []
    run = ""
    for operation, value in parts:
        if str(operation) == "LITERAL":
            run += chr(value)
            continue
        choices.append((run,))
        run = ""
        choices.append(_required(str(operation), value))
    choices.append((run,))
    usable = [c for c in choices if c and all(_size(literal) >= SHORTEST for literal in c)]
    best = max(usable, key=lambda c: (min(map(_size, c)), -len(c)), default=())
    return tuple(dict.fromkeys(literal.lower() for literal in best))


def _size(literal: str) -> int:
    return len(literal.encode())


def _required(operation: str, value: Any) -> tuple[str, ...]:
    """The literals that one part requires."""
    match operation:
        case "SUBPATTERN":
            return _best(value[-1])
        case "BRANCH":
            branches = [_best(branch) for branch in value[1]]
            return tuple(literal for b in branches for literal in b) if all(branches) else ()
        case "MAX_REPEAT" | "MIN_REPEAT" if value[0] > 0:
            return _best(value[2])
    return ()
