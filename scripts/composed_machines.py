"""Machines put together from data sheets and published texts, each to show one kind of trouble."""

import re
from pathlib import Path
from typing import Any

from capture_parts import (
    Capture,
    Layout,
    cpu_files,
    dmidecode,
    link_files,
    memory_files,
    node_files,
    pci_files,
    port_files,
    setting_files,
    supermicro_slots,
    system_files,
)

MIB = 1024**2
CPUINFO = "cpuinfo_Broadwell-EP-v4_one-core.txt"
GEN1, GEN3 = "2.5 GT/s PCIe", "8.0 GT/s PCIe"
# Broadwell-EP's flags that Haswell-EP (E5 v3) does not have (Intel SDM vol. 1 §5; 2026-11).
AFTER_HASWELL = (
    "3dnowprefetch adx cat_l3 cdp_l3 cqm_mbm_local cqm_mbm_total hle intel_pt rdseed rdt_a rtm smap"
)
# What Skylake-SP adds that decides builds (Intel SDM vol. 1 §5; 2026-11).
SKYLAKE = "avx512f avx512dq avx512cd avx512bw avx512vl clwb pku ospke xsavec xgetbv1"
# Board figures: NVIDIA's data sheets; clocks as NVML counts them (half the data rate).
P40: dict[str, Any] = {
    "name": "Tesla P40", "device": "1b38", "capability": [6, 1], "memory_mib": 24576,
    "bus_bits": 384, "memory_mhz": 3615, "sm_mhz": 1531, "watts": 250, "subsystem": "11d9",
}  # fmt: skip
T4: dict[str, Any] = {
    "name": "Tesla T4", "device": "1eb8", "capability": [7, 5], "memory_mib": 15360,
    "bus_bits": 256, "memory_mhz": 5001, "sm_mhz": 1590, "watts": 70, "subsystem": "12a2",
}  # fmt: skip
V100_PCIE: dict[str, Any] = {
    "name": "Tesla V100-PCIE-16GB", "device": "1db4", "capability": [7, 0], "memory_mib": 16384,
    "bus_bits": 4096, "memory_mhz": 877, "sm_mhz": 1380, "watts": 250, "subsystem": "1214",
}  # fmt: skip
V100_SXM2: dict[str, Any] = {
    "name": "Tesla V100-SXM2-32GB", "device": "1db5", "capability": [7, 0], "memory_mib": 32768,
    "bus_bits": 4096, "memory_mhz": 877, "sm_mhz": 1530, "watts": 300, "subsystem": "1249",
}  # fmt: skip


V100_SXM2_16: dict[str, Any] = V100_SXM2 | {
    "name": "Tesla V100-SXM2-16GB", "device": "1db1", "memory_mib": 16384, "subsystem": "1212",
}  # fmt: skip
P100_PCIE: dict[str, Any] = {
    "name": "Tesla P100-PCIE-16GB", "device": "15f8", "capability": [6, 0], "memory_mib": 16384,
    "bus_bits": 4096, "memory_mhz": 715, "sm_mhz": 1328, "watts": 250, "subsystem": "118f",
}  # fmt: skip


def answers(card: dict[str, Any], address: str, **other: Any) -> dict[str, Any]:
    """What NVML answers for an idle and healthy card; `other` overrides."""
    return {
        "name": card["name"],
        "pci": {
            "busId": f"0000{address.upper()}",
            "pciDeviceId": int(card["device"], 16) << 16 | 0x10DE,
            "pciSubSystemId": int(card["subsystem"], 16) << 16 | 0x10DE,
        },
        "compute_capability": card["capability"],
        "memory": {
            "total": card["memory_mib"] * MIB,
            "free": (card["memory_mib"] - 270) * MIB,
            "used": 270 * MIB,
        },
        "memory_bus_width": card["bus_bits"],
        "memory_clock": card["memory_mhz"],
        "memory_clock_max": card["memory_mhz"],
        "sm_clock": 135,
        "sm_clock_max": card["sm_mhz"],
        "pcie_generation": 3,
        "pcie_generation_max": 3,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_replays": 0,
        "ecc_mode": [1, 1],
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "ecc_corrected_lifetime": 0,
        "ecc_uncorrected_lifetime": 0,
        "retired_single_bit": [],
        "retired_double_bit": [],
        "retired_pending": 0,
        "temperature": 34,
        "slowdown_temperature": 90,
        "power_draw": 26_000,
        "power_limit": card["watts"] * 1000,
        "power_limit_default": card["watts"] * 1000,
        "power_limits": [card["watts"] * 500, card["watts"] * 1000],
        "performance_state": 0,
        "utilization": {"gpu": 0, "memory": 0},
        "persistence": 1,
        "compute_mode": 0,
        "clocks_event_reasons": 1,
        "processes": [],
    } | other


def dual_broadwell(fixtures: Path, name: str, cores: int, l3_kib: int, max_khz: int) -> Capture:
    """Two E5 v4 sockets, numbered as in lscpu_2xE5-2690v4.txt, with their nodes."""
    sockets = [
        [*range(s * cores, (s + 1) * cores), *range((2 + s) * cores, (3 + s) * cores)]
        for s in (0, 1)
    ]
    layout = Layout(name, 79, list(range(cores)), sockets, l3_kib, 256, max_khz, "core_cpus_list")
    capture = Capture("x86_64", "2.35", True)
    capture.add(
        CPUINFO,
        cpu_files(layout, (fixtures / CPUINFO).read_text(), set()),
        f"CPU: the {name.split(' @')[0]}'s name, counts, caches and clock; core ids",
    )
    runs = [f"{part * cores}-{(part + 1) * cores - 1}" for part in range(4)]
    lists = [f"{runs[0]},{runs[2]}", f"{runs[1]},{runs[3]}"]
    capture.add("composed", node_files(lists, 131_900_000, 118_000_000, 21))
    capture.add("composed", memory_files(131_900_000, 122_000_000, 8_388_604, "madvise"))
    capture.add("composed", system_files("Ubuntu 22.04.5 LTS", "5.15.0-151-generic", 4 * cores))
    capture.add("composed", setting_files(4 * cores, "powersave"))
    capture.composed.append("memory, swap, pages, limits, settings, system, counters: plausible")
    return capture


def p40_box(fixtures: Path) -> Capture:
    """Two P40 in a board with half its memory channels filled; one card is too hot."""
    name = "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"
    capture = dual_broadwell(fixtures, name, 14, 35840, 3_300_000)
    slots = supermicro_slots(2, "AB", 32)
    capture.add(
        "composed",
        {"commands/dmidecode_-t_memory.txt": dmidecode(slots, "DDR4", 2400, 2133)},
        "memory modules: two of four channels a socket, slowed to 2133 MT/s",
    )
    cards = (("0000:03:00.0", "0000:00:02.0", 0), ("0000:82:00.0", "0000:80:02.0", 1))
    for address, port, node in cards:
        capture.add("composed", pci_files(address, P40["device"], node, GEN3, 16))
        capture.add("composed", link_files(address, GEN3, 16))
        capture.add("composed", port_files(port, address[5:7], GEN3, 16))
    hot = answers(
        P40, "0000:82:00.0", temperature=91, clocks_event_reasons=0x60, sm_clock=898,
        power_draw=143_000, utilization={"gpu": 100, "memory": 62}, persistence=0,
        processes=[{"pid": 2417, "name": "llama-server", "memory": 21_300 * MIB}],
        memory={"total": 24576 * MIB, "free": 3006 * MIB, "used": 21570 * MIB},
    )  # fmt: skip
    gpus = [answers(P40, "0000:03:00.0", performance_state=8, memory_clock=405, persistence=0), hot]
    capture.add(
        "composed",
        {"nvml.json": {"driver_version": "535.183.01", "cuda_version": 12020, "gpus": gpus}},
        "GPUs: the P40's data sheet; the second is hot and slowed down",
    )
    return capture


def t4(fixtures: Path) -> Capture:
    """One T4 in a slot of eight lanes: the port, not a fault, keeps its link at x8."""
    sockets = [list(range(20))]
    layout = Layout(
        "Intel(R) Xeon(R) CPU E5-2630 v4 @ 2.20GHz", 79, list(range(10)), sockets, 25600, 256,
        3_100_000, "core_cpus_list",
    )  # fmt: skip
    capture = Capture("x86_64", "2.39", True)
    capture.add(
        CPUINFO,
        cpu_files(layout, (fixtures / CPUINFO).read_text(), set()),
        "CPU: the E5-2630 v4's name, counts, caches and clock; core ids",
    )
    capture.add("composed", node_files(["0-19"], 65_800_000, 60_000_000, 21))
    capture.add("composed", memory_files(65_800_000, 61_000_000, 0, "madvise"))
    capture.add("composed", system_files("Ubuntu 24.04.2 LTS", "6.8.0-60-generic", 20))
    capture.add("composed", setting_files(20, "performance", swappiness=10))
    slots = supermicro_slots(1, "ABCD", 16)
    capture.add(
        "composed",
        {"commands/dmidecode_-t_memory.txt": dmidecode(slots, "DDR4", 2133, 2133)},
    )
    address = "0000:03:00.0"
    capture.add("composed", pci_files(address, T4["device"], -1, GEN3, 16))
    capture.add("composed", link_files(address, GEN1, 8))
    capture.add("composed", port_files("0000:00:03.0", "03", GEN3, 8))
    gpu = answers(
        T4, address, pcie_generation=1, pcie_width=8, pcie_width_max=8, performance_state=8,
        power_draw=9_800, memory_clock=405, sm_clock=300, temperature=41,
    )  # fmt: skip
    capture.add(
        "composed",
        {"nvml.json": {"driver_version": "550.163.01", "cuda_version": 12040, "gpus": [gpu]}},
        "GPU: the T4's data sheet; its slot has eight lanes",
    )
    capture.composed.append("memory, pages, limits, settings, system, counters: plausible values")
    return capture


def eight_v100(fixtures: Path) -> Capture:
    """Eight V100-SXM2 joined by NVLink; the links from a published `nvidia-smi topo -m`."""
    topo_name = "nvidia-smi-topo_8xV100-SXM2-32GB_NVLink_drv470.txt"
    topo = (fixtures / topo_name).read_text()
    sockets = [[*range(24), *range(48, 72)], [*range(24, 48), *range(72, 96)]]
    layout = Layout(
        "Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", 85, list(range(24)), sockets, 33792, 1024,
        3_700_000, "core_cpus_list",
    )  # fmt: skip
    capture = Capture("x86_64", "2.31", True)
    capture.add(
        CPUINFO,
        cpu_files(layout, (fixtures / CPUINFO).read_text(), set(), SKYLAKE),
        "CPU: the Platinum 8168's name, counts, caches and clock; flags are Broadwell-EP's and"
        " AVX-512; CPU numbers as in the topology's affinities",
    )
    lists = sorted(set(re.findall(r"(\d+-\d+,\d+-\d+)\t[01]", topo)))
    capture.add(topo_name, node_files(lists, 792_000_000, 740_000_000, 21))
    capture.add("composed", memory_files(792_000_000, 745_000_000, 0, "madvise"))
    capture.add("composed", system_files("Ubuntu 20.04.6 LTS", "5.4.0-216-generic", 96))
    capture.add("composed", setting_files(96, "performance", swappiness=10))
    gpus = []
    for index, bus in enumerate(("1a", "1b", "3d", "3e", "88", "89", "b2", "b3")):
        address = f"0000:{bus}:00.0"
        capture.add("composed", pci_files(address, V100_SXM2["device"], index // 4, GEN3, 16))
        capture.add("composed", link_files(address, GEN3, 16))
        gpus.append(answers(V100_SXM2, address, temperature=33 + index, sm_clock=135))
    capture.add(
        "composed",
        {"nvml.json": {"driver_version": "470.256.02", "cuda_version": 11040, "gpus": gpus}},
        "GPUs: the V100-SXM2-32GB's data sheet; addresses",
    )
    capture.add(topo_name, {"commands/nvidia-smi_topo_-m.txt": topo})
    capture.composed.append("memory, pages, limits, settings, system, counters: plausible values")
    return capture


def mismatch(fixtures: Path) -> Capture:
    """A driver that was updated while it ran: NVML refuses until the next restart."""
    log_name = "dmesg_nvidia_signatures.txt"
    log = (fixtures / log_name).read_text()
    said = re.search(r"^.*API mismatch.*\n", log, re.MULTILINE)
    told = re.search(r"^Failed to initialize NVML: Driver.*\n.*\n", log, re.MULTILINE)
    assert said and told
    layout = Layout(
        "Intel(R) Xeon(R) CPU E5-2620 v3 @ 2.40GHz", 63, list(range(6)), [list(range(12))], 15360,
        256, 3_200_000, "core_cpus_list",
    )  # fmt: skip
    capture = Capture("x86_64", "2.36", True)
    capture.add(
        CPUINFO,
        cpu_files(layout, (fixtures / CPUINFO).read_text(), set(AFTER_HASWELL.split())),
        "CPU: the E5-2620 v3's name, counts, caches and clock; the flags are Broadwell-EP's without"
        " those that came after Haswell",
    )
    capture.add("composed", node_files(["0-11"], 65_800_000, 60_000_000, 21))
    capture.add("composed", memory_files(65_800_000, 61_000_000, 0, "always"))
    capture.add("composed", system_files("Debian GNU/Linux 12 (bookworm)", "6.1.0-38-amd64", 12))
    capture.add("composed", setting_files(12, "performance"))
    capture.add("composed", pci_files("0000:04:00.0", V100_PCIE["device"], 0, GEN3, 16))
    capture.add("composed", link_files("0000:04:00.0", GEN3, 16))
    module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Release Build\n"
    error = {"words": "Driver/library version mismatch", "code": 18}
    capture.add(log_name, {"commands/dmesg.txt": said[0], "commands/nvidia-smi.txt": told[0]})
    capture.add(
        "composed",
        {
            "nvml.json": {"error": error},
            "proc/driver/nvidia/version": module,
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
        },
        "driver: module and library of the versions in the log's line",
    )
    capture.composed.append("memory, pages, limits, settings, system, counters: plausible values")
    return capture


def two_links(fixtures: Path) -> Capture:
    """Two V100: one lost half its lanes, the other only saves power while idle."""
    name = "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz"
    capture = dual_broadwell(fixtures, name, 14, 35840, 3_500_000)
    texts = "lspci_link_excerpts.txt"
    lost, idle = "0000:18:00.0", "0000:af:00.0"
    for address, port, node in ((lost, "0000:17:00.0", 0), (idle, "0000:ae:00.0", 1)):
        capture.add(texts, pci_files(address, V100_PCIE["device"], node, GEN3, 16))
        capture.add(texts, port_files(port, address[5:7], GEN3, 16))
    capture.add(texts, link_files(lost, GEN3, 8) | link_files(idle, GEN1, 16))
    gpus = [
        answers(V100_PCIE, lost, pcie_width=8, pcie_replays=4211),
        answers(V100_PCIE, idle, pcie_generation=1),
    ]
    topo = "nvidia-smi-topo_2xV100_dual14core_SYS_drv570.txt"
    capture.add(
        "composed",
        {
            "nvml.json": {"driver_version": "570.133.20", "cuda_version": 12080, "gpus": gpus},
            "measured.json": {
                "gpus": [
                    {"index": 0, "pcie_generation_loaded": 3, "pcie_width_loaded": 8},
                    {"index": 1, "pcie_generation_loaded": 3, "pcie_width_loaded": 16},
                ]
            },
        },
        "GPUs: the V100-PCIE-16GB's data sheet; links as in the lspci texts, those under load too",
    )
    capture.add(topo, {"commands/nvidia-smi_topo_-m.txt": (fixtures / topo).read_text()})
    return capture


def two_v100(fixtures: Path) -> Capture:
    """Two V100-SXM2-16GB, one on each socket, without NVLink between them."""
    name = "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz"
    capture = dual_broadwell(fixtures, name, 14, 35840, 3_500_000)
    smi_name = "nvidia-smi_2xV100-SXM2-16GB_drv570.txt"
    topo_name = "nvidia-smi-topo_2xV100_dual14core_SYS_drv570.txt"
    smi = (fixtures / smi_name).read_text()
    gpus = []
    for node, (bus, used_mib) in enumerate(
        re.findall(r"0000([0-9A-F]{4}:[0-9A-F]{2}:00\.0) Off .*\n.*?(\d+)MiB / +16384MiB", smi)
    ):
        address = bus.lower()
        capture.add(smi_name, pci_files(address, V100_SXM2_16["device"], node, GEN3, 16))
        capture.add("composed", link_files(address, GEN3, 16))
        # What the driver keeps for itself is not in the text: as on the other captures.
        used = int(used_mib) + 543
        memory = {"total": 16384 * MIB, "free": (16384 - used) * MIB, "used": used * MIB}
        gpus.append(answers(V100_SXM2_16, address, memory=memory))
    capture.add(
        smi_name,
        {"nvml.json": {"driver_version": "570.133.20", "cuda_version": 12080, "gpus": gpus}},
        "GPUs: names, addresses and memory of the text; else its data sheet",
    )
    capture.add(topo_name, {"commands/nvidia-smi_topo_-m.txt": (fixtures / topo_name).read_text()})
    return capture


def three_kinds(fixtures: Path) -> Capture:
    """A V100, a P100 and a P40 in one dual-socket server: what was bought one after the other."""
    name = "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"
    capture = dual_broadwell(fixtures, name, 14, 35840, 3_300_000)
    cards = (
        (V100_PCIE, "0000:03:00.0", 0),
        (P100_PCIE, "0000:04:00.0", 0),
        (P40, "0000:82:00.0", 1),
    )
    gpus = []
    for card, address, node in cards:
        capture.add("composed", pci_files(address, card["device"], node, GEN3, 16))
        capture.add("composed", link_files(address, GEN3, 16))
        gpus.append(answers(card, address))
    # nvmlGpuTopologyLevel_t: 30 through a host bridge, 50 across the sockets; nvmlGpuP2PStatus_t:
    # 2, cards of different kinds cannot read each other's memory.
    links = [
        {"first": first, "second": second, "ancestor": level, "p2p_read": 2}
        for first, second, level in ((0, 1, 30), (0, 2, 50), (1, 2, 50))
    ]
    answer = {"driver_version": "535.183.01", "cuda_version": 12020, "gpus": gpus, "links": links}
    capture.add(
        "composed", {"nvml.json": answer}, "GPUs: their data sheets; links as their slots lie"
    )
    return capture
