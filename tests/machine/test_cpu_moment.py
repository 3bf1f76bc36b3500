"""The processors at one moment, from files as kernels write them."""

from pathlib import Path

from workhorse.machine.cpu_moment import (
    PackageEnergy,
    read_core_throttles,
    read_cpu_mhz,
    read_withheld_s,
)
from workhorse.machine.files import DirectoryFiles

RAPL = "sys/class/powercap/intel-rapl:0"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_energy_counter_wraps(tmp_path: Path) -> None:
    files, energy = DirectoryFiles(tmp_path), PackageEnergy()
    write(tmp_path, f"{RAPL}/max_energy_range_uj", "262143328850\n")
    write(tmp_path, f"{RAPL}:0/energy_uj", "5\n")  # a part of the package, counted in it
    readings = []
    for now_uj in (262_000_000_000, 262_100_000_000, 1_000_000_000):
        write(tmp_path, f"{RAPL}/energy_uj", f"{now_uj}\n")
        readings.append(energy.read(files))
    assert readings == [0.0, 100.0, 1143.32885]


def test_the_clock_without_cpufreq_is_that_of_cpuinfo(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 2596.130\n\ncpu MHz : 2600.0\n")
    assert read_cpu_mhz(DirectoryFiles(tmp_path), (0, 1)) == 2598.065


def test_a_quota_of_version_1_is_in_nanoseconds(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/box\n")
    stat = "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n"
    write(tmp_path, "sys/fs/cgroup/cpu/box/cpu.stat", stat)
    assert read_withheld_s(DirectoryFiles(tmp_path)) == 2.5


def test_what_is_not_told_is_not_known(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    write(tmp_path, f"{RAPL}/energy_uj", "no number\n")
    assert PackageEnergy().read(files) is None
    assert read_cpu_mhz(files, (0,)) is None
    assert read_core_throttles(files, (0,)) is None
    assert read_withheld_s(files) is None
