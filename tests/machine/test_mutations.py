"""Broken and hostile files, answers and outputs: always a Machine, and the rest of it holds.

What is told by files that were left alone must be told as if nothing had happened.
"""

import json
import random
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from captured_machines import CAPTURES, NAMES, packed

from workhorse.cli.probe import print_machine
from workhorse.codec import from_json, to_json
from workhorse.machine.files import PackedFiles
from workhorse.machine.loose_texts import recognise
from workhorse.machine.probe import read_machine
from workhorse.records import Machine
from workhorse.units import MIB

MUTATIONS = 2000
CPU, NODE, PCI = "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci"
CONTAINER = ("proc/1/", "proc/self/cgroup", "run/", ".dockerenv", "proc/self/status")
DRIVER = (
    "nvml.json",
    PCI,
    "commands/nvidia-smi",
    "commands/lspci",
    "dev/",
    "proc/driver",
    "sys/module",
)
# The files that each part of a Machine is made from; a change of any other one leaves it as it was.
MADE_FROM: dict[str, tuple[str, ...]] = {
    "cpu": (CPU, NODE, "proc/cpuinfo", "proc/stat", "workhorse-capture.json"),
    "nodes": (CPU, NODE, "proc/cpuinfo", "proc/stat", "proc/meminfo", "workhorse-capture.json"),
    "memory": (
        "proc/meminfo", "proc/self/limits", "sys/kernel/mm", "commands/dmidecode", "measured.json",
        "sys/devices/system/edac", CPU, NODE, "proc/cpuinfo", "proc/stat", "workhorse-capture.json",
    ),
    "limits": (
        CPU, "sys/fs/cgroup", "proc/self/cgroup", "proc/self/status", "proc/cpuinfo", "proc/stat",
        "proc/meminfo", "workhorse-capture.json",
    ),
    "system": (
        "etc/", "usr/lib/os-release", "proc/sys/kernel", "proc/cpuinfo", "proc/cmdline",
        "sys/class", "sys/kernel", "sys/hypervisor", "proc/device-tree", "proc/xen",
        "workhorse-capture.json", *CONTAINER, *DRIVER,
    ),
    "driver": (*DRIVER, *CONTAINER),
    "gpus": (*DRIVER, *CONTAINER, "measured.json"),
    "gpu_links": (*DRIVER, *CONTAINER),
    "gpu_troubles": (*DRIVER, *CONTAINER),
    "events": ("commands/dmesg",),
    "settings": (CPU, "proc/sys", "proc/meminfo"),
    "software": ("software.json", "commands/nvcc", "usr/", "opt/"),
    "disks": ("measured.json",),
}  # fmt: skip
LSPCI = """17:00.0 PCI bridge: Intel Corporation Sky Lake-E PCI Express Root Port A (rev 04)
\tBus: primary=17, secondary=18, subordinate=18, sec-latency=0
\t\tLnkCap:\tPort #5, Speed 8GT/s, Width x16, ASPM L1
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+
18:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] (rev a1)
\tNUMA node: 0
\t\tLnkCap:\tPort #0, Speed 8GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 8GT/s (ok), Width x8 (downgraded)
\tKernel driver in use: nvidia
"""


CORPUS = (*NAMES, "texts")


def corpus(name: str) -> dict[str, Any]:
    """One machine with the output of every program that is read; `texts` has nothing else."""
    log = (CAPTURES / "texts" / "four_nodes" / "log.txt").read_text(encoding="utf-8")
    outputs = {"commands/dmesg.txt": log, "commands/lspci_-vv.txt": LSPCI}
    if name != "texts":
        return outputs | packed(name)
    paste = CAPTURES / "texts" / "two_nodes"
    loose = recognise({p.name: p.read_text(encoding="utf-8") for p in paste.iterdir()})
    outputs["commands/dmidecode_-t_memory.txt"] = packed("p40_box")[
        "commands/dmidecode_-t_memory.txt"
    ]
    query = {"commands/nvidia-smi_-q.txt": packed("h200")["commands/nvidia-smi_-q.txt"]}
    return outputs | query | loose.files


HOSTILE = (
    "", "\n", "\x00" * 64, "-1\n", "0-99999999999\n", "0-8191\n", "9" * 5000, "1e309", "NaN",
    "[" * 2000, "[/red] [bold]\x1b[2J", "::::\n" * 500, "0," * 30000, "max max max", "\ufffd" * 99,
    "=" * 999, "cpu0 " + "9" * 400, "processor: 0\n\n" * 999, "0::" + "/x" * 900, "x" * (2 * MIB),
)  # fmt: skip
JSON_HOSTILE: tuple[Any, ...] = (
    None, -1, 2**63, 2**64, 1.5, True, "\x00[/]", [], {}, [[]], {"busId": 5}, [7] * 999,
)  # fmt: skip


def mutated(files: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same files with one to four of them broken."""
    files = dict(files)
    paths = sorted(files)
    # The files that everything hangs on are few among many of topology.
    weighty = [path for path in paths if "topology" not in path]
    for _ in range(chance.randint(1, 4)):
        path = chance.choice(weighty if chance.random() < 0.8 else paths)
        if isinstance(files.get(path), dict) and chance.random() < 0.7:
            files[path] = mutated_json(files[path], chance)
            continue
        text = files.get(path, "")
        text = text if isinstance(text, str) else json.dumps(text)
        match chance.randrange(6):
            case 0:
                files.pop(path, None)
            case 1:
                files[path] = text[: chance.randint(0, len(text))]
            case 2:
                files[path] = chance.choice(HOSTILE)
            case 3:
                noise = chance.randbytes(chance.randint(1, 40)).decode("utf-8", errors="replace")
                at = chance.randint(0, len(text))
                files[path] = text[:at] + noise + text[at + len(noise) :]
            case 4:
                digits = [i for i, c in enumerate(text) if c.isdigit()] or [0]
                at = chance.choice(digits)
                files[path] = text[:at] + chance.choice(("-", "9" * 30, "x", "")) + text[at + 1 :]
            case 5:
                other = files.get(chance.choice(paths), "")
                files[path] = other if isinstance(other, str) else json.dumps(other)
    return files


def mutated_json(document: Any, chance: random.Random) -> Any:
    """The document with one value somewhere in it replaced."""
    if isinstance(document, dict) and document and chance.random() < 0.85:
        key = chance.choice(sorted(document))
        return document | {key: mutated_json(document[key], chance)}
    if isinstance(document, list) and document and chance.random() < 0.85:
        at = chance.randrange(len(document))
        return [*document[:at], mutated_json(document[at], chance), *document[at + 1 :]]
    return chance.choice(JSON_HOSTILE)


def check(machine: Machine) -> None:
    """What every Machine keeps to, however it was read."""
    document = to_json(machine)
    assert from_json(Machine, document, what="the machine") == machine
    assert len(document) < 2 * MIB
    cpus = [cpu for core in machine.cpu.cores for cpu in core.cpus]
    assert len(cpus) == len(set(cpus))
    assert set(machine.limits.cpus) <= set(cpus)
    in_nodes = [cpu for node in machine.nodes for cpu in node.cpus]
    assert len(in_nodes) == len(set(in_nodes))


def check_the_rest(machine: Machine, whole: Machine, changed: Iterable[str]) -> None:
    """What no changed file has a part in is as it was."""
    for part, made_from in MADE_FROM.items():
        if not any(path.startswith(made_from) for path in changed):
            assert getattr(machine, part) == getattr(whole, part), (part, sorted(changed))


@pytest.mark.parametrize("name", CORPUS)
def test_mutated_machines_are_told_as_far_as_they_are_whole(name: str) -> None:
    chance = random.Random(f"workhorse {name}")
    files = corpus(name)
    whole = read_machine(PackedFiles(files))
    for _ in range(MUTATIONS // len(CORPUS)):
        broken = mutated(files, chance)
        changed = {path for path in files if broken.get(path) != files[path]}
        machine = read_machine(PackedFiles(broken))
        check(machine)
        check_the_rest(machine, whole, changed)


def test_every_file_alone_replaced_by_every_hostile_text() -> None:
    files = corpus("mismatch") | {"nvml.json": packed("machine_a")["nvml.json"]}
    whole = read_machine(PackedFiles(files))
    for path in [path for path in files if not path.startswith(f"{CPU}/cpu1")]:
        for text in HOSTILE:
            machine = read_machine(PackedFiles(files | {path: text}))
            check(machine)
            check_the_rest(machine, whole, {path})


def test_hostile_outputs_alone_make_a_machine() -> None:
    for command in ("nvidia-smi_-q", "nvidia-smi", "nvidia-smi_topo_-m", "lspci_-vv", "dmesg",
                    "dmidecode_-t_memory", "nvcc_--version"):  # fmt: skip
        for text in HOSTILE:
            check(read_machine(PackedFiles({f"commands/{command}.txt": text})))


def test_mutated_pastes_make_a_machine_or_nothing() -> None:
    chance = random.Random("workhorse paste")
    paste = CAPTURES / "texts" / "two_nodes"
    pasted: dict[str, Any] = {p.name: p.read_text(encoding="utf-8") for p in paste.iterdir()}
    pasted["query"] = packed("h200")["commands/nvidia-smi_-q.txt"]
    pasted["lspci"] = LSPCI
    for _ in range(200):
        loose = recognise(mutated(pasted, chance))
        check(read_machine(PackedFiles({**loose.files})))


def test_memory_stays_bounded() -> None:
    files = packed("avx_only")
    many_names = "".join(f"a{i}:\n" for i in range(200_000))
    many_cpus = "".join(f"processor: {i}\n\n" for i in range(100_000))
    many_counters = "".join(f"cpu{i} 1 1 1 1\n" for i in range(100_000))
    tracemalloc.start()
    try:
        for path, text in (
            ("proc/cpuinfo", many_names),
            ("proc/cpuinfo", many_cpus),
            ("proc/stat", many_counters),
            ("proc/meminfo", many_names),
            ("proc/self/cgroup", "0::" + "/x" * MIB),
            ("sys/devices/system/cpu/online", "0-8191," * 9000),
            ("sys/devices/system/node/online", "0-8191"),
            ("commands/dmesg.txt", "NVRM: Xid (PCI:0000:18:00): 79, x\n" * 30_000),
            ("commands/dmidecode_-t_memory.txt", "Size: 8 GB\nLocator: A1\n\n" * 40_000),
            ("commands/lspci_-vv.txt", "18:00.0 3D controller: NVIDIA\n" * 30_000),
            ("measured.json", '{"gpus": [' + '{"index": 1},' * 60_000 + '{"index": 2}]}'),
            ("nvml.json", '{"gpus": [' + '{"name": 1},' * 80_000 + "{}]}"),
        ):
            hostile = PackedFiles(files | {path: text})
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            read_machine(hostile)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 100 * MIB, path
    finally:
        tracemalloc.stop()


def test_broken_machines_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random("workhorse shown")
    for name in CORPUS:
        files = corpus(name)
        for _ in range(5):
            machine = read_machine(PackedFiles(mutated(files, chance)))
            print_machine(machine, "zh" if chance.random() < 0.5 else "en")
    shown = capsys.readouterr().out
    assert "NUMA" in shown and "\x1b[2J" not in shown
