"""Whether each card works at its speed: power, heat, clocks, measured memory."""

from collections.abc import Iterator

from workhorse.doctor.opinion import Opinion, alike, finding, named
from workhorse.knowledge.gpus import card_of
from workhorse.knowledge.health import Throttle, threshold, throttles
from workhorse.records import Finding, Gpu, Machine
from workhorse.text import Text
from workhorse.units import show_bandwidth, show_share

# From P8 on a card is idle (nvml.h: P0 is the fastest state, P15 the slowest).
_IDLE_STATE = 8


def judge_cards(machine: Machine) -> Opinion:
    """What holds a card back."""
    gpus = machine.gpus
    if not gpus:
        return Opinion()
    findings = (
        *throttled(gpus),
        *idle_heat(gpus),
        *power_limits(gpus),
        *low_clocks(gpus),
        *slow_memory(gpus),
    )
    unchecked = []
    if silent := [gpu for gpu in gpus if gpu.throttle_reasons is None]:
        who = named(silent)
        unchecked.append(
            Text(
                f"Why {who.en} lowers its clocks: the driver does not tell.",
                f"{who.zh}的降频原因：驱动未给出。",
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
    return min(
        found,
        key=lambda f: (f[0].code == "gpu.hw-slowdown", f[1], -(f[0].share_lost or 0)),
        default=None,
    )


def is_hot(gpu: Gpu) -> bool:
    """True when the core or its memory is near the temperature at which the card slows down."""
    limit = gpu.slowdown_temperature_c
    # Newer cards tell a distance to a limit instead (-2 °C), which is no temperature.
    core = (
        limit is not None
        and limit > threshold("passive_idle_c")
        and (gpu.temperature_c or 0) >= limit - threshold("slowdown_margin_c")
    )
    return core or (gpu.memory_temperature_c or 0) >= threshold("memory_hot_c")


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
        memory = max((gpu.memory_temperature_c or 0 for gpu in found), default=0)
        if not reason and memory >= threshold("memory_hot_c"):
            at, at_zh = f": memory {memory} °C", f"：显存 {memory} °C"
        seen = (
            Text(f"{who.en} slows down{at}: {reason}.", f"{who.zh}正在降频{at_zh}：{reason}。")
            if reason
            else Text(
                f"{who.en} is close to the temperature at which it slows down{at}.",
                f"{who.zh}接近降频温度{at_zh}。",
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
                f"{who.zh}为被动散热，空闲时已达 {hottest} °C。",
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
                f"{who.zh}功耗上限 {limit:g} W，默认 {default:g} W{now.zh}。",
            ),
            evidence=(heat_words(gpu) for gpu in found),
            cards=found,
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
                    f"{who.zh}正忙，但显存频率为 {memory}/{memory_max} MHz。",
                ),
                evidence=(heat_words(gpu), f"memory {memory} MHz, P{gpu.performance_state}"),
                share_lost=round(1 - memory / memory_max, 3),
                cards=[gpu],
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
                    f"{who.zh}正忙，但核心频率为 {core}/{core_max} MHz。",
                ),
                evidence=(heat_words(gpu),),
                cards=[gpu],
            )


def slow_memory(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Cards whose own memory was measured far below what it is rated for."""
    reachable = threshold("card_memory_reachable_share")
    for gpu in gpus:
        rated = gpu.rated_bandwidth_bytes_per_s
        best = max((c.bytes_per_s for c in gpu.copies if c.kind == "device"), default=None)
        if not rated or best is None or worst_throttle(gpu) is not None:
            continue
        share = 2 * best / rated  # a copy reads each byte and writes it
        if share >= threshold("card_memory_share"):
            continue
        who = named([gpu])
        yield finding(
            "gpu.memory-slow",
            Text(
                f"{who.en} copies in its own memory at {show_bandwidth(2 * best)}, "
                f"{show_share(share)} of the rated {show_bandwidth(rated)}.",
                f"{who.zh}显存内拷贝 {show_bandwidth(2 * best)}，"
                f"为额定 {show_bandwidth(rated)} 的 {show_share(share)}。",
            ),
            evidence=(
                heat_words(gpu),
                *(f"{c.kind}: {c.bytes_per_s:.4g} B/s, {c.method}" for c in gpu.copies),
            ),
            share_lost=round(1 - share / reachable, 3),
            cards=[gpu],
        )


def good_cards(gpus: tuple[Gpu, ...]) -> Text | None:
    """Power and heat in a line, of the cards whose driver tells what slows them down."""
    told = [gpu for gpu in gpus if gpu.throttle_reasons is not None]
    if not told:
        return None
    hot = [gpu.temperature_c for gpu in told if gpu.temperature_c is not None]
    who = named(told)
    at, at_zh = (f", at most {max(hot)} °C", f"，最高 {max(hot)} °C") if hot else ("", "")
    return Text(f"{who.en}: nothing slows it down{at}.", f"{who.zh}：无降频{at_zh}。")
