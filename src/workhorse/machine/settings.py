"""The kernel's settings that decide speed, as they are now."""

import re

from workhorse.machine.cpu import CPU_ROOT
from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, number
from workhorse.records import KernelSettings

_CPUS_MAX = 8192
_GOVERNORS_MAX = 32


def read_settings(files: HostFiles) -> KernelSettings:
    """The settings that `host` shows and changes; None for what this kernel does not have.

    In a container they are those of the host: containers share its kernel.
    """
    governors, available = _governors(files)
    balancing = number(files.text("proc/sys/kernel/numa_balancing"), high=3)
    reserved = number(files.text("proc/sys/vm/nr_hugepages"))
    if reserved is None:
        reserved = number(fields(files.text("proc/meminfo")).get("HugePages_Total"))
    return KernelSettings(
        governors=governors,
        governors_available=available,
        # 2 moves pages between kinds of memory, 1 and 3 between nodes as well
        # (Documentation/admin-guide/sysctl/kernel.rst; read 2026-11).
        numa_balancing=None if balancing is None else balancing in (1, 3),
        swappiness=number(files.text("proc/sys/vm/swappiness"), high=200),
        zone_reclaim=number(files.text("proc/sys/vm/zone_reclaim_mode"), high=7),
        overcommit=number(files.text("proc/sys/vm/overcommit_memory"), high=2),
        huge_pages=reserved,
        huge_pages_overcommit=number(files.text("proc/sys/vm/nr_overcommit_hugepages")),
        aslr=number(files.text("proc/sys/kernel/randomize_va_space"), high=2),
    )


def _governors(files: HostFiles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The different governors in use, and those that every CPU could take."""
    policies = [
        f"{CPU_ROOT}/cpufreq/{n}" for n in _numbered(files, f"{CPU_ROOT}/cpufreq", "policy")
    ]
    # The folder of policies is there since Linux 4.3; before, each CPU has its own.
    places = policies or [f"{CPU_ROOT}/{n}/cpufreq" for n in _numbered(files, CPU_ROOT, "cpu")]
    used: set[str] = set()
    common: set[str] | None = None
    for place in places:
        used |= _names(files.text(f"{place}/scaling_governor"))
        offered = _names(files.text(f"{place}/scaling_available_governors"))
        if offered:
            common = offered if common is None else common & offered
    return tuple(sorted(used)[:_GOVERNORS_MAX]), tuple(sorted(common or ())[:_GOVERNORS_MAX])


def _numbered(files: HostFiles, folder: str, prefix: str) -> list[str]:
    names = files.names(folder)
    return [n for n in names if re.fullmatch(rf"{prefix}\d{{1,4}}", n, re.ASCII)][:_CPUS_MAX]


def _names(text: str | None) -> set[str]:
    return {w for w in (text or "")[:1000].split() if re.fullmatch(r"[a-z_]{1,30}", w)}
