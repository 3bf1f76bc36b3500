"""What a figure of this machine and this build holds for, in words that can be compared. Pure."""

from collections.abc import Mapping

from workhorse.records import EngineBuild, Machine, Model
from workhorse.text import Text
from workhorse.units import GIB

Fingerprint = Mapping[str, str]


def fingerprint(machine: Machine) -> dict[str, str]:
    """What decides speed of a machine and cannot change by itself: parts and their limits."""
    cpu, limits, memory = machine.cpu, machine.limits, machine.memory
    total = memory.total_bytes
    room = limits.memory_bytes
    cards = sorted(
        f"{gpu.name} {round((gpu.memory_total_bytes or 0) / GIB)} GiB" for gpu in machine.gpus
    )
    return {
        "CPU": f"{cpu.name or cpu.architecture}, {len(cpu.cores)} cores",
        "CPUs in use": ",".join(map(str, limits.cpus)),
        "CPU quota": "" if limits.quota_cpus is None else f"{limits.quota_cpus:g}",
        "memory": "" if total is None else f"{round(total / GIB)} GiB",
        "memory limit": "" if room is None else f"{round(room / GIB)} GiB",
        "memory nodes": str(len(machine.nodes)),
        "cards": ", ".join(cards),
    }


def model_key(model: Model) -> str:
    """One file of weights, wherever it lies."""
    return f"{model.name} {model.quantisation} {model.weight_bytes}"


def build_key(build: EngineBuild) -> str:
    """One build of an engine."""
    return f"{build.engine} {build.kind} {build.version}"


def changed(before: Fingerprint, now: Fingerprint) -> Text | None:
    """What of a machine is not what it was; None: nothing."""
    parts = [
        f"{name}: {before.get(name) or '—'} → {now.get(name) or '—'}"
        for name in dict.fromkeys((*before, *now))
        if before.get(name, "") != now.get(name, "")
    ]
    return Text("; ".join(parts), "；".join(parts)) if parts else None
