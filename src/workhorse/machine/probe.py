"""The probe: one Machine, read from this host or from a capture of another."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workhorse.machine.bandwidth import measure_bandwidths
from workhorse.machine.capture import RecordedFiles
from workhorse.machine.cpu import online_cpus, read_cpu
from workhorse.machine.cuda_driver import measure_copies
from workhorse.machine.dimms import add_modules
from workhorse.machine.disk import read_disk
from workhorse.machine.disk_speed import measure_disk
from workhorse.machine.files import CAPTURE_NOTE, HostFiles
from workhorse.machine.gpu_facts import read_gpus
from workhorse.machine.limits import read_limits
from workhorse.machine.load import others_cpus, read_ticks
from workhorse.machine.measured import read_measured, with_measured
from workhorse.machine.memory import read_memory
from workhorse.machine.numa import read_nodes
from workhorse.machine.nvml import NVML_CAPTURE, ask_driver, read_answers
from workhorse.machine.open_root import open_files
from workhorse.machine.p2p import measure_peers
from workhorse.machine.settings import read_settings
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
    peers: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Machine:
    """What is here: facts, each with its source; what could not be read is None and a doubt.

    `root` is `/` for this machine, the top of a captured tree, a packed capture (a JSON file), or
    texts of commands: of these nothing is measured and the running kernel is asked nothing.
    `disk_path` is a path whose file system matters. Memory bandwidth is read for `measure_s`
    seconds (longer on several nodes), the disk for half a second; 0 leaves both out. With `peers`
    copies from card to card are tried too, which can hang.
    `on_progress` is told the share of the measuring done.

    Raises AppError when `root` is no machine's directory, no capture and no known text.
    """
    return probe_and_record(
        root, disk_path=disk_path, measure_s=measure_s, peers=peers, on_progress=on_progress
    )[0]


def probe_and_record(
    root: Path = Path("/"),
    *,
    disk_path: Path | None = None,
    measure_s: float = 1.0,
    peers: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> tuple[Machine, RecordedFiles]:
    """What `probe` finds, and what it read for that: `capture.save_capture` writes it down."""
    files = open_files(root)
    recorded = RecordedFiles(files)
    if not files.live:
        return read_machine(recorded), recorded
    before, began_s = read_ticks(files), time.monotonic()
    machine = read_machine(recorded, deep=measure_s > 0)
    if disk_path is not None:
        disk, doubts = read_disk(files, disk_path)
        machine = replace(
            machine,
            disks=(disk,),
            doubts=(*machine.doubts, *doubts),
            learned_from={
                **machine.learned_from,
                "disks": "statvfs, /proc/self/mountinfo, /sys/dev/block",
            },
        )
    time.sleep(max(0.0, _LOAD_S - (time.monotonic() - began_s)))
    busy_cpus = others_cpus(before, read_ticks(files), machine.limits.cpus)
    machine = replace(
        machine,
        busy_cpus=busy_cpus,
        learned_from={**machine.learned_from, "busy_cpus": "/proc/stat, twice"},
    )
    if measure_s > 0:
        machine = _with_disk_speeds(_measured(machine, measure_s, on_progress))
    if measure_s > 0 and peers:
        links, doubts = measure_peers(machine.gpus, machine.gpu_links)
        machine = replace(machine, gpu_links=links, doubts=(*machine.doubts, *doubts))
    return machine, recorded


def read_machine(files: HostFiles, *, deep: bool = False) -> Machine:
    """What the files tell, and on this machine its kernel and its NVIDIA driver as well.

    `deep` reads the GPU code out of the engines' libraries, which takes some seconds.
    """
    running, note_doubts = (ask_running(), ()) if files.live else read_note(files)
    cpus = online_cpus(files) or running.affinity or ()
    nodes, node_doubts = read_nodes(files, cpus)
    cpu, cpu_doubts = read_cpu(files, cpus, nodes, running.architecture)
    memory, memory_doubts = read_memory(files)
    memory, module_doubts = add_modules(files, memory, cpu)
    answers, answer_doubts = (ask_driver(), ()) if files.live else read_answers(files)
    if isinstance(files, RecordedFiles):
        files.keep(running, answers)
    system = read_system(files, running, cpu.flags)
    found = read_gpus(files, answers, container=bool(system.container))
    machine = Machine(
        cpu=cpu,
        nodes=nodes,
        memory=memory,
        limits=read_limits(files, cpus, running.affinity, memory.total_bytes),
        system=replace(system, acs_redirect=found.acs_redirect),
        driver=found.driver,
        gpus=found.gpus,
        disks=(),
        busy_cpus=None,
        learned_from=_sources(files.live, found.from_text) | running.learned_from,
        doubts=(
            *note_doubts,
            *cpu_doubts,
            *node_doubts,
            *memory_doubts,
            *module_doubts,
            *answer_doubts,
            *(() if found.told else (_NO_WORD_OF_GPUS,)),
        ),
        gpu_links=found.links,
        gpu_troubles=found.troubles,
        events=found.events,
        settings=read_settings(files),
        software=read_software(files, deep=deep),
    )
    if files.live:
        return machine
    measured, measured_doubts = read_measured(files)
    machine = replace(machine, doubts=(*machine.doubts, *measured_doubts))
    return with_measured(machine, measured)


_NO_WORD_OF_GPUS = Text(
    "Nothing here tells of GPUs: whether there are any is unknown (`nvidia-smi -q`, `lspci -vv`).",
    "没有任何 GPU 信息：不知道是否有显卡（可补充 `nvidia-smi -q`、`lspci -vv`）。",
)


def _sources(live: bool, smi: bool) -> dict[str, str]:
    driver = "nvidia-smi" if smi else "NVML" if live else NVML_CAPTURE
    kernel = "sched_getaffinity" if live else "all CPUs of the capture"
    return {
        "cpu": "/sys/devices/system/cpu, /proc/cpuinfo",
        "nodes": "/sys/devices/system/node, /proc/meminfo",
        "memory": "/proc/meminfo, /sys/kernel/mm/transparent_hugepage, /proc/self/limits,"
        " dmidecode, /sys/devices/system/edac",
        "settings": "/proc/sys, /sys/devices/system/cpu/cpufreq",
        "limits": f"{kernel}, /proc/self/cgroup, /sys/fs/cgroup",
        "system": "/proc/sys/kernel/osrelease, /etc/os-release, /sys/class/dmi/id, "
        + ("the C library" if live else CAPTURE_NOTE),
        "gpus": f"{driver}, /sys/bus/pci/devices",
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
    gpus, copy_doubts = measure_copies(machine.gpus, measure_s)
    return replace(
        machine,
        memory=replace(machine.memory, bandwidths=bandwidths),
        gpus=gpus,
        learned_from={**machine.learned_from, "bandwidths": "measured, each by its method"},
        doubts=(*machine.doubts, *doubts, *copy_doubts),
    )


def _with_disk_speeds(machine: Machine) -> Machine:
    disks = []
    for disk in machine.disks:
        # Where nothing of the user's is large enough, a library of the engine may be.
        speed = measure_disk(Path(disk.path), (Path(sys.prefix),))
        disks.append(replace(disk, read_bytes_per_s=speed.bytes_per_s, read_method=speed.method))
    return replace(machine, disks=tuple(disks))
