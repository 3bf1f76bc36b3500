"""Whether each card works at its speed: power, heat, clocks, modes, and who else uses it."""

from collections.abc import Iterator

from workhorse.doctor.opinion import Opinion, alike, finding, named
from workhorse.knowledge.gpus import card_of
from workhorse.knowledge.health import Throttle, threshold, throttles
from workhorse.records import Finding, Gpu, Machine
from workhorse.text import Text
from workhorse.units import show_bytes, show_share

# From P8 on a card is idle (nvml.h: P0 is the fastest state, P15 the slowest).
_IDLE_STATE = 8


def judge_cards(machine: Machine) -> Opinion:
    """What holds a card back or keeps programs off it."""
    gpus = machine.gpus
    if not gpus:
        return Opinion()
    findings = (
        *modes(gpus),
        *throttled(gpus),
        *idle_heat(gpus),
        *power_limits(gpus),
        *low_clocks(gpus),
        *memory_taken(gpus),
        *ecc_modes(gpus),
        *windows(gpus),
    )
    unchecked = []
    if silent := [gpu for gpu in gpus if gpu.throttle_reasons is None]:
        who = named(silent)
        unchecked.append(
            Text(
                f"Why {who.en} lowers its clocks: the driver does not tell.",
                f"{who.zh} 的降频原因：驱动未给出。",
            )
        )
    return Opinion(findings, good_cards(gpus), tuple(unchecked))


def is_idle(gpu: Gpu) -> bool:
    """True when the card has nothing to do, by any of the signs that it gives."""
    if gpu.busy_percent is not None:
        return gpu.busy_percent == 0
    if gpu.throttle_reasons is not None and "idle" in gpu.throttle_reasons:
        return True
    return gpu.performance_state is not None and gpu.performance_state >= _IDLE_STATE


def is_busy(gpu: Gpu) -> bool:
    """True when the card certainly has work to do."""
    return (gpu.busy_percent or 0) >= threshold("busy_percent")


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
                Text(f"{who.en} {shown.en}.", f"{who.zh} {shown.zh}。"),
                evidence=(mode_words(gpu) for gpu in found),
                share_lost=1.0 if code == "gpu.prohibited" and len(found) == len(gpus) else None,
                # A card of several that is closed leaves the others.
                level="warning" if code == "gpu.prohibited" and len(found) < len(gpus) else None,
                index=found[0].index,
            )


def mode_words(gpu: Gpu) -> str:
    """The modes of a card, as evidence."""
    return (
        f"GPU {gpu.index}: compute mode {gpu.compute_mode or '?'}, MIG {gpu.mig}, "
        f"persistence {gpu.persistence}"
    )


def worst_throttle(gpu: Gpu) -> tuple[Throttle, bool] | None:
    """The reason that costs most and is a fault, and whether it is doubtful; None: all harmless."""
    idle = is_idle(gpu)
    found = []
    for reason in gpu.throttle_reasons or ():
        row = throttles().get(reason)
        meaning = None if row is None else row.idle if idle else row.busy
        if row is not None and row.code and meaning != "harmless":
            found.append((row, meaning == "doubtful"))
    # `HW slowdown` is set with each of the reasons that explain it: the specific one speaks.
    return min(found, key=lambda f: (f[0].code == "gpu.hw-slowdown", f[1]), default=None)


def is_hot(gpu: Gpu) -> bool:
    """True when the core or its memory is near the temperature at which the card slows down."""
    limit = gpu.slowdown_temperature_c
    core = limit is not None and gpu.temperature_c is not None
    if core and (gpu.temperature_c or 0) >= (limit or 0) - threshold("slowdown_margin_c"):
        return True
    return (gpu.memory_temperature_c or 0) >= threshold("memory_hot_c")


def throttled(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Cards that slow themselves down, and those about to."""

    def cause(gpu: Gpu) -> tuple[str, str, bool, float | None] | None:
        worst = worst_throttle(gpu)
        if worst is not None:
            row, doubtful = worst
            return row.code or "", row.reason, doubtful, row.share_lost
        return ("gpu.too-hot", "", False, None) if is_hot(gpu) else None

    for (code, reason, doubtful, share), found in alike(gpus, cause):
        who, hottest = named(found), max((gpu.temperature_c or 0 for gpu in found), default=0)
        at, at_zh = (f" at {hottest} °C", f"，{hottest} °C") if hottest else ("", "")
        seen = (
            Text(f"{who.en} slows down{at}: {reason}.", f"{who.zh} 正在降频{at_zh}：{reason}。")
            if reason
            else Text(
                f"{who.en} is close to the temperature at which it slows down{at}.",
                f"{who.zh} 接近降频温度{at_zh}。",
            )
        )
        yield finding(
            code,
            seen,
            evidence=(heat_words(gpu) for gpu in found),
            share_lost=None if doubtful else share,
            level="note" if doubtful else None,
            sure="possible" if doubtful else None,
        )


def idle_heat(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Passive cards that are hot with nothing to do: nobody blows air through them."""

    def baking(gpu: Gpu) -> bool | None:
        hot = (gpu.temperature_c or 0) >= threshold("passive_idle_c")
        if not hot or not is_idle(gpu) or gpu.fan_percent is not None:
            return None
        if is_hot(gpu) or worst_throttle(gpu) is not None:
            return None  # told as such already
        card = card_of(gpu)
        return True if card is not None and card.passive else None

    for _, found in alike(gpus, baking):
        who, hottest = named(found), max(gpu.temperature_c or 0 for gpu in found)
        yield finding(
            "gpu.no-air-flow",
            Text(
                f"{who.en} has no fan and is at {hottest} °C with nothing to do.",
                f"{who.zh} 为被动散热，空闲时已达 {hottest} °C。",
            ),
            evidence=(heat_words(gpu) for gpu in found),
        )


def heat_words(gpu: Gpu) -> str:
    """Temperature, power and throttle reasons of a card, as evidence."""
    reasons = ", ".join(gpu.throttle_reasons or ()) or "none"
    parts = {
        "core": (gpu.temperature_c, "°C"),
        "memory": (gpu.memory_temperature_c, "°C"),
        "slows down at": (gpu.slowdown_temperature_c, "°C"),
        "draws": (gpu.power_draw_w, "W"),
        "limit": (gpu.power_limit_w, "W"),
        "busy": (gpu.busy_percent, "%"),
        "SM clock": (gpu.sm_clock_now_mhz, "MHz"),
    }
    told = ", ".join(
        f"{name} {value:g} {unit}" for name, (value, unit) in parts.items() if value is not None
    )
    return f"GPU {gpu.index}: {told or 'nothing known'}; reasons: {reasons}"


def power_limits(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Cards that may draw less than they were made for."""

    def lowered(gpu: Gpu) -> tuple[float, float] | None:
        limit, default = gpu.power_limit_w, gpu.power_limit_default_w
        if not limit or not default or limit >= default * threshold("power_limit_share"):
            return None
        return limit, default

    for (limit, default), found in alike(gpus, lowered):
        who = named(found)
        held = any("SW power cap" in (gpu.throttle_reasons or ()) for gpu in found)
        now = Text(", and is held by it now", "，目前正受其限制") if held else Text("", "")
        yield finding(
            "gpu.power-limit",
            Text(
                f"{who.en} may draw {limit:g} W; its default is {default:g} W{now.en}.",
                f"{who.zh} 功耗上限 {limit:g} W，默认 {default:g} W{now.zh}。",
            ),
            evidence=(heat_words(gpu) for gpu in found),
            index=found[0].index,
            watts=f"{default:g}",
        )


def low_clocks(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Busy cards whose clocks are down for no reason that the driver names."""
    for gpu in gpus:
        if not is_busy(gpu) or worst_throttle(gpu) is not None:
            continue
        memory, memory_max = gpu.memory_clock_now_mhz, gpu.memory_clock_max_mhz
        core, core_max = gpu.sm_clock_now_mhz, gpu.sm_clock_max_mhz
        who = named([gpu])
        if memory and memory_max and memory < memory_max * threshold("memory_clock_share"):
            yield finding(
                "gpu.memory-clock-low",
                Text(
                    f"{who.en} is busy with its memory at {memory} of {memory_max} MHz.",
                    f"{who.zh} 正忙，但显存频率为 {memory}/{memory_max} MHz。",
                ),
                evidence=(heat_words(gpu), f"memory {memory} MHz, P{gpu.performance_state}"),
                share_lost=round(1 - memory / memory_max, 3),
                index=gpu.index,
            )
        elif (
            core
            and core_max
            and core < core_max * threshold("core_clock_share")
            and "SW power cap" not in (gpu.throttle_reasons or ())
        ):
            yield finding(
                "gpu.clocks-low",
                Text(
                    f"{who.en} is busy at {core} of {core_max} MHz.",
                    f"{who.zh} 正忙，但核心频率为 {core}/{core_max} MHz。",
                ),
                evidence=(heat_words(gpu),),
                index=gpu.index,
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
                f"{who.zh} 的 {show_bytes(total)} 显存已被占用 {show_bytes(held)}{by.zh}。",
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
                f"{who.zh} 用 {show_share(share)} 的显存存放 ECC 校验位。",
            )
            if on
            else Text(f"{who.en} has ECC off.", f"{who.zh} 未开启 ECC。"),
            evidence=(
                f"GPU {gpu.index}: ECC {'on' if on else 'off'}, {gpu.memory_bus_bits} bit, "
                f"{show_bytes(gpu.memory_total_bytes)}"
                for gpu in found
            ),
            index=found[0].index,
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
                f"{who.zh} 在总线上只映射了 {show_bytes(window)} 显存（BAR1）。",
            ),
            evidence=(f"GPU {gpu.index}: BAR1 {window} bytes" for gpu in found),
        )


def good_cards(gpus: tuple[Gpu, ...]) -> Text | None:
    """Power and heat in a line, for a reader whose cards are well."""
    hot = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    if not hot and all(gpu.throttle_reasons is None for gpu in gpus):
        return None
    who = named(gpus)
    at, at_zh = (f", at most {max(hot)} °C", f"，最高 {max(hot)} °C") if hot else ("", "")
    return Text(f"{who.en}: nothing slows it down{at}.", f"{who.zh}：无降频{at_zh}。")
