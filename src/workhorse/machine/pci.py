"""NVIDIA cards as the PCI bus shows them, driver or not, and the ports above them."""

import re
from dataclasses import dataclass, replace

from workhorse.knowledge.gpus import cards_called
from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, number, words
from workhorse.machine.lspci_text import Device, parse_lspci

PCI_ROOT = "sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # 0x0300 VGA, 0x0302 3D controller (PCI code and ID assignment)
_CARDS_MAX = 64
_DEVICES_MAX = 4096
_PORTS_MAX = 32  # between a card and the root; PCIe allows more, no board has them
WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
# Transfers of 10^9 a second and lane, by generation (PCI Express base specifications 1.0 … 6.0).
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}


@dataclass(frozen=True, slots=True)
class Card:
    """One NVIDIA card: address such as `0000:18:00.0`, id such as `10de:1db6`.

    `driver_told` is False where a text lists the card and says nothing of drivers; `gone`: it
    does not answer on the bus any more.

    Link generations and widths: now, at most by the card itself, at most by the port above.
    """

    address: str
    pci_id: str
    kernel_driver: str | None
    numa_node: int | None
    subsystem: str | None = None
    generation_now: int | None = None
    width_now: int | None = None
    generation_card: int | None = None
    width_card: int | None = None
    generation_port: int | None = None
    width_port: int | None = None
    driver_told: bool = True
    gone: bool = False


def read_cards(files: HostFiles) -> tuple[Card, ...]:
    """The NVIDIA display and compute cards on the bus, in order of address."""
    cards: list[Card] = []
    addresses = files.names(PCI_ROOT)[:_DEVICES_MAX]
    for address in addresses:
        root = f"{PCI_ROOT}/{address}"
        if (files.text(f"{root}/vendor") or "").strip() != _NVIDIA:
            continue
        if (files.text(f"{root}/class") or "").strip().startswith(_DISPLAY_CLASS):
            cards.append(_card(files, address))
        if len(cards) == _CARDS_MAX:
            break
    if cards:
        cards = _with_ports(files, cards, addresses)
    if (cards and all(card.width_card is None for card in cards)) or not addresses:
        return _from_lspci(cards, parse_lspci(files.said("lspci", "-vv")))
    return tuple(cards)


def read_acs_redirect(files: HostFiles, cards: tuple[Card, ...]) -> bool | None:
    """Whether a port above a card sends what one card writes to another through the root.

    lspci tells it to root alone; None when it is not known, or there are no two cards.
    """
    if len(cards) < 2:
        return None
    devices = parse_lspci(files.said("lspci", "-vv"))
    above = {port.secondary_bus: port for port in devices if port.secondary_bus is not None}
    answers: set[bool | None] = set()
    for card in cards:
        port = above.get(_bus(card.address))
        for _ in range(_PORTS_MAX):
            if port is None:
                break
            answers.add(port.redirects_peers)
            port = above.get(_bus(port.address))
    if True in answers:
        return True
    return False if False in answers else None


def pci_address(text: str | None) -> str | None:
    """A PCI address as sysfs writes it, from `00000000:18:00.0` or `0000:18:00.0`."""
    match = re.fullmatch(
        r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", (text or "").lower()
    )
    return match[1] if match else None


def generation(speed: str | None) -> int | None:
    """The PCIe generation of a link speed such as `8.0 GT/s PCIe`, `8 GT/s` or `8GT/s`."""
    match = re.match(r"(\d{1,2}(?:\.\d)?) ?GT/s", (speed or "").strip()[:40])
    return _GENERATIONS.get(match[1].removesuffix(".0")) if match else None


def _card(files: HostFiles, address: str) -> Card:
    root = f"{PCI_ROOT}/{address}"
    device = _hex_id(files.text(f"{root}/device"))
    vendor_below = _hex_id(files.text(f"{root}/subsystem_vendor"))
    device_below = _hex_id(files.text(f"{root}/subsystem_device"))
    return Card(
        address=pci_address(address) or "?",
        pci_id=f"10de:{device or '?'}",
        kernel_driver=words(fields(files.text(f"{root}/uevent"), "=").get("DRIVER")),
        # The kernel writes -1 where the firmware does not say: not a number here.
        numa_node=number(files.text(f"{root}/numa_node"), high=1023),
        subsystem=f"{vendor_below}:{device_below}" if vendor_below and device_below else None,
        generation_now=generation(files.text(f"{root}/current_link_speed")),
        width_now=_width(files.text(f"{root}/current_link_width")),
        generation_card=generation(files.text(f"{root}/max_link_speed")),
        width_card=_width(files.text(f"{root}/max_link_width")),
    )


def _with_ports(files: HostFiles, cards: list[Card], addresses: tuple[str, ...]) -> list[Card]:
    """The cards with what the port above each could do: the bridge that leads to its bus."""
    above: dict[str, str] = {}
    for address in addresses:
        bus = number(files.text(f"{PCI_ROOT}/{address}/secondary_bus_number"), high=255)
        place = pci_address(address)
        if bus is not None and place is not None:
            above[f"{place[:4]}:{bus:02x}"] = address
    found: list[Card] = []
    for card in cards:
        port = above.get(_bus(card.address))
        if port is not None:
            card = replace(
                card,
                generation_port=generation(files.text(f"{PCI_ROOT}/{port}/max_link_speed")),
                width_port=_width(files.text(f"{PCI_ROOT}/{port}/max_link_width")),
            )
        found.append(card)
    return found


def _from_lspci(cards: list[Card], devices: tuple[Device, ...]) -> tuple[Card, ...]:
    """Links from lspci's words where sysfs has none; the cards too where it has none of them."""
    above = {port.secondary_bus: port for port in devices if port.secondary_bus is not None}
    by_address = {card.address: card for card in cards}
    for device in devices if not cards else ():
        if device.nvidia_card and len(by_address) < _CARDS_MAX:
            by_address[device.address] = Card(
                device.address,
                f"10de:{device.id or _id_of_name(device.name) or '?'}",
                device.kernel_driver,
                device.numa_node,
                driver_told=device.driver_told,
                gone=device.gone,
            )
    links = {device.address: device for device in devices}
    found: list[Card] = []
    for address, card in sorted(by_address.items()):
        link, port = links.get(address), above.get(_bus(address))
        if link is not None:
            card = replace(
                card,
                generation_now=card.generation_now or generation(link.speed_now),
                width_now=card.width_now or _width(link.width_now),
                generation_card=generation(link.speed_max),
                width_card=_width(link.width_max),
            )
        if port is not None:
            card = replace(
                card,
                generation_port=generation(port.speed_max),
                width_port=_width(port.width_max),
            )
        found.append(card)
    return tuple(found)


def _id_of_name(name: str | None) -> str | None:
    """The device part of the PCI id of a card that lspci names without it, where one fits."""
    found = {card.pci_ids[:1] for card in cards_called(name)} if name else set()
    return found.pop()[0].removeprefix("10de:") if len(found) == 1 and () not in found else None


def _bus(address: str) -> str:
    """`0000:18` of `0000:18:00.0`."""
    return address[:7]


def _hex_id(text: str | None) -> str | None:
    match = re.fullmatch(r"0x([0-9a-f]{4})", (text or "").strip()[:10])
    return match[1] if match else None


def _width(text: str | None) -> int | None:
    lanes = number(text, high=32)
    return lanes if lanes in WIDTHS else None
