"""The probe of this machine against the tools that everybody has."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from workhorse.codec import from_json, to_json
from workhorse.machine.probe import probe
from workhorse.records import Machine
from workhorse.units import GIB


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
