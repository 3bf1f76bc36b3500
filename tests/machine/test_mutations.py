"""Broken and hostile files: whatever they hold, there is a Machine, small and in bounded memory."""

import json
import random
import tracemalloc
from typing import Any

import pytest
from captured_machines import NAMES, packed

from workhorse.cli.probe import print_machine
from workhorse.codec import from_json, to_json
from workhorse.machine.files import PackedFiles
from workhorse.machine.probe import read_machine
from workhorse.records import Machine
from workhorse.units import MIB

MUTATIONS = 1500
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


@pytest.mark.parametrize("name", NAMES)
def test_mutated_captures_give_a_machine(name: str) -> None:
    chance = random.Random(f"workhorse {name}")
    files = packed(name)
    for _ in range(MUTATIONS // len(NAMES)):
        check(read_machine(PackedFiles(mutated(files, chance))))


def test_every_file_alone_replaced_by_every_hostile_text() -> None:
    files = packed("avx_only") | {"nvml.json": packed("machine_a")["nvml.json"]}
    for path in [path for path in files if "/cpu1" not in path]:
        for text in HOSTILE:
            check(read_machine(PackedFiles(files | {path: text})))


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
    for name in NAMES:
        files = packed(name)
        for _ in range(10):
            machine = read_machine(PackedFiles(mutated(files, chance)))
            print_machine(machine, "zh" if chance.random() < 0.5 else "en")
    shown = capsys.readouterr().out
    assert "NUMA" in shown and "\x1b[2J" not in shown
