"""Cards on the bus: links, the ports above, and lspci's words where sysfs has none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.machine.files import PackedFiles, said_path
from workhorse.machine.gpu import make_gpus
from workhorse.machine.lspci_text import parse_lspci
from workhorse.machine.nvml import NvmlAnswers
from workhorse.machine.pci import Card, generation, pci_address, read_acs_redirect, read_cards

LSPCI = said_path("lspci", "-vv")
ROOT = "sys/bus/pci/devices"

# A V100 behind a port of a processor: the card runs on half its lanes, the port has them all.
CARD_TEXT = """\
16:00.0 PCI bridge: Intel Corporation Sky Lake-E PCI Express Root Port A (rev 07) (prog-if 00)
	NUMA node: 0
	Bus: primary=16, secondary=18, subordinate=18, sec-latency=0
	Capabilities: [90] Express (v2) Root Port (Slot-), MSI 00
		LnkCap:	Port #5, Speed 8GT/s, Width x16, ASPM L1, Exit Latency L1 <16us
		LnkSta:	Speed 8GT/s (ok), Width x8 (downgraded)
	Capabilities: [110 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
	Kernel driver in use: pcieport

18:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 32GB] (rev a1)
	Subsystem: NVIDIA Corporation GV100GL [Tesla V100 PCIe 32GB]
	NUMA node: 0
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM L0s L1, Exit Latency L0s <1us, L1 <4us
		LnkSta:	Speed 8GT/s (ok), Width x8 (downgraded)
	Kernel driver in use: nvidia
	Kernel modules: nouveau, nvidia_drm, nvidia

1a:00.0 Ethernet controller: Mellanox Technologies MT27800 Family [ConnectX-5]
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 8GT/s (ok), Width x16 (ok)
"""


def device(address: str, **files: str) -> dict[str, object]:
    return {f"{ROOT}/{address}/{name}": value for name, value in files.items()}


def v100(address: str, **files: str) -> dict[str, object]:
    return device(
        address, vendor="0x10de\n", device="0x1db6\n", **{"class": "0x030200\n"} | files
    )  # fmt: skip


PORT = device(
    "0000:16:00.0",
    vendor="0x8086\n",
    **{"class": "0x060400\n"},
    secondary_bus_number="24\n",
    max_link_speed="8.0 GT/s PCIe\n",
    max_link_width="16\n",
)


def test_a_card_its_link_and_the_port_above() -> None:
    files = PORT | v100(
        "0000:18:00.0",
        subsystem_vendor="0x10de\n",
        subsystem_device="0x124a\n",
        current_link_speed="2.5 GT/s PCIe\n",
        current_link_width="8\n",
        max_link_speed="8 GT/s\n",
        max_link_width="16\n",
        numa_node="-1\n",
        uevent="DRIVER=nvidia\n",
    )
    (card,) = read_cards(PackedFiles(files))
    assert card == Card(
        "0000:18:00.0", "10de:1db6", "nvidia", None, "10de:124a", 1, 8, 3, 16, 3, 16
    )  # fmt: skip


def test_a_port_of_another_domain_is_not_the_port_above() -> None:
    files = PORT | v100("0001:18:00.0", max_link_width="16\n")
    (card,) = read_cards(PackedFiles(files))
    assert card.width_port is None and card.width_card == 16


@pytest.mark.parametrize("width", ["0", "255", "63", "-1", "x16", ""])
def test_a_width_that_no_link_has_is_unknown(width: str) -> None:
    files = v100("0000:18:00.0", current_link_width=width, current_link_speed="Unknown\n",
                 max_link_width="16\n")  # fmt: skip
    (card,) = read_cards(PackedFiles(files))
    assert card.width_now is None and card.generation_now is None


@pytest.mark.parametrize(
    ("speed", "expected"),
    [("2.5 GT/s PCIe", 1), ("5.0 GT/s PCIe", 2), ("8.0 GT/s", 3), ("8GT/s", 3), ("16 GT/s", 4),
     ("32.0 GT/s PCIe", 5), ("64.0 GT/s PCIe", 6), ("Unknown", None), ("7 GT/s", None), ("", None),
     (None, None)],
)  # fmt: skip
def test_generations(speed: str | None, expected: int | None) -> None:
    assert generation(speed) == expected


def test_the_bus_says_the_link_where_the_driver_does_not() -> None:
    files = v100("0000:18:00.0", current_link_speed="8.0 GT/s PCIe", current_link_width="8",
                 max_link_speed="8.0 GT/s PCIe", max_link_width="16")  # fmt: skip
    cards = read_cards(PackedFiles(files))
    answers = NvmlAnswers(gpus=({"name": "V100", "pci": {"busId": "00000000:18:00.0"}},))
    (gpu,), _ = make_gpus(answers, cards)
    assert (gpu.pcie_generation_now, gpu.pcie_width_now) == (3, 8)
    assert (gpu.pcie_generation_card, gpu.pcie_width_card) == (3, 16)
    assert gpu.pci_id == "10de:1db6"


def test_lspci_alone_names_the_card_its_link_and_its_port() -> None:
    (card,) = read_cards(PackedFiles({LSPCI: CARD_TEXT}))
    assert card == Card(
        "0000:18:00.0", "10de:1db6", "nvidia", 0, None, 3, 8, 3, 16, 3, 16
    )  # fmt: skip
    (gpu,), _ = make_gpus(
        NvmlAnswers(gpus=({"pci": {"busId": "00000000:18:00.0"}},)), (card,)
    )  # fmt: skip
    assert gpu.pci_id == "10de:1db6" and gpu.pcie_width_card == 16


def test_lspci_fills_in_a_capture_whose_sysfs_has_no_links() -> None:
    (card,) = read_cards(PackedFiles(v100("0000:18:00.0") | {LSPCI: CARD_TEXT}))
    assert card.pci_id == "10de:1db6" and (card.width_now, card.width_card) == (8, 16)


def test_with_sysfs_lspci_is_not_needed() -> None:
    files = v100("0000:18:00.0", max_link_width="16") | {LSPCI: CARD_TEXT}
    (card,) = read_cards(PackedFiles(files))
    assert card.width_now is None


def two_cards() -> tuple[Card, ...]:
    return tuple(
        Card(place, "10de:1db6", "nvidia", 0) for place in ("0000:18:00.0", "0000:3b:00.0")
    )


def test_access_control_above_the_cards() -> None:
    cards = two_cards()
    on = PackedFiles({LSPCI: CARD_TEXT})
    off = PackedFiles({LSPCI: CARD_TEXT.replace("TransBlk- ReqRedir+", "TransBlk- ReqRedir-")})
    denied = PackedFiles({LSPCI: CARD_TEXT.replace("ACSCtl", "<access denied>")})
    assert read_acs_redirect(on, cards) is True
    assert read_acs_redirect(off, cards) is False
    assert read_acs_redirect(denied, cards) is None
    assert read_acs_redirect(PackedFiles({}), cards) is None
    assert read_acs_redirect(on, cards[:1]) is None  # one card has no peer


def test_bridges_in_a_circle_end() -> None:
    circle = "".join(
        f"{bus}:00.0 PCI bridge: Intel\n\tBus: primary={bus}, secondary={below}, subordinate=ff\n"
        for bus, below in (("16", "18"), ("18", "16"))
    )
    assert read_acs_redirect(PackedFiles({LSPCI: circle}), two_cards()) is None


def test_only_nvidia_display_and_compute_cards_count() -> None:
    files: dict[str, object] = {}
    for address, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # the card's own sound device
        ("0000:02:00.0", "0x1a03", "0x030000"),  # the board's own display
    ):
        files |= device(address, vendor=vendor, **{"class": kind})
    (card,) = read_cards(PackedFiles(files))
    assert card == Card("0000:01:00.0", "10de:?", None, None)


def test_pci_addresses() -> None:
    assert pci_address("00000000:AF:00.0") == "0000:af:00.0" == pci_address("0000:af:00.0")
    assert pci_address("af:00.0") is None and pci_address(None) is None


LINES = st.sampled_from(CARD_TEXT.splitlines())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(LINES, st.text(max_size=40)), max_size=40))
def test_any_text_gives_devices(lines: list[str]) -> None:
    text = "\n".join(lines)
    devices = parse_lspci(text)
    assert len(devices) <= len(lines)
    files = PackedFiles({LSPCI: text})
    assert to_json(read_cards(files)) and read_acs_redirect(files, two_cards()) in (
        True, False, None,
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["max_link_speed", "max_link_width", "device", "uevent", "numa_node",
                         "subsystem_vendor", "secondary_bus_number", "current_link_width"]),
        st.one_of(st.text(max_size=20), st.sampled_from(["9" * 400, "0x", "-1", "\x00", "8 GT/s"])),
    )
)  # fmt: skip
def test_any_attribute_gives_a_card(attributes: dict[str, str]) -> None:
    (card,) = read_cards(PackedFiles(v100("0000:18:00.0") | device("0000:18:00.0", **attributes)))
    assert card.address == "0000:18:00.0"


@pytest.mark.parametrize(
    ("title", "pci_id"),
    [
        ("GK210GL [Tesla K80] (rev a1)", "10de:102d"),
        ("GV100GL [Tesla V100 PCIe 16GB] (rev a1)", "10de:1db4"),
        ("GP102GL [Tesla P40] [10de:1b38] (rev a1)", "10de:1b38"),
        ("Device 2bb1 (rev a1)", "10de:2bb1"),
        ("XX100 [Tesla Z9000] (rev a1)", "10de:?"),
    ],
)
def test_a_line_of_lspci_names_the_card_and_nothing_of_its_driver(title: str, pci_id: str) -> None:
    line = f"82:00.0 3D controller: NVIDIA Corporation {title}\n"
    (card,) = read_cards(PackedFiles({LSPCI: line}))
    assert (card.pci_id, card.kernel_driver, card.driver_told) == (pci_id, None, False)
    (verbose,) = read_cards(PackedFiles({LSPCI: line + "\tSubsystem: NVIDIA Corporation\n"}))
    assert verbose.driver_told and not verbose.gone


def test_a_card_that_reads_as_all_ones_is_gone() -> None:
    line = "82:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] (rev ff)\n"
    (card,) = read_cards(PackedFiles({LSPCI: line}))
    assert card.gone
