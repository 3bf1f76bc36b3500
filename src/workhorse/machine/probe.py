"""The probe: one Machine, read from this host or from a capture of another."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workhorse.machine.bandwidth import measure_bandwidths
from workhorse.machine.cpu import online_cpus, read_cpu
from workhorse.machine.disk import read_disk
from workhorse.machine.files import CAPTURE_NOTE, HostFiles, open_files
from workhorse.machine.gpu import make_gpus
from workhorse.machine.limits import read_limits
from workhorse.machine.load import others_cpus, read_ticks
from workhorse.machine.memory import read_memory
from workhorse.machine.numa import read_nodes
from workhorse.machine.nvml import NVML_CAPTURE, ask_driver, read_answers
from workhorse.machine.pci import read_cards
from workhorse.machine.software import read_software
from workhorse.machine.system import ask_running, read_note, read_system
from workhorse.records import Machine
from workhorse.text import Text

# Clock ticks are 10 ms: over a quarter of a second the load is right within 0.04 CPUs.
_LOAD_S = 0.25


def probe(
    root: Path = Path("/"),
    *,
    disk_path: Path | None = None,
    measure_s: float = 1.0,
    on_progress: Callable[[float], None] | None = None,
) -> Machine:
    """What is here: facts, each with its source; what could not be read is None and a doubt.

    `root` is `/` for this machine, the top of a captured tree, or a packed capture (a JSON
    file): of a capture nothing is measured and the running kernel is asked nothing. `disk_path`
    is a path whose file system matters. Memory bandwidth is read for `measure_s` seconds, 0 to
    leave it out. `on_progress` is told the share of the measuring done.

    Raises AppError when `root` is neither a directory nor a packed capture.
    """
    files = open_files(root)
    if not files.live:
        return read_machine(files)
    before, began_s = read_ticks(files), time.monotonic()
    machine = read_machine(files, deep=measure_s > 0)
    if disk_path is not None:
        disk, doubts = read_disk(files, disk_path)
        machine = replace(
            machine,
            disks=(disk,),
            doubts=(*machine.doubts, *doubts),
            learned_from={**machine.learned_from, "disks": "statvfs, /proc/self/mountinfo"},
        )
    time.sleep(max(0.0, _LOAD_S - (time.monotonic() - began_s)))
    busy_cpus = others_cpus(before, read_ticks(files), machine.limits.cpus)
    machine = replace(
        machine,
        busy_cpus=busy_cpus,
        learned_from={**machine.learned_from, "busy_cpus": "/proc/stat, twice"},
    )
    return _measured(machine, measure_s, on_progress) if measure_s > 0 else machine


def read_machine(files: HostFiles, *, deep: bool = False) -> Machine:
    """What the files tell, and on this machine its kernel and its NVIDIA driver as well.

    `deep` reads the GPU code out of the engines' libraries, which takes some seconds.
    """
    running, note_doubts = (ask_running(), ()) if files.live else read_note(files)
    cpus = online_cpus(files) or running.affinity or ()
    nodes, node_doubts = read_nodes(files, cpus)
    cpu, cpu_doubts = read_cpu(files, cpus, nodes, running.architecture)
    memory, memory_doubts = read_memory(files)
    answers, answer_doubts = (ask_driver(), ()) if files.live else read_answers(files)
    gpus, driver, gpu_doubts = make_gpus(answers, read_cards(files))
    return Machine(
        cpu=cpu,
        nodes=nodes,
        memory=memory,
        limits=read_limits(files, cpus, running.affinity, memory.total_bytes),
        system=read_system(files, running),
        driver=driver,
        gpus=gpus,
        disks=(),
        busy_cpus=None,
        learned_from=_sources(files.live),
        doubts=(
            *note_doubts,
            *cpu_doubts,
            *node_doubts,
            *memory_doubts,
            *answer_doubts,
            *gpu_doubts,
        ),
        software=read_software(files, deep=deep),
    )


def _sources(live: bool) -> dict[str, str]:
    kernel = "sched_getaffinity" if live else "all CPUs of the capture"
    return {
        "cpu": "/sys/devices/system/cpu, /proc/cpuinfo",
        "nodes": "/sys/devices/system/node, /proc/meminfo",
        "memory": "/proc/meminfo, /sys/kernel/mm/transparent_hugepage, /proc/self/limits",
        "limits": f"{kernel}, /proc/self/cgroup, /sys/fs/cgroup",
        "system": "/proc/sys/kernel/osrelease, /etc/os-release, "
        + ("the C library" if live else CAPTURE_NOTE),
        "gpus": ("NVML" if live else NVML_CAPTURE) + ", /sys/bus/pci/devices",
        "software": "names, version files, package metadata" + ("" if live else ", software.json"),
    }


def _measured(
    machine: Machine, measure_s: float, on_progress: Callable[[float], None] | None
) -> Machine:
    bandwidths, doubts = measure_bandwidths(machine, duration_s=measure_s, on_progress=on_progress)
    busy_cpus = machine.busy_cpus or 0.0
    # A quarter of our CPUs at work for others: their reads took some of the bandwidth.
    if bandwidths and busy_cpus > len(machine.limits.cpus) / 4:
        doubts = (
            *doubts,
            Text(
                f"Other processes kept {busy_cpus:.1f} CPUs busy: the memory may be faster than"
                " measured.",
                f"其他进程占用了 {busy_cpus:.1f} 个 CPU：实际内存带宽可能高于测得值。",
            ),
        )
    return replace(
        machine,
        memory=replace(machine.memory, bandwidths=bandwidths),
        learned_from={**machine.learned_from, "bandwidths": "measured, each by its method"},
        doubts=(*machine.doubts, *doubts),
    )
