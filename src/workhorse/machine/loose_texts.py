"""Which file of a machine each text stands for that somebody pasted together. Pure.

A text is known by what it holds, never by its file's name: one file may hold the output of many
commands, with or without the prompts between them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workhorse.machine.card_text import card_files
from workhorse.machine.cpu import CPU_ROOT
from workhorse.machine.cpu_text import inferred, kernel_files, lscpu_facts
from workhorse.machine.files import said_path
from workhorse.machine.numa import NODE_ROOT
from workhorse.machine.nvml import NVML_CAPTURE
from workhorse.machine.pci import PCI_ROOT
from workhorse.machine.smi_csv_text import parse_csv
from workhorse.machine.smi_xml_text import query_text

SMI, SMI_Q, SMI_XML = (said_path("nvidia-smi", *rest) for rest in ((), ("-q",), ("-q", "-x")))
TOPO = said_path("nvidia-smi", "topo", "-m")
PEERS = said_path("nvidia-smi", "topo", "-p2p", "r")
SMI_CSV = said_path("nvidia-smi", "--query-gpu")
CARDS = said_path("nvidia-smi", "-L")
NVLINKS = said_path("nvidia-smi", "nvlink", "-s")
LSPCI, DMESG = said_path("lspci", "-vv"), said_path("dmesg")
LSCPU, NUMACTL, FREE = said_path("lscpu"), said_path("numactl", "-H"), said_path("free")
LSCPU_TABLE, DMIDECODE = said_path("lscpu", "-e"), said_path("dmidecode", "-t", "memory")
NVCC, UNAME, LDD = said_path("nvcc", "--version"), said_path("uname", "-a"), said_path("ldd")
ULIMIT, LOCKED = said_path("ulimit", "-a"), said_path("ulimit", "-l")
SYSCTL = said_path("sysctl")
_COMMANDS = (
    r"nvidia-smi|lscpu|lspci|numactl|free|cat|dmesg|dmidecode|uname|head|tail|grep|ls|lsblk|df|nproc"
    r"|ulimit|nvcc|ldd|ps|top|uptime|journalctl|modinfo|lsmod|which|echo|numastat|sysctl|cpupower"
)
# A path of the kernel's. PCI addresses have colons in them; `grep . FILES` ends a name with one.
_PATH = (
    r"(?:sys|proc|etc)(?:/(?:(?:pci)?[0-9a-f]{4}:[0-9a-f]{2}(?::[0-9a-f]{2}\.[0-7])?|[^/\s:]+))+"
)
_HEADING = re.compile(rf"^(?:==+>?|#+|--+) ?/({_PATH}):?(?: ?<?==+|)$", re.MULTILINE)
_PROMPT = re.compile(
    r"^(?:\(\w+\) ?)?(?:\[?[\w.-]+@[^\n$#]{1,80})?[$#][ \t]*(?:sudo[ \t]+)?"
    rf"((?:{_COMMANDS})\b.*)$",
    re.MULTILINE,
)
_GREPPED = re.compile(rf"^/({_PATH}):(.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*\n?", re.MULTILINE)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PCI_FOLDER = re.compile(r".*/[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# The line that each text begins with, or that only it has.
_OPENERS: dict[str, str] = {
    SMI_Q: r"=+ ?NVSMI LOG ?=+",
    SMI_XML: r"<\?xml [^\n]*\n<!DOCTYPE nvidia_smi_log|<nvidia_smi_log>",
    SMI: r"\+-{20,}\+\n\| NVIDIA-SMI |\| NVIDIA-SMI |NVIDIA-SMI has failed|NVIDIA-SMI couldn't"
    r"|Failed to initialize NVML|Unable to determine the device handle|No devices were found",
    TOPO: r"[ \t]*GPU0[ \t].*CPU Affinity",
    PEERS: r"[ \t]*GPU0(?:[ \t]+GPU\d+)*[ \t]*$",
    SMI_CSV: r"(?:timestamp|index|count|(?:gpu_)?(?:name|uuid|bus_id|serial)|driver_version"
    r"|pci\.bus_id)"
    r"(?: \[\w+\])?, ?(?:gpu_)?[a-z_]+[a-z_.]*(?: \[[^\]]*\])?(?:,|$)",
    CARDS: r"GPU \d+: .*\(UUID: ",
    LSCPU: r"Architecture:[ \t]+\S|架构[:：]",
    LSCPU_TABLE: r"CPU +(?:NODE +)?SOCKET +CORE|# The following is the parsable format",
    NUMACTL: r"available: \d+ nodes? \(",
    FREE: r"[ \t]+(?:total[ \t]+used[ \t]+free|总计[ \t]+已用)",
    "proc/meminfo": r"MemTotal:[ \t]+\d+ kB",
    "proc/cpuinfo": r"processor[ \t]*: ?\d+$",
    "proc/driver/nvidia/version": r"NVRM version: ",
    "proc/self/limits": r"Limit +Soft Limit +Hard Limit",
    "proc/cmdline": r"BOOT_IMAGE=",
    "sys/kernel/mm/transparent_hugepage/enabled": r"\[?always\]? \[?madvise\]? \[?never\]?$",
    "etc/os-release": r"(?:PRETTY_NAME|NAME|VERSION|ID)=\"?\w",
    LSPCI: r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z0-9][^:\n]{2,60}: ",
    DMIDECODE: r"# dmidecode \d|Handle 0x[0-9A-Fa-f]{4}, DMI type",
    DMESG: r"(?:<\d+>)?\[ *\d+\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4}\] "
    r"|NVRM: |[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ kernel: |kernel: ",
    NVCC: r"nvcc: NVIDIA",
    UNAME: r"Linux \S+ \d+\.\d+\.\d+\S* #",
    LDD: r"ldd \(.*\) \d+\.\d+$",
    SYSCTL: r"(?:vm|kernel)\.[a-z_]+ = \d",
    ULIMIT: r"(?:core file size|real-time non-blocking time) +\(",
}  # fmt: skip
_KINDS = tuple(_OPENERS)
_OPENER = re.compile(
    "|".join(f"(?P<k{i}>^(?:{_OPENERS[k]}))" for i, k in enumerate(_KINDS)), re.MULTILINE
)
# Pieces of these add up: one log from many pastes, one bus from many cards.
# Nobody reads these: they tell nothing that the others would not.
_UNREAD = frozenset({NVLINKS})
_JOINED = frozenset({LSPCI, DMESG, SYSCTL})
_LISTED = re.compile(r"^GPU (\d{1,3}): (.{1,60}?) \(UUID: ", re.MULTILINE)
_CUT_NAME = re.compile(
    r"^(\|\s{1,6}(\d{1,3})  ?)(\S[^|\n]{0,40}\.\.\.)(\s+(?:On|Off|N/A|ERR!))", re.MULTILINE
)
_SYSCTL = r"^((?:vm|kernel)\.[a-z_]{1,60}) = (\d{1,20})\s*$"
_NOTED_MAX = 40
_CARDS_MAX = 64


@dataclass(frozen=True, slots=True)
class LooseTexts:
    """The files that the texts stand for, by path, and the names of texts that nobody knows."""

    files: dict[str, str]
    unknown: tuple[str, ...]
    architecture: str | None = None
    glibc: str | None = None
    cores_inferred: bool = False
    learned_from: dict[str, str] = field(default_factory=dict)  # the commands, by group of facts


def recognise(texts: Mapping[str, str]) -> LooseTexts:
    """The machine's files in `texts` (name: text), the kernel's among them where commands tell.

    Of two texts of one kind the longer counts; pieces of a log or of a bus are put together.
    """
    found: dict[str, str] = {}
    unknown: list[str] = []
    for name, text in texts.items():
        parts = split_text(text)
        if text.strip() and not {path for path, _ in parts} - _UNREAD:
            unknown.append(name)
        for path, part in parts:
            before = found.get(path, "")
            if path not in _JOINED:
                found[path] = max(before, part, key=len)
            elif part not in before:
                found[path] = before + part
    return _with_kernel_files(found, tuple(unknown[:_NOTED_MAX]))


def split_text(text: str) -> list[tuple[str, str]]:
    """Path and text of each part of one pasted text, in order; none when nothing is known."""
    text = _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff"))
    text = _from_json(_FENCE.sub("\n", text))
    starts: dict[int, tuple[str | None, int]] = {}  # where a part begins: its path, where its text
    for match in _OPENER.finditer(text):
        starts[match.start()] = (_KINDS[int((match.lastgroup or "k0")[1:])], match.start())
    for match in _PROMPT.finditer(text):
        shown = re.fullmatch(rf"(?:cat|head|tail)\b[^/]*/({_PATH})\s*", match[1])
        path = LOCKED if re.fullmatch(r"ulimit -l\s*", match[1]) else None
        starts[match.start()] = (shown[1] if shown else path, match.end() + 1)
    for match in _HEADING.finditer(text):
        starts[match.start()] = (match[1], match.end() + 1)
    parts = _cut(text, starts)
    grepped = [(match[1], match[2] + "\n") for match in _GREPPED.finditer(text)]
    return [*_lines_of_one_file(grepped), *_told_apart(parts)]


def _cut(text: str, starts: dict[int, tuple[str | None, int]]) -> list[tuple[str | None, str]]:
    """The parts between the starts; lines that begin the same kind again do not cut."""
    parts: list[tuple[str | None, str]] = []
    order = sorted(starts)
    kept: list[int] = []
    for start in order:
        path, begin = starts[start]
        same = bool(kept) and starts[kept[-1]][0] == path and path is not None and begin == start
        if not same:
            kept.append(start)
    for position, start in enumerate(kept):
        path, begin = starts[start]
        end = kept[position + 1] if position + 1 < len(kept) else len(text)
        if text[begin:end].strip():
            parts.append((path, text[begin:end]))
    return parts


def _told_apart(parts: list[tuple[str | None, str]]) -> list[tuple[str, str]]:
    """The parts that are known, each under the path that it really stands for."""
    known: list[tuple[str, str]] = []
    for path, part in parts:
        if path is None or (path == SMI_CSV and parse_csv(part) is None):
            continue
        if path == CARDS and re.search(r"^\s+Link \d+:", part, re.MULTILINE):
            known.append((NVLINKS, part))
        elif _PCI_FOLDER.fullmatch(path):
            # `name: value` lines of a device's folder; `|` stands for the end of a line.
            for name, value in re.findall(r"^(\w+): ?(.*)$", part, re.MULTILINE):
                known.append((f"{path}/{name}", value.rstrip("|").replace("|", "\n") + "\n"))
        else:
            known.append((path, part))
    return known


def _lines_of_one_file(grepped: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """`grep . FILES` writes the file's name before each line of it."""
    files: dict[str, str] = {}
    for path, line in grepped:
        files[path] = files.get(path, "") + line
    return list(files.items())


def _from_json(text: str) -> str:
    """`lscpu --json` as the lines that `lscpu` prints; any other text as it is."""
    if not re.match(r"\s*\{\s*\"lscpu\"", text):
        return text
    try:
        rows = json.loads(text)["lscpu"]
        lines: list[str] = []
        while rows:
            row = rows.pop(0)
            lines.append(f"{row['field']} {row['data']}\n")
            rows = [*row.get("children", []), *rows][:4096]
        return "".join(lines)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text


def _with_kernel_files(found: dict[str, str], unknown: tuple[str, ...]) -> LooseTexts:
    """The files that commands tell of, wherever the kernel's own are not among the texts."""
    lscpu, table, cpuinfo = (found.get(p) for p in (LSCPU, LSCPU_TABLE, "proc/cpuinfo"))
    made = kernel_files(lscpu, table, found.get(NUMACTL), found.get(FREE), cpuinfo)
    cpus = len((made.get("sys/devices/system/cpu/online") or "").split(","))
    told = len(re.findall(r"^core id\s*:", cpuinfo or "", re.MULTILINE)) >= cpus
    if told:  # /proc/cpuinfo knows who shares a core; counts could only guess
        made = {path: text for path, text in made.items() if "/topology/" not in path}
    if SMI_XML in found and SMI_Q not in found:
        found = {**found, SMI_Q: query_text(found[SMI_XML])}
    if LSPCI not in found and not any(path.startswith(PCI_ROOT) for path in found):
        made |= card_files(*(found.get(path) for path in (SMI_Q, SMI, TOPO)))
    if SMI in found and CARDS in found:
        found = {**found, SMI: _with_whole_names(found[SMI], found[CARDS])}
    listed = parse_csv(found.get(SMI_CSV, "")) or _names_alone(found)
    if listed is not None and SMI_Q not in found:
        cuda = re.search(r"CUDA (?:UMD )?Version: (\d{1,2})\.(\d)", found.get(SMI, ""))
        version = int(cuda[1]) * 1000 + int(cuda[2]) * 10 if cuda else None
        made[NVML_CAPTURE] = json.dumps(listed | {"cuda_version": version})
    uname = re.search(
        r"^Linux \S+ (\S+) #.* (\w+)(?: GNU/Linux)?\s*$", found.get(UNAME, ""), re.MULTILINE
    )
    ldd = re.search(r"^ldd \(.*\) (\d+\.\d+)$", found.get(LDD, ""), re.MULTILINE)
    locked = re.search(r"max locked memory +\(kbytes, -l\) (\d+)", found.get(ULIMIT, ""))
    locked = locked or re.match(r"\s*(\d+)\s*$", found.get(LOCKED, ""), re.MULTILINE)
    for name, value in re.findall(_SYSCTL, found.get(SYSCTL, ""), re.MULTILINE):
        made[f"proc/sys/{name.replace('.', '/')}"] = f"{value}\n"
    if uname:
        made["proc/sys/kernel/osrelease"] = f"{uname[1]}\n"
    if locked:
        limit = str(int(locked[1]) * 1024)
        made["proc/self/limits"] = f"Max locked memory         {limit}  {limit}  bytes\n"
    return LooseTexts(
        files={**made, **found},
        unknown=unknown,
        architecture=lscpu_facts(lscpu).get("Architecture") or (uname[2] if uname else None),
        glibc=ldd[1] if ldd else None,
        cores_inferred=not told and inferred(lscpu, table),
        learned_from=_sources(found, made),
    )


def _names_alone(found: Mapping[str, str]) -> dict[str, Any] | None:
    """The cards of `nvidia-smi -L`, where nothing else lists them; None when it is not there."""
    if SMI in found or CARDS not in found:
        return None
    names = _LISTED.findall(found[CARDS])[:_CARDS_MAX]
    return {"driver_version": None, "gpus": [{"name": name} for _, name in names]}


def _with_whole_names(table: str, listing: str) -> str:
    """The table of drivers before 510, which cut long names (`NVIDIA GeForce ...`), with them."""
    names = dict(_LISTED.findall(listing))
    return _CUT_NAME.sub(lambda row: f"{row[1]}{names.get(row[2], row[3])}{row[4]}", table)


def _sources(found: dict[str, str], made: dict[str, str]) -> dict[str, str]:
    """The commands that told each group of facts of which the kernel's own files are not there."""
    names = {
        LSCPU: "lscpu", LSCPU_TABLE: "lscpu -e", NUMACTL: "numactl -H",
        "proc/cpuinfo": "/proc/cpuinfo",
    }  # fmt: skip
    told = ", ".join(name for path, name in names.items() if path in found)
    sources: dict[str, str] = {}
    for group, path in (("cpu", f"{CPU_ROOT}/online"), ("nodes", f"{NODE_ROOT}/online")):
        if path in made and path not in found:
            sources[group] = told
    if "proc/meminfo" in made and "proc/meminfo" not in found:
        sources["memory"] = "free" if FREE in found else "numactl -H"
    return sources
