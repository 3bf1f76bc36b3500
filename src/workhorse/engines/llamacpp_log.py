"""What a llama.cpp log says: where layers and buffers went, and why a start failed. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workhorse.diagnose.judge import diagnose_lines
from workhorse.errors import Cause
from workhorse.records import Finding
from workhorse.text import Text, same
from workhorse.units import MIB

SERVING = "listening on http"
OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
BUFFER = re.compile(
    r"(\S+) (model|KV|compute|output|RS) buffer size\s*=\s*([\d.]+) MiB", re.IGNORECASE
)
# The projector reserves its own (clip.cpp: `alloc_compute_meta` until 2026, then `reserve_…`).
PROJECTOR = "compute_meta: "
SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+)")
FLASH = re.compile(r"Flash Attention (enabled|disabled)|flash_attn\s*=\s*(enabled|disabled|1|0)\b")
SYSTEM = re.compile(r"system_info:.*\|\s*CUDA : ARCHS = ([\d,]+)")
# The severity letter that llama.cpp writes after the time stamp.
SEVERITY = re.compile(r"^\d+\.\d+\.\d+\.\d+ ([IWED]) (.*)$")

_OF_CLIENTS = ("serving.", "chat_template.")


@dataclass(slots=True)
class EngineReport:
    """What the engine said of itself while loading; the last load wins.

    `buffers` maps (device, kind) to bytes, kinds `model`, `kv`, `compute`, `output`, `rs`;
    buffers of one kind on one device add up (sliding-window models have two KV caches).
    """

    offloaded_layers: int | None = None
    layers: int | None = None
    slots: int | None = None
    slot_context_tokens: int | None = None
    flash_attention: bool | None = None
    cuda_architectures: tuple[str, ...] = ()
    buffers: dict[tuple[str, str], int] = field(default_factory=dict)

    def kind_bytes(self, kind: str) -> int:
        """Bytes of all buffers of one kind."""
        return sum(n for (_, k), n in self.buffers.items() if k == kind)


def read_report(lines: Iterable[str]) -> EngineReport:
    """The engine's report from its log."""
    report = EngineReport()
    for line in lines:
        if "loading model tensors" in line or "constructing llama_context" in line:
            # A new load (the engine's own fitting loads once without allocating) starts over.
            again = ("model",) if "tensors" in line else ("kv", "compute", "output", "rs")
            report.buffers = {k: n for k, n in report.buffers.items() if k[1] not in again}
        elif PROJECTOR in line:
            continue  # its buffer looks like the model's
        elif found := BUFFER.search(line):
            device, kind, mebibytes = found.groups()
            key = (device, kind.lower())
            report.buffers[key] = report.buffers.get(key, 0) + round(float(mebibytes) * MIB)
        elif found := OFFLOADED.search(line):
            report.offloaded_layers, report.layers = int(found[1]), int(found[2])
        elif found := SLOTS.search(line):
            report.slots, report.slot_context_tokens = int(found[1]), int(found[2])
        elif found := FLASH.search(line):
            report.flash_attention = (found[1] or found[2]) in ("enabled", "1")
        elif found := SYSTEM.search(line):
            report.cuda_architectures = tuple(found[1].split(","))
    return report


def find_cause(lines: Sequence[str]) -> Finding | None:
    """The likeliest known cause of a failed start; what clients did wrong is none."""
    found = (f for f in diagnose_lines(lines).findings if f.level == "cause")
    return next((f for f in found if not f.code.startswith(_OF_CLIENTS)), None)


def explain(lines: Sequence[str]) -> Cause | None:
    """The cause of a failed start, with the engine's own line; `None` when nothing failed."""
    served = max((n for n, line in enumerate(lines) if SERVING in line), default=None)
    if served is not None:
        # From here on the engine writes its clients' mistakes as errors: only a known cause counts.
        lines = lines[served:]
    evidence = first_error(lines) if served is None else None
    cause = find_cause(lines)
    if cause is None:
        return None if evidence is None else Cause(same(evidence))
    # The finding's evidence is numbered: "12: the line".
    words = SEVERITY.sub(r"\2", cause.evidence[0].partition(": ")[2]).strip()
    return Cause(
        Text(f"{cause.seen.en} ({words})", f"{cause.seen.zh}（{words}）"),
        cause.remedy,
    )


def first_error(lines: Sequence[str]) -> str | None:
    """The first line that the engine marked as an error, else the last that speaks of one."""
    for line in lines:
        marked = SEVERITY.match(line)
        if marked and marked[1] == "E":
            return marked[2].strip()
    spoken = [
        line.strip() for line in lines if re.search(r"error|failed|assert", line, re.IGNORECASE)
    ]
    return spoken[-1] if spoken else None
