"""Write tests/captures/*.json, machines that are not here, from published texts.

    python scripts/make_captures.py FIXTURES tests/captures

FIXTURES is a folder of lscpu, numactl, /proc/cpuinfo, nvidia-smi and NVML texts. A capture is one
JSON document `{path: text}`; its `workhorse-capture.json` says where each file comes from and which
values are composed: put together from data sheets and defaults, not read from one machine.
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any

from capture_parts import (
    Capture,
    Layout,
    cpu_files,
    memory_files,
    node_files,
    pci_files,
    system_files,
)
from composed_machines import (
    eight_v100,
    mismatch,
    p40_box,
    t4,
    three_kinds,
    two_links,
    two_v100,
)

MIB = 1024**2
CPUINFO = "cpuinfo_Broadwell-EP-v4_one-core.txt"
SMI_Q = "nvidia-smi-q_V100-PCIE-32GB_drv410.txt"
# Broadwell-EP's flags that Ivy Bridge-EP (E5 v2) does not have (Intel SDM vol. 1 §5; 2026-11).
AFTER_IVY_BRIDGE = (
    "3dnowprefetch abm adx avx2 bmi1 bmi2 cat_l3 cdp_l3 cqm cqm_llc cqm_mbm_local cqm_mbm_total"
    " cqm_occup_llc fma hle intel_pt invpcid invpcid_single movbe rdseed rdt_a rtm smap tsc_adjust"
    " ept_ad sdbg"
)


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


def h200_answers(root: Path) -> dict[str, Any]:
    """What NVML answered on the H200's host."""
    dump = (root / "nvml_dump.txt").read_text()
    answers = dict(re.findall(r"^nvmlDeviceGet(\w+) = (.*)$", dump, re.MULTILINE))
    query = (root / "nvidia-smi_q.txt").read_text()
    pci = ast.literal_eval(answers["PciInfo"])

    def clock(kind: str) -> int:
        """A clock of the dump, in MHz; these calls take an argument."""
        found = re.search(rf"^nvmlDevice{kind} (\d+)$", dump, re.MULTILINE)
        assert found, kind
        return int(found[1])

    def told(pattern: str) -> int:
        found = re.search(pattern, query)
        assert found, pattern
        return int(found[1])

    whole = {
        "memory_bus_width": "MemoryBusWidth", "pcie_generation": "CurrPcieLinkGeneration",
        "pcie_generation_max": "MaxPcieLinkGeneration", "pcie_width": "CurrPcieLinkWidth",
        "pcie_generation_card": "GpuMaxPcieLinkGeneration", "pcie_width_max": "MaxPcieLinkWidth",
        "pcie_replays": "PcieReplayCounter", "power_draw": "PowerUsage",
        "power_limit": "PowerManagementLimit", "persistence": "PersistenceMode",
        "power_limit_default": "PowerManagementDefaultLimit", "compute_mode": "ComputeMode",
        "performance_state": "PerformanceState",
        "clocks_event_reasons": "CurrentClocksEventReasons",
    }  # fmt: skip
    parsed = {
        "compute_capability": "CudaComputeCapability", "memory": "MemoryInfo",
        "ecc_mode": "EccMode",
        "bar1": "BAR1MemoryInfo", "remapped_rows": "RemappedRows", "mig_mode": "MigMode",
        "power_limits": "PowerManagementLimitConstraints", "utilization": "UtilizationRates",
        "processes": "ComputeRunningProcesses_v3",
    }  # fmt: skip
    gpu = {
        "name": answers["Name"],
        "pci": {key: pci[key] for key in ("busId", "pciDeviceId", "pciSubSystemId")},
        "memory_clock": clock("GetClockInfo MEM"),
        "memory_clock_max": clock("GetMaxClockInfo MEM"),
        "sm_clock": clock("GetClockInfo SM"),
        "sm_clock_max": clock("GetMaxClockInfo SM"),
        "temperature": told(r"GPU Current Temp +: (\d+) C"),
        "memory_temperature": told(r"Memory Current Temp +: (\d+) C"),
        "ecc_corrected": told(r"Volatile\n(?:.*\n)*? +DRAM Correctable +: (\d+)"),
        "ecc_uncorrected": told(r"Volatile\n(?:.*\n)*? +DRAM Uncorrectable +: (\d+)"),
        "ecc_corrected_lifetime": told(r"Aggregate\n(?:.*\n)*? +DRAM Correctable +: (\d+)"),
        "ecc_uncorrected_lifetime": told(r"Aggregate\n(?:.*\n)*? +DRAM Uncorrectable +: (\d+)"),
        **{query: int(answers[name]) for query, name in whole.items()},
        **{query: ast.literal_eval(answers[name]) for query, name in parsed.items()},
    }
    first = re.match(r"driver (\S+) nvml \S+ cuda (\d+)", dump)
    assert first
    return {"driver_version": first[1], "cuda_version": int(first[2]), "gpus": [gpu]}


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
    capture.add(
        "h200_host/nvml_dump.txt; temperatures and error counts: nvidia-smi_q.txt",
        {"nvml.json": h200_answers(root)},
    )
    capture.add("`workhorse probe --save` there, 2026-11-30", {"measured.json": H200_MEASURED})
    for name, command in (
        ("nvidia-smi_q.txt", "nvidia-smi_-q"), ("nvidia-smi.txt", "nvidia-smi"),
        ("nvidia-smi_topo_m.txt", "nvidia-smi_topo_-m"), ("nvcc.txt", "nvcc_--version"),
        ("nvidia-smi_topo_p2p_r.txt", "nvidia-smi_topo_-p2p_r"),
    ):  # fmt: skip
        text = re.sub(
            r"(Serial Number|GPU UUID|PDI)( +: ).*", r"\1\2N/A", (root / name).read_text()
        )
        capture.add(f"h200_host/{name}", {f"commands/{command}.txt": text})
    kernel = (root / "proc_nvidia.txt").read_text().split("\n== ")[0]
    version = kernel.partition("\n")[2] + "\n"
    capture.add("h200_host/proc_nvidia.txt", {"proc/driver/nvidia/version": version})
    # The other devices of the bus are in a listing alone: names without files.
    bus = re.findall(r" (0000:00:0[0-5]\.0) ->", (root / "sys_pci_all.txt").read_text())
    capture.add(
        "h200_host/sys_pci_all.txt", {f"sys/bus/pci/devices/{one}/vendor": "" for one in bus}
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


# What the probe measured on a host of this kind.
H200_MEASURED = {
    "bandwidths": [
        {
            "bytes_per_s": bytes_per_s,
            "pages": pages,
            "threads": 16,
            "node": None,
            "method": "memchr over 2400 MiB, best 5 ms",
            "duration_s": 0.51,
        }
        for pages, bytes_per_s in (("small", 127.15e9), ("huge", 130.36e9))
    ],
    "gpus": [
        {
            "index": 0,
            "copies": [
                {"kind": kind, "bytes_per_s": rate, "method": method, "duration_s": 0.34}
                for kind, rate, method in (
                    ("device", 2023.8e9, "cuMemcpy of 112 MiB, card memory, best batch of 288"),
                    ("to device", 55.23e9, "cuMemcpy of 32 MiB, pinned memory, best batch of 33"),
                    ("from device", 55.24e9, "cuMemcpy of 32 MiB, pinned memory, best batch of 33"),
                )
            ],
            "pcie_generation_loaded": 5,
            "pcie_width_loaded": 16,
        }
    ],
}
MACHINES = (
    machine_a, machine_b, avx_only, h200, p40_box, t4, eight_v100, mismatch, two_links, two_v100,
    three_kinds,
)  # fmt: skip

if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    for make in MACHINES:
        make(source).write(target / f"{make.__name__}.json")
