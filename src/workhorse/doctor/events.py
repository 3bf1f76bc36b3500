"""What the kernel's log says of cards, bus and memory, root causes before their consequences."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from workhorse.doctor.gpu_access import fitting_driver, joined
from workhorse.doctor.links import errors_weigh
from workhorse.doctor.opinion import Opinion, finding
from workhorse.knowledge.xids import NvrmMeaning, XidMeaning, nvrm_meanings, xid_meanings
from workhorse.records import Finding, KernelEvent, Machine
from workhorse.text import Text

Meaning = XidMeaning | NvrmMeaning
# Of one card the first of these that is in the log is the cause, and the rest follows from it.
_ROOTS = ("support", "bus", "hardware", "memory", "link", "driver")
CATALOGUE = "NVIDIA Xid catalogue, docs.nvidia.com/deploy/xid-errors"


@dataclass(frozen=True, slots=True)
class Told:
    """One line of the log and what it means; None: a number that is not in our table."""

    event: KernelEvent
    meaning: Meaning | None


def judge_events(machine: Machine) -> Opinion:
    """Xids and other lines of the NVIDIA driver, bus errors, and programs killed for memory."""
    if machine.events is None:
        return Opinion(
            unchecked=(
                Text(
                    "The kernel's log (Xid, bus errors): run `sudo workhorse doctor`.",
                    "内核日志（Xid、总线错误）：请运行 `sudo workhorse doctor`。",
                ),
            )
        )
    findings = (*cards_troubles(machine), *bus_errors(machine), *killed(machine))
    good = Text(
        "Kernel log: no errors of cards, bus or memory.", "内核日志：没有显卡、总线或内存错误。"
    )
    return Opinion(findings, good if not machine.events else None)


def cards_troubles(machine: Machine) -> Iterator[Finding]:
    """One finding for each card and cause."""
    by_card: dict[str | None, list[Told]] = defaultdict(list)
    for event in machine.events or ():
        told = meaning_of(event)
        if told is not None:
            by_card[event.pci_address].append(told)
    here = {gpu.pci_address for gpu in machine.gpus if gpu.pci_address}
    for card, lines in by_card.items():
        for cause in causes(lines):
            blame = cause[0].meaning.blame if cause[0].meaning else None
            if blame == "memory" and card in here:
                continue  # told with the card's counts, in card_memory
            if blame == "support" and card in here:
                continue  # the driver that runs now drives it
            yield trouble(card, cause, blocks=blame == "support" and not here)


def meaning_of(event: KernelEvent) -> Told | None:
    """What an event of the NVIDIA driver means; None when it is none or says nothing known."""
    if event.kind == "xid":
        return Told(event, xid_meanings().get(event.number) if event.number is not None else None)
    if event.kind == "nvrm":
        for row in nvrm_meanings():
            if re.search(row.pattern, event.text, re.IGNORECASE):
                return Told(event, row)
    return None


def causes(lines: list[Told]) -> list[list[Told]]:
    """The lines of one card by cause; the first of each list speaks for it.

    A fault of the hardware explains the programs that died of it, so that those are its
    evidence and no findings of their own. What is only a consequence never speaks when anything
    else does.
    """
    by_blame: dict[str, list[Told]] = defaultdict(list)
    for told in lines:
        by_blame[told.meaning.blame if told.meaning else "unknown"].append(told)
    followers = [*by_blame.pop("application", []), *by_blame.pop("consequence", [])]
    root = next((blame for blame in _ROOTS if blame in by_blame), None)
    if root is not None:
        by_blame[root] += [*followers, *by_blame.pop("record", [])]
    elif followers:
        by_blame["application"] = followers
    return [sorted(told, key=speaks_late) for told in by_blame.values()]


def speaks_late(told: Told) -> bool:
    """False for the lines that are to speak for their cause: those that warn, and no followers."""
    meaning = told.meaning
    return meaning is None or meaning.level == "note" or meaning.blame == "consequence"


def trouble(card: str | None, lines: list[Told], *, blocks: bool = False) -> Finding:
    """The finding for one cause on one card; `blocks`: no card works while this lasts."""
    first, meaning = lines[0].event, lines[0].meaning
    numbers = sorted({t.event.number for t in lines if t.event.number is not None})
    times = sum(told.event.times for told in lines)
    where, where_zh = (f" of {card}", f" {card} 的") if card else ("", "")
    listed = ", ".join(map(str, numbers))
    what, what_zh = (f"Xid {listed}", f" Xid {listed}") if numbers else ("an error", "错误")
    seen = Text(
        f"The NVIDIA driver reported {what}{where} ({counted(times)}).",
        f"NVIDIA 驱动报告了{where_zh}{what_zh}（{times} 次）。",
    )
    if meaning is not None and meaning.blame == "support":
        seen = Text(
            f"NVIDIA's driver does not take {f'the card {card}' if card else 'a card'}.",
            f"NVIDIA 驱动没有接管{f'显卡 {card}' if card else '显卡'}。",
        )
    evidence = (*([card] if card else []), *(told.event.text for told in lines[:6]))
    ids = [i for told in lines for i in re.findall(r"PCI ID: (10de:\w{4})", told.event.text)]
    if meaning is None:
        return Finding(
            code="xid.unknown",
            level="note",
            seen=seen,
            why=Text(
                "This number is not in our table, so what it means is not known here.",
                "我们的表中没有该编号，其含义未知。",
            ),
            remedy=Text("Look it up in NVIDIA's Xid catalogue.", "请在 NVIDIA 的 Xid 目录中查阅。"),
            source=CATALOGUE,
            command="sudo dmesg | grep -i xid",
            evidence=evidence,
            sure="possible",
        )
    return Finding(
        code=f"xid.{first.number}" if first.number is not None else f"nvrm.{meaning.blame}",
        level="blocker" if blocks else meaning.level,
        seen=seen,
        why=Text(meaning.en, meaning.zh),
        remedy=joined(Text(meaning.en_step, meaning.zh_step), fitting_driver(ids)),
        source=meaning.source,
        command="sudo dmesg | grep -iE 'xid|nvrm'",
        evidence=evidence,
        share_lost=1.0 if blocks else None,
        # Application errors may come from a weak card all the same.
        sure="likely" if meaning.blame in ("application", "bus", "hardware") else "certain",
    )


def counted(times: int) -> str:
    """How often, in words."""
    return "once" if times == 1 else f"{times} times"


def bus_errors(machine: Machine) -> Iterator[Finding]:
    """Bus errors of devices that are not a known card; a card's own stand with its link."""
    own = {gpu.pci_address for gpu in machine.gpus}
    lines = [
        event
        for event in machine.events or ()
        if event.kind == "pcie" and (event.pci_address is None or event.pci_address not in own)
    ]
    if not lines:
        return
    times = sum(event.times for event in lines)
    where = ", ".join(dict.fromkeys(event.pci_address or "?" for event in lines[:4]))
    yield finding(
        "link.bus-errors",
        Text(
            f"The kernel's log tells of {times} PCIe errors ({where}).",
            f"内核日志记录了 {times} 次 PCIe 错误（{where}）。",
        ),
        evidence=tuple(event.text for event in lines[:4]),
        level="warning" if errors_weigh(lines) else "note",
    )


def killed(machine: Machine) -> Iterator[Finding]:
    """Programs that the kernel ended because memory ran out."""
    lines = [event for event in machine.events or () if event.kind == "out of memory"]
    if not lines:
        return
    times = sum(event.times for event in lines)
    yield finding(
        "kernel.killed",
        Text(
            f"The kernel killed a program for want of memory ({counted(times)}).",
            f"内核曾因内存不足终止程序（{times} 次）。",
        ),
        evidence=tuple(event.text for event in lines[:3]),
    )
