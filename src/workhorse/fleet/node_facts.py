"""What a node tells the fleet of itself: its resources, its labels, its kind. Pure.

Source of what Ray takes as a label: ray/_common/constants, ray/_private/label_utils of 2.60.0
(2026-11): at most 63 letters, digits, dashes, dots and underscores, at both ends no mark.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from workhorse.records import Gpu, Machine
from workhorse.units import GIB

# Labels of a node.
KIND = "workhorse.kind"
NAME = "workhorse.name"
VERSION = "workhorse.version"  # of the program on the node
HTTP_PORT_LABEL = "workhorse.http_port"
CARD = "workhorse.card"
CAPABILITY = "workhorse.capability"
VRAM_GIB = "workhorse.vram_gib"
NUMA_NODES = "workhorse.numa_nodes"

KIND_LONGEST = 40
LABEL_LONGEST = 63
UNKNOWN_KIND = "unknown"

# What makers write into the names of cards and CPUs that tells nothing of the kind.
_EMPTY_WORDS = re.compile(
    r"\((?:r|tm)\)|\b(?:nvidia|tesla|quadro|geforce|graphics|intel|amd|xeon|epyc|ryzen|core|cpu"
    r"|processor|family|with|\d+-core)\b|@.*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the fleet, as the head knows it now."""

    id: str  # Ray's, of this start of the node: it changes when the node starts again
    name: str
    address: str  # IP, without a port
    head: bool
    alive: bool
    draining: bool
    labels: Mapping[str, str]
    resources: Mapping[str, float]  # all of the node, free or not

    @property
    def kind(self) -> str:
        """The kind of machine: equal for equal boxes."""
        return self.labels.get(KIND, UNKNOWN_KIND)


def gpu_resource(index: int) -> str:
    """The name of a card as a resource."""
    return f"gpu_{index}"


def numa_resource(index: int) -> str:
    """The name of a memory node as a resource."""
    return f"numa_{index}"


def resources_of(machine: Machine) -> dict[str, float]:
    """What engines claim of a node: each card, each memory node with CPUs that may be used."""
    allowed = set(machine.limits.cpus)
    nodes = [node.index for node in machine.nodes if allowed.intersection(node.cpus)] or [0]
    names = [gpu_resource(gpu.index) for gpu in machine.gpus]
    return dict.fromkeys([*names, *map(numa_resource, nodes)], 1.0)


def labels_of(machine: Machine, name: str) -> dict[str, str]:
    """What the fleet can tell of a node without asking it; unknown facts are left out."""
    nodes = sum(one.startswith("numa_") for one in resources_of(machine))
    found: dict[str, str | None] = {
        NAME: name,
        KIND: kind_of(machine),
        NUMA_NODES: str(nodes),
    }
    if machine.gpus:
        card = main_card(machine.gpus)
        capability = card.compute_capability
        vram = card.memory_total_bytes
        found[CARD] = card.name
        found[CAPABILITY] = None if capability is None else ".".join(map(str, capability))
        found[VRAM_GIB] = None if vram is None else str(round(vram / GIB))
    labels = {key: label_value(value) for key, value in found.items() if value is not None}
    return {key: value for key, value in labels.items() if value}


def main_card(gpus: tuple[Gpu, ...]) -> Gpu:
    """The card that most of them are; of equals the one with the most memory."""
    times = Counter(gpu.name for gpu in gpus)
    return max(gpus, key=lambda gpu: (times[gpu.name], gpu.memory_total_bytes or 0, -gpu.index))


def label_value(words: str) -> str:
    """Any words as Ray takes them for a label's value; "" when nothing is left of them."""
    marked = re.sub(r"[^A-Za-z0-9._-]+", "-", words)[:LABEL_LONGEST]
    return marked.strip("-._")


def kind_of(machine: Machine) -> str:
    """A short slug of cards, CPU and memory, equal for equal boxes; letters, digits, dashes."""
    whole = "-".join([*_cards(machine.gpus), _cpu(machine), _memory(machine)])
    slug = _slug(whole) or UNKNOWN_KIND
    if len(slug) <= KIND_LONGEST:
        return slug
    # Two that begin alike must not become one.
    digest = hashlib.sha256(slug.encode()).hexdigest()[:6]
    return f"{slug[: KIND_LONGEST - 7].rstrip('-')}-{digest}"


def _cards(gpus: tuple[Gpu, ...]) -> list[str]:
    kinds = Counter((_bare(gpu.name), round((gpu.memory_total_bytes or 0) / GIB)) for gpu in gpus)
    return [
        f"{times}x{name}" + ("" if re.search(r"\d+gb?\b", name) or not gib else f"-{gib}g")
        for (name, gib), times in sorted(kinds.items())
    ]


def _cpu(machine: Machine) -> str:
    cpu = machine.cpu
    sockets = len({core.socket for core in cpu.cores}) or 1
    name = _bare(cpu.name or "")  # a virtual machine may name no more than the maker
    threads = len(machine.limits.cpus)
    return f"{sockets}x{name}-{threads}t" if name else f"{_slug(cpu.architecture)}-{threads}t"


def _memory(machine: Machine) -> str:
    limits = [machine.memory.total_bytes, machine.limits.memory_bytes]
    known = [n_bytes for n_bytes in limits if n_bytes]
    if not known:
        return ""
    gib = min(known) / GIB
    # The firmware and the kernel keep some for themselves, not the same on equal boxes.
    step = max(1, 2 ** (int(gib).bit_length() - 1) // 8) if gib >= 1 else 1
    return f"{-int(-gib // step) * step}g"


def _bare(name: str) -> str:
    return _slug(_EMPTY_WORDS.sub(" ", name))


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
