"""The PCIe link of each card: what it could be, what it is, what it loses."""

import re
from collections.abc import Iterator, Sequence

from workhorse.doctor.opinion import Opinion, alike, finding, is_virtual, named
from workhorse.knowledge.health import link_bytes_per_s, threshold
from workhorse.records import Finding, Gpu, KernelEvent, Machine
from workhorse.text import Text
from workhorse.units import show_bandwidth, show_duration

# `Uncorrectable (Non-Fatal)`, `Uncorrected (Fatal)`; the others were corrected on the way.
_FATAL = re.compile(r"uncorrect", re.IGNORECASE)


def judge_links(machine: Machine) -> Opinion:
    """Width and speed of every card's link, errors on it, and slots that are the limit."""
    gpus = machine.gpus
    if not gpus:
        return Opinion()
    findings = (
        *widths(machine),
        *speeds(machine),
        *slots(machine),
        *slow_links(machine),
        *slow_copies(gpus),
        *replays(machine),
    )
    unchecked = []
    if unread := [gpu for gpu in gpus if width_seen(gpu) is None]:
        who = named(unread)
        unchecked.append(
            Text(f"The PCIe width of {who.en} is not readable.", f"读不到 {who.zh}的 PCIe 宽度。")
        )
    return Opinion(findings, good_links(gpus), tuple(unchecked))


def width_seen(gpu: Gpu) -> int | None:
    """The width under load where that was read, else the one now: idle cards keep their lanes."""
    return gpu.pcie_width_loaded or gpu.pcie_width_now


def generation_seen(gpu: Gpu) -> int | None:
    """The highest generation that was seen in use."""
    return max(filter(None, (gpu.pcie_generation_loaded, gpu.pcie_generation_now)), default=None)


def least(*values: int | None) -> int | None:
    """The smallest of the values that are known; None when one is missing."""
    known = [value for value in values if value]
    return min(known) if len(known) == len(values) else None


def address(gpu: Gpu) -> str:
    """The card's address for a command line."""
    return gpu.pci_address or "ADDRESS"


def widths(machine: Machine) -> Iterator[Finding]:
    """Cards that run on fewer lanes than card and slot have."""
    virtual = is_virtual(machine)

    def narrowed(gpu: Gpu) -> tuple[int, int, bool] | None:
        seen = width_seen(gpu)
        # In a virtual machine the port above the card is made up; the card's own words are not.
        known = None if virtual else least(gpu.pcie_width_card, gpu.pcie_width_port)
        # The driver's maximum is that of card and slot together, as far as it knows the slot.
        possible = known or gpu.pcie_width_max or gpu.pcie_width_card
        if not seen or not possible or seen >= possible:
            return None
        return seen, possible, known is not None

    for (seen, possible, certain), gpus in alike(machine.gpus, narrowed):
        who = named(gpus)
        yield finding(
            "link.width-lost" if certain else "link.width-below-card",
            Text(
                f"{who.en} runs on {seen} PCIe lanes; "
                + ("card and slot have" if certain else "the card has")
                + f" {possible}.",
                f"{who.zh}仅以 PCIe x{seen} 运行；"
                + ("显卡与插槽均支持" if certain else "显卡支持")
                + f" x{possible}。",
            ),
            evidence=(link_words(gpu) for gpu in gpus),
            address=address(gpus[0]),
        )


def speeds(machine: Machine) -> Iterator[Finding]:
    """Cards below the generation that card and slot can do: under load a loss, idle a note."""

    def slowed(gpu: Gpu) -> tuple[int, int, bool] | None:
        port = None if is_virtual(machine) else gpu.pcie_generation_port
        limits = (gpu.pcie_generation_card or gpu.pcie_generation_max, port)
        possible = min(filter(None, (*limits, gpu.pcie_generation_max)), default=None)
        # A busy card needs no test load: it is under one.
        busy = (gpu.busy_percent or 0) >= threshold("busy_percent")
        seen = generation_seen(gpu)
        if not possible or not seen or seen >= possible:
            return None
        return seen, possible, busy or gpu.pcie_generation_loaded is not None

    for (seen, possible, loaded), gpus in alike(machine.gpus, slowed):
        who = named(gpus)
        when = Text("under load", "负载下") if loaded else Text("now", "当前")
        yield finding(
            "link.speed-lost" if loaded else "link.speed-idle",
            Text(
                f"{who.en} runs at PCIe {seen}.0 {when.en}; {possible}.0 is possible.",
                f"{who.zh}{when.zh}运行于 PCIe {seen}.0；可达 {possible}.0。",
            ),
            evidence=(link_words(gpu) for gpu in gpus),
            address=address(gpus[0]),
        )


def slots(machine: Machine) -> Iterator[Finding]:
    """Cards in a slot that is itself narrower or older than the card: no fault."""
    if is_virtual(machine):
        return

    def limited(gpu: Gpu) -> tuple[int, int, int, int] | None:
        card = gpu.pcie_generation_card, gpu.pcie_width_card
        port = gpu.pcie_generation_port, gpu.pcie_width_port
        seen = width_seen(gpu)
        if not card[0] or not card[1] or not port[0] or not port[1] or not seen:
            return None
        # A port wider than what is seen has its own finding (lanes are lost).
        narrower = port[1] < card[1] and seen <= port[1]
        if not narrower and port[0] >= card[0]:
            return None
        return card[0], card[1], port[0], port[1]

    for (card_generation, card_width, generation, width), gpus in alike(machine.gpus, limited):
        who = named(gpus)
        yield finding(
            "link.slot-narrower",
            Text(
                f"{who.en} could do PCIe {card_generation}.0 x{card_width}; its slot has "
                f"{generation}.0 x{width}.",
                f"{who.zh}支持 PCIe {card_generation}.0 x{card_width}；"
                f"插槽为 {generation}.0 x{width}。",
            ),
            evidence=(link_words(gpu) for gpu in gpus),
        )


def slow_links(machine: Machine) -> Iterator[Finding]:
    """Links so slow that loading and every layer off the card are felt: x1 risers, mining cards."""
    virtual = is_virtual(machine)

    def slow(gpu: Gpu) -> tuple[int, int, bool] | None:
        # The generation of an idle card says nothing: the best that is possible counts then.
        generation = (
            gpu.pcie_generation_loaded or gpu.pcie_generation_max or gpu.pcie_generation_card
        )
        if generation and gpu.pcie_generation_port and not virtual:
            generation = min(generation, gpu.pcie_generation_port)
        width = width_seen(gpu)
        rate = link_bytes_per_s(generation, width)
        if rate is None or generation is None or width is None:
            return None
        if rate >= threshold("link_slow_bytes_per_s"):
            return None
        own = link_bytes_per_s(gpu.pcie_generation_card, gpu.pcie_width_card)
        return generation, width, own is not None and own <= rate

    for (generation, width, by_card), alike_gpus in alike(machine.gpus, slow):
        who, rate = named(alike_gpus), link_bytes_per_s(generation, width) or 1.0
        sizes = [gpu.memory_total_bytes for gpu in alike_gpus if gpu.memory_total_bytes]
        fill = show_duration(max(sizes) / rate) if sizes else "—"
        limit = Text(
            ": the card itself has no more" if by_card else "",
            "，显卡本身仅支持这么多" if by_card else "",
        )
        yield finding(
            "link.slow",
            Text(
                f"{who.en} hangs on PCIe {generation}.0 x{width}, at most "
                f"{show_bandwidth(rate)}{limit.en}.",
                f"{who.zh}接在 PCIe {generation}.0 x{width} 上，最多 "
                f"{show_bandwidth(rate)}{limit.zh}。",
            ),
            evidence=(link_words(gpu) for gpu in alike_gpus),
            fill=fill,
        )


def slow_copies(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Links that were measured to carry far less than their lanes could."""
    for gpu in gpus:
        possible = link_bytes_per_s(gpu.pcie_generation_loaded, gpu.pcie_width_loaded)
        copies = [c for c in gpu.copies if c.kind in ("to device", "from device")]
        worst = min((c.bytes_per_s for c in copies), default=None)
        if possible is None or worst is None or worst >= possible * threshold("link_copy_share"):
            continue
        who = named([gpu])
        yield finding(
            "link.copies-slow",
            Text(
                f"{who.en} copies over PCIe at {show_bandwidth(worst)}; its link carries "
                f"{show_bandwidth(possible)}.",
                f"{who.zh}经 PCIe 拷贝仅 {show_bandwidth(worst)}；链路可达 "
                f"{show_bandwidth(possible)}。",
            ),
            evidence=(
                link_words(gpu),
                *(f"{c.kind}: {c.bytes_per_s:.4g} B/s, {c.method}" for c in copies),
            ),
        )


def replays(machine: Machine) -> Iterator[Finding]:
    """Cards whose packets had to be sent again, and what the kernel's log says of them."""
    for gpu in machine.gpus:
        count = gpu.pcie_replays
        lines = [
            event
            for event in machine.events or ()
            if event.kind == "pcie" and gpu.pci_address and event.pci_address == gpu.pci_address
        ]
        often = (count or 0) >= threshold("link_replays")
        if not often and not lines:
            continue
        who, errors = named([gpu]), sum(event.times for event in lines)
        bad = often or errors_weigh(lines)
        said = [*([f"{count} replays"] if count else []), *([f"{errors} errors"] if errors else [])]
        said_zh = [
            *([f"{count} 次重传"] if count else []),
            *([f"{errors} 次总线错误"] if errors else []),
        ]
        yield finding(
            "link.replays",
            Text(
                f"The PCIe link of {who.en}: {', '.join(said)}.",
                f"{who.zh}的 PCIe 链路：{'、'.join(said_zh)}。",
            ),
            evidence=(link_words(gpu), *(event.text for event in lines[:3])),
            level=None if bad else "note",
            sure=None if bad else "possible",
        )


def errors_weigh(lines: Sequence[KernelEvent]) -> bool:
    """True for bus errors that were not corrected, and for many that were."""
    times = sum(event.times for event in lines)
    return times >= threshold("bus_errors") or any(_FATAL.search(e.text) for e in lines)


def link_words(gpu: Gpu) -> str:
    """What is known of a link in one line, as evidence."""
    pairs = {
        "now": (gpu.pcie_generation_now, gpu.pcie_width_now),
        "loaded": (gpu.pcie_generation_loaded, gpu.pcie_width_loaded),
        "card": (gpu.pcie_generation_card, gpu.pcie_width_card),
        "port": (gpu.pcie_generation_port, gpu.pcie_width_port),
        "driver's max": (gpu.pcie_generation_max, gpu.pcie_width_max),
    }
    told = ", ".join(
        f"{name} gen {generation or '?'} x{width or '?'}"
        for name, (generation, width) in pairs.items()
        if generation or width
    )
    more = "" if gpu.pcie_replays is None else f", replays {gpu.pcie_replays}"
    return f"{gpu.pci_address or f'GPU {gpu.index}'}: {told or 'link not known'}{more}"


def good_links(gpus: tuple[Gpu, ...]) -> Text | None:
    """What the links are, for a reader whose links are well."""

    def link(gpu: Gpu) -> tuple[int, int] | None:
        generation, width = generation_seen(gpu), width_seen(gpu)
        return (generation, width) if generation and width else None

    found = alike(gpus, link)
    if not found:
        return None
    listed = ", ".join(
        f"{len(same)} × {generation}.0 x{width}" for (generation, width), same in found
    )
    return Text(f"PCIe links: {listed}.", f"PCIe 链路：{listed}。")
