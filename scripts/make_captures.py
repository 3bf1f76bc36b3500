"""Write tests/captures/*.json, machines that are not here, from published texts.

    python scripts/make_captures.py FIXTURES tests/captures

FIXTURES is a folder of lscpu, numactl, /proc/cpuinfo, nvidia-smi and NVML texts. A capture is one
JSON document `{path: text}`; its `workhorse-capture.json` says where each file comes from and which
values are composed: put together from data sheets and defaults, not read from one machine.
"""

import ast
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1024**2
CPUINFO = "cpuinfo_Broadwell-EP-v4_one-core.txt"
SMI_Q = "nvidia-smi-q_V100-PCIE-32GB_drv410.txt"
# Broadwell-EP's flags that Ivy Bridge-EP (E5 v2) does not have (Intel SDM vol. 1 §5; 2026-11).
AFTER_IVY_BRIDGE = (
    "3dnowprefetch abm adx avx2 bmi1 bmi2 cat_l3 cdp_l3 cqm cqm_llc cqm_mbm_local cqm_mbm_total"
    " cqm_occup_llc fma hle intel_pt invpcid invpcid_single movbe rdseed rdt_a rtm smap tsc_adjust"
    " ept_ad sdbg"
)


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


def cpu_files(layout: Layout, cpuinfo: str, drop_flags: set[str]) -> dict[str, str]:
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
                line = f"flags\t\t: {' '.join(flags)}"
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


def v100(smi_q: str, name: str, address: str, free_mib: int, total_mib: int) -> dict[str, Any]:
    """The answers of one V100; clocks, links, ECC and limits from an `nvidia-smi -q`."""

    def figure(pattern: str) -> int:
        found = re.search(pattern, smi_q)
        assert found, pattern
        return int(found[1])

    limit_w = 300 if "SXM2" in name else figure(r"Default Power Limit +: (\d+)")
    return {
        "name": name,
        "pci": {"busId": f"0000{address.upper()}"},
        "compute_capability": [7, 0],
        "memory": {"total": total_mib * MIB, "free": free_mib * MIB},
        "memory_bus_width": 4096,
        "memory_clock_max": figure(r"Max Clocks\n(?: .*\n)*? +Memory +: (\d+) MHz"),
        "pcie_generation": figure(r"PCIe Generation\n.*\n +Current +: (\d)"),
        "pcie_generation_max": figure(r"PCIe Generation\n +Max +: (\d)"),
        "pcie_width": figure(r"Link Width\n.*\n +Current +: (\d+)x"),
        "pcie_width_max": figure(r"Link Width\n +Max +: (\d+)x"),
        "ecc_mode": [1, 1],
        "temperature": figure(r"GPU Current Temp +: (\d+) C"),
        "power_limit": limit_w * 1000,
        "power_limit_default": limit_w * 1000,
        "clocks_event_reasons": 0,
    }


def machine_a(fixtures: Path) -> Capture:
    """Dual 2016 Xeon with AVX2 and one V100 16 GB on PCIe; CPU numbers alternate by socket."""
    texts = {name: (fixtures / name).read_text() for name in (CPUINFO, SMI_Q)}
    log = (fixtures / "llamacpp_log_V100-PCIE-16GB_b4935_full-offload.txt").read_text()
    smi = (fixtures / "nvidia-smi_2xV100-SXM2-16GB_drv550.txt").read_text()
    sockets = [list(range(0, 48, 2)), list(range(1, 48, 2))]
    layout = Layout(
        "Intel(R) Xeon(R) CPU E5-2650 v4 @ 2.20GHz", 79, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13],
        sockets, 30720, 256, 2_900_000, "core_cpus_list",
    )  # fmt: skip
    capture = Capture("x86_64", "2.35", True)
    capture.add(
        CPUINFO,
        cpu_files(layout, texts[CPUINFO], set()),
        "CPU: model name, counts, core ids, caches and clock are the E5-2650 v4's; CPU numbers"
        " alternate by socket as in numactl-H_4nodes_E5-4669v4_interleaved-cpu-ids.txt",
    )
    lists = [",".join(map(str, cpus)) for cpus in sockets]
    total_kib = 65_744_000
    capture.add("composed", node_files(lists, total_kib, 58_720_000, 21))
    capture.add("composed", memory_files(total_kib, 60_817_000, 8_388_604, "madvise"))
    capture.add("composed", system_files("Ubuntu 22.04.5 LTS", "5.15.0-151-generic", 48))
    address = "0000:82:00.0"
    capture.add("lspci_link_excerpts.txt", pci_files(address, "1db4", 1, "8.0 GT/s PCIe", 16))
    gpu = v100(texts[SMI_Q], "Tesla V100-PCIE-16GB", address, _mib_free(log), 16384)
    driver = _driver(smi)
    capture.add(
        f"{SMI_Q}; free memory: llamacpp_log_V100-PCIE-16GB_b4935_full-offload.txt; driver and"
        " total memory: nvidia-smi_2xV100-SXM2-16GB_drv550.txt",
        {"nvml.json": driver | {"gpus": [gpu]}},
        "GPU: bus width from the data sheet; PCI address and node",
    )
    capture.composed.append("memory, swap, pages, limits, system, counters: plausible values")
    return capture


def machine_b(fixtures: Path) -> Capture:
    """2 × E5-2690 v4, two nodes, 128 GB, one V100-SXM2-32GB."""
    texts = {name: (fixtures / name).read_text() for name in (CPUINFO, SMI_Q)}
    lscpu = dict(
        re.findall(
            r"^([^:\n]+): +(.+)$", (fixtures / "lscpu_2xE5-2690v4.txt").read_text(), re.MULTILINE
        )
    )
    numactl = (fixtures / "numactl-H_2nodes_28threads-each.txt").read_text()
    devices = (fixtures / "llamacpp_list-devices_examples.txt").read_text()
    smi = (fixtures / "nvidia-smi_2xV100-SXM2-16GB_drv570.txt").read_text()
    sockets = [list(map(int, cpus.split())) for cpus in re.findall(r"cpus: (.+)", numactl)]
    layout = Layout(
        lscpu["Model name"], int(lscpu["Model"]), [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14],
        sockets, int(lscpu["L3 cache"][:-1]), int(lscpu["L2 cache"][:-1]),
        int(float(lscpu["CPU max MHz"]) * 1000), "thread_siblings_list",
    )  # fmt: skip
    capture = Capture("x86_64", "2.28", True)
    capture.add(
        f"{CPUINFO}, lscpu_2xE5-2690v4.txt, numactl-H_2nodes_28threads-each.txt",
        cpu_files(layout, texts[CPUINFO], set()),
        "CPU: core ids (14 of a Broadwell-EP die's numbers)",
    )
    lists = [lscpu["NUMA node0 CPU(s)"], lscpu["NUMA node1 CPU(s)"]]
    total_kib = 131_676_000
    capture.add(
        "lscpu_2xE5-2690v4.txt, numactl-H_2nodes_28threads-each.txt",
        node_files(lists, total_kib, 120_400_000, 21),
        "node memory: 64 GB each, not the text's 128",
    )
    capture.add("composed", memory_files(total_kib, 124_900_000, 4_194_300, "always"))
    capture.add(
        "composed",
        system_files("Rocky Linux 8.10 (Green Obsidian)", "4.18.0-553.el8_10.x86_64", 56),
    )
    address = "0000:18:00.0"
    capture.add("lspci_link_excerpts.txt", pci_files(address, "1db5", 0, "8.0 GT/s PCIe", 16))
    gpu = v100(texts[SMI_Q], "Tesla V100-SXM2-32GB", address, _mib_free(devices), 32768)
    capture.add(
        f"{SMI_Q}; free memory: llamacpp_list-devices_examples.txt; driver:"
        " nvidia-smi_2xV100-SXM2-16GB_drv570.txt",
        {"nvml.json": _driver(smi) | {"gpus": [gpu]}},
        "GPU: bus width and 300 W from the data sheet, total memory; PCI address and node",
    )
    capture.composed.append("memory, swap, pages, limits, system, counters: plausible values")
    return capture


def avx_only(fixtures: Path) -> Capture:
    """One E5 v2 of 2013: AVX and F16C, but no AVX2 and no FMA; no GPU."""
    cpuinfo = (fixtures / CPUINFO).read_text()
    sockets = [list(range(20))]
    layout = Layout(
        "Intel(R) Xeon(R) CPU E5-2680 v2 @ 2.80GHz", 62, [0, 1, 2, 3, 4, 8, 9, 10, 11, 12],
        sockets, 25600, 256, 3_600_000, "core_cpus_list",
    )  # fmt: skip
    capture = Capture("x86_64", "2.31", False)
    capture.add(
        CPUINFO,
        cpu_files(layout, cpuinfo, set(AFTER_IVY_BRIDGE.split())),
        "CPU: the E5-2680 v2's name, counts, core ids, caches and clock; the flags are"
        " Broadwell-EP's without those that came after Ivy Bridge",
    )
    capture.add("composed", node_files(["0-19"], 32_846_000, 30_100_000, 21))
    capture.add("composed", memory_files(32_846_000, 31_020_000, 0, "always"))
    capture.add("composed", system_files("Debian GNU/Linux 11 (bullseye)", "5.10.0-35-amd64", 20))
    capture.composed.append("memory, swap, pages, limits, system, counters: plausible values")
    return capture


def h200(fixtures: Path) -> Capture:
    """A real 16-CPU virtual machine with one H200; only what was captured of it."""
    root = fixtures / "h200_host"
    capture = Capture("x86_64", None, None)
    capture.add("h200_host/cpuinfo.txt", {"proc/cpuinfo": (root / "cpuinfo.txt").read_text()})
    capture.add("h200_host/meminfo.txt", {"proc/meminfo": (root / "meminfo.txt").read_text()})
    nodes = re.split(r"^== /(.*)\n", (root / "sys_node.txt").read_text(), flags=re.MULTILINE)[1:]
    capture.add("h200_host/sys_node.txt", dict(zip(nodes[::2], nodes[1::2], strict=True)))
    card = (root / "sys_pci_nvidia.txt").read_text()
    device = re.findall(r"^(\w+): ?(.*)\|$", card, re.MULTILINE)
    address = "sys/bus/pci/devices/0000:00:06.0"
    capture.add(
        "h200_host/sys_pci_nvidia.txt",
        {f"{address}/{name}": text.replace("|", "\n") + "\n" for name, text in device},
    )
    dump = (root / "nvml_dump.txt").read_text()
    answers = dict(re.findall(r"^nvmlDeviceGet(\w+) = (.*)$", dump, re.MULTILINE))
    # These take an argument, so their values are not in the dump of plain calls.
    temperature = re.search(r"GPU Current Temp +: (\d+) C", (root / "nvidia-smi_q.txt").read_text())
    clock = re.search(r"^nvmlDeviceGetMaxClockInfo MEM (\d+)$", dump, re.MULTILINE)
    assert temperature and clock
    gpu = {
        "name": answers["Name"],
        "pci": {"busId": ast.literal_eval(answers["PciInfo"])["busId"]},
        "compute_capability": ast.literal_eval(answers["CudaComputeCapability"]),
        "memory": ast.literal_eval(answers["MemoryInfo"]),
        "memory_bus_width": int(answers["MemoryBusWidth"]),
        "memory_clock_max": int(clock[1]),
        "pcie_generation": int(answers["CurrPcieLinkGeneration"]),
        "pcie_generation_max": int(answers["MaxPcieLinkGeneration"]),
        "pcie_width": int(answers["CurrPcieLinkWidth"]),
        "pcie_width_max": int(answers["MaxPcieLinkWidth"]),
        "ecc_mode": ast.literal_eval(answers["EccMode"]),
        "temperature": int(temperature[1]),
        "power_limit": int(answers["PowerManagementLimit"]),
        "power_limit_default": int(answers["PowerManagementDefaultLimit"]),
        "clocks_event_reasons": int(answers["CurrentClocksEventReasons"]),
    }
    first = re.match(r"driver (\S+) nvml \S+ cuda (\d+)", dump)
    assert first
    capture.add(
        "h200_host/nvml_dump.txt, nvidia-smi_q.txt (temperature)",
        {"nvml.json": {"driver_version": first[1], "cuda_version": int(first[2]), "gpus": [gpu]}},
    )
    return capture


def _driver(smi: str) -> dict[str, Any]:
    found = re.search(r"Driver Version: (\S+) +CUDA Version: (\d+)\.(\d+)", smi)
    assert found
    return {
        "driver_version": found[1],
        "cuda_version": int(found[2]) * 1000 + int(found[3]) * 10,
    }


def _mib_free(text: str) -> int:
    found = re.search(r"V100.*?(\d+) MiB free", text)
    assert found
    return int(found[1])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    for make in (machine_a, machine_b, avx_only, h200):
        make(source).write(target / f"{make.__name__}.json")
