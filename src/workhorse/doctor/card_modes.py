"""How each card is set up and who uses it: modes, ECC, its window on the bus, other programs."""

from collections.abc import Iterator

from workhorse.doctor.opinion import Opinion, alike, finding, named
from workhorse.knowledge.health import threshold
from workhorse.records import Finding, Gpu, Machine
from workhorse.text import Text
from workhorse.units import show_bytes, show_share


def judge_card_modes(machine: Machine) -> Opinion:
    """What keeps programs off a card, makes them wait, or takes its memory."""
    gpus = machine.gpus
    return Opinion((*modes(gpus), *memory_taken(gpus), *ecc_modes(gpus), *windows(gpus)))


def modes(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Modes that keep programs off the card, or make them wait for it."""
    for code, seen, shown in (
        ("gpu.prohibited", lambda g: g.compute_mode == "prohibited",
         Text("is in compute mode `prohibited`", "处于计算模式 prohibited（禁止）")),
        ("gpu.exclusive", lambda g: g.compute_mode == "exclusive process",
         Text("is in compute mode `exclusive process`", "处于计算模式 exclusive process（独占）")),
        ("gpu.mig", lambda g: g.mig is True, Text("has MIG turned on", "开启了 MIG")),
        ("gpu.persistence-off", lambda g: g.persistence is False,
         Text("has persistence mode off", "未开启持久模式")),
    ):  # fmt: skip
        found = [gpu for gpu in gpus if seen(gpu)]
        if found:
            who = named(found)
            yield finding(
                code,
                Text(f"{who.en} {shown.en}.", f"{who.zh}{shown.zh}。"),
                evidence=(mode_words(gpu) for gpu in found),
                share_lost=1.0 if code == "gpu.prohibited" and len(found) == len(gpus) else None,
                # A card of several that is closed leaves the others.
                level="warning" if code == "gpu.prohibited" and len(found) < len(gpus) else None,
                cards=found,
            )


def mode_words(gpu: Gpu) -> str:
    """The modes of a card, as evidence."""
    return (
        f"GPU {gpu.index}: compute mode {gpu.compute_mode or '?'}, MIG {gpu.mig}, "
        f"persistence {gpu.persistence}"
    )


def memory_taken(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Memory of a card that other programs hold."""
    for gpu in gpus:
        total, free = gpu.memory_total_bytes, gpu.memory_free_bytes
        programs = [p for p in gpu.processes or () if p.memory_bytes]
        held = sum(p.memory_bytes or 0 for p in programs)
        if total and free is not None:
            held = max(held, total - free)
        if not total or held < total * threshold("gpu_memory_taken_share"):
            continue
        who = named([gpu])
        listed = ", ".join(f"{p.name or '?'} ({p.pid})" for p in (gpu.processes or ())[:4])
        by = (
            Text(f": {listed}", f"：{listed}")
            if listed
            else Text(" by programs that cannot be seen from here", "（占用者在此不可见）")
        )
        yield finding(
            "gpu.memory-taken",
            Text(
                f"{show_bytes(held)} of the {show_bytes(total)} of {who.en} are taken{by.en}.",
                f"{who.zh}的 {show_bytes(total)} 显存已被占用 {show_bytes(held)}{by.zh}。",
            ),
            evidence=(
                f"GPU {gpu.index}: total {total}, free {free}",
                *(f"pid {p.pid} {p.name or '?'} {show_bytes(p.memory_bytes)}"
                  for p in (gpu.processes or ())[:8]),
            ),
        )  # fmt: skip


def ecc_modes(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """ECC off where it costs nothing; on where it costs room."""

    def costs(gpu: Gpu) -> bool | None:
        bits = gpu.memory_bus_bits
        if bits is None or gpu.ecc_enabled is None:
            return None
        hbm = bits >= threshold("hbm_bus_bits")
        return None if hbm == gpu.ecc_enabled else gpu.ecc_enabled

    share = threshold("inline_ecc_share")
    for on, found in alike(gpus, costs):
        who = named(found)
        yield finding(
            "gpu.ecc-costs" if on else "gpu.ecc-off",
            Text(
                f"{who.en} keeps {show_share(share)} of its memory for ECC.",
                f"{who.zh}用 {show_share(share)} 的显存存放 ECC 校验位。",
            )
            if on
            else Text(f"{who.en} has ECC off.", f"{who.zh}未开启 ECC。"),
            evidence=(
                f"GPU {gpu.index}: ECC {'on' if on else 'off'}, {gpu.memory_bus_bits} bit, "
                f"{show_bytes(gpu.memory_total_bytes)}"
                for gpu in found
            ),
            cards=found,
        )


def windows(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Several cards whose memory the CPU and the other cards see only a part of."""

    def small(gpu: Gpu) -> int | None:
        window, total = gpu.bar1_bytes, gpu.memory_total_bytes
        return window if window and total and window < total / 2 else None

    if len(gpus) < 2:
        return  # one card has no peer, and loading copies through any window alike
    for window, found in alike(gpus, small):
        who = named(found)
        yield finding(
            "gpu.small-window",
            Text(
                f"{who.en} shows {show_bytes(window)} of its memory on the bus (BAR1).",
                f"{who.zh}在总线上只映射了 {show_bytes(window)} 显存（BAR1）。",
            ),
            evidence=(f"GPU {gpu.index}: BAR1 {window} bytes" for gpu in found),
        )
