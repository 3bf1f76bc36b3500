"""NVIDIA cards as the PCI bus shows them, driver or not."""

import re
from dataclasses import dataclass

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import fields, number, words

PCI_ROOT = "sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # 0x0300 VGA, 0x0302 3D controller (PCI code and ID assignment)
_CARDS_MAX = 64


@dataclass(frozen=True, slots=True)
class Card:
    """One NVIDIA card: address such as `0000:18:00.0`, id such as `10de:1db6`."""

    address: str
    pci_id: str
    kernel_driver: str | None
    numa_node: int | None


def read_cards(files: HostFiles) -> tuple[Card, ...]:
    """The NVIDIA display and compute cards on the bus, in order of address."""
    cards: list[Card] = []
    for address in files.names(PCI_ROOT):
        root = f"{PCI_ROOT}/{address}"
        if (files.text(f"{root}/vendor") or "").strip() != _NVIDIA:
            continue
        if not (files.text(f"{root}/class") or "").strip().startswith(_DISPLAY_CLASS):
            continue
        device = re.fullmatch(r"0x([0-9a-f]{4})", (files.text(f"{root}/device") or "").strip())
        cards.append(
            Card(
                address=pci_address(address) or "?",
                pci_id=f"10de:{device[1] if device else '?'}",
                kernel_driver=words(fields(files.text(f"{root}/uevent"), "=").get("DRIVER")),
                # The kernel writes -1 where the firmware does not say: not a number here.
                numa_node=number(files.text(f"{root}/numa_node"), high=1023),
            )
        )
        if len(cards) == _CARDS_MAX:
            break
    return tuple(cards)


def pci_address(text: str | None) -> str | None:
    """A PCI address as sysfs writes it, from `00000000:18:00.0` or `0000:18:00.0`."""
    match = re.fullmatch(
        r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", (text or "").lower()
    )
    return match[1] if match else None
