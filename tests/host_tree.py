"""A tree of a host's settings, and a kernel that takes values as the real one does."""

import errno
from pathlib import Path

from workhorse.doctor.host import Change, advise
from workhorse.machine.files import DirectoryFiles
from workhorse.machine.host import Outcome, read_settings
from workhorse.machine.probe import read_machine

POLICIES = "sys/devices/system/cpu/cpufreq"
NUMA = "proc/sys/kernel/numa_balancing"
SWAPPINESS = "proc/sys/vm/swappiness"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
DEFRAG = "sys/kernel/mm/transparent_hugepage/defrag"
BOOT_ID = "proc/sys/kernel/random/boot_id"
GOVERNOR_0 = f"{POLICIES}/policy0/scaling_governor"
ENERGY_0 = f"{POLICIES}/policy0/energy_performance_preference"
# What `host apply` changes here, in its order.
CHANGING = {
    **{f"{POLICIES}/policy{i}/scaling_governor": "performance" for i in (0, 1)},
    **{f"{POLICIES}/policy{i}/energy_performance_preference": "performance" for i in (0, 1)},
    NUMA: "0",
    THP: "madvise",
    DEFRAG: "madvise",
    SWAPPINESS: "10",
}


def grow(root: Path) -> Path:
    """An idle two-node server of two CPUs with swap, set for anything but speed."""
    files = {
        NUMA: "1",
        SWAPPINESS: "60",
        THP: "always madvise [never]",
        DEFRAG: "always defer defer+madvise madvise [never]",
        BOOT_ID: "11111111-1111-1111-1111-111111111111",
        "proc/sys/vm/zone_reclaim_mode": "0",
        "proc/sys/vm/nr_hugepages": "0",
        "proc/sys/vm/nr_overcommit_hugepages": "0",
        "proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\nSwapTotal: 100 kB\n"
        "SwapFree: 100 kB\nHugePages_Free: 0\nHugepagesize: 2048 kB",
        "proc/self/limits": "Max locked memory         8388608              8388608    bytes",
        "etc/machine-id": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "sys/devices/system/cpu/online": "0-1",
        "sys/devices/system/node/online": "0-1",
    }
    for i in (0, 1):
        policy = f"{POLICIES}/policy{i}"
        files[f"{policy}/scaling_governor"] = "powersave"
        files[f"{policy}/scaling_available_governors"] = "performance powersave"
        files[f"{policy}/energy_performance_preference"] = "balance_power"
        files[f"{policy}/energy_performance_available_preferences"] = (
            "default performance balance_performance balance_power power"
        )
        node = f"sys/devices/system/node/node{i}"
        files[f"{node}/cpulist"] = str(i)
        files[f"{node}/distance"] = "10 21"
        files[f"{node}/meminfo"] = f"Node {i} MemTotal: 32000000 kB\nNode {i} MemFree: 30000000 kB"
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return root


def settings(root: Path) -> dict[str, str]:
    """What the changing files hold."""
    return {path: (root / path).read_text().strip() for path in CHANGING}


def changed(root: Path) -> bool:
    """All of them hold what `host apply` writes."""
    return all(
        text == CHANGING[path] or f"[{CHANGING[path]}]" in text
        for path, text in settings(root).items()
    )


class Kernel:
    """Takes what is written to the tree: brackets, choices, and the two CPU settings' bond."""

    def __init__(self, refusing: tuple[str, ...] = ()) -> None:
        self.refusing = refusing
        self.written: list[tuple[str, str]] = []

    def __call__(self, path: Path, value: str) -> None:
        self.written.append((path.name, value))
        if any(str(path).endswith(end) for end in self.refusing):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        text = path.read_text()
        if "[" in text:
            words = text.replace("[", "").replace("]", "").split()
            if value not in words:
                raise OSError(errno.EINVAL, "Invalid argument")
            text = " ".join(f"[{word}]" if word == value else word for word in words)
        elif path.name == "scaling_governor":
            self.set_governor(path, value)
            text = value
        elif path.name == "energy_performance_preference":
            # drivers/cpufreq/intel_pstate.c: -EBUSY with the governor performance.
            governor = path.with_name("scaling_governor").read_text().strip()
            if governor == "performance" and value != "performance":
                raise OSError(errno.EBUSY, "Device or resource busy")
            text = value
        else:
            text = value
        path.write_text(text + "\n")

    def set_governor(self, path: Path, value: str) -> None:
        if value not in path.with_name("scaling_available_governors").read_text().split():
            raise OSError(errno.EINVAL, "Invalid argument")
        energy, saved = (path.with_name(f"energy_performance_{n}") for n in ("preference", "saved"))
        if value == "performance":
            saved.write_text(energy.read_text())
            energy.write_text("performance\n")
        elif saved.exists():
            energy.write_text(saved.read_text())


def changes(root: Path) -> tuple[Change, ...]:
    """What `host apply` would do here."""
    files = DirectoryFiles(root)
    return tuple(
        change
        for advice in advise(read_machine(files), read_settings(files))
        for change in advice.changes
    )


def endings(outcomes: tuple[Outcome, ...]) -> dict[str, str]:
    return {outcome.path: outcome.ending for outcome in outcomes}
