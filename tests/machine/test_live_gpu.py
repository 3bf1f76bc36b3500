"""The GPUs of this machine: NVML against nvidia-smi and lspci; skipped where there are none."""

import shutil
import subprocess

import pytest

from workhorse.machine.cuda_driver import measure_copies
from workhorse.machine.gpu import make_gpus
from workhorse.machine.probe import probe
from workhorse.machine.smi_text import parse_query, parse_table
from workhorse.records import Gpu, Machine
from workhorse.units import MIB


def said(*command: str) -> str:
    """What a tool prints; skips the test where it is missing."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout


@pytest.fixture(scope="module")
def machine() -> Machine:
    found = probe(measure_s=0)
    if not found.gpus:
        pytest.skip("no NVIDIA GPU answers here")
    return found


# What does not change between two looks.
STEADY = (
    "name", "uuid", "pci_address", "pci_id", "pci_subsystem", "memory_total_bytes", "bar1_bytes",
    "memory_clock_max_mhz", "sm_clock_max_mhz", "pcie_generation_max", "pcie_width_max",
    "ecc_enabled", "power_limit_w", "power_limit_default_w", "power_limit_max_w", "persistence",
    "compute_mode", "retired_pages", "row_remaps",
)  # fmt: skip


def test_nvidia_smi_q_says_the_same(machine: Machine) -> None:
    gpus, driver = make_gpus(parse_query(said("nvidia-smi", "-q")), ())
    assert len(gpus) == len(machine.gpus)
    assert driver is not None and machine.driver is not None
    assert (driver.version, driver.cuda) == (machine.driver.version, machine.driver.cuda)
    for gpu, other in zip(machine.gpus, gpus, strict=True):
        for field in STEADY:
            assert getattr(gpu, field) == getattr(other, field), field


def test_the_table_says_the_same(machine: Machine) -> None:
    gpus, _ = make_gpus(parse_table(said("nvidia-smi")), ())
    for gpu, other in zip(machine.gpus, gpus, strict=True):
        assert gpu.pci_address == other.pci_address
        assert other.name in (gpu.name, "NVIDIA GPU")  # the table cuts long names
        assert gpu.memory_total_bytes is not None and other.memory_total_bytes is not None
        assert abs(gpu.memory_total_bytes - other.memory_total_bytes) < MIB


def test_every_card_that_lspci_shows_is_a_gpu_or_a_trouble(machine: Machine) -> None:
    lines = said("lspci", "-D", "-d", "10de::").splitlines()
    kinds = ("3D controller", "VGA compatible controller", "Display controller")
    cards = {line.split()[0] for line in lines if any(kind in line for kind in kinds)}
    known = {gpu.pci_address for gpu in machine.gpus}
    known |= {trouble.pci_address for trouble in machine.gpu_troubles}
    assert cards <= known


def idle(gpus: tuple[Gpu, ...]) -> bool:
    return all((gpu.busy_percent or 0) <= 10 for gpu in gpus)


def test_copies_are_measured_and_the_link_is_read_under_load(machine: Machine) -> None:
    if not idle(machine.gpus):
        pytest.skip("somebody is using the GPUs")
    gpus, doubts = measure_copies(machine.gpus, 0.6)
    assert doubts == ()
    for gpu in gpus:
        rates = {copy.kind: copy.bytes_per_s for copy in gpu.copies}
        assert set(rates) == {"device", "to device", "from device"}
        # Within the card much faster than over the bus; faster than rated is a wrong clock.
        assert rates["device"] > rates["to device"] > 1e8
        if gpu.rated_bandwidth_bytes_per_s is not None:
            assert rates["device"] < gpu.rated_bandwidth_bytes_per_s
        assert gpu.pcie_generation_loaded is not None and gpu.pcie_width_loaded is not None
