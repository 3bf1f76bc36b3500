"""The processors at one moment: clock, energy, throttling by heat or by a control group."""

import re
from statistics import median

from workhorse.machine.cpu import CPU_ROOT
from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, number
from workhorse.machine.limits import cpu_groups

POWERCAP_ROOT = "sys/class/powercap"
# One entry a package; `intel-rapl:0:0` and the like are parts of it. AMD's driver has the same
# names (Documentation/power/powercap, read 2026-11).
_PACKAGE = re.compile(r"intel-rapl:\d{1,3}")
_MHZ = re.compile(r"^cpu MHz\s*:\s*(\d{1,5}(?:\.\d+)?)", re.MULTILINE)


def read_cpu_mhz(files: HostFiles, cpus: tuple[int, ...]) -> float | None:
    """The median clock of these CPUs now; of all CPUs where only /proc/cpuinfo tells."""
    now = [number(files.text(f"{CPU_ROOT}/cpu{cpu}/cpufreq/scaling_cur_freq")) for cpu in cpus]
    known_mhz = [khz / 1000 for khz in now if khz]
    if not known_mhz:
        known_mhz = [float(mhz) for mhz in _MHZ.findall(files.text("proc/cpuinfo") or "")]
    return median(known_mhz) if known_mhz else None


def read_core_throttles(files: HostFiles, cpus: tuple[int, ...]) -> int | None:
    """How often cores slowed down for heat since the boot; None in virtual machines."""
    counts = [
        number(files.text(f"{CPU_ROOT}/cpu{cpu}/thermal_throttle/core_throttle_count"))
        for cpu in cpus
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def read_withheld_s(files: HostFiles) -> float | None:
    """Seconds for which control groups above this process were held back by their CPU quota.

    The most that any of them says; None where no group counts it (cgroup-v2, `cpu.stat`).
    """
    found: list[float] = []
    for place in cpu_groups(files):
        stat = fields(files.text(f"{place}/cpu.stat"), separator=" ")
        microseconds, nanoseconds = (
            number(stat.get("throttled_usec")),
            number(stat.get("throttled_time")),
        )
        if microseconds is not None:
            found.append(microseconds / 1e6)
        if nanoseconds is not None:
            found.append(nanoseconds / 1e9)
    return max(found, default=None)


class PackageEnergy:
    """Energy of all processor packages since the first reading; the kernel's counters wrap."""

    def __init__(self) -> None:
        self._last_uj: dict[str, int] = {}
        self._sum_uj = 0

    def read(self, files: HostFiles) -> float | None:
        """Joules so far; None where the counters are missing or for root alone."""
        known = False
        for name in files.names(POWERCAP_ROOT):
            if _PACKAGE.fullmatch(name) is None:
                continue
            now_uj = number(files.text(f"{POWERCAP_ROOT}/{name}/energy_uj"))
            if now_uj is None:
                continue
            known = True
            passed_uj = now_uj - self._last_uj.get(name, now_uj)
            if passed_uj < 0:
                passed_uj += number(files.text(f"{POWERCAP_ROOT}/{name}/max_energy_range_uj")) or 0
            self._sum_uj += max(0, passed_uj)
            self._last_uj[name] = now_uj
        return self._sum_uj / 1e6 if known else None
