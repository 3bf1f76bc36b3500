"""Why decode became slow: what else is wrong or changed at the same time, likeliest first. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workhorse.guard import engine_place, engine_weights
from workhorse.guard.sign import View, card_words
from workhorse.knowledge.alarms import alarm_limit
from workhorse.knowledge.health import threshold, throttles
from workhorse.records import CardReading, EngineReading, Plan, Reading
from workhorse.text import Text
from workhorse.units import show_bytes, show_share


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table of causes, what was seen of it, and the figures."""

    code: str
    seen: Text
    evidence: str
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class Healthy:
    """How things stood at the latest good reading: what a change is measured against."""

    others_share: float | None = None
    cpu_throttles: int | None = None
    links: tuple[tuple[int, int | None, int | None], ...] = ()  # card, generation, lanes
    guests: frozenset[tuple[int, str]] = frozenset()  # card, and a process that is not ours


def healthy_now(view: View) -> Healthy:
    """The surroundings of a good reading."""
    now = view.now
    return Healthy(
        others_share(now),
        now.cpu_throttles,
        tuple((card.index, card.link_generation, card.link_width) for card in now.cards),
        frozenset(guest for card in now.cards for guest in guests(card)),
    )


def guests(card: CardReading) -> Iterator[tuple[int, str]]:
    """The card's index with the number of each process on it that is not ours."""
    return ((card.index, process.partition(" ")[0]) for process in card.foreign_processes)


def others_share(now: Reading) -> float | None:
    """Share of the CPUs that other programs keep busy."""
    busy, cpus = now.other_cpus_busy, now.cpus
    return None if busy is None or not cpus else busy / cpus


def crowded(now: Reading, engine: EngineReading) -> bool:
    """True while others take so much that the engine's speed is not its own.

    How long its threads wait for a CPU tells it: others may fill the time that it leaves.
    """
    if engine.waited_share is not None:
        return engine.waited_share >= alarm_limit("waited_much_share")
    return (others_share(now) or 0.0) >= alarm_limit("others_much_share")


def causes(view: View, engine: EngineReading, plan: Plan, healthy: Healthy) -> tuple[Cause, ...]:
    """Everything that explains a lower speed, what explains most first."""
    return tuple(
        cause
        for look in LOOKS
        for cause in look(Scene(view, engine, plan, view.cards_of(plan), healthy))
    )


@dataclass(frozen=True, slots=True)
class Scene:
    """One slow engine and what is around it."""

    view: View
    engine: EngineReading
    plan: Plan
    cards: tuple[CardReading, ...]
    healthy: Healthy


def _layers(scene: Scene) -> Iterator[Cause]:
    found = engine_place.misplaced(scene.view, scene.engine, scene.plan)
    if found is not None:
        yield Cause("slow.layers-on-cpu", found.seen, found.evidence)


def _swapped(scene: Scene) -> Iterator[Cause]:
    swapped = engine_weights.swapped_bytes(scene.engine)
    if swapped:
        shown = show_bytes(swapped)
        yield Cause(
            "slow.swapped",
            Text(f"{shown} of the engine lie in the swap", f"引擎有 {shown} 在交换区"),
            f"VmSwap {swapped}",
        )


def _evicted(scene: Scene) -> Iterator[Cause]:
    rate = engine_weights.faults_per_s(scene.view, scene.engine, scene.plan)
    if rate is not None and rate >= alarm_limit("major_faults_per_s"):
        yield Cause(
            "slow.weights-evicted",
            Text(
                f"the engine waits for the disk {rate:.0f} times a second",
                f"引擎每秒等待磁盘 {rate:.0f} 次",
            ),
            f"major faults {rate:.1f}/s",
        )


def _cpus(scene: Scene) -> Iterator[Cause]:
    changed = engine_place.changed_cpus(scene.engine, scene.plan)
    if changed is not None:
        yield Cause("slow.wrong-cpus", changed.seen, changed.evidence, changed.planned)


def _quota(scene: Scene) -> Iterator[Cause]:
    quota, threads = scene.engine.quota_cpus, scene.plan.threads
    if quota is not None and quota < threads:
        yield Cause(
            "slow.quota",
            Text(
                f"its control group gives {quota:g} CPUs for {threads} threads",
                f"控制组只给 {quota:g} 个 CPU，而线程数为 {threads}",
            ),
            f"quota {quota:g} CPUs, {threads} threads",
        )


def _throttled(scene: Scene) -> Iterator[Cause]:
    """Heat before the power cap: a hot card is often at its cap as well."""
    for card in scene.cards:
        reasons = card.throttled_by or ()
        faults = [r for r in reasons if (row := throttles().get(r)) and row.busy == "fault"]
        words, clock = card_words(card), f"SM {card.sm_clock_mhz} of {card.sm_clock_max_mhz} MHz"
        if faults:
            told = ", ".join(faults)
            yield Cause(
                "slow.hot",
                Text(f"{words.en} slows down: {told}", f"{words.zh}正在降频：{told}"),
                f"{told}; {card.temperature_c} °C, {clock}",
            )
        elif "SW power cap" in reasons and _clock_low(card):
            yield Cause(
                "slow.power-cap",
                Text(
                    f"{words.en} is held at its power limit of {card.power_limit_w:g} W"
                    if card.power_limit_w
                    else f"{words.en} is held at its power limit",
                    f"{words.zh}受功耗上限限制",
                ),
                f"SW power cap; {card.power_w} of {card.power_limit_w} W, {clock}",
            )


def _clock_low(card: CardReading) -> bool:
    clock, most = card.sm_clock_mhz, card.sm_clock_max_mhz
    return bool(clock and most and clock < most * threshold("core_clock_share"))


def _link(scene: Scene) -> Iterator[Cause]:
    """A link matters for decode where each token crosses it: several cards, or layers outside."""
    plan, before = scene.plan, {i: (g, w) for i, g, w in scene.healthy.links}
    crosses = len(scene.cards) > 1 or plan.expert_layers_in_ram or plan.gpu_layers < plan.layers
    for card in scene.cards if crosses else ():
        generation, width = before.get(card.index, (None, None))
        pairs = ((card.link_generation, generation), (card.link_width, width))
        if any(now and then and now < then for now, then in pairs):
            words = card_words(card)
            now = f"{card.link_generation}.0 x{card.link_width}"
            then = f"{generation}.0 x{width}"
            yield Cause(
                "slow.link",
                Text(
                    f"{words.en} runs on PCIe {now}, before on {then}",
                    f"{words.zh}运行于 PCIe {now}，之前为 {then}",
                ),
                f"PCIe {now}, before {then}",
            )


def _foreign(scene: Scene) -> Iterator[Cause]:
    for card in scene.cards:
        # A display server that was there all the time is no cause.
        if set(guests(card)) - scene.healthy.guests:
            told, words = "; ".join(card.foreign_processes[:3]), card_words(card)
            yield Cause(
                "slow.foreign-process",
                Text(
                    f"other programs are on {words.en}: {told}",
                    f"{words.zh}上有其他程序：{told}",
                ),
                told,
            )


def _nodes(scene: Scene) -> Iterator[Cause]:
    share = engine_weights.wrong_node_share(scene.engine, scene.plan)
    if share is not None and share >= alarm_limit("wrong_node_share"):
        shown = show_share(share)
        yield Cause(
            "slow.wrong-node",
            Text(f"{shown} of its pages lie on another node", f"{shown} 的内存页在其他节点"),
            f"bytes on nodes {scene.engine.pages_on_nodes}, planned {scene.plan.memory_nodes}",
        )


def _others(scene: Scene) -> Iterator[Cause]:
    share, before = others_share(scene.view.now), scene.healthy.others_share or 0.0
    waited = scene.engine.waited_share
    if waited is not None:
        yield from _waiting(scene, waited, share)
        return
    least, much = alarm_limit("others_busy_share"), alarm_limit("others_much_share")
    # Where others take half, that is the cause, also when they took much before.
    if share is None or share < min(much, max(least, min(before * 1.5, before + least))):
        return
    busy, cpus = scene.view.now.other_cpus_busy, scene.view.now.cpus
    shown, then = show_share(share), show_share(before)
    yield Cause(
        "slow.others",
        Text(
            f"other programs keep {shown} of its CPUs busy (before: {then})",
            f"其他程序占用了 {shown} 的 CPU（之前 {then}）",
        ),
        f"others: {busy:.2f} of {cpus} CPUs, before {before:.2f} of each",
    )


def _waiting(scene: Scene, waited: float, others: float | None) -> Iterator[Cause]:
    if waited < alarm_limit("waited_share"):
        return
    shown, busy = show_share(waited), show_share(others)
    yield Cause(
        "slow.others",
        Text(
            f"its threads waited for a CPU {shown} of the time, with other programs on {busy} "
            "of its CPUs",
            f"其线程有 {shown} 的时间在等待 CPU，其他程序占用了 {busy} 的 CPU",
        ),
        f"others: threads waited {waited:.2f} of the time; {scene.view.now.other_cpus_busy} of "
        f"{scene.view.now.cpus} CPUs busy with others",
    )


def _hot_cpu(scene: Scene) -> Iterator[Cause]:
    now, before = scene.view.now.cpu_throttles, scene.healthy.cpu_throttles
    if now is None or before is None or now - before < alarm_limit("cpu_throttles"):
        return
    grew = now - before
    yield Cause(
        "slow.cpu-hot",
        Text(f"the CPU slowed down for heat {grew} times", f"CPU 因过热降频 {grew} 次"),
        f"core_throttle_count grew by {grew}",
    )


LOOKS: tuple[Callable[[Scene], Iterator[Cause]], ...] = (
    _layers, _swapped, _evicted, _cpus, _quota, _throttled, _link, _foreign, _others, _nodes,
    _hot_cpu,
)  # fmt: skip
