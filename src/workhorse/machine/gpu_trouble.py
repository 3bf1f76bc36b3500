"""Why GPUs cannot be used: what the driver, the bus and the kernel say, put side by side."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import words
from workhorse.machine.nvml import NvmlAnswers, NvmlError
from workhorse.machine.nvml_values import part, text, whole
from workhorse.machine.pci import PCI_ROOT, Card, pci_address
from workhorse.records import GpuTrouble, KernelEvent

Code = Literal[
    "no_driver",
    "driver_not_told",
    "other_driver",
    "no_library",
    "library_mismatch",
    "not_loaded",
    "no_device_nodes",
    "no_permission",
    "container",
    "lost",
    "not_shown",
    "none_found",
    "errors",
    "inforom",
    "unlicensed",
    "no_power",
    "silent",
    "unknown",
]
_NVIDIA = "nvidia"
# nvmlReturn_t in nvml.h (driver 580).
_NO_PERMISSION, _NO_POWER, _NOT_LOADED, _TIMEOUT, _NO_LIBRARY = 4, 8, 9, 10, 12
_LOST, _MISMATCH, _UNKNOWN = 15, 18, 999
_XID_FALLEN = 79  # "GPU has fallen off the bus" (NVIDIA's Xid catalogue, 2026-11)
_CODES: dict[int | None, Code] = {
    _NO_PERMISSION: "no_permission",
    _NO_POWER: "no_power",
    _LOST: "lost",
    _MISMATCH: "library_mismatch",
    _TIMEOUT: "silent",
    None: "silent",
}


# What nvidia-smi's texts tell of cards that answer: the trouble, and where its words are.
_SAID_OF_WORKING: tuple[tuple[Code, str], ...] = (
    ("errors", "unreadable"), ("inforom", "inforom"), ("unlicensed", "unlicensed"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelModule:
    """The NVIDIA kernel module that runs."""

    version: str | None
    open_module: bool | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides between causes that the driver names alike; None: not known.

    `bus`: the PCI bus could be read, so that a card which is not among the cards is not there.
    """

    module: KernelModule | None
    device_nodes: bool | None
    container: bool
    bus: bool = False


def read_surroundings(files: HostFiles, *, container: bool) -> Surroundings:
    """The kernel module and the device nodes, beside whether this is the inside of a container."""
    names = files.names("dev")
    nodes = any(re.fullmatch(r"nvidia(ctl|\d{1,3})", name) for name in names)
    # A capture without its device folder says nothing of them.
    return Surroundings(
        _read_module(files), nodes if names else None, container, bool(files.names(PCI_ROOT))
    )


def find_troubles(
    answers: NvmlAnswers | None, cards: Sequence[Card], around: Surroundings
) -> tuple[GpuTrouble, ...]:
    """Each reason why the GPUs, or one of them, cannot be used. Pure."""
    if answers is None:
        return _without_library(cards, around)
    if answers.error is not None:
        return _without_answers(answers.error, cards, around)
    if not answers.gpus and answers.cut:
        return ()
    if not answers.gpus and not cards:
        return (GpuTrouble("none_found", None),)
    failed = [facts for facts in answers.gpus if "error" in facts]
    working = [_address_of(facts) for facts in answers.gpus if "error" not in facts]
    missing = [card for card in cards if card.address not in working]
    places = [_address_of(facts) for facts in failed]
    # The driver numbers the cards in the order of their addresses: where the counts agree, those
    # that fail are those that are missing.
    if None in places and None not in working and len(failed) == len(missing):
        places = [card.address for card in missing]
    ids = {card.address: card.pci_id for card in cards}
    troubles = (
        *(
            _gpu_trouble(facts["error"], place, ids.get(place or ""))
            for facts, place in zip(failed, places, strict=True)
        ),
        *(
            _partly_answering(facts, code, said, ids)
            for code, said in _SAID_OF_WORKING
            for facts in answers.gpus
            if "error" not in facts and facts.get(said)
        ),
    )
    if None in working or None in places:
        return troubles  # nobody can say which card is missing
    hidden = [card for card in missing if card.address not in places]
    return (*troubles, *(_of_card(card, "not_shown") for card in hidden))


def with_lost_cards(
    troubles: Sequence[GpuTrouble], events: Sequence[KernelEvent] | None
) -> tuple[GpuTrouble, ...]:
    """The troubles; a card with an unknown one that the kernel saw fall off the bus is lost. Pure.

    The driver says `Unknown Error` of such a card as often as `GPU is lost`.
    """
    fallen = {
        event.pci_address
        for event in events or ()
        if event.number == _XID_FALLEN or "fallen off the bus" in event.text
    }
    return tuple(
        replace(trouble, code="lost")
        if trouble.code == "unknown" and trouble.pci_address in fallen - {None}
        else trouble
        for trouble in troubles
    )


def _without_library(cards: Sequence[Card], around: Surroundings) -> tuple[GpuTrouble, ...]:
    code: Code = "container" if around.container else "no_library"
    if not cards and around.module is not None:
        return (GpuTrouble(code, around.module.version),)
    return tuple(_of_card(card, code) for card in cards)


def _without_answers(
    error: NvmlError, cards: Sequence[Card], around: Surroundings
) -> tuple[GpuTrouble, ...]:
    said = words(error.words)
    if error.code == _NO_LIBRARY:
        if around.bus and not cards and around.module is None:
            return ()  # a machine without GPU
        alone = GpuTrouble("container" if around.container else "no_library", said)
        return _without_library(cards, around) or (alone,)
    if error.code not in (_NOT_LOADED, _UNKNOWN):
        return (GpuTrouble(_CODES.get(error.code, "unknown"), said),)
    runs = around.module is not None
    if around.container and (runs or not cards or error.code == _UNKNOWN):
        # Unknown: a container loses its devices when the service manager of its host reloads.
        return (GpuTrouble("container", said),)
    if around.bus and not cards and not runs:
        return (GpuTrouble("none_found", said),)  # the libraries alone, on a machine without GPU
    if runs and around.device_nodes is False:
        return (GpuTrouble("no_device_nodes", said),)
    if runs or error.code == _UNKNOWN:
        return (GpuTrouble("unknown", said),)
    if cards and all(card.kernel_driver not in (None, _NVIDIA) for card in cards):
        return tuple(_of_card(card, "not_loaded") for card in cards)
    return (GpuTrouble("not_loaded", said),)


def _gpu_trouble(error: Any, address: str | None, pci_id: str | None) -> GpuTrouble:
    code = whole(error.get("code")) if isinstance(error, dict) else None
    said = text(error.get("words")) if isinstance(error, dict) else None
    kind: Code = "unknown" if code is None else _CODES.get(code, "unknown")
    return GpuTrouble(kind, said, address, pci_id)


def _partly_answering(
    facts: dict[str, Any], code: Code, said: str, ids: dict[str, str]
) -> GpuTrouble:
    address = _address_of(facts)
    return GpuTrouble(code, text(facts[said]), address, ids.get(address or ""))


def _of_card(card: Card, code: Code) -> GpuTrouble:
    """The trouble with a card that the driver does not list: held by another one, or by none."""
    if card.gone:
        return GpuTrouble("lost", "rev ff", card.address, card.pci_id)
    if not card.driver_told:
        code = "not_shown" if code == "not_shown" else "driver_not_told"
        return GpuTrouble(code, None, card.address, card.pci_id)
    if card.kernel_driver is None:
        return GpuTrouble("no_driver", None, card.address, card.pci_id)
    if card.kernel_driver != _NVIDIA:
        return GpuTrouble("other_driver", card.kernel_driver, card.address, card.pci_id)
    return GpuTrouble(code, None, card.address, card.pci_id)


def _address_of(facts: dict[str, Any]) -> str | None:
    return pci_address(text(part(facts, "pci", "busId")))


def _read_module(files: HostFiles) -> KernelModule | None:
    """The running module's version, and whether it is the open one."""
    told = (files.text("proc/driver/nvidia/version") or "")[:1000]
    line = re.search(r"^NVRM version:(.*)$", told, re.MULTILINE)
    number = re.search(r"\b(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\b", line[1]) if line else None
    version = number[1] if number else words(files.text("sys/module/nvidia/version"))
    if line is None and version is None:
        return None
    return KernelModule(version, None if line is None else "Open Kernel Module" in line[1])
