"""How much work other processes do on our CPUs, from two readings of /proc/stat."""

from dataclasses import dataclass

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import CPUS_MAX, number


@dataclass(frozen=True, slots=True)
class Ticks:
    """Clock ticks since boot: busy and all of them for each CPU, and those of this process."""

    busy: dict[int, int]
    total: dict[int, int]
    own: int


def read_ticks(files: HostFiles, ours: tuple[int, ...] = ()) -> Ticks | None:
    """The counters now; None when they cannot be read. `ours`: processes that count as own."""
    busy: dict[int, int] = {}
    total: dict[int, int] = {}
    for line in (files.text("proc/stat") or "").splitlines():
        name, *columns = line.split()[:9] or [""]
        cpu = number(name.removeprefix("cpu"), high=CPUS_MAX - 1)
        if cpu is None or not name.startswith("cpu"):
            continue
        counts = [number(column) for column in columns]
        known = [count for count in counts if count is not None]
        if len(known) < 4 or len(known) != len(counts):
            return None
        # proc(5): user nice system idle iowait irq softirq steal; guest time is part of user.
        # Steal counts as busy: a neighbour of this virtual machine had the CPU.
        total[cpu] = sum(known)
        busy[cpu] = total[cpu] - known[3] - (known[4] if len(known) > 4 else 0)
    own = process_ticks(files.text("proc/self/stat") or "")
    for pid in ours:
        own = (
            None
            if own is None
            else own + (process_ticks(files.text(f"proc/{pid}/stat") or "") or 0)
        )
    return Ticks(busy, total, own) if busy and own is not None else None


def others_cpus(before: Ticks | None, after: Ticks | None, cpus: tuple[int, ...]) -> float | None:
    """CPUs' worth of work that other processes did on `cpus` between two readings.

    None when either could not be read or no tick passed.
    """
    if before is None or after is None:
        return None
    both = [cpu for cpu in cpus if cpu in before.total and cpu in after.total]
    passed = max((after.total[cpu] - before.total[cpu] for cpu in both), default=0)
    if passed <= 0:
        return None
    busy = sum(after.busy[cpu] - before.busy[cpu] for cpu in both)
    others = busy - (after.own - before.own)
    return min(float(len(both)), max(0.0, others / passed))


def process_ticks(stat: str) -> int | None:
    """User and system ticks of a process, all threads (fields 14 and 15 of proc(5))."""
    # The second field, the command's name, may hold spaces and brackets.
    columns = stat.rpartition(")")[2].split()
    if len(columns) < 13:
        return None
    user, system = number(columns[11]), number(columns[12])
    return None if user is None or system is None else user + system
