"""What is taken out of a capture, and what must stay in it."""

import re

import pytest

from workhorse.machine.personal_data import scrub, scrub_file

ANN = "/home/ann"
UUID = "1b9f7a3c-0c1d-4e2f-8a9b-0123456789ab"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("    Serial Number                   : 0323418090123\n",
         "    Serial Number                   : removed\n"),
        ("\tSerial Number: 35C8D0A1\n\tAsset Tag: rack-17\n",
         "\tSerial Number: removed\n\tAsset Tag: removed\n"),
        (f"    GPU UUID                        : GPU-{UUID}",
         "    GPU UUID                        : N/A"),
        (f"GPU 0: Tesla P40 (UUID: GPU-{UUID})", "GPU 0: Tesla P40 (UUID: removed)"),
        ("\tSystem UUID: 4c4c4544-0042", "\tSystem UUID: removed"),
        (f"root=UUID={UUID} ro quiet", "root=UUID=removed ro quiet"),
        ("<serial>0323418090123</serial><pdi>0x5148dd0b</pdi>",
         "<serial>removed</serial><pdi>removed</pdi>"),
        ("\tCapabilities: [150] Device Serial Number 00-15-17-ff-ff-aa-bb-cc",
         "\tCapabilities: [150] Device Serial Number removed"),
        ("NVRM: GPU 0000:3b:00.0: GPU serial number is 0324017012345.",
         "NVRM: GPU 0000:3b:00.0: GPU serial number is removed."),
        ("NVRM: GPU Board Serial Number 0324017012345", "NVRM: GPU Board Serial Number removed"),
        ("usb 1-1: SerialNumber: 60A44C425324", "usb 1-1: SerialNumber: removed"),
        ("eth0: 52:54:00:12:34:56 at 192.168.1.20:8080", "eth0: removed at removed:8080"),
        ("from fe80::5054:ff:fe12:3456 to 2001:db8:0:0:0:0:0:1", "from removed to removed"),
        ("mail to ann.lee@example.com now", "mail to removed now"),
        (f"log in {ANN}/private/run.log:", "log in ~/run.log:"),
        (f"cd {ANN}", "cd ~"),
        ("    Process ID  : 4711\n        Name : /opt/venv/bin/python3 serve.py --key=abc\n",
         "    Process ID  : 4711\n        Name : python3\n"),
        (f"<process_name>{ANN}/llama-server -m x.gguf</process_name>",
         "<process_name>llama-server</process_name>"),
        (f"|    0   N/A  N/A      4711      C   {ANN}/bin/llama-server       123MiB |",
         "|    0   N/A  N/A      4711      C   llama-server                     123MiB |"),
        ("|    0      4711      C   .../bin/python3 train.py      123MiB |",
         "|    0      4711      C   python3                       123MiB |"),
        ("Nov 30 12:00:00 annsbox kernel: NVRM: Xid", "Nov 30 12:00:00 removed kernel: NVRM: Xid"),
        ("annsbox-2 is not annsbox2", "removed-2 is not annsbox2"),
    ],
)  # fmt: skip
def test_personal_data_is_taken_out(text: str, clean: str) -> None:
    assert scrub(text, {"annsbox", "ann"}) == clean


@pytest.mark.parametrize(
    "text",
    [
        "GPU 00000000:18:00.0\n    Product Name : Tesla V100-PCIE-32GB\n",
        "    Serial Number : N/A\n\tAsset Tag: Not Specified\n\tSerial Number: NO DIMM\n",
        "VBIOS Version : 88.00.48.00.02\nImage Version : G500.0202.00.02\nVersion: 550.144.03",
        "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
        "pcieport 0000:17:01.0: AER: Corrected error message received from 0000:3d:00.0",
        "5.15.0-151-generic #161-Ubuntu SMP Tue Jul 22 14:25:40 UTC 2025",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice\n",
        "GPU0\t X \tSYS\t0-13,28-41\t0\n",
        "model name\t: Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz\nflags\t\t: fpu vme avx2\n",
        "Port #0, Speed 8GT/s, Width x16; resource 0x0000104002000000 0x0000104002ffffff",
        "The server and its gpu are named after what they are",
    ],
)  # fmt: skip
def test_facts_of_the_machine_stay(text: str) -> None:
    assert scrub(text, {"server", "gpu", "root", "x1"}) == text


def test_scrubbing_twice_changes_nothing_more() -> None:
    text = f"Serial Number : 123\nGPU-{UUID} at 10.1.2.3 of ann@example.org in {ANN}/x/y.py\n"
    once = scrub(text, {"ann"})
    assert scrub(once, {"ann"}) == once and not re.search(r"123|10\.1|ann|example", once)


def test_files_that_hold_a_specimens_number_are_emptied() -> None:
    assert scrub_file("sys/class/dmi/id/product_serial", "ABC-12\n") == ""
    assert scrub_file("sys/class/nvme/nvme0/serial", "S4EV\n") == ""
    assert scrub_file("sys/class/dmi/id/product_name", "PowerEdge R730\n") == "PowerEdge R730\n"
    assert scrub_file("proc/cmdline", "iommu=pt quiet\n") == "iommu=pt quiet\n"


def test_a_megabyte_of_anything_takes_no_time_to_speak_of() -> None:
    for unit in ("a ", "ab:", "1.", "/home/a", "serial ", "0::", "a@b.", "|  0 ", "-", "x" * 7):
        assert scrub(unit * (2**18 // len(unit)), {"ann"})
