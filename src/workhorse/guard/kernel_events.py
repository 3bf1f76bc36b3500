"""What the kernel's log says while the service runs: Xids by the table, lost cards. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from workhorse.doctor.events import Told, causes, counted, meaning_of, trouble
from workhorse.doctor.opinion import finding
from workhorse.guard.sign import READY, Sign, View, alarm_finding, card_subject, card_words
from workhorse.records import CardReading, Finding
from workhorse.text import Text

# NVIDIA's Xid catalogue (2026-11): 48 double bit ECC error, 79 fallen off the bus. What the card
# computes from then on is wrong, or nothing.
QUARANTINE_XIDS = frozenset({48, 79})
OF_A_GROUP = "Memory cgroup out"  # `machine/kernel_log.py`
QUARANTINED = Text(
    "The card was taken out of service: no request goes to engines on it any more.",
    "该显卡已停止服务：不再有请求发往其上的引擎。",
)


def look(view: View) -> Iterator[Sign]:
    """A sign for each card and cause of which the log told something new."""
    by_card: dict[str | None, list[Told]] = defaultdict(list)
    for event in view.now.events:
        told = meaning_of(event)
        if told is not None:
            by_card[event.pci_address].append(told)
    for address, lines in by_card.items():
        card = card_at(view, address)
        subject = card_subject(card) if card else address or "GPU"
        for cause in causes(lines):
            worst = [t for t in cause if t.event.number in QUARANTINE_XIDS]
            # The number that condemns the card speaks, whatever came with it.
            ordered = [*worst, *(t for t in cause if t not in worst)]
            found = trouble(address, ordered)
            if worst:
                found = quarantined(found)
            yield Sign(
                found.code,
                subject,
                True,
                lambda found=found: found,  # type: ignore[misc]
                at_once=True,
                event=True,
                holds_s=None if worst else view.limits.hold_s,
            )


def killed(view: View) -> Iterator[Sign]:
    """Programs that the kernel ended for want of memory: the next one may be an engine.

    Another's program that outgrew its own control group says nothing of this service.
    """
    lines = [
        event
        for event in view.now.events
        if event.kind == "out of memory"
        and (not event.text.startswith(OF_A_GROUP) or _engine_died(view))
    ]
    if lines:
        times = sum(event.times for event in lines)
        yield Sign(
            "kernel.killed",
            "RAM",
            True,
            lambda: finding(
                "kernel.killed",
                Text(
                    f"The kernel killed a program for want of memory ({counted(times)}).",
                    f"内核因内存不足终止了程序（{times} 次）。",
                ),
                evidence=tuple(event.text for event in lines[:3]),
            ),
            at_once=True,
            event=True,
            holds_s=view.limits.hold_s,
        )


def _engine_died(view: View) -> bool:
    before = {one.model_name: one.restarts for one in view.before.engines} if view.before else {}
    return any(
        one.state != READY or one.restarts > before.get(one.model_name, one.restarts)
        for one in view.now.engines
    )


def quarantined(found: Finding) -> Finding:
    """The finding, saying that the card serves no more."""
    return replace(
        found,
        share_lost=1.0,
        remedy=Text(f"{QUARANTINED.en} {found.remedy.en}", f"{QUARANTINED.zh}{found.remedy.zh}"),
    )


def card_at(view: View, address: str | None) -> CardReading | None:
    """The card with a PCI address."""
    if address is None:
        return None
    return next((card for card in view.now.cards if card.pci_address == address), None)


def condemned(view: View, first: Iterable[CardReading] = ()) -> tuple[int, ...]:
    """The indexes of cards that must serve no more, by what is new in the log.

    A card that fell off the bus is not listed any more, and the driver may count the others anew:
    the indexes are those that the cards had at `first`, as plans have them.
    """
    addresses = {e.pci_address for e in view.now.events if e.number in QUARANTINE_XIDS}
    before = view.before.cards if view.before else ()
    known = {card.pci_address: card.index for card in (*view.now.cards, *before, *first)}
    return tuple(sorted({known[address] for address in addresses if address in known}))


def silent(view: View, first: CardReading) -> Sign:
    """A card that was there when the watch began: does it still answer?"""
    words = card_words(first)
    # Where a card has gone the driver may count the others anew: the index says nothing then.
    there = any((c.uuid or c.index) == (first.uuid or first.index) for c in view.now.cards)
    return Sign(
        "live.card-silent",
        card_subject(first),
        not there,
        lambda: alarm_finding(
            "live.card-silent",
            Text(f"{words.en} does not answer any more.", f"{words.zh}不再响应。"),
            evidence=(f"{first.pci_address} {first.uuid}",),
        ),
    )
