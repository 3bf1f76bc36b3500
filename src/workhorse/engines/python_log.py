"""Why an engine written in Python died, from the end of its log. Pure."""

import re
from collections.abc import Sequence

from workhorse.engines.llamacpp_log import find_cause
from workhorse.errors import Cause
from workhorse.text import Text, same

# uvicorn's words; from here on the engine writes its clients' mistakes as errors too.
SERVING = "Application startup complete"
# vLLM's `(EngineCore pid=12) ERROR 11-30 09:14:01 [core.py:9] `, whatever comes before the words.
_BEFORE = re.compile(
    r"^(?:\([^)]{1,40} pid=\d+\)\s+)?(?:(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]{1,60}\]\s*)?"
)
# The last line of a traceback: `ValueError: …`, `torch.cuda.OutOfMemoryError: …`.
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b(?::\s*(.*))?$"
)
# What only says that another process of the engine has failed.
_SECOND_HAND = re.compile(
    r"Engine core initialization failed|EngineDeadError|See root cause above|EngineCore failed|"
    r"Engine process failed to start|cancelled|WorkerProc initialization failed",
    re.IGNORECASE,
)
# `error: unrecognized arguments: --swap-space 0`, of argparse.
_USAGE = re.compile(r"^\S+: error: (.+)$")


def explain(lines: Sequence[str]) -> Cause | None:
    """The cause of a death, with the engine's own line; `None` when nothing failed."""
    served = max((n for n, line in enumerate(lines) if SERVING in line), default=None)
    since = lines if served is None else lines[served:]
    cause = find_cause(since)
    words = raised(since)
    if cause is None:
        return None if words is None else Cause(same(words))
    said = bare(cause.evidence[0].partition(": ")[2]) if cause.evidence else ""
    shown = said or words
    seen = cause.seen
    if shown:
        seen = Text(f"{seen.en} ({shown})", f"{seen.zh}（{shown}）")
    return Cause(seen, cause.remedy)


def bare(line: str) -> str:
    """A line without what the logger puts before it."""
    return _BEFORE.sub("", line).strip()


def raised(lines: Sequence[str]) -> str | None:
    """The error that was raised first and is not another process's; else the last that was."""
    second_hand = None
    for line in lines:
        words = bare(line)
        usage = _USAGE.match(words)
        if usage is not None:
            return usage[1][:300]
        if _RAISED.match(words):
            if not _SECOND_HAND.search(words):
                return words[:300]
            second_hand = words[:300]
    return second_hand
