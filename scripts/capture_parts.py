"""Parts that captures are put together from: CPUs, nodes, memory and cards in files."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Capture:
    """The files of one machine, with the source of each."""

    architecture: str
    glibc: str | None
    libgomp: bool | None
    files: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    composed: list[str] = field(default_factory=list)

    def add(self, source: str, files: dict[str, Any], composed: str | None = None) -> None:
        """Add files from one source; `composed` says which of their values are."""
        self.files |= files
        self.sources |= dict.fromkeys(files, source)
        if composed:
            self.composed.append(composed)

    def write(self, path: Path) -> None:
        """Write the capture as one JSON document."""
        sources: dict[str, list[str]] = {}
        for name, source in self.sources.items():
            # One line for a folder, and for all folders that differ by a number alone.
            name = re.sub(r"(cpu|index|node)\d+/", r"\1*/", name)
            name = re.sub(r"^(sys/.*/)[^/]+$", r"\1*", name)
            if name not in sources.setdefault(source, []):
                sources[source].append(name)
        note = {
            "architecture": self.architecture,
            "glibc": self.glibc,
            "libgomp": self.libgomp,
            "sources": sources,
            "composed": self.composed,
        }
        document = {"workhorse-capture.json": note, **self.files}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass
class Layout:
    """Sockets of equal cores with two threads each, and which CPU numbers they have."""

    model_name: str
    model: int
    core_ids: list[int]
    cpus_of_socket: list[list[int]]  # first threads, then second ones, in order of core
    l3_kib: int
    l2_kib: int
    max_khz: int
    siblings_file: str


def core_rows(layout: Layout) -> list[tuple[int, int, int, str]]:
    """CPU, socket, core id and sibling list of every logical CPU, ascending."""
    rows = []
    count = len(layout.core_ids)
    for socket, cpus in enumerate(layout.cpus_of_socket):
        for position, cpu in enumerate(cpus):
            first, second = cpus[position % count], cpus[position % count + count]
            rows.append((cpu, socket, layout.core_ids[position % count], f"{first},{second}"))
    return sorted(rows)


def cpu_files(
    layout: Layout, cpuinfo: str, drop_flags: set[str], add_flags: str = ""
) -> dict[str, str]:
    """/proc/cpuinfo and the CPU part of sysfs."""
    rows = core_rows(layout)
    root = "sys/devices/system/cpu"
    files = {f"{root}/online": f"0-{len(rows) - 1}\n"}
    blocks = []
    for cpu, socket, core, siblings in rows:
        values = {
            "processor": cpu,
            "model": layout.model,
            "model name": layout.model_name,
            "cache size": f"{layout.l3_kib} KB",
            "physical id": socket,
            "siblings": 2 * len(layout.core_ids),
            "core id": core,
            "cpu cores": len(layout.core_ids),
        }
        lines = []
        for line in cpuinfo.strip().splitlines():
            name = line.split(":")[0].strip()
            if name in ("vmx flags", "bugs", "apicid", "initial apicid", "microcode"):
                continue
            if name == "flags":
                flags = [f for f in line.split(":")[1].split() if f not in drop_flags]
                line = f"flags\t\t: {' '.join([*flags, *add_flags.split()])}"
            elif name in values:
                line = f"{line.split(':')[0]}: {values[name]}"
            lines.append(line)
        blocks.append("\n".join(lines) + "\n")
        topology = f"{root}/cpu{cpu}/topology"
        files[f"{topology}/physical_package_id"] = f"{socket}\n"
        files[f"{topology}/core_id"] = f"{core}\n"
        files[f"{topology}/{layout.siblings_file}"] = f"{siblings}\n"
    files["proc/cpuinfo"] = "\n".join(blocks)
    files[f"{root}/cpu0/cpufreq/cpuinfo_max_freq"] = f"{layout.max_khz}\n"
    for index, (level, kind, kib) in enumerate(
        ((1, "Data", 32), (1, "Instruction", 32), (2, "Unified", layout.l2_kib))
    ):
        files |= cache_files(index, level, kind, kib)
    return files | cache_files(3, 3, "Unified", layout.l3_kib)


def cache_files(index: int, level: int, kind: str, kib: int) -> dict[str, str]:
    """One cache of CPU 0."""
    root = f"sys/devices/system/cpu/cpu0/cache/index{index}"
    return {f"{root}/level": f"{level}\n", f"{root}/type": f"{kind}\n", f"{root}/size": f"{kib}K\n"}


def node_files(cpu_lists: list[str], total_kib: int, free_kib: int, far: int) -> dict[str, str]:
    """The NUMA part of sysfs, memory shared evenly."""
    root, count = "sys/devices/system/node", len(cpu_lists)
    files = {f"{root}/online": "0\n" if count == 1 else f"0-{count - 1}\n"}
    for node, cpus in enumerate(cpu_lists):
        files[f"{root}/node{node}/cpulist"] = f"{cpus}\n"
        files[f"{root}/node{node}/distance"] = (
            " ".join("10" if node == other else str(far) for other in range(count)) + "\n"
        )
        files[f"{root}/node{node}/meminfo"] = (
            f"Node {node} MemTotal:       {total_kib // count} kB\n"
            f"Node {node} MemFree:        {free_kib // count} kB\n"
        )
    return files


def memory_files(total_kib: int, available_kib: int, swap_kib: int, thp: str) -> dict[str, str]:
    """/proc/meminfo, the page switch and the locked-memory limit."""
    modes = " ".join(f"[{m}]" if m == thp else m for m in ("always", "madvise", "never"))
    limit = f"{'Max locked memory':25} {65536:<20} {65536:<20} bytes     \n"
    return {
        "proc/meminfo": f"MemTotal:       {total_kib} kB\nMemFree:        {available_kib} kB\n"
        f"MemAvailable:   {available_kib} kB\nSwapTotal:      {swap_kib} kB\n"
        f"SwapFree:       {swap_kib} kB\nHugePages_Total:       0\nHugePages_Free:        0\n"
        "Hugepagesize:       2048 kB\n",
        "sys/kernel/mm/transparent_hugepage/enabled": modes + "\n",
        "proc/self/limits": limit,
    }


def system_files(pretty_name: str, kernel: str, cpus: int) -> dict[str, str]:
    """Distribution, kernel and the CPU counters."""
    rows = [f"cpu{cpu} 100 0 50 90000 10 0 0 0 0 0" for cpu in range(cpus)]
    return {
        "etc/os-release": f'PRETTY_NAME="{pretty_name}"\n',
        "proc/sys/kernel/osrelease": f"{kernel}\n",
        "proc/stat": "\n".join([f"cpu  {100 * cpus} 0 {50 * cpus} {90000 * cpus}", *rows]) + "\n",
    }


def pci_files(address: str, device: str, node: int, speed: str, width: int) -> dict[str, str]:
    """One NVIDIA card on the bus."""
    root = f"sys/bus/pci/devices/{address}"
    return {
        f"{root}/vendor": "0x10de\n",
        f"{root}/device": f"0x{device}\n",
        f"{root}/class": "0x030200\n",
        f"{root}/numa_node": f"{node}\n",
        f"{root}/uevent": f"DRIVER=nvidia\nPCI_ID=10DE:{device.upper()}\n",
        f"{root}/max_link_speed": f"{speed}\n",
        f"{root}/max_link_width": f"{width}\n",
    }


def port_files(address: str, bus: str, speed: str, width: int) -> dict[str, str]:
    """The root port above the card on `bus` (hexadecimal)."""
    root = f"sys/bus/pci/devices/{address}"
    return {
        f"{root}/vendor": "0x8086\n",
        f"{root}/class": "0x060400\n",
        f"{root}/secondary_bus_number": f"{int(bus, 16)}\n",
        f"{root}/max_link_speed": f"{speed}\n",
        f"{root}/max_link_width": f"{width}\n",
    }


def link_files(address: str, speed: str, width: int) -> dict[str, str]:
    """The link that the card at `address` has now."""
    root = f"sys/bus/pci/devices/{address}"
    return {f"{root}/current_link_speed": f"{speed}\n", f"{root}/current_link_width": f"{width}\n"}


def setting_files(cpus: int, governor: str, **vm: int) -> dict[str, str]:
    """The kernel's settings that decide speed; `vm` overrides /proc/sys/vm."""
    values = {"swappiness": 60, "zone_reclaim_mode": 0, "overcommit_memory": 0, "nr_hugepages": 0}
    files = {f"proc/sys/vm/{name}": f"{value}\n" for name, value in (values | vm).items()}
    files["proc/sys/kernel/numa_balancing"] = "1\n"
    files["proc/sys/kernel/randomize_va_space"] = "2\n"
    for cpu in range(cpus):
        root = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        files[f"{root}/scaling_governor"] = f"{governor}\n"
        files[f"{root}/scaling_available_governors"] = "performance powersave\n"
    return files


def dmidecode(slots: list[tuple[str, str, int]], kind: str, rated: int, configured: int) -> str:
    """`dmidecode -t memory` of slots: locator, bank locator, size in GiB (0: empty)."""
    blocks = [
        "# dmidecode 3.3\nGetting SMBIOS data from sysfs.\nSMBIOS 3.0.0 present.\n",
        "Handle 0x0010, DMI type 16, 23 bytes\nPhysical Memory Array\n"
        "\tLocation: System Board Or Motherboard\n\tUse: System Memory\n"
        f"\tError Correction Type: Multi-bit ECC\n\tNumber Of Devices: {len(slots)}\n",
    ]
    for number, (locator, bank, gib) in enumerate(slots):
        lines = [
            f"Handle 0x{0x11 + number:04X}, DMI type 17, 40 bytes\nMemory Device",
            "\tArray Handle: 0x0010",
            f"\tSize: {gib} GB" if gib else "\tSize: No Module Installed",
            f"\tForm Factor: DIMM\n\tLocator: {locator}\n\tBank Locator: {bank}",
            f"\tType: {kind if gib else 'Unknown'}",
        ]
        if gib:
            lines += [
                f"\tSpeed: {rated} MT/s\n\tSerial Number: removed",
                f"\tConfigured Memory Speed: {configured} MT/s",
            ]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def supermicro_slots(sockets: int, filled: str, gib: int) -> list[tuple[str, str, int]]:
    """Eight slots a socket, two a channel A to D; `filled` names the channels with a module."""
    return [
        (
            f"P{socket + 1}-DIMM{channel}{slot + 1}",
            f"P{socket}_Node{socket}_Channel{position}_Dimm{slot}",
            gib if slot == 0 and channel in filled else 0,
        )
        for socket in range(sockets)
        for position, channel in enumerate("ABCD")
        for slot in range(2)
    ]
