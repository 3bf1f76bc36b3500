"""`nvidia-smi -q -x` as the lines that `nvidia-smi -q` prints: one reader serves both. Pure.

Read by its tags alone: no entity is expanded, and a document cut short is read as far as it goes.
"""

import re

_TAG = re.compile(r"<(/?)(\w{1,80})([^<>]{0,200})>([^<]{0,400})")
_TAGS_MAX = 64 * 1024
_ID = re.compile(r'id="([0-9A-Fa-f:.]{12,16})"')
# Tags that the text calls otherwise than by their words (drivers 410 to 580).
_NAMES = {
    "driver_version": "Driver Version", "cuda_version": "CUDA Version",
    "uuid": "GPU UUID",
    "pci_device_id": "Device Id", "pci_sub_system_id": "Sub System Id",
    "pci_gpu_link_info": "GPU Link Info", "pcie_gen": "PCIe Generation",
    "link_widths": "Link Width", "max_link_gen": "Max", "current_link_gen": "Current",
    "max_device_link_gen": "Device Max", "max_link_width": "Max", "current_link_width": "Current",
    "replay_counter": "Replays Since Reset", "gpu_temp": "GPU Current Temp",
    "gpu_temp_slow_threshold": "GPU Slowdown Temp", "memory_temp": "Memory Current Temp",
    "sm_clock": "SM", "mem_clock": "Memory", "gpu_util": "GPU", "memory_util": "Memory",
    "instant_power_draw": "Instantaneous Power Draw", "current_ecc": "Current",
    "current_mig": "Current", "pending_ecc": "Pending", "pending_mig": "Pending",
    "multiple_single_bit_retirement": "Single Bit ECC",
    "double_bit_retirement": "Double Bit ECC", "pending_retirement": "Pending Page Blacklist",
    "pending_blacklist": "Pending Page Blacklist", "remapped_row_corr": "Correctable Error",
    "remapped_row_unc": "Uncorrectable Error", "remapped_row_pending": "Pending",
    "remapped_row_failure": "Remapping Failure Occurred", "pid": "Process ID",
    "process_name": "Name", "used_memory": "Used GPU Memory",
    "sram_uncorrectable_parity": "SRAM Uncorrectable Parity",
    "sram_uncorrectable_secded": "SRAM Uncorrectable SEC-DED",
}  # fmt: skip
_HEX = frozenset({"pci_device_id", "pci_sub_system_id"})
_REASON = re.compile(r"clocks_(?:event|throttle)_reason_(?:gpu_)?(.+)")


def query_text(xml: str) -> str:
    """The text of `nvidia-smi -q` for the XML of `nvidia-smi -q -x`."""
    lines = ["==============NVSMI LOG=============="]
    inside: list[str] = []
    for number, found in enumerate(_TAG.finditer(xml)):
        closing, tag, attributes, value = found[1], found[2], found[3], found[4].strip()
        if number >= _TAGS_MAX:
            break
        if closing:
            if tag in inside:
                del inside[inside.index(tag) :]
            continue
        place = _ID.search(attributes) if tag == "gpu" else None
        if place:
            inside = ["nvidia_smi_log", "gpu"]
            lines.append(f"GPU {place[1]}")
            continue
        if attributes.endswith("/") or tag in ("xml", "nvidia_smi_log"):
            continue
        if tag == "retired_count":  # the text has the count beside its section's name
            lines[-1] += f" : {value}"
        else:
            indent = "    " * max(0, len(inside) - 1) if "gpu" in inside else ""
            # The text says `None` of what has no entries, and the XML nothing.
            value = "None" if tag == "processes" else f"0x{value}" if tag in _HEX else value
            lines.append(f"{indent}{_label(tag)}{f' : {value}' if value else ''}")
        inside.append(tag)
    return "\n".join(lines) + "\n"


def _label(tag: str) -> str:
    """What the text calls a tag."""
    reason = _REASON.fullmatch(tag)
    if reason:
        return reason[1].replace("_", " ")
    return _NAMES.get(tag, tag.replace("_", " "))
