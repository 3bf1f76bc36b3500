"""The probe of this machine against the tools that everybody has."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from workhorse.codec import from_json, to_json
from workhorse.machine.capture import RecordedFiles
from workhorse.machine.files import DirectoryFiles, PackedFiles, said_path
from workhorse.machine.links import read_links
from workhorse.machine.pci import PCI_ROOT, pci_address, read_cards
from workhorse.machine.probe import probe, read_machine
from workhorse.records import Machine
from workhorse.units import GIB, MIB


@pytest.fixture(scope="module")
def machine() -> Machine:
    return probe(measure_s=0, disk_path=Path.cwd())


def answer(*command: str) -> str:
    """What a tool prints; skips the test where it is missing."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    # nproc obeys OMP_NUM_THREADS, lscpu and free the language.
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def lscpu() -> dict[str, str]:
    rows = json.loads(answer("lscpu", "--json"))["lscpu"]
    flat: dict[str, str] = {}
    while rows:
        row = rows.pop()
        rows += row.get("children", [])
        flat[row["field"].rstrip(":")] = row["data"]
    return flat


def test_processors_are_those_of_lscpu(machine: Machine) -> None:
    said = lscpu()
    cpu = machine.cpu
    assert cpu.architecture == said["Architecture"]
    if cpu.architecture == "x86_64":  # lscpu has a table of ARM's part numbers, we do not
        assert (cpu.vendor, cpu.name) == (said.get("Vendor ID"), said.get("Model name"))
    assert set(cpu.flags) == set(said["Flags"].split())
    threads = sum(len(core.cpus) for core in cpu.cores)
    assert threads == os.cpu_count()
    assert len({core.socket for core in cpu.cores}) == int(said["Socket(s)"])
    cores = int(said["Core(s) per socket"]) * int(said["Socket(s)"])
    assert len(cpu.cores) == cores
    assert threads == cores * int(said["Thread(s) per core"])
    assert len(machine.nodes) == int(said["NUMA node(s)"])


def test_caches_are_those_of_lscpu(machine: Machine) -> None:
    rows = answer("lscpu", "--bytes", "--caches=NAME,ONE-SIZE").splitlines()[1:]
    sizes = {name: int(size) for name, size in (row.split() for row in rows)}
    assert (machine.cpu.l2_bytes, machine.cpu.l3_bytes) == (sizes.get("L2"), sizes.get("L3"))


def test_cpus_of_this_process_are_as_many_as_nproc_says(machine: Machine) -> None:
    assert len(machine.limits.cpus) == int(answer("nproc"))


def test_memory_is_that_of_free(machine: Machine) -> None:
    rows = {row.split(":")[0]: row.split()[1:] for row in answer("free", "-b").splitlines()[1:]}
    assert machine.memory.total_bytes == int(rows["Mem"][0])
    assert machine.memory.swap_total_bytes == int(rows["Swap"][0])
    # Available memory moves; other tests may take a model's worth meanwhile.
    assert machine.memory.available_bytes == pytest.approx(int(rows["Mem"][5]), abs=8 * GIB)


def test_nodes_are_those_of_numactl(machine: Machine) -> None:
    said = dict(line.split(":", 1) for line in answer("numactl", "-H").splitlines() if ":" in line)
    nodes = [label.split()[1] for label in said if label.startswith("node") and "cpus" in label]
    assert [str(node.index) for node in machine.nodes] == nodes
    for node in machine.nodes:
        assert list(node.cpus) == list(map(int, said[f"node {node.index} cpus"].split()))
        # The row of the distances' table.
        row = next(said[label] for label in said if label.strip() == str(node.index))
        assert list(node.distances) == list(map(int, row.split()))
        if len(nodes) > 1:  # a virtual machine's only node leaves out what was plugged in later
            assert node.memory_total_bytes is not None
            assert str(node.memory_total_bytes // MIB) == said[f"node {node.index} size"].split()[0]


def test_cards_are_those_of_lspci() -> None:
    rows = [line.split() for line in answer("lspci", "-Dn", "-d", "10de:").splitlines()]
    seen = {row[0]: row[2] for row in rows if row[1].startswith("03")}
    cards = read_cards(DirectoryFiles(Path("/")))
    assert {card.address: card.pci_id for card in cards} == seen
    for card in cards:
        text = answer("lspci", "-vv", "-s", card.address)
        width = re.search(r"LnkSta:.*Width x(\d+)", text)
        if width:  # told to root alone
            assert card.width_now == int(width[1])


SMI_FIELDS = (
    "index", "name", "uuid", "pci.bus_id", "memory.total", "compute_cap", "pcie.link.gen.max",
    "pcie.link.width.max", "clocks.max.sm", "clocks.max.memory", "power.default_limit",
    "ecc.mode.current", "persistence_mode", "mig.mode.current", "compute_mode", "driver_version",
)  # fmt: skip


def smi_rows() -> list[dict[str, str | None]]:
    """What nvidia-smi says of each GPU; None where it says that it does not know."""
    csv = answer(
        "nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"
    )
    unknown = {"[N/A]", "N/A", "[Not Supported]", ""}
    values = [[v.strip() for v in line.split(",")] for line in csv.splitlines()]
    return [
        {name: None if v in unknown else v for name, v in zip(SMI_FIELDS, row, strict=True)}
        for row in values
    ]


def test_gpus_are_those_of_nvidia_smi(machine: Machine) -> None:
    rows = smi_rows()
    assert len(rows) == len(machine.gpus)
    switches = {"Enabled": True, "Disabled": False, None: None}
    for gpu, row in zip(machine.gpus, rows, strict=True):
        capability = gpu.compute_capability and "{}.{}".format(*gpu.compute_capability)
        total = gpu.memory_total_bytes and str(gpu.memory_total_bytes // MIB)
        limit = gpu.power_limit_default_w and f"{gpu.power_limit_default_w:.2f}"
        seen = {
            "index": str(gpu.index), "name": gpu.name, "uuid": gpu.uuid, "compute_cap": capability,
            "memory.total": total, "power.default_limit": limit,
            "pcie.link.gen.max": told(gpu.pcie_generation_max),
            "pcie.link.width.max": told(gpu.pcie_width_max),
            "clocks.max.sm": told(gpu.sm_clock_max_mhz),
            "clocks.max.memory": told(gpu.memory_clock_max_mhz),
        }  # fmt: skip
        assert seen == {name: row[name] for name in seen}
        assert gpu.pci_address == pci_address(row["pci.bus_id"])
        assert gpu.ecc_enabled == switches[row["ecc.mode.current"]]
        assert gpu.persistence == switches[row["persistence_mode"]]
        assert gpu.mig == switches[row["mig.mode.current"]]
        assert (gpu.compute_mode or "").split("_")[0] in (row["compute_mode"] or "").lower()
        assert machine.driver is not None and machine.driver.version == row["driver_version"]


def told(value: int | None) -> str | None:
    return None if value is None else str(value)


def test_nvidia_smis_text_says_what_the_driver_says(machine: Machine) -> None:
    answer("nvidia-smi")
    texts = RecordedFiles(DirectoryFiles(Path("/")))
    said = {said_path("nvidia-smi", "-q"): texts.said("nvidia-smi", "-q") or ""}
    read = read_machine(PackedFiles({**said, **captured_bus(machine)})).gpus
    assert len(read) == len(machine.gpus) > 0
    steady = (
        "name", "uuid", "pci_address", "compute_capability", "pcie_generation_max",
        "pcie_width_max", "sm_clock_max_mhz", "memory_clock_max_mhz", "power_limit_w",
        "power_limit_default_w", "ecc_enabled", "persistence", "mig", "compute_mode",
    )  # fmt: skip
    for text, driver in zip(read, machine.gpus, strict=True):
        unequal = {f for f in steady if getattr(text, f) != getattr(driver, f)}
        assert unequal == set()


def captured_bus(machine: Machine) -> dict[str, object]:
    """The PCI ids, which nvidia-smi's text leaves to the bus."""
    names = ("vendor", "device", "class", "subsystem_vendor", "subsystem_device")
    files = DirectoryFiles(Path("/"))
    paths = (f"{PCI_ROOT}/{g.pci_address}/{name}" for g in machine.gpus for name in names)
    return {path: files.text(path) or "" for path in paths}


def test_links_are_those_of_nvidia_smi(machine: Machine) -> None:
    topology = answer("nvidia-smi", "topo", "-m")
    if len(machine.gpus) < 2:
        pytest.skip("fewer than two GPUs")
    text = PackedFiles({said_path("nvidia-smi", "topo", "-m"): topology})
    told = {(li.first, li.second): (li.path, li.nvlinks) for li in machine.gpu_links}
    assert told == {
        (li.first, li.second): (li.path, li.nvlinks) for li in read_links(text, machine.gpus, None)
    }
    assert len(told) == len(machine.gpus) * (len(machine.gpus) - 1) // 2


def test_the_disk_is_that_of_df(machine: Machine) -> None:
    said = answer("df", "-B1", "--output=size,fstype", str(Path.cwd())).splitlines()[1].split()
    (disk,) = machine.disks
    assert disk.file_system == said[1]
    assert disk.total_bytes == int(said[0])


def test_the_system_is_told(machine: Machine) -> None:
    assert machine.system.kernel == os.uname().release
    assert machine.system.distribution
    assert machine.busy_cpus is not None and 0 <= machine.busy_cpus <= len(machine.limits.cpus)
    assert set(machine.learned_from) >= {"cpu", "nodes", "memory", "limits", "system", "gpus"}


def test_the_mask_of_this_process_is_kept() -> None:
    whole = os.sched_getaffinity(0)
    one = min(whole)
    os.sched_setaffinity(0, {one})
    try:
        assert probe(measure_s=0).limits.cpus == (one,)
    finally:
        os.sched_setaffinity(0, whole)


def test_a_probe_with_measuring_is_one_document() -> None:
    shares: list[float] = []
    machine = probe(measure_s=0.2, on_progress=shares.append)
    assert from_json(Machine, to_json(machine), what="this machine") == machine
    assert "bandwidths" in machine.learned_from
    assert machine.memory.bandwidths or machine.doubts
    assert shares
