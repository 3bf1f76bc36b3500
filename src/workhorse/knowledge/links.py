"""How fast cards hand data to each other, by the way between them."""

from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.gpus import Capability
from workhorse.knowledge.rows import rows

NVLINK = "NVLINK"


@dataclass(frozen=True, slots=True)
class NvLink:
    """One link in one direction between cards of this capability and later ones."""

    capability: Capability
    bytes_per_s: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class PciePath:
    """A way over PCIe: the share of the lanes' rated speed that copies reach on it."""

    name: str
    direct_share: float
    staged_share: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one exchange of a token's activations costs beside its bytes."""

    way: str
    seconds: float
    source: str
    date: str


@cache
def nvlinks() -> tuple[NvLink, ...]:
    """Every generation of NVLink, the oldest first."""
    return rows("links", "nvlink", NvLink)


@cache
def pcie_paths() -> dict[str, PciePath]:
    """Every way over PCIe by nvidia-smi's word, the best first."""
    return {path.name: path for path in rows("links", "path", PciePath)}


@cache
def exchanges() -> dict[str, Exchange]:
    """What an exchange costs, by `nvlink` and `pcie`."""
    return {row.way: row for row in rows("links", "exchange", Exchange)}


def nvlink_bytes_per_s(capability: Capability, links: int) -> float:
    """What a copy over so many links reaches between cards of this capability."""
    known = [row for row in nvlinks() if capability >= row.capability]
    return links * (known[-1] if known else nvlinks()[0]).bytes_per_s


def link_rank(path: str, links: int | None) -> float:
    """A number that is larger the better two cards are joined."""
    names = [*pcie_paths()]
    if path == NVLINK:
        return float(len(names) + (links or 1))
    return float(len(names) - names.index(path)) if path in names else 0.0
