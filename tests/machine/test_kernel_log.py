"""The kernel's log: every shape of time stamp, equal lines counted, nobody named."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.machine.files import PackedFiles, said_path
from workhorse.machine.kernel_log import parse_log, read_events
from workhorse.records import KernelEvent
from workhorse.units import MIB

DMESG = said_path("dmesg")
XID_79 = "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
TEXTS = Path(__file__).parent / "texts"


def test_published_lines() -> None:
    events = parse_log((TEXTS / "dmesg_nvidia.txt").read_text(encoding="utf-8"))
    assert [(e.kind, e.number, e.pci_address) for e in events] == [
        ("xid", 79, "0000:18:00.0"),
        ("nvrm", None, "0000:18:00.0"),
        ("xid", 13, "0000:1b:00.0"),
        ("xid", 31, "0000:03:00.0"),
        ("xid", 45, "0000:01:00.0"),
        ("nvrm", None, None),
        ("pcie", None, "0000:3d:00.0"),
    ]
    assert events[0].text == "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."
    assert events[3].text == "NVRM: Xid (PCI:0000:03:00): 31, 'Illegal memory access'"


@pytest.mark.parametrize(
    "stamp",
    [
        "", "[12345.678901] ", "[    0.000001] ", "[Mon May 25 12:35:01 2026] ", "<4>[   12.3] ",
        "2026-05-25T12:35:01,123456+00:00 ", "[  +0.000012] ", "[12345.678901][ T1234] ",
        "May 25 12:35:01 some-host kernel: ", "kern  :err   : [  12.34] ",
        "2026-05-25T12:35:01.123456+08:00 some-host kernel: [  12.34] ",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "core",
    [
        XID_79,
        "pcieport 0000:17:01.0: AER: Corrected error message received from 0000:3d:00.0",
        "nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
        "mce: [Hardware Error]: Machine check events logged",
        "Out of memory: Killed process 4711 (python3) total-vm:1kB, UID:1000",
    ],
)
def test_every_time_stamp(stamp: str, core: str) -> None:
    (plain,) = parse_log(core)
    assert parse_log(f"{stamp}{core}\n") == (plain,)
    assert "some-host" not in plain.text and "1000" not in plain.text and "4711" not in plain.text


def test_equal_lines_are_counted_whatever_process_it_was() -> None:
    log = "".join(f"[{i}.5] {XID_79.replace('1234', str(i))}\n" for i in range(50))
    (event,) = parse_log(log)
    assert event.times == 50 and event.number == 79


def test_a_flood_does_not_hide_the_rest() -> None:
    flood = "".join(
        f"[{i}.5] NVRM: Xid (PCI:0000:18:00): 31, Ch {i:08x}, MMU Fault\n" for i in range(5000)
    )
    events = parse_log(flood + XID_79)
    assert sum(event.times for event in events if event.number == 31) == 5000
    assert len(events) < 20 and events[-1].number == 79


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build",
        "pcieport 0000:00:01.0: AER: enabled with IRQ 24",
        "pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+",
        "EDAC MC0: Giving out device to module sb_edac controller Broadwell",
        "mce: CPU supports 22 MCE banks",
        "pci 0000:18:00.0: [10de:1db6] type 00 class 0x030200",
        "NVRM: gpuClearFbhubPoisonIntr_GA100: FBHUB Interrupt detected. Clearing it.",
        "usb 1-1: new high-speed USB device",
    ],
)
def test_lines_of_a_healthy_machine_are_none(line: str) -> None:
    assert parse_log(f"[1.0] {line}\n") == ()


def test_personal_data_goes() -> None:
    log = (
        "NVRM: GPU Board Serial Number: 0321018012345\n"
        "NVRM: GPU at PCI:0000:18:00: GPU-0f1e2d3c-1234-5678-9abc-def012345678\n"
        "NVRM: Xid (PCI:0000:18:00): 31, pid=77, name=/srv/someone/x, Ch 00000010\n"
        "Memory cgroup out of memory: Killed process 9 (/srv/someone/app) total-vm:5kB\n"
    )
    document = to_json(parse_log(log))
    for secret in ("0321018012345", "0f1e2d3c", "someone", "pid=77"):
        assert secret not in document
    assert "Memory cgroup out of memory: Killed process (app)" in document


@pytest.mark.parametrize(
    "said", [None, "", "\n", "dmesg: read kernel buffer failed: Operation not permitted\n"]
)
def test_a_log_that_cannot_be_read_is_unknown(said: str | None) -> None:
    assert read_events(PackedFiles({} if said is None else {DMESG: said})) is None


def test_a_quiet_log_has_no_events() -> None:
    assert read_events(PackedFiles({DMESG: "[0.0] Linux version 6.1\n"})) == ()


def test_the_end_of_a_long_log_counts() -> None:
    log = "[1.0] usb 1-1: something\n" * (MIB // 20) + XID_79
    assert [event.number for event in parse_log(log)] == [79]


PARTS = st.sampled_from(
    ["NVRM: ", "Xid (", "PCI:0000:18:00", "): ", "79", "9" * 30, ", pid=", "name=", "AER:", "EDAC ",
     "MC0: 1 CE ", "mce: [Hardware Error]: ", "Machine check", "Out of memory: Killed process 1 (",
     ")", "\n", "0000:3d:00.0", "received from ", "\x00", "GPU at "]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(PARTS, st.text(max_size=20)), max_size=60))
def test_any_log_gives_events(parts: list[str]) -> None:
    events = parse_log("".join(parts))
    assert all(isinstance(event, KernelEvent) and event.text for event in events)
    assert len(to_json(events)) < MIB


NOT_SUPPORTED = """\
[    9.100001] NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:1db6)
[    9.100002] NVRM: installed in this system is not supported by the
[    9.100003] NVRM: NVIDIA 590.44.01 driver release.
[    9.100004] NVRM: Please see 'Appendix A - Supported NVIDIA GPU Products'
[    9.100005] NVRM: None of the NVIDIA devices were initialized.
"""


def test_a_sentence_over_several_lines_is_one_event_of_its_card() -> None:
    first, *rest = parse_log(NOT_SUPPORTED)
    assert first.pci_address == "0000:82:00.0"
    assert first.text == (
        "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:1db6) installed in this system is not"
        " supported by the NVIDIA 590.44.01 driver release."
    )
    assert rest[-1].text == "NVRM: None of the NVIDIA devices were initialized."


def test_a_sentence_ends_where_another_card_or_another_program_speaks() -> None:
    cut = NOT_SUPPORTED.splitlines()[0]
    between = "[    9.2] usb 1-1: new device"
    (alone,) = parse_log(f"{cut}\n{between}\n")
    assert alone.text.endswith("(PCI ID: 10de:1db6)")
    assert parse_log(f"{cut}\n{XID_79}\n") == (alone, *parse_log(XID_79))
    assert len(parse_log(f"{cut}\n{cut.replace('82', '83')}\n")) == 2


def test_a_sentence_that_never_ends_does_not_swallow_the_log() -> None:
    endless = "NVRM: API mismatch: the client\n" + "NVRM: goes on and on\n" * 40
    events = parse_log(endless + XID_79)
    assert events[-1].number == 79 and max(len(e.text) for e in events) <= 400


def test_the_serial_number_of_a_card_that_fell_off_is_not_kept() -> None:
    (event,) = parse_log("NVRM: GPU 0000:3b:00.0: GPU serial number is 0324017012345.")
    assert "0324017012345" not in event.text and event.pci_address == "0000:3b:00.0"
