"""What is wrong with a card while it serves: memory, power, heat, link, errors, others. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from workhorse.doctor.opinion import finding
from workhorse.guard.sign import Sign, View, alarm_finding, card_subject, card_words
from workhorse.knowledge.alarms import alarm_limit
from workhorse.knowledge.health import Throttle, threshold, throttles
from workhorse.records import CardReading, Finding
from workhorse.text import Text
from workhorse.units import show_bytes, show_share


def look(view: View, card: CardReading, began: CardReading) -> Iterator[Sign]:
    """Signs of one card that engines use; `began`: the same card as this day of watching began."""
    yield from _memory(view, card)
    yield from _throttling(card)
    yield from _link(card)
    yield from _errors(view, card, began)
    yield from _foreign(card)


def is_busy(card: CardReading) -> bool:
    """True when the card certainly has work to do: then nothing is power saving."""
    return (card.busy_share or 0.0) * 100 >= threshold("busy_percent")


def _memory(view: View, card: CardReading) -> Iterator[Sign]:
    if card.used_bytes is None or not card.total_bytes:
        return
    share = card.used_bytes / card.total_bytes
    yield Sign(
        "live.vram-full",
        card_subject(card),
        share > _full_share(view, card, card.total_bytes),
        lambda: _memory_finding(card, share),
    )


# What the driver and contexts of other sizes take beside what was planned.
BESIDE_PLAN_SHARE = 0.03


def _full_share(view: View, card: CardReading, total_bytes: int) -> float:
    """From which share on a card is fuller than it should be.

    A plan with less headroom, which its user wanted, fills it to more than the usual share.
    """
    lines = (line for plan in view.plans.values() for line in plan.budget)
    planned = sum(line.n_bytes for line in lines if line.device == card_subject(card))
    return max(view.limits.vram_share, planned / total_bytes + BESIDE_PLAN_SHARE)


def _memory_finding(card: CardReading, share: float) -> Finding:
    words, shown = card_words(card), show_share(share)
    sizes = f"{show_bytes(card.used_bytes)} / {show_bytes(card.total_bytes)}"
    others = f"; others: {'; '.join(card.foreign_processes)}" if card.foreign_processes else ""
    return alarm_finding(
        "live.vram-full",
        Text(f"{words.en} is {shown} full ({sizes}).", f"{words.zh}显存已用 {shown}（{sizes}）。"),
        evidence=(f"used {card.used_bytes} of {card.total_bytes}, ours {card.own_bytes}{others}",),
    )


def _throttling(card: CardReading) -> Iterator[Sign]:
    """Heat and power told apart by the driver's reasons; the specific reason speaks."""
    if card.throttled_by is None:
        return
    worst = _worst(card)
    for row in {row.code: row for row in throttles().values() if row.code}.values():
        bad = worst is not None and worst.code == row.code
        words = _heat_words(card, worst if bad and worst else row)
        yield Sign(row.code or "", card_subject(card), bad, words)
    if worst is None and is_busy(card):
        yield Sign(
            "live.power-cap", card_subject(card), _power_capped(card), lambda: _power_finding(card)
        )


def _worst(card: CardReading) -> Throttle | None:
    found: list[Throttle] = []
    for reason in card.throttled_by or ():
        row = throttles().get(reason)
        meaning = None if row is None else row.busy if is_busy(card) else row.idle
        if row is not None and row.code and meaning == "fault":
            found.append(row)
    # `HW slowdown` is set with each of the reasons that explain it.
    return min(
        found, key=lambda row: (row.code == "gpu.hw-slowdown", -(row.share_lost or 0)), default=None
    )


def _heat_words(card: CardReading, row: Throttle) -> Callable[[], Finding]:
    def words() -> Finding:
        named = card_words(card)
        at = "" if card.temperature_c is None else f" at {card.temperature_c:g} °C"
        at_zh = "" if card.temperature_c is None else f"，{card.temperature_c:g} °C"
        return finding(
            row.code or "",
            Text(
                f"{named.en} slows down{at}: {row.reason}.",
                f"{named.zh}正在降频{at_zh}：{row.reason}。",
            ),
            evidence=(_state(card),),
            share_lost=row.share_lost,
        )

    return words


def _power_capped(card: CardReading) -> bool:
    """At its power limit, and it costs: the limit was lowered, or the clock is far down.

    A card with enough to do is meant to reach its limit.
    """
    if "SW power cap" not in (card.throttled_by or ()):
        return False
    limit, usual = card.power_limit_w, card.power_limit_default_w
    lowered = bool(limit and usual and limit < usual * threshold("power_limit_share"))
    clock, most = card.sm_clock_mhz, card.sm_clock_max_mhz
    return lowered or bool(clock and most and clock < most * threshold("core_clock_share"))


def _power_finding(card: CardReading) -> Finding:
    words, usual = card_words(card), card.power_limit_default_w
    told = f"{card.power_limit_w:g} W" if card.power_limit_w else "?"
    of, of_zh = (f"; its default is {usual:g} W", f"，默认 {usual:g} W") if usual else ("", "")
    clock, most = card.sm_clock_mhz, card.sm_clock_max_mhz
    return alarm_finding(
        "live.power-cap",
        Text(
            f"{words.en} is held at its power limit of {told}{of}.",
            f"{words.zh}受功耗上限 {told} 限制{of_zh}。",
        ),
        evidence=(_state(card),),
        share_lost=round(1 - clock / most, 3) if clock and most else None,
        index=card.index,
        watts=f"{usual or card.power_limit_w or 0:g}",
    )


def _state(card: CardReading) -> str:
    parts = {
        "core": (card.temperature_c, "°C"),
        "memory": (card.memory_temperature_c, "°C"),
        "slows down at": (card.slowdown_temperature_c, "°C"),
        "draws": (card.power_w, "W"),
        "limit": (card.power_limit_w, "W"),
        "SM clock": (card.sm_clock_mhz, "MHz"),
        "of": (card.sm_clock_max_mhz, "MHz"),
    }
    told = ", ".join(f"{n} {v:g} {unit}" for n, (v, unit) in parts.items() if v is not None)
    busy = "" if card.busy_share is None else f", {show_share(card.busy_share)} busy"
    return (
        f"GPU {card.index}: {told}{busy}; reasons: {', '.join(card.throttled_by or ()) or 'none'}"
    )


def _link(card: CardReading) -> Iterator[Sign]:
    """Only while the card works: an idle one lowers its link to save power."""
    if not is_busy(card):
        return
    pairs = (
        ("link.width-lost", card.link_width, card.link_width_max),
        ("link.speed-lost", card.link_generation, card.link_generation_max),
    )
    for code, now, most in pairs:
        if now and most:
            yield Sign(code, card_subject(card), now < most, _link_words(card, code, now, most))


def _link_words(card: CardReading, code: str, now: int, most: int) -> Callable[[], Finding]:
    def words() -> Finding:
        named = card_words(card)
        seen = (
            Text(
                f"{named.en} runs on {now} PCIe lanes under load; it has {most}.",
                f"{named.zh}在负载下仅以 PCIe x{now} 运行；支持 x{most}。",
            )
            if code == "link.width-lost"
            else Text(
                f"{named.en} runs at PCIe {now}.0 under load; {most}.0 is possible.",
                f"{named.zh}在负载下运行于 PCIe {now}.0；可达 {most}.0。",
            )
        )
        link = f"PCIe {card.link_generation}.0 x{card.link_width}"
        best = f"{card.link_generation_max}.0 x{card.link_width_max}"
        told = f"GPU {card.index}: {link} while {show_share(card.busy_share)} busy, at most {best}"
        return finding(code, seen, evidence=(told,), address=card.pci_address or "ADDRESS")

    return words


def _errors(view: View, card: CardReading, began: CardReading) -> Iterator[Sign]:
    """Counts that grew; one that fell was set back with the driver."""
    before = view.earlier_card(card)
    now = card.uncorrected_errors
    if before is not None and now is not None and before.uncorrected_errors is not None:
        grew = now - before.uncorrected_errors
        yield Sign(
            "gpu.memory-errors",
            card_subject(card),
            grew > 0,
            lambda: _uncorrected_finding(card, grew),
            at_once=True,
            event=True,
        )
    if card.corrected_errors is not None and began.corrected_errors is not None:
        more = card.corrected_errors - began.corrected_errors
        yield Sign(
            "live.ecc-grew",
            card_subject(card),
            more >= alarm_limit("corrected_errors"),
            lambda: _corrected_finding(card, more),
        )


def _uncorrected_finding(card: CardReading, grew: int) -> Finding:
    words = card_words(card)
    found = finding(
        "gpu.memory-errors",
        Text(
            f"{words.en} had {grew} memory errors that could not be corrected.",
            f"{words.zh}新增 {grew} 个无法纠正的显存错误。",
        ),
        evidence=(f"uncorrected {card.uncorrected_errors}, {grew} new",),
    )
    return replace(found, command=(found.command or "").replace("{index}", str(card.index)))


def _corrected_finding(card: CardReading, grew: int) -> Finding:
    words = card_words(card)
    return alarm_finding(
        "live.ecc-grew",
        Text(
            f"{words.en} corrected {grew} memory errors within a day.",
            f"{words.zh}在一天内纠正了 {grew} 个显存错误。",
        ),
        evidence=(f"corrected {card.corrected_errors}, {grew} new",),
        index=card.index,
    )


def _foreign(card: CardReading) -> Iterator[Sign]:
    if not card.total_bytes or card.foreign_bytes is None:
        return
    share = card.foreign_bytes / card.total_bytes
    yield Sign(
        "live.foreign-process",
        card_subject(card),
        share >= threshold("gpu_memory_taken_share"),
        lambda: _foreign_finding(card),
    )


def _foreign_finding(card: CardReading) -> Finding:
    words, taken = card_words(card), show_bytes(card.foreign_bytes)
    names = ", ".join(" ".join(p.split(" ")[:2]) for p in card.foreign_processes[:3])
    return alarm_finding(
        "live.foreign-process",
        Text(
            f"Other programs hold {taken} of {words.en}: {names}.",
            f"其他程序占用了 {words.zh} 的 {taken}：{names}。",
        ),
        evidence=card.foreign_processes[:6],
    )
