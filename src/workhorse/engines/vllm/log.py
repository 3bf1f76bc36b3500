"""What vLLM's log says: device, type, KV room, attention, and where it took something else. Pure.

The lines are those of 0.9.2 on a V100 and of 0.32.0 on a CPU (2026-11).
"""

import re
from collections.abc import Iterable

from workhorse.engines.python_log import bare
from workhorse.engines.report import Observed

_VERSION = re.compile(r"version v?(\d+\.\d+\.\d+)|LLM engine \(v(\d+\.\d+\.\d+)")
_DTYPE = re.compile(r"\bdtype=torch\.(\w+)")
_CONTEXT = re.compile(r"Using max model len (\d+)|max_seq_len=(\d+)")
_SLOTS = re.compile(r"'max_num_seqs': (\d+)")
# V1; the V0 engine counts blocks of 16 tokens instead.
_KV = re.compile(r"(GPU|CPU) KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r"# (cuda|GPU|CPU|cpu) blocks: (\d+)")
_BLOCK_TOKENS = 16
_ATTENTION = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Za-z][\w ./-]{1,40}?) (?:attention )?backend\b"
)
# Its own words; what comes after the colon of a device is only advice.
_FELL_BACK = re.compile(
    r"[Ff]all(?:ing)? ?back to|Casting torch\.\w+ to torch\.\w+|"
    r"Cannot use [\w -]+ backend|[Nn]ot supported .{0,80}\busing\b|"
    r"Reset\w* .{0,40}cache type|overriding user-specified"
)
# What is the plain way of an engine without a card and no loss.
_NO_LOSS = re.compile(r"Reset SSM cache type|Model Runner V2 requires Triton")


def observe(lines: Iterable[str]) -> Observed:
    """The last word of the log on each."""
    found: dict[str, str] = {}
    fell_back: dict[str, None] = {}
    for line in lines:
        for name, pattern in (
            ("version", _VERSION),
            ("dtype", _DTYPE),
            ("context", _CONTEXT),
            ("slots", _SLOTS),
            ("attention", _ATTENTION),
        ):
            if match := pattern.search(line):
                found[name] = next(group for group in match.groups() if group)
        if match := _KV.search(line):
            found["device"], found["kv"] = match[1].lower(), match[2].replace(",", "")
        elif match := _BLOCKS.search(line):
            found["device"] = "cpu" if match[1].lower() == "cpu" else "gpu"
            found["kv"] = str(int(match[2]) * _BLOCK_TOKENS)
        if _FELL_BACK.search(line) and not _NO_LOSS.search(line):
            fell_back[bare(line)[:300]] = None

    def number(name: str) -> int | None:
        return int(found[name]) if name in found else None

    return Observed(
        device={"cpu": "cpu", "gpu": "gpu"}.get(found.get("device", "")),  # type: ignore[arg-type]
        dtype=found.get("dtype"),
        slots=number("slots"),
        context_tokens=number("context"),
        kv_tokens=number("kv"),
        attention=found.get("attention"),
        version=found.get("version"),
        fell_back=tuple(fell_back)[:8],
    )
