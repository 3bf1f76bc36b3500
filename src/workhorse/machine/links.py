"""How the GPUs reach each other: NVLink, a switch, the processors. Pure but for asking `files`."""

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Literal

from workhorse.machine.files import HostFiles
from workhorse.machine.nvml import NvmlAnswers
from workhorse.machine.nvml_values import text, whole
from workhorse.machine.pci import pci_address
from workhorse.records import Gpu, GpuLink

Path = Literal["NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS"]
Pair = tuple[int, int]
_GPUS_MAX = 64
_NVLINKS_MAX = 36  # NVML_NVLINK_MAX_LINKS of nvml.h (driver 580)
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
# nvmlGpuTopologyLevel_t; 0 is two GPUs of one board, which nvidia-smi used to call PSB.
_ANCESTORS: dict[int, Path] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_PATHS: dict[str, Path] = {
    "PSB": "PIX",
    "PIX": "PIX",
    "PXB": "PXB",
    "PHB": "PHB",
    "NODE": "NODE",
    "SYS": "SYS",
    "SOC": "SYS",  # drivers before 390
}
# nvmlGpuP2PStatus_t, in nvidia-smi's words; 6 says unknown.
_PEER_WORDS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
_KNOWN_PEER_WORDS = frozenset(_PEER_WORDS.values())
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,10}m")


def read_links(
    files: HostFiles, gpus: tuple[Gpu, ...], answers: NvmlAnswers | None
) -> tuple[GpuLink, ...]:
    """The way between each two GPUs of which the driver, or nvidia-smi's text, tells one."""
    if len(gpus) < 2:
        return ()
    pairs = list(combinations(sorted(gpu.index for gpu in gpus[:_GPUS_MAX]), 2))
    links = () if answers is None else _from_answers(answers, pairs)
    if links:
        return links
    ways = _matrix(files.said("nvidia-smi", "topo", "-m"))
    peers = _matrix(files.said("nvidia-smi", "topo", "-p2p", "r")) if ways else {}
    told = (_from_words(pair, ways.get(pair), peers.get(pair)) for pair in pairs)
    return tuple(link for link in told if link is not None)


def _from_answers(answers: NvmlAnswers, pairs: list[Pair]) -> tuple[GpuLink, ...]:
    ends = _nvlinks(answers)
    found: list[GpuLink] = []
    told = {(whole(link.get("first")), whole(link.get("second"))): link for link in answers.links}
    for pair in pairs:
        link = told.get(pair, {})
        nvlinks = ends.get(pair, 0)
        path = "NVLINK" if nvlinks else _ANCESTORS.get(_level(link))
        word = _PEER_WORDS.get(_status(link))
        if path is not None:
            found.append(GpuLink(*pair, path, nvlinks or None, *_peer(word)))
    return tuple(found)


def _nvlinks(answers: NvmlAnswers) -> dict[Pair, int]:
    """Links that join two GPUs; through a switch, as many as the one with fewer has."""
    addresses = [
        pci_address(text(pci.get("busId"))) if isinstance(pci := facts.get("pci"), dict) else None
        for facts in answers.gpus
    ]
    direct: dict[Pair, int] = {}
    to_switch: dict[int, int] = {}
    for index, facts in enumerate(answers.gpus):
        ends = facts.get("nvlinks")
        for end in ends[:_NVLINKS_MAX] if isinstance(ends, list) else ():
            if not isinstance(end, dict):
                continue
            remote = pci_address(text(end.get("remote")))
            if end.get("type") == _SWITCH:
                to_switch[index] = to_switch.get(index, 0) + 1
            elif remote is not None and remote in addresses:
                other = addresses.index(remote)
                if index < other:  # each link is told from both its ends
                    direct[index, other] = direct.get((index, other), 0) + 1
    for first, second in combinations(sorted(to_switch), 2):
        direct.setdefault((first, second), min(to_switch[first], to_switch[second]))
    return direct


def _level(link: Mapping[str, Any]) -> int:
    level = whole(link.get("ancestor"))
    return -1 if level is None else level


def _status(link: Mapping[str, Any]) -> int:
    status = whole(link.get("p2p_read"))
    return -1 if status is None else status


def _peer(word: str | None) -> tuple[bool | None, str | None]:
    """Whether one may read the other's memory, and the driver's word why not."""
    if word not in _KNOWN_PEER_WORDS:
        return None, None
    return (True, None) if word == "OK" else (False, word)


def _from_words(pair: Pair, way: str | None, peer: str | None) -> GpuLink | None:
    bonded = re.fullmatch(r"NV(\d{1,2})", way or "")
    nvlinks = int(bonded[1]) if bonded else None
    path = "NVLINK" if nvlinks else _PATHS.get(way or "")
    return None if path is None else GpuLink(*pair, path, nvlinks or None, *_peer(peer))


def _matrix(said: str | None) -> dict[Pair, str]:
    """The cells of a table of GPUs by GPUs, by their numbers; other columns are left out."""
    columns: dict[int, int] = {}
    cells: dict[Pair, str] = {}
    for line in (said or "").splitlines()[:400]:
        parts = _COLOURS.sub("", line[:4000]).split()
        numbers = [_gpu_number(part) for part in parts]
        if len(parts) > 1 and not columns and numbers[0] == 0 and _gpu_number(parts[1]) is not None:
            columns = {at: n for at, n in enumerate(numbers) if n is not None}
        elif columns and parts and (row := numbers[0]) is not None:
            for at, column in columns.items():
                if row < column and at + 1 < len(parts):
                    cells[row, column] = parts[at + 1]
    return cells


def _gpu_number(word: str) -> int | None:
    match = re.fullmatch(r"GPU(\d{1,3})", word)
    return int(match[1]) if match else None
