"""What the IOMMU does with the memory accesses of devices, which decides GPU-to-GPU traffic."""

import re
from typing import Literal

from workhorse.machine.files import HostFiles

_GROUPS_MAX = 1024
Iommu = Literal["off", "passthrough", "translating"]
_SWITCHED_OFF = re.compile(r"(?<!\S)(?:intel_|amd_)?iommu=off(?!\S)")
_PASSTHROUGH = re.compile(r"(?<!\S)iommu(?:\.passthrough)?=(?:[a-z]+,)*(?:pt|1)(?![^\s,])")
_SWITCHED_ON = re.compile(r"(?<!\S)(?:intel|amd)_iommu=(?:[a-z_]+,)*(?:on|force)(?![^\s,])")


def read_iommu(files: HostFiles) -> Iommu | None:
    """Off, passing addresses through, or translating them; None when nothing tells.

    Newer kernels say it for each group of devices (`type`, Linux 4.19); of older ones the command
    line does, where it was set there.
    """
    groups = files.names("sys/kernel/iommu_groups")[:_GROUPS_MAX]
    kinds = [
        (files.text(f"sys/kernel/iommu_groups/{group}/type") or "").strip()[:20] for group in groups
    ]
    # `identity` is passing through; `DMA` and `DMA-FQ` translate. The groups of a virtual
    # machine's devices are neither.
    passing = kinds.count("identity")
    translating = sum(kind.startswith("DMA") for kind in kinds)
    if passing or translating:
        return "passthrough" if passing >= translating else "translating"
    command = (files.text("proc/cmdline") or "")[:8192]
    if groups or files.names("sys/class/iommu"):
        if _PASSTHROUGH.search(command):
            return "passthrough"
        return "translating" if _SWITCHED_ON.search(command) else None
    if _SWITCHED_OFF.search(command) or "iommu" in files.names("sys/class"):
        return "off"
    return None
