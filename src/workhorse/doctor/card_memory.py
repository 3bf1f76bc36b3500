"""Whether each card's memory can be trusted: ECC counts, retired pages, remapped rows, Xids."""

from collections.abc import Iterator

from workhorse.doctor.opinion import Opinion, finding, named
from workhorse.knowledge.health import threshold
from workhorse.knowledge.xids import xid_meanings
from workhorse.records import Finding, Gpu, KernelEvent, Machine
from workhorse.text import Text


def judge_card_memory(machine: Machine) -> Opinion:
    """One finding a card: its worst sign, with all the others as evidence."""
    if not machine.gpus:
        return Opinion()
    findings = tuple(
        told for gpu in machine.gpus if (told := judge_one(gpu, memory_events(machine, gpu)))
    )
    known = [gpu for gpu in machine.gpus if counts_known(gpu)]
    unchecked = []
    if silent := [gpu for gpu in machine.gpus if gpu not in known and gpu.ecc_enabled is not False]:
        who = named(silent)
        unchecked.append(
            Text(
                f"Memory errors of {who.en}: the driver does not count them.",
                f"{who.zh}的显存错误：驱动没有计数。",
            )
        )
    good = None
    if known:
        who = named(known)
        good = Text(f"{who.en}: no memory errors counted.", f"{who.zh}：没有显存错误记录。")
    return Opinion(findings, good, tuple(unchecked))


def counts_known(gpu: Gpu) -> bool:
    """True when the driver counts any kind of memory error of the card."""
    return gpu.ecc is not None or gpu.retired_pages is not None or gpu.row_remaps is not None


def memory_events(machine: Machine, gpu: Gpu) -> tuple[KernelEvent, ...]:
    """The kernel's lines about this card's memory."""
    meanings = xid_meanings()
    return tuple(
        event
        for event in machine.events or ()
        if event.kind == "xid"
        and event.pci_address is not None
        and event.pci_address == gpu.pci_address
        and event.number in meanings
        and meanings[event.number].blame == "memory"
    )


def judge_one(gpu: Gpu, events: tuple[KernelEvent, ...]) -> Finding | None:
    """The card's worst sign; None when there is none."""
    for rule in (worn, failing, pending, past):
        seen = rule(gpu, events)
        if seen is not None:
            code, text = seen
            return finding(code, text, evidence=evidence(gpu, events), cards=[gpu])
    return None


Seen = tuple[str, Text]


def worn(gpu: Gpu, _: tuple[KernelEvent, ...]) -> Seen | None:
    """No spare place is left, or soon none."""
    who = named([gpu])
    if gpu.row_remaps is not None and gpu.row_remaps.failed:
        return "gpu.memory-worn", Text(
            f"{who.en} could not replace a bad row of its memory.",
            f"{who.zh}有坏的显存行无法替换。",
        )
    retired = retired_count(gpu)
    if retired is not None and retired >= threshold("retired_pages_near"):
        most = int(threshold("retired_pages_max"))
        return "gpu.memory-worn", Text(
            f"{who.en} has taken {retired} pages of its memory out of use; {most} are the limit.",
            f"{who.zh}已停用 {retired} 个显存页，上限为 {most}。",
        )
    return None


def failing(gpu: Gpu, events: tuple[KernelEvent, ...]) -> Seen | None:
    """Errors since the driver was loaded that could not be corrected, or the driver's cry."""
    who = named([gpu])
    uncorrected = gpu.ecc.uncorrected if gpu.ecc is not None else None
    if uncorrected:
        return "gpu.memory-errors", Text(
            f"{who.en} had {uncorrected} memory errors that could not be corrected.",
            f"{who.zh}出现 {uncorrected} 个无法纠正的显存错误。",
        )
    meanings = xid_meanings()
    cries = {e.number for e in events if e.number and meanings[e.number].level == "warning"}
    if cries:
        numbers = ", ".join(map(str, sorted(cries)))
        return "gpu.memory-errors", Text(
            f"The driver reported memory errors of {who.en} (Xid {numbers}).",
            f"驱动报告了 {who.zh}的显存错误（Xid {numbers}）。",
        )
    return None


def pending(gpu: Gpu, events: tuple[KernelEvent, ...]) -> Seen | None:
    """A bad place waits for the next restart."""
    pages = gpu.retired_pages.pending if gpu.retired_pages is not None else None
    rows = gpu.row_remaps.pending if gpu.row_remaps is not None else None
    # Where the driver does not say, its line about a new bad place does.
    told = pages is None and rows is None and bool(events)
    if not pages and not rows and not told:
        return None
    who = named([gpu])
    return "gpu.restart-pending", Text(
        f"{who.en} has a bad place in its memory that the next restart takes out of use.",
        f"{who.zh}有坏的显存位置，要等下次重启才会停用。",
    )


def past(gpu: Gpu, _: tuple[KernelEvent, ...]) -> Seen | None:
    """Errors and replaced places of the card's past."""
    remaps = gpu.row_remaps
    replaced = None
    if remaps is not None:
        replaced = (remaps.correctable or 0) + (remaps.uncorrectable or 0)
    lifetime = gpu.ecc.uncorrected_lifetime if gpu.ecc is not None else None
    parts, parts_zh = [], []
    for count, name, name_zh in (
        (lifetime, "uncorrected errors", "个未纠正错误"),
        (retired_count(gpu), "retired pages", "个停用页"),
        (replaced, "replaced rows", "个替换行"),
    ):
        if count:
            parts.append(f"{count} {name}")
            parts_zh.append(f"{count} {name_zh}")
    if not parts:
        return None
    who = named([gpu])
    return "gpu.errors-past", Text(
        f"{who.en} carries traces of memory errors: {', '.join(parts)}.",
        f"{who.zh}有显存错误的历史记录：{'，'.join(parts_zh)}。",
    )


def retired_count(gpu: Gpu) -> int | None:
    """All retired pages; None when the driver tells of none of the two kinds."""
    pages = gpu.retired_pages
    if pages is None or (pages.single_bit is None and pages.double_bit is None):
        return None
    return (pages.single_bit or 0) + (pages.double_bit or 0)


def evidence(gpu: Gpu, events: tuple[KernelEvent, ...]) -> Iterator[str]:
    """Every count of the card's memory, and the kernel's lines."""
    for name, record in (
        ("ECC", gpu.ecc), ("retired pages", gpu.retired_pages), ("rows", gpu.row_remaps),
    ):  # fmt: skip
        if record is not None:
            told = {slot: getattr(record, slot) for slot in record.__slots__}
            listed = ", ".join(f"{k} {v}" for k, v in told.items() if v is not None)
            yield f"GPU {gpu.index} {name}: {listed or 'not told'}"
    yield from (event.text for event in events[:4])
