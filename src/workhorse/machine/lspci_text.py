"""Read what `lspci -vv` prints: one block a device. Pure."""

import re
from dataclasses import dataclass

from workhorse.machine.kernel_text import number, words

_DEVICES_MAX = 4096
_HEADER = re.compile(r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.{1,400})")
_CARD = re.compile(r"(?:3D controller|VGA compatible controller|Display controller)\b.*NVIDIA")


@dataclass(frozen=True, slots=True)
class Device:
    """One device: link speeds such as `8GT/s`, widths such as `16`, as lspci writes them."""

    address: str
    nvidia_card: bool
    id: str | None
    kernel_driver: str | None
    numa_node: int | None
    speed_now: str | None
    width_now: str | None
    speed_max: str | None
    width_max: str | None
    secondary_bus: str | None  # of a bridge: domain and bus below it, such as `0000:18`
    redirects_peers: bool | None  # access control: requests go up to the root
    name: str | None  # as the list of PCI ids has it: `Tesla V100 PCIe 32GB`
    driver_told: bool  # False: one line, as of `lspci` without options
    gone: bool  # it reads as all ones: it fell off the bus, or its power is off


def parse_lspci(text: str | None) -> tuple[Device, ...]:
    """The devices in the text; none when there is no text."""
    blocks: list[tuple[str, str, list[str]]] = []
    for line in (text or "").splitlines():
        header = _HEADER.match(line)
        if header is not None:
            if len(blocks) == _DEVICES_MAX:
                break
            blocks.append((_whole_address(header[1]), header[2], []))
        elif blocks and line[:1] in (" ", "\t"):
            blocks[-1][2].append(line.strip()[:300])
    return tuple(_device(*block) for block in blocks)


def _device(address: str, title: str, lines: list[str]) -> Device:
    body = "\n".join(lines)
    most = re.search(r"^LnkCap:.*?Speed ([\d.]+GT/s).*?Width x(\d+)", body, re.MULTILINE)
    now = re.search(r"^LnkSta:.*?Speed ([\d.]+GT/s).*?Width x(\d+)", body, re.MULTILINE)
    bus = re.search(r"^Bus: primary=[0-9a-f]+, secondary=([0-9a-f]{2}),", body, re.MULTILINE)
    control = re.search(r"^ACSCtl:.*?ReqRedir([+-])", body, re.MULTILINE)
    driver = re.search(r"^Kernel driver in use: (\S{1,60})", body, re.MULTILINE)
    node = re.search(r"^NUMA node: (\d+)", body, re.MULTILINE)
    # A device that its list of ids lacks is named by its id.
    ids = re.search(r"\[10de:([0-9a-f]{4})\]|NVIDIA Corporation Device ([0-9a-f]{4})\b", title)
    name = re.search(r"NVIDIA Corporation \w+ \[([^\]]{3,60})\]", title)
    return Device(
        address=address,
        nvidia_card=_CARD.search(title) is not None,
        id=ids[1] or ids[2] if ids else None,
        kernel_driver=words(driver[1]) if driver else None,
        numa_node=number(node[1], high=1023) if node else None,
        speed_now=now[1] if now else None,
        width_now=now[2] if now else None,
        speed_max=most[1] if most else None,
        width_max=most[2] if most else None,
        secondary_bus=f"{address[:4]}:{bus[1]}" if bus else None,
        redirects_peers=control[1] == "+" if control else None,
        name=name[1] if name else None,
        driver_told=bool(lines),
        gone="(rev ff)" in title,
    )


def _whole_address(address: str) -> str:
    """With the domain, which lspci leaves out where there is only one."""
    return address[-12:] if address.count(":") == 2 else f"0000:{address}"
