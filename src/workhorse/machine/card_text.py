"""Which memory node each card hangs on, from nvidia-smi's texts, as files of the PCI bus. Pure.

`nvidia-smi topo -m` knows the nodes by the numbers of the GPUs, the other texts know the addresses
by the same numbers.
"""

import re

from workhorse.machine.pci import PCI_ROOT, pci_address

_CARDS_MAX = 64
_NODE_MAX = 1023
_ADDRESS = r"([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
_QUERIED = re.compile(rf"^GPU {_ADDRESS}\s*$", re.MULTILINE)
_IN_TABLE = re.compile(rf"^\|\s+\d{{1,3}}\s+\S.*\|\s+{_ADDRESS}\s", re.MULTILINE)
# The cells of the square are words: the first number is the affinity's, the second the node.
_NODE = re.compile(
    r"^GPU(\d{1,3})\s[^\n]*?\s(?:\d+(?:-\d+)?)(?:,\d+(?:-\d+)?)*\s+(\d{1,4})(?=\s|$)", re.MULTILINE
)


def card_files(query: str | None, table: str | None, topology: str | None) -> dict[str, str]:
    """The bus's files of the cards whose node is told; `query` is `nvidia-smi -q`."""
    found = _QUERIED.findall(query or "") or _IN_TABLE.findall(table or "")
    nodes = {int(index): int(node) for index, node in _NODE.findall(topology or "")}
    files: dict[str, str] = {}
    for index, place in enumerate(found[:_CARDS_MAX]):
        address, node = pci_address(place), nodes.get(index)
        if address is not None and node is not None and node <= _NODE_MAX:
            root = f"{PCI_ROOT}/{address}"
            files[f"{root}/vendor"] = "0x10de\n"
            files[f"{root}/class"] = "0x030200\n"
            files[f"{root}/uevent"] = "DRIVER=nvidia\n"
            files[f"{root}/numa_node"] = f"{node}\n"
    return files
