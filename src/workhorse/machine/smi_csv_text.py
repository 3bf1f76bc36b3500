"""Read `nvidia-smi --query-gpu=… --format=csv` as the answers of NVML. Pure.

The first line names the columns, in any order and number; a unit stands in the heading or behind
each value.
"""

import csv
import re
from typing import Any

from workhorse.machine.kernel_text import number, words

_ROWS_MAX = 256
_MIB = 1024**2
_WHOLE = {
    "pcie.link.gen.current": "pcie_generation", "pcie.link.gen.gpucurrent": "pcie_generation",
    "pcie.link.gen.max": "pcie_generation_max", "pcie.link.gen.gpumax": "pcie_generation_card",
    "pcie.link.width.current": "pcie_width", "pcie.link.width.max": "pcie_width_max",
    "clocks.current.sm": "sm_clock", "clocks.sm": "sm_clock", "clocks.max.sm": "sm_clock_max",
    "clocks.current.memory": "memory_clock", "clocks.mem": "memory_clock",
    "clocks.max.memory": "memory_clock_max", "clocks.max.mem": "memory_clock_max",
    "temperature.gpu": "temperature", "temperature.memory": "memory_temperature",
    "fan.speed": "fan_speed", "pstate": "performance_state",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "ecc.errors.corrected.aggregate.total": "ecc_corrected_lifetime",
    "ecc.errors.uncorrected.aggregate.total": "ecc_uncorrected_lifetime",
    "retired_pages.single_bit_ecc.count": "retired_single_bit",
    "retired_pages.double_bit.count": "retired_double_bit",
}  # fmt: skip
_WATTS = {
    "power.draw": "power_draw", "power.limit": "power_limit",
    "power.default_limit": "power_limit_default",
}  # fmt: skip
_BUS_IDS = ("pci.bus_id", "gpu_bus_id")
_SWITCHES = {"enabled": 1, "disabled": 0, "yes": 1, "no": 0}
_COMPUTE_MODES = {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3}


def parse_csv(text: str) -> dict[str, Any] | None:
    """The answers as `nvml.json` holds them; None when the rows do not tell which card is which.

    Of a card that is listed again and again (`-l 1`) the first row counts.
    """
    lines = [line for line in text.splitlines()[: 16 * _ROWS_MAX] if line.strip()]
    try:
        rows = list(csv.reader(lines, skipinitialspace=True))
    except csv.Error:
        return None
    heads = [re.sub(r" \[.*\]$", "", cell.strip()) for cell in rows[0]] if rows else []
    if not {"name", "gpu_name"} & set(heads) or not {"index", *_BUS_IDS} & set(heads):
        return None
    gpus: dict[str, dict[str, Any]] = {}
    driver: str | None = None
    for row in rows[1:]:
        cells = {head: cell.strip() for head, cell in zip(heads, row, strict=False)}
        key = next((cells[name] for name in (*_BUS_IDS, "index") if cells.get(name)), None)
        if key is None or len(row) != len(heads) or len(gpus) >= _ROWS_MAX:
            continue
        gpus.setdefault(key, _facts(cells))
        driver = driver or words(cells.get("driver_version") or cells.get("kmd_version"))
    return {"driver_version": driver, "gpus": list(gpus.values())} if gpus else None


def _facts(cells: dict[str, str]) -> dict[str, Any]:
    """The raw answers of one card, in the driver's units."""
    facts: dict[str, Any] = {
        "name": words(cells.get("name") or cells.get("gpu_name")),
        "pci": _known({"busId": next((cells[n] for n in _BUS_IDS if cells.get(n)), None)}),
        "memory": _known(
            {
                name: mib * _MIB
                for name in ("total", "free", "used")
                if (mib := _count(cells.get(f"memory.{name}"))) is not None
            }
        ),
        "utilization": _known({"gpu": _count(cells.get("utilization.gpu"))}),
        "compute_mode": _COMPUTE_MODES.get(cells.get("compute_mode", "").lower()),
        "persistence": _switch(cells.get("persistence_mode")),
        "retired_pending": _switch(cells.get("retired_pages.pending")),
        "ecc_mode": _mode(cells.get("ecc.mode.current")),
        "mig_mode": _mode(cells.get("mig.mode.current")),
    }
    capability = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", cells.get("compute_cap", ""))
    facts["compute_capability"] = [int(capability[1]), int(capability[2])] if capability else None
    for name in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        mask = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", cells.get(name, ""))
        if mask:
            facts["clocks_event_reasons"] = int(mask[1], 16)
    facts |= {query: _count(cells[column]) for column, query in _WHOLE.items() if column in cells}
    facts |= {query: _milliwatts(cells.get(column)) for column, query in _WATTS.items()}
    if most := _milliwatts(cells.get("power.max_limit")):
        facts["power_limits"] = [_milliwatts(cells.get("power.min_limit")), most]
    return _known(facts)


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, {})}


def _count(cell: str | None) -> int | None:
    """`345 MHz`, `16`, `26 %`, `P8`."""
    return number(re.sub(r" ?(MiB|MHz|%|C)$", "", cell or "").removeprefix("P"))


def _milliwatts(cell: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,5}(?:\.\d{1,3})?)(?: W)?", cell or "")
    return round(float(match[1]) * 1000) if match else None


def _switch(cell: str | None) -> int | None:
    return _SWITCHES.get((cell or "").lower())


def _mode(cell: str | None) -> list[int] | None:
    switch = _switch(cell)
    return None if switch is None else [switch, switch]
