"""The kinds of cards in a machine: eight equal cards are judged once."""

from dataclasses import dataclass, replace

from workhorse.knowledge.compat import Facts
from workhorse.knowledge.gpus import (
    Capability,
    Card,
    Generation,
    capability_of,
    card_of,
    cards_with_id,
    generation_of,
)
from workhorse.records import Gpu, GpuTrouble, Machine
from workhorse.text import Text, same

# The card is not where its GPUs count: in use elsewhere, or broken. Its software is not judged.
# One that answers with errors is listed as well, and judged there.
_AWAY = frozenset({"container", "lost", "errors", "inforom", "unlicensed"})


@dataclass(frozen=True, slots=True)
class CardKind:
    """Equal cards: how they are called, how many GPUs, and what the tables know of them.

    `shown` is False for cards on the bus that the driver does not show: only their PCI id is known.
    """

    name: str
    gpus: int
    capability: Capability | None
    card: Card | None
    shown: bool
    pci_id: str | None
    pci_subsystem: str | None = None
    memory_bytes: int | None = None

    @property
    def generation(self) -> Generation | None:
        """What cards of its compute capability share; None when unknown."""
        return None if self.capability is None else generation_of(self.capability)

    def facts(self, others: Facts) -> dict[str, str | frozenset[str]]:
        """`others` together with the compute capability, as the rules ask for it."""
        if self.capability is None:
            return dict(others)
        return {**others, "capability": f"{self.capability[0]}.{self.capability[1]}"}

    @property
    def label(self) -> Text:
        """Its name and, when there are several, how many."""
        if self.gpus == 1:
            return same(self.name)
        return Text(f"{self.gpus} x {self.name}", f"{self.gpus} 个 {self.name}")


def card_kinds(machine: Machine) -> tuple[CardKind, ...]:
    """Every kind of card, those that the driver shows first."""
    found = [_shown(gpu) for gpu in machine.gpus]
    found += [
        kind
        for trouble in machine.gpu_troubles
        if trouble.code not in _AWAY and (kind := _hidden(trouble)) is not None
    ]
    counted: dict[CardKind, int] = {}
    for kind in found:
        counted[kind] = counted.get(kind, 0) + 1
    return tuple(replace(kind, gpus=gpus) for kind, gpus in counted.items())


def _shown(gpu: Gpu) -> CardKind:
    card = card_of(gpu)
    return CardKind(
        name=gpu.name,
        gpus=1,
        capability=card.capability if card else capability_of(gpu),
        card=card,
        shown=True,
        pci_id=gpu.pci_id,
        pci_subsystem=gpu.pci_subsystem,
        memory_bytes=gpu.memory_total_bytes if card is None else None,
    )


def _hidden(trouble: GpuTrouble) -> CardKind | None:
    """What the PCI id alone tells; variants of one id share their compute capability."""
    if trouble.pci_id is None:
        return None
    variants = cards_with_id(trouble.pci_id)
    capabilities = {card.capability for card in variants}
    return CardKind(
        name=" / ".join(dict.fromkeys(card.name for card in variants)) or trouble.pci_id,
        gpus=1,
        capability=capabilities.pop() if len(capabilities) == 1 else None,
        card=variants[0] if len(variants) == 1 else None,
        shown=False,
        pci_id=trouble.pci_id,
    )
