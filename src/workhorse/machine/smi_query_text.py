"""One GPU's part of `nvidia-smi -q`, as the raw answers that NVML would have given. Pure.

The names of lines and sections changed from driver to driver; every name that drivers 410 to 580
used for the same fact is tried, the newest first.
"""

import re
from typing import Any

from workhorse.machine.gpu_health import THROTTLE_REASONS
from workhorse.units import MIB

_DEPTH_MAX = 8
_LINES_MAX = 2000
_PROCESSES_MAX = 64
_SWITCH = {"disabled": 0, "enabled": 1, "no": 0, "yes": 1}
_COMPUTE_MODES = {"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3}
_REASONS = {words.lower(): bit for bit, words in THROTTLE_REASONS.items()}
Tree = dict[str, str]  # `section/name` in small letters: value

_PATHS: dict[str, tuple[str, ...]] = {
    "memory_clock": ("clocks/memory",),
    "memory_clock_max": ("max clocks/memory",),
    "sm_clock": ("clocks/sm",),
    "sm_clock_max": ("max clocks/sm",),
    "pcie_generation": ("pci/gpu link info/pcie generation/current",),
    "pcie_generation_max": ("pci/gpu link info/pcie generation/max",),
    "pcie_generation_card": ("pci/gpu link info/pcie generation/device max",),
    "pcie_width": ("pci/gpu link info/link width/current",),
    "pcie_width_max": ("pci/gpu link info/link width/max",),
    "pcie_replays": ("pci/replays since reset",),
    "retired_single_bit": ("retired pages/single bit ecc",),
    "retired_double_bit": ("retired pages/double bit ecc",),
    "temperature": ("temperature/gpu current temp",),
    "memory_temperature": ("temperature/memory current temp",),
    "slowdown_temperature": ("temperature/gpu slowdown temp",),
    "fan_speed": ("fan speed",),
}
_SWITCHES: dict[str, tuple[str, ...]] = {
    "persistence": ("persistence mode",),
    "retired_pending": ("retired pages/pending page blacklist", "retired pages/pending"),
}
_WATTS: dict[str, tuple[str, ...]] = {
    "power_draw": (
        "gpu power readings/average power draw",
        "gpu power readings/power draw",
        "gpu power readings/instantaneous power draw",
        "power readings/power draw",
    ),
    "power_limit": ("gpu power readings/current power limit", "power readings/power limit"),
    "power_limit_default": (
        "gpu power readings/default power limit",
        "power readings/default power limit",
    ),
    "power_limit_min": ("gpu power readings/min power limit", "power readings/min power limit"),
    "power_limit_max": ("gpu power readings/max power limit", "power readings/max power limit"),
}

# What every card of every age answers while it is well.
_VITAL = (
    "temperature/gpu current temp", "performance state", "clocks/sm", "utilization/gpu",
    "fb memory usage/total", "gpu power readings/power draw", "power readings/power draw",
    "fan speed",
)  # fmt: skip

_ERRORS = frozenset({"ERR!", "Unknown Error", "[Unknown Error]"})


def gpu_facts(bus_id: str, lines: list[str]) -> dict[str, Any]:
    """The raw answers of the GPU whose indented lines these are."""
    pairs = _pairs(lines[:_LINES_MAX])
    tree: Tree = {}
    for path, value in pairs:
        tree.setdefault(path, value)
    facts: dict[str, Any] = {
        "pci": _without_unknown(
            {
                "busId": bus_id,
                "pciDeviceId": _hex(tree.get("pci/device id")),
                "pciSubSystemId": _hex(tree.get("pci/sub system id")),
            }
        ),
        "name": _said(tree.get("product name")),
        "uuid": _said(tree.get("gpu uuid")),
        "memory": _sizes(tree, "fb memory usage", {"total", "free", "used"}),
        "bar1": _bar1(tree),
        "ecc_mode": _modes(tree, "ecc mode"),
        "mig_mode": _modes(tree, "mig mode"),
        "utilization": _without_unknown({"gpu": _number(tree.get("utilization/gpu"))}) or None,
        "performance_state": _number((tree.get("performance state") or "").removeprefix("P")),
        "compute_mode": _COMPUTE_MODES.get(
            (tree.get("compute mode") or "").lower().replace(" ", "_")
        ),
        "clocks_event_reasons": _reasons(tree),
        "remapped_rows": _remapped_rows(tree),
        "processes": _processes(pairs),
        **_ecc_counts(tree),
        **{query: _number(_first(tree, paths)) for query, paths in _PATHS.items()},
        **{query: _switch(_first(tree, paths)) for query, paths in _SWITCHES.items()},
    }
    facts |= _errors(tree)
    # Cards without a hypervisor are licensed for graphics alone.
    licence = tree.get("vgpu software licensed product/license status") or ""
    if tree.get("gpu virtualization mode/virtualization mode", "").lower() == "vgpu":
        facts["unlicensed"] = licence if licence.startswith("Unlicensed") else None
    watts = {query: _milliwatts(_first(tree, paths)) for query, paths in _WATTS.items()}
    facts["power_limits"] = [watts.pop("power_limit_min"), watts.pop("power_limit_max")]
    return _without_unknown(facts | watts)


def _errors(tree: Tree) -> dict[str, Any]:
    """`error` of a card that fell off the bus while it was read; else which errors it answers."""
    if "GPU is lost" in tree.values():
        return {"error": {"words": "GPU is lost", "code": 15}}  # NVML_ERROR_GPU_IS_LOST
    wrong = [
        path for path in _VITAL if tree.get(path) in ("ERR!", "Unknown Error", "[Unknown Error]")
    ]
    if not wrong:
        return {}
    return {"unreadable": f"{tree[wrong[0]]}: {', '.join(p.split('/')[-1] for p in wrong)}"}


def _pairs(lines: list[str]) -> list[tuple[str, str]]:
    """Each line as `section/name` and value; sections by their indentation."""
    above: list[tuple[int, str]] = []
    pairs: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line[:400].partition(" :")
        label = name.strip().lower()
        if not label:
            continue
        depth = len(name) - len(name.lstrip())
        while above and above[-1][0] >= depth:
            above.pop()
        path = "/".join([section for _, section in above] + [label])
        if colon:
            pairs.append((path, value.strip()))
        if len(above) < _DEPTH_MAX:
            above.append((depth, label))
    return pairs


def _processes(pairs: list[tuple[str, str]]) -> list[dict[str, Any]] | None:
    """Drivers write `Processes : None`, or one `Process ID` line a process and its own below."""
    listed = [(path, value) for path, value in pairs if path.split("/")[0] == "processes"]
    if not listed:
        return None
    found: list[dict[str, Any]] = []
    for path, value in listed:
        name = path.rsplit("/", 1)[-1]
        if name == "process id" and len(found) < _PROCESSES_MAX:
            found.append({"pid": _number(value), "name": None, "memory": None})
        elif found and name == "name":
            found[-1]["name"] = value
        elif found and name == "used gpu memory":
            found[-1]["memory"] = _mib(value)
    return found


def _ecc_counts(tree: Tree) -> dict[str, int | None]:
    """Volta and older count single and double bits, later ones the chip's and the card's memory."""
    counts: dict[str, int | None] = {}
    for section, suffix in (("volatile", ""), ("aggregate", "_lifetime")):
        root = f"ecc errors/{section}"
        for kind, old, new in (
            ("corrected", "single bit", "correctable"),
            ("uncorrected", "double bit", "uncorrectable"),
        ):
            sums = [
                _number(value)
                for path, value in tree.items()
                if re.fullmatch(rf"{root}/(?:sram|dram) {new}(?: parity| sec-ded)?", path)
            ]
            known = [count for count in sums if count is not None]
            total = _number(tree.get(f"{root}/{old}/total"))
            counts[f"ecc_{kind}{suffix}"] = sum(known) if known else total
    return counts


def _remapped_rows(tree: Tree) -> list[int | None] | None:
    rows = [
        _number(tree.get("remapped rows/correctable error")),
        _number(tree.get("remapped rows/uncorrectable error")),
        _switch(tree.get("remapped rows/pending")),
        _switch(tree.get("remapped rows/remapping failure occurred")),
    ]
    return None if rows == [None] * 4 else rows


def _reasons(tree: Tree) -> int | None:
    mask: int | None = None
    for path, value in tree.items():
        section, _, rest = path.partition("/")
        if section in ("clocks event reasons", "clocks throttle reasons") and value in (
            "Active",
            "Not Active",
        ):
            bit = _REASONS.get(rest.rsplit("/", 1)[-1], 0)
            mask = (mask or 0) | (bit if value == "Active" else 0)
    return mask


def _sizes(tree: Tree, section: str, names: set[str]) -> dict[str, Any] | None:
    sizes = {name: _mib(tree.get(f"{section}/{name}")) for name in sorted(names)}
    return _without_unknown(sizes) or None


def _bar1(tree: Tree) -> dict[str, int] | None:
    total = _mib(tree.get("bar1 memory usage/total"))
    return None if total is None else {"bar1Total": total}


def _modes(tree: Tree, section: str) -> list[int | None] | None:
    modes = [_switch(tree.get(f"{section}/{when}")) for when in ("current", "pending")]
    return None if modes[0] is None else modes


def _first(tree: Tree, paths: tuple[str, ...]) -> str | None:
    """The first of the lines that says something."""
    return next((tree[path] for path in paths if _said(tree.get(path)) is not None), None)


def _said(value: str | None) -> str | None:
    return None if not value or re.match(r"\[|N/A|ERR!|Unknown|Requested func", value) else value


def _number(value: str | None) -> int | None:
    """The number before a unit: `877 MHz`, `16x`, `44 %`, `3072 bank(s)`."""
    match = re.match(r"(\d{1,15})(?![\d.])", value or "")
    return int(match[1]) if match else None


def _milliwatts(value: str | None) -> int | None:
    match = re.match(r"(\d{1,5}(?:\.\d{1,3})?) W$", value or "")
    return round(float(match[1]) * 1000) if match else None


def _mib(value: str | None) -> int | None:
    match = re.match(r"(\d{1,9}) MiB$", value or "")
    return int(match[1]) * MIB if match else None


def _hex(value: str | None) -> int | None:
    match = re.match(r"0x([0-9A-Fa-f]{1,8})$", value or "")
    return int(match[1], 16) if match else None


def _switch(value: str | None) -> int | None:
    return _SWITCH.get((value or "").lower())


def _without_unknown(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
