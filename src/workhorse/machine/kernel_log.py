"""The lines of the kernel's log that tell of sick hardware or killed processes."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import number, words
from workhorse.machine.pci import pci_address
from workhorse.machine.personal_data import program, scrub
from workhorse.records import KernelEvent
from workhorse.units import MIB

_TEXT_MAX = MIB
_LINE_MAX = 400
# Of one kind and place: a flood of one error must not hide the others.
_DIFFERENT_MAX = 8
_EVENTS_MAX = 200
_XID_NUMBER_MAX = 9999
Kind = Literal["xid", "nvrm", "pcie", "memory", "out of memory"]

_PLACE = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_PLACE})\): (\d{{1,6}})")
_NVRM_GPU = re.compile(rf"(?:GPU(?: at)? |GPU |PCI:)(?:PCI:)?({_PLACE})")
_PCIE = re.compile(
    rf"[\w-]{{1,30}} ({_PLACE}): (?:AER:|PCIe Bus Error:|DPC:|EDR:)"
    # Said of every port at the start.
    r"(?!.{0,40}(?:enabled with IRQ|containment capabilities))"
)
_CULPRIT = re.compile(rf"(?:received from|received:|from) ({_PLACE})")
_MEMORY = re.compile(
    r"EDAC \w{1,12}: \d{1,9} [CU]E\b"
    r"|mce: \[Hardware Error\]: .*(?:Machine [Cc]heck)"
    r"|\[Hardware Error\]: .*(?:Machine [Cc]heck|[Mm]emory (?:read )?error|DIMM)"
    r"|Memory failure: 0x"
)
_OUT_OF_MEMORY = re.compile(
    r"(?:Memory cgroup out|Out) of memory: Kill(?:ed)? process \d{1,10} \(([^)]{1,64})\)"
)
# Sentences of the driver that go on over several lines, each of which says NVRM again.
_SENTENCE = re.compile(r"NVRM: (?:The NVIDIA |API mismatch|This PCI I/O region)")
_SENTENCE_LINES_MAX = 8
# What the driver says when all is well.
_WELL = re.compile(
    r"NVRM: (?:loading NVIDIA|.{0,40}objected|request_mem_region|GPU.{0,60}enabled"
    r"|nvidia_open|cpuid|Persistence mode is deprecated|.{0,80}Interrupt detected\. Clearing it)"
)
_PERSONAL = re.compile(
    r",? ?(?:pid=[^,]{0,40}|name=[^,]{0,80}|[Ss]erial(?: [Nn]umber)?:? ?\w{0,30})(?=,|$|\.)"
)
_REFUSED = re.compile(r"dmesg: |Operation not permitted|Permission denied")


@dataclass(frozen=True, slots=True)
class _Line:
    kind: Kind
    number: int | None
    place: str | None
    text: str


def read_events(files: HostFiles) -> tuple[KernelEvent, ...] | None:
    """The events of the log's last MiB, in order; None when the log cannot be read."""
    said = files.said("dmesg")
    if said is None or not said.strip() or _REFUSED.match(said.lstrip()[:200]):
        return None
    return parse_log(said)


def parse_log(log: str) -> tuple[KernelEvent, ...]:
    """The events in the text of a kernel log, whatever its time stamps; equal ones counted."""
    counts: dict[_Line, int] = {}
    different: dict[tuple[Kind, int | None, str | None], list[_Line]] = {}
    for text in _whole_sentences(log[-_TEXT_MAX:].splitlines()):
        line = _recognise(text)
        if line is None:
            continue
        if line not in counts:
            alike = different.setdefault((line.kind, line.number, line.place), [])
            if len(alike) >= _DIFFERENT_MAX:
                line = alike[-1]  # counted with the last one that was kept
            elif len(counts) < _EVENTS_MAX:
                alike.append(line)
            else:
                continue
        counts[line] = counts.get(line, 0) + 1
    return _without_personal_data(counts)


def _whole_sentences(lines: Iterable[str]) -> Iterator[str]:
    """The lines; where the driver's sentence goes on over several, they are one line.

    The first names the card, a later one says what is wrong with it.
    """
    sentence, count = "", 0
    for line in lines:
        said = line[:_LINE_MAX].partition("NVRM:")[2]
        goes_on = sentence and said and not re.match(r" (?:Xid|GPU|None|No) |.*NVRM:", said)
        if goes_on and count < _SENTENCE_LINES_MAX and not _SENTENCE.match(f"NVRM:{said}"):
            sentence, count = f"{sentence} {said.strip()}"[:_LINE_MAX], count + 1
            if not said.rstrip().endswith("."):
                continue
            yield sentence
            sentence = ""
            continue
        if sentence:
            yield sentence
            sentence = ""
        if _SENTENCE.match(f"NVRM:{said}") and not said.rstrip().endswith("."):
            sentence, count = line[:_LINE_MAX].rstrip(), 1
        else:
            yield line[:_LINE_MAX]
    if sentence:
        yield sentence


def _without_personal_data(counts: Mapping[_Line, int]) -> tuple[KernelEvent, ...]:
    """The events; lines that are equal once personal data is gone are counted together."""
    events: dict[_Line, int] = {}
    for line, times in counts.items():
        bare = replace(line, text=words(scrub(line.text)) or "?")
        events[bare] = events.get(bare, 0) + times
    return tuple(
        KernelEvent(line.kind, line.number, line.place, line.text, times)
        for line, times in events.items()
    )


def _recognise(text: str) -> _Line | None:
    """What the line tells, without its time, its host and its process; None: nothing."""
    if "NVRM:" in text:
        core = text[text.index("NVRM:") :]
        xid = _XID.match(core)
        if xid is not None:
            code = number(xid[2], high=_XID_NUMBER_MAX)
            return None if code is None else _line("xid", code, xid[1], core)
        place = _NVRM_GPU.search(core)
        return None if _WELL.match(core) else _line("nvrm", None, place and place[1], core)
    bus = _PCIE.search(text)
    if bus is not None:
        core = text[bus.start() :]
        culprit = _CULPRIT.search(core)
        return _line("pcie", None, culprit[1] if culprit else bus[1], core)
    killed = _OUT_OF_MEMORY.search(text)
    if killed is not None:
        whose = "Memory cgroup out" if killed[0].startswith("Memory") else "Out"
        core = f"{whose} of memory: Killed process ({program(killed[1])})"
        return _line("out of memory", None, None, core)
    memory = _MEMORY.search(text)
    if memory is not None:
        # Pages and addresses differ each time; the part before them names the module.
        return _line("memory", None, None, text[memory.start() :].split("(")[0].split(" 0x")[0])
    return None


def _line(kind: Kind, code: int | None, place: str | None, core: str) -> _Line:
    return _Line(kind, code, _address(place), _PERSONAL.sub("", core))


def _address(place: str | None) -> str | None:
    """`0000:18:00.0` of `0000:18:00`: the driver leaves the function out."""
    return None if place is None else pci_address(place if "." in place else f"{place}.0")
