"""`probe --save`: what is written, what is not, and that it reads back as the same machine."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from captured_machines import CAPTURES, packed

from workhorse.cli import main
from workhorse.errors import AppError
from workhorse.machine import capture
from workhorse.machine.capture import RecordedFiles, capture_texts, save_capture
from workhorse.machine.files import PackedFiles
from workhorse.machine.probe import probe, probe_and_record, read_machine
from workhorse.records import Bandwidth, CopyBandwidth, Disk, Machine

UUID = "GPU-1b9f7a3c-0c1d-4e2f-8a9b-0123456789ab"
BANDWIDTH = Bandwidth(60e9, "huge", 2, None, "memchr over 256 MiB", 0.5, (0,))


def without_the_moment(machine: Machine) -> Machine:
    """What of a Machine a capture must bring back: all but the load and the words on sources."""
    gpus = tuple(replace(gpu, uuid=None) for gpu in machine.gpus)
    return replace(machine, busy_cpus=None, learned_from={}, disks=(), gpus=gpus)


def test_this_machine_reads_back_as_it_was(tmp_path: Path) -> None:
    machine, recorded = probe_and_record(disk_path=tmp_path, measure_s=0.2)
    save_capture(recorded, machine, tmp_path / "here")
    again = probe(tmp_path / "here")
    # Of software below a home folder the capture keeps the path without the home.
    here = re.compile(r"^(/root|/home/[^/]+)(?=/)")
    engines = tuple(replace(e, path=here.sub("~", e.path)) for e in machine.software.engines)
    machine = replace(machine, software=replace(machine.software, engines=engines))
    # What could not be measured or read here cannot be asked again there.
    assert without_the_moment(replace(again, doubts=())) == without_the_moment(
        replace(machine, doubts=())
    )
    assert again.memory.bandwidths == machine.memory.bandwidths
    assert again.disks[0].total_bytes == machine.disks[0].total_bytes


def test_saved_files_name_neither_host_nor_user_nor_address(tmp_path: Path) -> None:
    machine, recorded = probe_and_record(disk_path=tmp_path, measure_s=0)
    save_capture(recorded, machine, tmp_path / "here")
    text = "\n".join(
        f"{path.relative_to(tmp_path)}\n{path.read_text()}"
        for path in (tmp_path / "here").rglob("*")
        if path.is_file()
    )
    assert not re.search(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|GPU-[0-9a-f]{8}-", text)
    host = os.uname().nodename
    if len(host) > 2 and host != "localhost":
        assert not re.search(rf"\b{re.escape(host)}\b", text)


def hostile_machine() -> tuple[Machine, RecordedFiles]:
    """Machine A with personal data wherever a machine has them."""
    files = packed("machine_a")
    gpu = files["nvml.json"]["gpus"][0]
    gpu |= {"uuid": UUID, "serial": "0323418090123"}
    files |= {
        "proc/self/cgroup": f"0::/user.slice/user@1000.service/{'ab' * 32}\n",
        f"sys/fs/cgroup/user.slice/user@1000.service/{'ab' * 32}/memory.max": "8589934592\n",
        f"sys/fs/cgroup/user.slice/user@1000.service/{'ab' * 32}/memory.current": "1048576\n",
        "proc/cmdline": "root=/dev/ann/root ip=10.1.2.3 host=annsbox intel_iommu=on iommu=pt\n",
        "commands/dmesg.txt": "[    0.000000] Linux version 5.15.0 (ann@build.example.org)\n"
        "[    9.000000] usb 1-1: SerialNumber: 60A44C425324\n"
        "[   99.000000] NVRM: Xid (PCI:0000:82:00): 79, pid=7, name=ann, GPU has fallen off\n",
    }
    recorded = RecordedFiles(PackedFiles(files))
    machine = read_machine(recorded)
    copies = (CopyBandwidth("device", 700e9, "cuMemcpyDtoD", 0.2),)
    measured = replace(
        machine,
        memory=replace(machine.memory, bandwidths=(BANDWIDTH,)),
        disks=(Disk("/home/ann" + "/models", "ext4", 100, 50, "ssd", 5e8, "read of 1 GiB"),),
        gpus=tuple(replace(g, copies=copies, pcie_width_loaded=16) for g in machine.gpus),
    )
    return measured, recorded


def test_of_a_quiet_log_only_is_kept_that_it_was_read(tmp_path: Path) -> None:
    said = {"commands/dmesg.txt": "[    1.000000] audit: user ann at tty1\n"}
    recorded = RecordedFiles(PackedFiles({**said}))
    machine = read_machine(recorded)
    save_capture(recorded, machine, tmp_path / "a")
    assert machine.events == () == probe(tmp_path / "a").events
    assert "ann" not in (tmp_path / "a" / "commands" / "dmesg.txt").read_text()


def test_personal_data_is_removed_and_the_machine_is_the_same(tmp_path: Path) -> None:
    machine, recorded = hostile_machine()
    texts = capture_texts(recorded, machine, secrets={"ann"}, date="2026-11-30")
    written = json.dumps(texts)
    for word in ("1b9f7a3c", "0323418090123", "60A44C", "ann", "example.org", "abab"):
        assert word not in written, word
    assert "0000:82:00" in written
    assert texts["proc/cmdline"] == "intel_iommu=on iommu=pt\n"
    save_capture(recorded, machine, tmp_path / "a")
    again = probe(tmp_path / "a")
    assert machine.limits.memory_bytes == 8589934592
    assert without_the_moment(again) == without_the_moment(machine)
    assert [event.number for event in again.events or ()] == [79]
    assert again.gpus[0].copies == machine.gpus[0].copies
    assert again.gpus[0].pcie_width_loaded == 16
    (disk,) = again.disks
    assert disk.read_bytes_per_s == 5e8 and disk.path == "~/models"


@pytest.mark.parametrize("name", ["machine_b.json", "h200.json", "texts/two_nodes"])
def test_saving_a_capture_of_a_capture_keeps_the_machine(name: str, tmp_path: Path) -> None:
    machine, recorded = probe_and_record(CAPTURES / name)
    save_capture(recorded, machine, tmp_path / "again")
    assert without_the_moment(probe(tmp_path / "again")) == without_the_moment(machine)


def test_a_folder_with_things_in_it_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("keep me")
    root = str(CAPTURES / "machine_a.json")
    assert main(["probe", "--root", root, "--save", str(mine)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "mine" in err and "→" in err
    assert [path.name for path in mine.iterdir()] == ["letter.txt"]
    assert main(["probe", "--root", root, "--save", str(mine / "letter.txt")]) == 1
    assert (mine / "letter.txt").read_text() == "keep me"


def test_an_empty_folder_is_filled_and_its_reader_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(CAPTURES / "machine_a.json")
    assert main(["probe", "--root", root, "--save", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cpu"]["vendor"] == "GenuineIntel"
    flat = " ".join(err.split())
    assert re.search(r"Wrote \d+ files, [\d.]+ KiB", flat) and "Look it through" in flat
    assert (tmp_path / "workhorse-capture.json").is_file()


def test_a_capture_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, recorded = hostile_machine()
    written: list[Path] = []
    write = capture._write

    def full_disk(place: Path, text: str | None) -> None:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(place)
        write(place, text)

    monkeypatch.setattr(capture, "_write", full_disk)
    with pytest.raises(AppError) as caught:
        save_capture(recorded, machine, tmp_path / "deep" / "a")
    assert "No space left" in caught.value.what.en
    assert list((tmp_path / "deep").iterdir()) == []


def test_broken_measurements_are_a_doubt() -> None:
    files = packed("machine_a")
    for document in ("[]", '{"bandwidths": 5}', "{" * 5000, "\x00"):
        machine = read_machine(PackedFiles(files | {"measured.json": document}))
        assert machine.memory.bandwidths == ()
        assert "measured.json" in machine.doubts[-1].en
    odd = {
        "bandwidths": [
            {"bytes_per_s": rate, "pages": "huge", "threads": threads, "node": node,
             "method": "m\x1b[2J", "duration_s": 1.0}
            for rate, threads, node in ((-1.0, 1, None), (0, 1, 0), (5e9, 0, 0), (5e9, 2, 3))
        ],
        "gpus": [{"index": 7, "pcie_width_loaded": -4}],
    }  # fmt: skip
    machine = read_machine(PackedFiles(files | {"measured.json": odd}))
    (only,) = machine.memory.bandwidths
    assert only.node == 3 and only.method == "m [2J" and machine.gpus[0].copies == ()
