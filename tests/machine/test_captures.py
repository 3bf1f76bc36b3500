"""Captured machines, compared as a whole with what we know of them."""

import json
import os
import re
from pathlib import Path

import pytest
from captured_machines import CAPTURES, GOLDENS, NAMES, packed, unpack

from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.machine import probe as probe_module
from workhorse.machine.files import PackedFiles
from workhorse.machine.personal_data import scrub_file
from workhorse.machine.probe import probe, read_machine
from workhorse.records import Machine


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_gives_its_golden(name: str) -> None:
    machine = probe(CAPTURES / f"{name}.json")
    golden = GOLDENS / f"{name}.json"
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        golden.write_text(to_json(machine) + "\n", encoding="utf-8")
    assert machine == from_json(Machine, golden.read_bytes(), what=golden.name)


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_and_a_packed_capture_say_the_same(name: str, tmp_path: Path) -> None:
    assert probe(unpack(name, tmp_path)) == probe(CAPTURES / f"{name}.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_holds_nothing_that_names_a_machine(name: str) -> None:
    files = packed(name)
    assert files.pop("workhorse-capture.json")["sources"]
    for path, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        assert scrub_file(path, text) == text, path


def test_of_a_capture_nothing_is_measured_and_the_kernel_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a capture must not touch this machine")

    monkeypatch.setattr(probe_module, "ask_running", refuse)
    monkeypatch.setattr(probe_module, "ask_driver", refuse)
    monkeypatch.setattr(probe_module, "measure_bandwidths", refuse)
    monkeypatch.setattr(probe_module, "read_ticks", refuse)
    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    monkeypatch.setattr(os, "uname", refuse)
    machine = probe(CAPTURES / "machine_a.json", measure_s=1.0, disk_path=Path("/"))
    assert machine.memory.bandwidths == () and machine.busy_cpus is None and machine.disks == ()


def test_machine_b_has_two_sockets_of_fourteen_cores() -> None:
    machine = probe(CAPTURES / "machine_b.json")
    assert len(machine.cpu.cores) == 28
    assert all(len(core.cpus) == 2 for core in machine.cpu.cores)
    assert next(c.cpus for c in machine.cpu.cores if c.node == 1) == (14, 42)
    assert machine.cpu.l3_bytes == 35 * 1024**2 and machine.cpu.max_mhz == 3500
    assert [node.distances for node in machine.nodes] == [(10, 21), (21, 10)]


def test_machine_a_alternates_cpu_numbers_and_its_gpu_is_on_the_second_node() -> None:
    machine = probe(CAPTURES / "machine_a.json")
    assert machine.nodes[1].cpus == tuple(range(1, 48, 2))
    assert {core.node for core in machine.cpu.cores if core.socket == 1} == {1}
    assert machine.gpus[0].numa_node == 1


def test_the_oldest_machine_has_avx_and_nothing_newer() -> None:
    flags = set(probe(CAPTURES / "avx_only.json").cpu.flags)
    assert {"avx", "f16c"} <= flags and not flags & {"avx2", "fma", "bmi2"}


def test_half_the_memory_channels_and_a_hot_card_are_seen() -> None:
    machine = probe(CAPTURES / "p40_box.json")
    assert machine.memory.channels_in_use == (2, 2) and machine.cpu.memory_channels == 4
    assert machine.memory.rated_bandwidth_bytes_per_s == 4 * 2133e6 * 8
    assert len(machine.memory.dimms or ()) == 16
    assert machine.gpus[1].temperature_c == 91
    assert set(machine.gpus[1].throttle_reasons or ()) == {
        "SW thermal slowdown", "HW thermal slowdown",
    }  # fmt: skip
    assert machine.gpus[0].rated_bandwidth_bytes_per_s == pytest.approx(347e9, rel=0.001)


def test_a_slot_of_eight_lanes_is_told_from_a_card_that_lost_eight() -> None:
    (small,) = probe(CAPTURES / "t4.json").gpus
    assert (small.pcie_width_now, small.pcie_width_port, small.pcie_width_card) == (8, 8, 16)
    lost, idle = probe(CAPTURES / "two_links.json").gpus
    assert (lost.pcie_width_loaded, lost.pcie_width_port, lost.pcie_width_card) == (8, 16, 16)
    assert (idle.pcie_generation_now, idle.pcie_generation_loaded) == (1, 3)
    assert idle.pcie_width_now == 16


def test_eight_cards_are_joined_as_the_published_text_says() -> None:
    machine = probe(CAPTURES / "eight_v100.json")
    assert len(machine.gpus) == 8 and len(machine.gpu_links) == 28
    of_first = {link.second: link for link in machine.gpu_links if link.first == 0}
    assert [(of_first[i].path, of_first[i].nvlinks) for i in (1, 2, 4, 7)] == [
        ("NVLINK", 1), ("NVLINK", 2), ("SYS", None), ("NVLINK", 2),
    ]  # fmt: skip
    # Six links a card: what a V100-SXM2 has.
    for gpu in range(8):
        links = [li.nvlinks or 0 for li in machine.gpu_links if gpu in (li.first, li.second)]
        assert sum(links) == 6
    assert machine.nodes[1].cpus == (*range(24, 48), *range(72, 96))


def test_a_mismatch_of_module_and_library_is_a_trouble() -> None:
    machine = probe(CAPTURES / "mismatch.json")
    assert machine.gpus == () and machine.driver is not None
    assert [trouble.code for trouble in machine.gpu_troubles] == ["library_mismatch"]
    assert machine.events is not None and "API mismatch" in machine.events[0].text


def test_the_real_machines_texts_agree_with_its_driver() -> None:
    files = packed("h200")
    told = probe(CAPTURES / "h200.json").gpus[0]
    del files["nvml.json"]
    (read,) = read_machine(PackedFiles(files)).gpus
    for field in ("name", "memory_total_bytes", "pcie_width_now", "pcie_generation_max",
                  "temperature_c", "memory_temperature_c", "power_limit_w", "ecc_enabled", "ecc",
                  "sm_clock_max_mhz", "memory_clock_max_mhz", "persistence", "mig",
                  "compute_capability", "pci_address", "throttle_reasons",
                  "row_remaps"):  # fmt: skip
        unequal = (field, getattr(read, field), getattr(told, field))
        if field == "memory_total_bytes":  # the text rounds to MiB
            assert abs(unequal[1] - unequal[2]) < 2**20
        else:
            assert unequal[1] == unequal[2], unequal


def test_without_sysfs_cores_come_from_cpuinfo() -> None:
    whole = probe(CAPTURES / "machine_b.json")
    files = {path: v for path, v in packed("machine_b").items() if "topology" not in path}
    machine = read_machine(PackedFiles(files))
    assert machine.cpu.cores == whole.cpu.cores and machine.doubts == ()


def test_without_any_topology_every_cpu_is_a_core_and_a_doubt_says_so() -> None:
    files = {path: v for path, v in packed("machine_b").items() if "topology" not in path}
    files["proc/cpuinfo"] = re.sub(r"(physical id|core id).*\n", "", files["proc/cpuinfo"])
    machine = read_machine(PackedFiles(files))
    assert len(machine.cpu.cores) == 56
    assert any("physical core" in doubt.en for doubt in machine.doubts)


def test_a_machine_of_which_nothing_is_known_is_still_a_machine() -> None:
    machine = read_machine(PackedFiles({}))
    assert machine.cpu.cores == () and machine.gpus == () and machine.memory.total_bytes is None
    assert len(machine.doubts) >= 3
    assert from_json(Machine, to_json(machine), what="it") == machine


def test_arm_cpus_are_read_as_far_as_their_cpuinfo_goes() -> None:
    block = (
        "BogoMIPS\t: 200.00\nFeatures\t: fp asimd evtstrm aes asimddp\nCPU implementer\t: 0x48\n"
        "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd01\nCPU revision\t: 0\n\n"
    )
    text = "".join(f"processor\t: {cpu}\n{block}" for cpu in range(4))
    machine = read_machine(PackedFiles({"proc/cpuinfo": text}))
    assert machine.cpu.architecture == "aarch64" and machine.cpu.vendor == "0x48"
    assert "asimddp" in machine.cpu.flags and len(machine.cpu.cores) == 4


def test_a_root_that_is_no_capture_is_refused_with_a_next_step(tmp_path: Path) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_bytes(b"\x00\xffnot json")
    for root in (wrong, tmp_path / "missing"):
        with pytest.raises(AppError) as caught:
            probe(root)
        assert str(root) in caught.value.what.en
        assert "probe --save" in caught.value.next_step.en


def test_a_note_that_cannot_be_read_is_a_doubt() -> None:
    files = packed("machine_a")
    files["workhorse-capture.json"] = '{"architecture": 7}'
    machine = read_machine(PackedFiles(files))
    assert machine.cpu.architecture == "x86_64"  # told by the CPU's long mode
    assert "workhorse-capture.json" in machine.doubts[0].en
