"""Read what `nvidia-smi` prints, where NVML gives nothing: an old driver, a capture of texts.

Both forms (`nvidia-smi -q` and the plain table, drivers 352 to 617) become the raw answers that
NVML would have given, in NVML's units. Whatever is not there, or says N/A, [Not Supported], ERR!
or Unknown Error, is left out. Pure but for asking `files`.
"""

import re
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import words
from workhorse.machine.nvml import NvmlAnswers, NvmlError
from workhorse.machine.smi_query_text import gpu_facts
from workhorse.units import MIB

_GPUS_MAX = 64
_LINES_MAX = 20_000
# From branch 610 on (2026-06) the versions have other names, and `-q` says `[Deprecated; …]` behind
# those of the old ones: docs.nvidia.com/deploy/nvidia-smi.
_DRIVER, _CUDA = "(?:Driver|KMD) Version", "CUDA (?:UMD )?Version"
# What nvidia-smi says where NVML gives a number (nvmlReturn_t in nvml.h, driver 580).
_FAILURES = (
    (r"version mismatch", 18),
    (r"Insufficient Permissions", 4),
    (r"communicate with the NVIDIA driver|Driver Not Loaded", 9),
    (r"GPU is lost", 15),
    (r"insufficiently powered", 8),
    (r"couldn't find libnvidia-ml", 12),
    (r"Failed to initialize NVML", 999),
)
_HANDLE = re.compile(
    r"Unable to determine the device handle for (?:GPU\d{0,3}?:? ?|gpu )"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]): (.{1,200})"
)
_INFOROM = re.compile(
    r"infoROM is corrupted at gpu ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])",
    re.IGNORECASE,
)
_CARD_ROW = re.compile(
    r"\|\s{1,6}(\d{1,3})  ?(\S.{0,60}?)\s+(On|Off|N/A|ERR!)\s{0,6}\|"
    # A module on a board (Jetson) has no bus: N/A.
    r"\s{0,6}([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|N/A)\s[^|]{0,20}"
    r"\|([^|]{0,40})\|"
)
_STATE_CELL = re.compile(r"\s*(?:\d{1,3}%|N/A|ERR!)\s+(?:\d{1,3}C|N/A|ERR!)\s+(?:P\d|N/A|ERR!|\?)")
_PROCESS_ROW = re.compile(
    r"\|\s+(\d{1,3})\s+(?:\S+\s+\S+\s+)?(\d{1,10})\s+(?:C|G|C\+G|M|M\+C)\s+"
    r"(\S.{0,200}?)\s+(?:(\d{1,9})MiB|\S+)\s*\|"
)
_MIG_MODES = {"Disabled": [0, 0], "Enabled": [1, 1]}
_COMPUTE_MODES = {"Default": 0, "E.": 3, "Prohi": 2}  # the table cuts the words


def read_smi(files: HostFiles) -> NvmlAnswers | None:
    """The answers in nvidia-smi's texts; None when it is not there."""
    query = parse_query(files.said("nvidia-smi", "-q"))
    if query is not None and query.gpus:
        return query
    table = parse_table(files.said("nvidia-smi"))
    return table if table is not None and (table.gpus or query is None) else query


def parse_query(text: str | None) -> NvmlAnswers | None:
    """The answers in `nvidia-smi -q`."""
    if text is None:
        return None
    if "NVSMI LOG" not in text:
        return _failure(text)
    lines = text.splitlines()[:_LINES_MAX]
    starts = [i for i, line in enumerate(lines) if re.match(r"GPU [0-9A-Fa-f:.]{12,16}\s*$", line)]
    head = "\n".join(lines[: starts[0] if starts else None])
    return NvmlAnswers(
        cut=not starts,
        driver_version=words(_first(rf"^{_DRIVER}\s*: (\d\S*)", head)),
        cuda_version=_cuda(_first(rf"^{_CUDA}\s*: (\S+)", head)),
        gpus=tuple(
            gpu_facts(bus_id, lines[start + 1 : end]) | _warned_of(text, bus_id)
            for start, end in islice(pairwise([*starts, len(lines)]), _GPUS_MAX)
            for bus_id in [lines[start].split()[1]]
        )
        + _lost_ones(text),
    )


def parse_table(text: str | None) -> NvmlAnswers | None:
    """The answers in the table that `nvidia-smi` prints without options."""
    if text is None:
        return None
    lines = [line[:400] for line in text.splitlines()[:_LINES_MAX]]
    cards: dict[int, dict[str, Any]] = {}
    facts: dict[str, Any] | None = None
    listing = False
    for line in lines:
        if line.startswith("| Processes"):
            listing = True
            for known in cards.values():
                known["processes"] = []
        card = None if listing else _CARD_ROW.match(line)
        if card is not None and len(cards) < _GPUS_MAX:
            facts = cards[int(card[1])] = _card_facts(card)
        elif listing:
            _add_process(cards, line)
        elif facts is not None:
            facts.update(_state_facts(line))
    head = "\n".join(lines[:20])
    version = _first(rf"{_DRIVER}: (\d[\w.]{{0,30}})", head)
    if not cards and version is None:
        return _failure(text)
    return NvmlAnswers(
        cut=not cards,  # without a card nvidia-smi prints one line and no table
        driver_version=version,
        cuda_version=_cuda(_first(rf"{_CUDA}: (\S+)", head)),
        gpus=tuple(
            cards[index] | _warned_of(text, cards[index]["pci"].get("busId", ""))
            for index in sorted(cards)
        )
        + _lost_ones(text),
    )


def _warned_of(text: str, bus_id: str) -> dict[str, Any]:
    """What nvidia-smi warns of a card behind its list."""
    places = {place[-12:].lower() for place in islice(_INFOROM.findall(text), _GPUS_MAX)}
    return {"inforom": "infoROM is corrupted"} if bus_id[-12:].lower() in places else {}


def _card_facts(row: re.Match[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"pci": {} if row[4] == "N/A" else {"busId": row[4]}}
    # A long name is cut and ends in dots: no name of a card.
    if not row[2].endswith("..."):
        facts["name"] = row[2]
    if row[3] in ("On", "Off"):
        facts["persistence"] = int(row[3] == "On")
    ecc = row[5].strip()
    if ecc.isdigit() and len(ecc) < 15:
        facts |= {"ecc_mode": [1, 1], "ecc_uncorrected": int(ecc)}
    elif ecc == "Off":
        facts["ecc_mode"] = [0, 0]
    return facts


def _state_facts(line: str) -> dict[str, Any]:
    """The second and the third line of a card."""
    cells = line.split("|")
    if len(cells) != 5:
        return {}
    _, left, middle, right, _ = cells
    if _STATE_CELL.match(left) is None:
        mode = _MIG_MODES.get(right.strip())
        return {} if mode is None or left.strip() or middle.strip() else {"mig_mode": mode}
    facts: dict[str, Any] = {"unreadable": "ERR!"} if "ERR!" in line else {}
    memory = re.fullmatch(r"\s*(\d{1,9})MiB\s*/\s*(\d{1,9})MiB\s*", middle)
    if memory is not None:
        used, total = int(memory[1]) * MIB, int(memory[2]) * MIB
        facts["memory"] = {"total": total, "used": used, "free": max(0, total - used)}
    numbers = {
        "fan_speed": (r"(\d{1,3})%", left),
        "temperature": (r"\b(\d{1,3})C\b", left),
        "performance_state": (r"\bP(\d{1,2})\b", left),
    }
    for query, (pattern, where) in numbers.items():
        found = _first(pattern, where)
        if found is not None:
            facts[query] = int(found)
    for query, pattern in (("power_draw", r"(\d{1,4})W\s*/"), ("power_limit", r"/\s*(\d{1,4})W")):
        watts = _first(pattern, left)
        if watts is not None:
            facts[query] = int(watts) * 1000
    busy = _first(r"^\s*(\d{1,3})%", right)
    if busy is not None:
        facts["utilization"] = {"gpu": int(busy)}
    opens = next((code for cut, code in _COMPUTE_MODES.items() if f" {cut}" in right), None)
    return facts if opens is None else {**facts, "compute_mode": opens}


def _add_process(cards: dict[int, dict[str, Any]], line: str) -> None:
    row = _PROCESS_ROW.match(line)
    facts = cards.get(int(row[1])) if row else None
    if row is None or facts is None or len(facts["processes"]) >= _GPUS_MAX:
        return
    memory = int(row[4]) * MIB if row[4] else None
    facts["processes"].append({"pid": int(row[2]), "name": row[3], "memory": memory})


def _failure(text: str) -> NvmlAnswers | None:
    """Why there is no list; None when it is none of nvidia-smi's reasons."""
    lost = _lost_ones(text)
    if lost:
        return NvmlAnswers(gpus=lost)
    said = words(text)
    code = _code(said or "", _FAILURES)
    if said is not None and code is not None:
        return NvmlAnswers(error=NvmlError(said, code))
    return NvmlAnswers() if "No devices were found" in text else None


def _lost_ones(text: str) -> tuple[dict[str, Any], ...]:
    """Cards that nvidia-smi could not open, each with its address and the reason."""
    return tuple(_lost(match) for match in islice(_HANDLE.finditer(text), _GPUS_MAX))


def _lost(match: re.Match[str]) -> dict[str, Any]:
    code = _code(match[2], _FAILURES)
    error = {"words": words(match[2]), "code": 999 if code is None else code}
    return {"pci": {"busId": match[1]}, "error": error}


def _code(said: str, table: Iterable[tuple[str, int]]) -> int | None:
    return next((code for pattern, code in table if re.search(pattern, said)), None)


def _cuda(version: str | None) -> int | None:
    """13000 from `13.0`, as NVML counts."""
    match = re.fullmatch(r"(\d{1,2})\.(\d)", version or "")
    return 1000 * int(match[1]) + 10 * int(match[2]) if match else None


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None
