"""Memory modules: boards as their makers label them, half of them filled, and hostile tables."""

import pytest
from dmi_boards import (
    ASROCK,
    ASUS,
    CISCO,
    DELL,
    DESKTOP,
    EPYC,
    GIGABYTE,
    HEAD,
    HPE,
    HUAWEI,
    INSPUR,
    INTEL,
    SKYLAKE,
    SUPERMICRO,
    UNKNOWN,
    board,
    cpu,
    files,
    module,
)
from hypothesis import given
from hypothesis import strategies as st

from workhorse.machine import dimms as dimms_module
from workhorse.machine.dimms import add_modules, parse_modules, transfers
from workhorse.machine.files import PackedFiles, said_path
from workhorse.machine.slot_labels import Slot, places
from workhorse.units import GB, GIB

MC = "sys/devices/system/edac/mc"

BOARDS = [
    ("all channels", SUPERMICRO, {m for m, _ in SUPERMICRO if m[-1] == "1"}, 2, 4, (4, 4)),
    ("half of them", SUPERMICRO, {"P1-DIMMA1", "P1-DIMMB1", "P2-DIMME1", "P2-DIMMF1"},
     2, 4, (2, 2)),
    ("one socket bare", SUPERMICRO, {"P1-DIMMA1", "P1-DIMMC1"}, 2, 4, (2, 0)),
    ("one CPU on two sockets", SUPERMICRO, {"P1-DIMMA1", "P1-DIMMB1"}, 1, 4, (2,)),
    ("two controllers a socket", SKYLAKE, {m for m, _ in SKYLAKE}, 2, 6, (6, 6)),
    ("letters go on", INTEL, {"DIMM_A1", "DIMM_B1", "DIMM_C1", "DIMM_D1", "DIMM_E1"}, 2, 4, (4, 1)),
    ("both in one channel", INTEL, {"DIMM_A1", "DIMM_A2", "DIMM_E1"}, 2, 4, (1, 1)),
    ("Dell", DELL, {"A1", "A2", "A3", "A4", "B1", "B2"}, 2, 4, (4, 2)),
    ("Dell, wrong slots", DELL, {"A1", "A5", "B1", "B5", "B9"}, 2, 4, (1, 1)),
    ("HPE", HPE, {f"PROC {p} DIMM {d}" for p in (1, 2) for d in (1, 4, 9, 12)}, 2, 4, (4, 4)),
    ("HPE, one channel", HPE, {"PROC 1 DIMM 1", "PROC 1 DIMM 2", "PROC 2 DIMM 12"}, 2, 4, (1, 1)),
    ("ASRock", ASROCK, {"CPU0_DIMM_A1", "CPU1_DIMM_A1", "CPU1_DIMM_C1"}, 2, 4, (1, 2)),
    ("Gigabyte", GIGABYTE, {"DIMM_P0_A0", "DIMM_P0_B0", "DIMM_P1_A0", "DIMM_P1_A1"}, 2, 4, (2, 1)),
    ("Huawei", HUAWEI, {"DIMM000", "DIMM010", "DIMM100", "DIMM110", "DIMM120"}, 2, 4, (2, 3)),
    ("Inspur", INSPUR, {"CPU0_C0D0", "CPU0_C1D0", "CPU1_C0D0", "CPU1_C0D1"}, 2, 4, (2, 1)),
    ("Cisco", CISCO, {"DIMM_A1", "DIMM_B1", "DIMM_E1"}, 2, 4, (2, 1)),
    ("EPYC", EPYC, {f"DIMM {c}|P0 CHANNEL {'ABCDEFGH'[c]}" for c in (2, 3)}, 2, 8, (2, 0)),
    ("a desktop", DESKTOP, {"ChannelA-DIMM0", "ChannelA-DIMM1"}, 1, 2, (1,)),
    ("one node for all", ASUS, {"DIMM_A1", "DIMM_B1", "DIMM_E1"}, 2, 4, (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "filled", "sockets", "channels", "in_use"),
    [case[1:] for case in BOARDS],
    ids=[case[0] for case in BOARDS],
)
def test_boards_say_which_channels_are_in_use(
    labels: list[str | tuple[str, str]],
    filled: set[str],
    sockets: int,
    channels: int,
    in_use: tuple[int, ...],
) -> None:
    text = board(labels, filled)
    packed = PackedFiles({said_path("dmidecode", "-t", "memory"): text})
    memory, doubts = add_modules(packed, UNKNOWN, cpu(sockets, channels))
    assert memory.channels_in_use == in_use and doubts == ()
    assert memory.dimms is not None and len(memory.dimms) == len(labels)
    assert memory.rated_bandwidth_bytes_per_s == pytest.approx(sum(in_use) * 2133e6 * 8)


def test_a_dual_broadwell_with_all_channels_is_rated_at_154_gb_a_second() -> None:
    modules = [module(label, now="2400 MT/s", bank=bank) for label, bank in SUPERMICRO]
    memory, _ = add_modules(files(*modules), UNKNOWN, cpu())
    assert memory.rated_bandwidth_bytes_per_s == pytest.approx(153.6 * GB)
    assert memory.dimms is not None
    first = memory.dimms[0]
    assert (first.slot, first.socket, first.channel) == ("P1-DIMMA1", 0, 0)
    assert (first.size_bytes, first.kind) == (16 * GIB, "DDR4")
    assert (first.rated_mt_s, first.configured_mt_s) == (2400, 2400)


def test_each_socket_has_the_rate_of_its_own_slowest_module() -> None:
    memory, _ = add_modules(
        files(
            module("P1-DIMMA1", now="2400 MT/s"),
            module("P1-DIMMB1", now="2133 MT/s"),
            module("P2-DIMMC1", now="2400 MT/s"),
        ),
        UNKNOWN,
        cpu(),
    )
    assert memory.channels_in_use == (2, 1)
    assert memory.rated_bandwidth_bytes_per_s == pytest.approx((2 * 2133 + 2400) * 8e6)


@pytest.mark.parametrize(
    "labels",
    [
        ["DIMM 1", "DIMM 2", "DIMM 5", "DIMM 8"],  # no maker's order is known
        ["内存槽一", "内存槽二"],
        ["", ""],
        ["DIMM_A1", "slot two"],  # one label that nobody can read
        ["P1-DIMMA1", "P1-DIMMB1", "P1-DIMMC1", "P1-DIMMD1", "P1-DIMME1"],  # five of four channels
        ["P1-DIMMA1", "P1-DIMMA2", "P1-DIMMA3", "P1-DIMMA4"],  # four on one channel
        ["CPU3_DIMM_A1", "CPU4_DIMM_A1", "CPU5_DIMM_A1"],  # three sockets of two
    ],
)
def test_labels_that_do_not_tell_leave_the_channels_unknown(labels: list[str]) -> None:
    memory, _ = add_modules(files(*map(module, labels)), UNKNOWN, cpu())
    assert memory.dimms is not None and len(memory.dimms) == len(labels)
    assert memory.channels_in_use is None and memory.rated_bandwidth_bytes_per_s is None


def test_an_old_hpe_board_with_three_channels_is_not_guessed() -> None:
    labels = [f"PROC {p} DIMM {slot}" for p in (1, 2) for slot in range(1, 10)]
    memory, _ = add_modules(files(*map(module, labels)), UNKNOWN, cpu(2, 3))
    assert memory.channels_in_use is None


def test_a_dell_with_a_smaller_second_half_counts_both() -> None:
    labels = [f"A{i}" for i in range(1, 9)] + [f"B{i}" for i in range(1, 5)]  # R430
    memory, _ = add_modules(files(*map(module, labels)), UNKNOWN, cpu())
    assert memory.channels_in_use == (4, 4)


def test_a_module_of_unknown_size_leaves_the_channels_unknown() -> None:
    modules = (module("P1-DIMMA1", "Unknown"), module("P2-DIMMB1"))
    memory, _ = add_modules(files(*modules), UNKNOWN, cpu())
    assert memory.dimms is not None and memory.dimms[0].size_bytes is None
    assert memory.channels_in_use is None


@pytest.mark.parametrize("kind", ["LPDDR4", "RAM", "Logical non-volatile device"])
def test_no_ddr_modules_no_rated_bandwidth(kind: str) -> None:
    modules = (module("ChannelA-DIMM0", kind=kind), module("ChannelB-DIMM0", kind=kind))
    memory, _ = add_modules(files(*modules), UNKNOWN, cpu(1, 2))
    assert memory.channels_in_use == (2,) and memory.rated_bandwidth_bytes_per_s is None


def test_what_is_no_main_memory_is_left_out() -> None:
    flash = (
        "Handle 0x2000, DMI type 16, 23 bytes\nPhysical Memory Array\n\tUse: Flash Memory\n\n"
        + module("SYSTEM ROM", "16 MB", array="0x2000")
    )
    memory, _ = add_modules(files(module("P1-DIMMA1"), flash), UNKNOWN, cpu())
    assert memory.dimms is not None and [d.slot for d in memory.dimms] == ["P1-DIMMA1"]


@pytest.mark.parametrize(
    ("value", "kind", "rated", "most", "seen"),
    [
        (1067, "DDR4", 2133, 2400, 2133 + 1),  # slower than any DDR4: the clock
        (1200, "DDR4", 2400, None, 2400),
        (667, "DDR3", 1333, None, 1334),
        (1600, "DDR4", 3200, 3200, 3200),  # half, and the CPU takes the whole
        (1600, "DDR4", 3200, 1600, 1600),  # an E5-2609 v3 runs them at that
        (1600, "DDR4", 3200, None, 1600),
        (1333, "DDR4", 2400, 2400, 1333),  # three modules a channel
        (2400, "DDR5", 4800, None, 4800),
        (800, "DDR3", None, None, 800),
        (None, "DDR4", 2400, 2400, None),
    ],
)
def test_a_clock_is_told_from_a_rate(
    value: int | None, kind: str, rated: int | None, most: int | None, seen: int | None
) -> None:
    assert transfers(value, kind, rated, most) == seen


def test_an_old_dmidecode_writes_megahertz() -> None:
    text = HEAD + module("A1", "16384 MB", kind="DDR3", speed="1600 MHz", now="1333 MHz").replace(
        "Configured Memory Speed", "Configured Clock Speed"
    )
    (dimm,) = parse_modules(text, cpu(1))
    assert (dimm.size_bytes, dimm.rated_mt_s, dimm.configured_mt_s) == (16 * GIB, 1600, 1333)


def test_an_older_dmidecode_adds_the_time_of_a_cycle() -> None:
    speed = "1333 MHz (0.8 ns)"
    text = HEAD + module("A1", "8192 MB", kind="DDR3", speed=speed, now=speed)
    (dimm,) = parse_modules(text, cpu(1))
    assert (dimm.rated_mt_s, dimm.configured_mt_s) == (1333, 1333)


class Live(PackedFiles):
    live = True  # type: ignore[assignment]


@pytest.mark.parametrize(("user", "word"), [(1000, "sudo"), (0, "install dmidecode")])
def test_nothing_readable_is_unknown_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, user: int, word: str
) -> None:
    monkeypatch.setattr(dimms_module.os, "geteuid", lambda: user)
    refused = {said_path("dmidecode", "-t", "memory"): "# dmidecode 3.3\nScanning /dev/mem ...\n"}
    for packed in (Live({}), Live(dict(refused))):
        memory, doubts = add_modules(packed, UNKNOWN, cpu())
        assert memory.dimms is None and memory.channels_in_use is None
        assert memory.ecc_corrected is None
        assert len(doubts) == 1 and word in doubts[0].en and "dmidecode" in doubts[0].zh
    assert add_modules(PackedFiles({}), UNKNOWN, cpu())[1] == ()


def test_a_virtual_machines_table_is_made_up() -> None:
    guest = cpu(1, None, None, flags=("avx2", "hypervisor"))
    modules = (module("DIMM 0", kind="RAM", speed="Unknown", now="Unknown"),)
    memory, doubts = add_modules(files(*modules), UNKNOWN, guest)
    assert memory.dimms is None and memory.channels_in_use is None and doubts == ()


# ---------------------------------------------------------------- hostile

WORDS = st.sampled_from(
    [
        "P1",
        "DIMM",
        "A1",
        "CPU",
        "0",
        "Node",
        "Channel",
        "_",
        "-",
        " ",
        "#",
        "99",
        "\x00",
        "内存",
        "P",
    ]
)
LABEL = st.lists(WORDS, max_size=8).map("".join) | st.text(max_size=40)


@given(st.lists(st.builds(Slot, LABEL, LABEL, st.booleans()), max_size=40),
       st.integers(0, 4), st.none() | st.integers(1, 12))  # fmt: skip
def test_any_labels_give_a_possible_place_or_none(
    slots: list[Slot], sockets: int, channels: int | None
) -> None:
    found = places(slots, tuple(range(sockets)), channels)
    assert len(found) == len(slots)
    for place in found:
        assert place.socket is None or place.socket in range(sockets)
        assert place.channel is None or place.socket is not None
        assert place.channel is None or channels is None or place.channel < channels


LINES = st.sampled_from(
    ["Memory Device", "\tSize: 16 GB", "\tSize: -1 GB", "\tSize: 99999999999 GB", "\tLocator: A1",
     "\tLocator: P1-DIMMA1", "\tBank Locator: x", "\tType: DDR4", "\tSpeed: 99999 MT/s",
     "\tSpeed: 0 MT/s", "\tConfigured Memory Speed: 2400 MT/s", "", "\tUse: System Memory",
     "Handle 0x1, DMI type 17", "\x00\x1b[2J", "\tArray Handle: 0x1"]
)  # fmt: skip


@given(st.lists(LINES, max_size=60).map("\n".join), st.lists(LINES, max_size=9).map("\n".join))
def test_any_table_is_read_or_left(text: str, count: str) -> None:
    packed = PackedFiles(
        {
            said_path("dmidecode", "-t", "memory"): text,
            f"{MC}/mc0/ce_count": count,
            f"{MC}/mc0/dimm0/size": count,
            f"{MC}/mc0/dimm0/dimm_label": text,
            f"{MC}/mc0/dimm0/dimm_location": text,
        }
    )
    memory, _ = add_modules(packed, UNKNOWN, cpu())
    for dimm in memory.dimms or ():
        assert dimm.size_bytes is None or dimm.size_bytes >= 0
        assert dimm.configured_mt_s is None or dimm.configured_mt_s > 0
    rated = memory.rated_bandwidth_bytes_per_s
    assert rated is None or rated > 0


def test_a_table_of_thousands_of_slots_is_bounded() -> None:
    text = HEAD + "\n".join(module(f"P1-DIMMA{i}") for i in range(3000))
    assert len(parse_modules(text, cpu())) <= 512
    many: dict[str, object] = {}
    for controller in range(200):
        for index in range(400):
            many[f"{MC}/mc{controller}/dimm{index}/size"] = "1"
    memory, _ = add_modules(PackedFiles(many), UNKNOWN, cpu())
    assert memory.dimms is not None and len(memory.dimms) <= 65 * 64
