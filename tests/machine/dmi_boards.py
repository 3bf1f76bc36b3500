"""Boards as their makers label them, and the tables that dmidecode prints of them."""

from collections.abc import Sequence

from workhorse.machine.files import PackedFiles, said_path
from workhorse.records import Core, Cpu, Memory

UNKNOWN = Memory(None, None, None, None, None, None, None, None)


def cpu(
    sockets: int = 2,
    channels: int | None = 4,
    rate: int | None = 2400,
    flags: tuple[str, ...] = ("avx2",),
) -> Cpu:
    cores = tuple(Core(socket, 0, socket, (socket,)) for socket in range(sockets))
    return Cpu("x86_64", "GenuineIntel", "X", flags, cores, None, None, None, 6, 79, channels, rate)


def module(
    label: str,
    size: str = "16 GB",
    *,
    bank: str = "Not Specified",
    kind: str = "DDR4",
    speed: str = "2400 MT/s",
    now: str = "2133 MT/s",
    array: str = "0x1000",
) -> str:
    empty = size == "No Module Installed"
    return (
        f"Handle 0x1100, DMI type 17, 84 bytes\nMemory Device\n\tArray Handle: {array}\n"
        f"\tTotal Width: 72 bits\n\tData Width: 64 bits\n\tSize: {size}\n\tForm Factor: DIMM\n"
        f"\tSet: None\n\tLocator: {label}\n\tBank Locator: {bank}\n"
        f"\tType: {'Unknown' if empty else kind}\n\tSpeed: {'Unknown' if empty else speed}\n"
        f"\tSerial Number: 12345678\n"
        f"\tConfigured Memory Speed: {'Unknown' if empty else now}\n"
    )


EMPTY = "No Module Installed"
HEAD = (
    "# dmidecode 3.3\nGetting SMBIOS data from sysfs.\nSMBIOS 3.0.0 present.\n\n"
    "Handle 0x1000, DMI type 16, 23 bytes\nPhysical Memory Array\n"
    "\tLocation: System Board Or Motherboard\n\tUse: System Memory\n\tNumber Of Devices: 24\n\n"
)


def files(*modules: str, **more: str) -> PackedFiles:
    return PackedFiles({said_path("dmidecode", "-t", "memory"): HEAD + "\n".join(modules), **more})


def board(labels: Sequence[str | tuple[str, str]], filled: set[str]) -> str:
    """A board's table: each label (and bank), a module where `filled` names the label."""
    pairs = [(label, "Not Specified") if isinstance(label, str) else label for label in labels]
    return HEAD + "\n".join(
        module(label, "16 GB" if label in filled or f"{label}|{bank}" in filled else EMPTY,
               bank=bank)
        for label, bank in pairs
    )  # fmt: skip


SUPERMICRO = [
    (f"P{p + 1}-DIMM{'ABCDEFGH'[4 * p + c]}{d + 1}", f"P{p}_Node{p}_Channel{c}_Dimm{d}")
    for p in range(2)
    for c in range(4)
    for d in range(2)
]
SKYLAKE = [
    (f"P{p + 1}-DIMM{'ABCDEF'[3 * n + c]}1", f"P{p}_Node{n}_Channel{c}_Dimm0")
    for p in range(2)
    for n in range(2)
    for c in range(3)
]
INTEL = [f"DIMM_{letter}{slot}" for letter in "ABCDEFGH" for slot in (1, 2)]
DELL = [f"{letter}{slot}" for letter in "AB" for slot in range(1, 13)]
HPE = [f"PROC {p} DIMM {slot}" for p in (1, 2) for slot in range(1, 13)]
ASROCK = [f"CPU{p}_DIMM_{letter}1" for p in (0, 1) for letter in "ABCD"]
GIGABYTE = [f"DIMM_P{p}_{letter}{d}" for p in (0, 1) for letter in "ABCD" for d in (0, 1)]
HUAWEI = [f"DIMM{p}{c}{d}" for p in (0, 1) for c in range(4) for d in range(3)]
INSPUR = [f"CPU{p}_C{c}D{d}" for p in (0, 1) for c in range(4) for d in (0, 1)]
CISCO = [
    (f"DIMM_{'ABCDEFGH'[4 * n + c]}{d + 1}", f"NODE {n} CHANNEL {c} DIMM {d}")
    for n in range(2)
    for c in range(4)
    for d in range(2)
]
EPYC = [(f"DIMM {c}", f"P{p} CHANNEL {'ABCDEFGH'[c]}") for p in range(2) for c in range(8)]
DESKTOP = [f"Channel{letter}-DIMM{d}" for letter in "AB" for d in (0, 1)]
ASUS = [(f"DIMM_{letter}{d}", "NODE 1") for letter in "ABCDEFGH" for d in (1, 2)]
