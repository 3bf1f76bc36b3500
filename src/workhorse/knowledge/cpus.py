"""What is known of CPUs: memory channels, fastest memory, what they execute."""

import re
from dataclasses import dataclass
from typing import Literal

from workhorse.knowledge.rows import rows

Confidence = Literal["documented", "arithmetic", "from memory"]


@dataclass(frozen=True, slots=True)
class CpuLine:
    """One line of CPUs of one generation; see cpus.toml."""

    name: str
    code_name: str
    vendor: str  # as CPUID says
    family: int
    models: tuple[int, ...]
    pattern: str  # searched in the CPU's name, whatever its case
    memory: tuple[str, ...]  # kinds of memory it takes: DDR3, DDR4 …
    isa: str
    source: str
    date: str
    confidence: Confidence
    channels: int | None = None  # of one socket, 64 bits each
    rate_mt_s: int | None = None  # when it is the same for the whole line
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """The fastest memory of the CPUs whose name has the pattern, 10^6 transfers a second."""

    pattern: str
    rate_mt_s: int
    source: str
    date: str
    confidence: Confidence


def cpu_line(
    vendor: str | None, family: int | None, model: int | None, name: str | None
) -> CpuLine | None:
    """The line of CPUs that CPUID's vendor, family, model and name mean; None: not in the table.

    The name decides between lines that share a model number, and an engineering sample, whose
    name says nothing, is unknown.
    """
    if name is None:
        return None
    for line in rows("cpus", "cpu", CpuLine):
        same = (line.vendor, line.family) == (vendor, family) and model in line.models
        if same and re.search(line.pattern, name, re.IGNORECASE):
            return line
    return None


def cpu_line_named(name: str) -> CpuLine | None:
    """The line of CPUs whose pattern a name has, when nobody knows its CPUID; None: not one."""
    found = [row for row in rows("cpus", "cpu", CpuLine) if _is_called(row, name)]
    return found[0] if len(found) == 1 else None


def _is_called(line: CpuLine, name: str) -> bool:
    return re.search(line.pattern, name, re.IGNORECASE) is not None


def memory_rate_mt_s(line: CpuLine, name: str) -> int | None:
    """Fastest memory of the CPU of this line and name, 10^6 transfers a second; None: unknown."""
    if line.rate_mt_s is not None:
        return line.rate_mt_s
    for rate in rows("cpus", "memory_rate", MemoryRate):
        if re.search(rate.pattern, name, re.IGNORECASE):
            return rate.rate_mt_s
    return None
