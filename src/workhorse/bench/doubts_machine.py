"""Doubts from the samples that were taken while a measurement ran. Pure."""

from collections.abc import Callable, Sequence
from statistics import median

from workhorse.bench.stats import decode_tokens_per_s, known, ttft_s
from workhorse.records import Finding, Measurement, Sample
from workhorse.text import Text
from workhorse.units import show_duration, show_share, three_digits

SOURCE = "workhorse bench"

# Reasons of the driver that are no loss while a card works: it is told to rest, or was told a
# clock by somebody (nvml.h, driver 580).
NO_LOSS = ("idle", "applications clocks setting", "display clock setting")
HEAT = ("SW thermal slowdown", "HW thermal slowdown", "HW slowdown")
# In fewer samples it was a moment.
SAMPLES_SHARE = 0.1

# The settings that a plan chooses between differ by 5 % and more: so much other work hides them.
OTHERS_SHARE = 0.05
# A thread that has to do something in more than this share of the time makes pieces wait for it.
CLIENT_CPUS_MAX = 0.7
# What the bench promises about its own accuracy.
ACCURACY_SHARE = 0.02
TTFT_SHARE = 0.05
WITHHELD_SHARE = 0.01
# A clock that falls so much between the first and the last third of a run is no noise.
CLOCK_DRIFT_SHARE = 0.03
SAMPLES_OF_DRIFT = 6


def machine_doubts(measurement: Measurement) -> list[Finding]:
    """What the samples say against the figures."""
    samples = [one for one in measurement.conditions.samples if one.at_s >= 0]
    if not samples:
        return []
    others = other_work(measurement, samples)
    found = (
        throttled(samples),
        others,
        # Where other work had the CPUs, that is why the client was woken late.
        client_busy(samples) or (client_late(measurement, samples) if others is None else None),
        quota(measurement.conditions.samples),
        hot_cores(measurement.conditions.samples),
        drifting_clock(samples),
        narrow_link(measurement, samples),
    )
    return [finding for finding in found if finding is not None]


def warning(code: str, seen: Text, why: Text, remedy: Text) -> Finding:
    """A finding that lowers the trust in a figure."""
    return Finding(f"bench-{code}", "warning", seen, why, remedy, SOURCE)


def throttled(samples: Sequence[Sample]) -> Finding | None:
    """A card that its driver held back, with the driver's reasons."""
    counts: dict[tuple[int, str], int] = {}
    for one in samples:
        for card in one.cards:
            for reason in set(card.throttled_by or ()) - set(NO_LOSS):
                counts[card.index, reason] = counts.get((card.index, reason), 0) + 1
    often = {key: n for key, n in counts.items() if n >= max(1, SAMPLES_SHARE * len(samples))}
    if not often:
        return None
    (index, reason), times = max(often.items(), key=lambda item: item[1])
    share = show_share(times / len(samples))
    hot = any(reason in HEAT for _, reason in often)
    remedy = Text(
        "Cool the card (fans, dust, warm air from its neighbours), then measure again.",
        "改善散热（风扇、灰尘、相邻显卡的热风），再重测。",
    )
    if not hot:
        remedy = Text(
            "Compare the power limit with the card's default (`nvidia-smi -q -d POWER`); where "
            "the limit is meant, the figures are right for it.",
            "用 nvidia-smi -q -d POWER 对比功耗上限与默认值；若上限是有意设置的，"
            "该数字即为此上限下的速度。",
        )
    return warning(
        "throttled",
        Text(
            f"GPU {index} was held back in {share} of the samples: {reason}.",
            f"GPU {index} 在 {share} 的采样中被限速：{reason}。",
        ),
        Text(
            "The figures are those of lower clocks, and change with temperature and load.",
            "数字对应的是较低的频率，并会随温度和负载变化。",
        ),
        remedy,
    )


def other_work(measurement: Measurement, samples: Sequence[Sample]) -> Finding | None:
    """Processes that are neither client nor service worked on the CPUs meanwhile."""
    others = known(one.other_cpus for one in samples)
    machine = measurement.conditions.machine
    cpus = len(machine.limits.cpus) if machine is not None else 0
    if not others or not cpus or median(others) <= OTHERS_SHARE * cpus:
        return None
    busy = three_digits(median(others))
    return warning(
        "other-load",
        Text(
            f"While this was measured other processes kept {busy} of {cpus} CPUs busy.",
            f"测量期间，其他进程占用了 {cpus} 个 CPU 中的 {busy} 个。",
        ),
        Text(
            "On a CPU every layer waits for the slowest core: one busy core can cost half.",
            "在 CPU 上，每一层都要等最慢的核心：一个核心被占用就可能损失一半速度。",
        ),
        Text("Stop the other work (see `top`), then measure.", "停掉其他任务（用 top 查看）再测。"),
    )


def client_busy(samples: Sequence[Sample]) -> Finding | None:
    """The measuring process had too much to do."""
    work = known(one.client_cpus for one in samples)
    if not work or median(work) <= CLIENT_CPUS_MAX:
        return None
    share = show_share(median(work))
    return client_bound(
        Text(
            f"The measuring process itself was busy {share} of the time.",
            f"测速进程自身的占用率达到 {share}。",
        )
    )


def client_late(measurement: Measurement, samples: Sequence[Sample]) -> Finding | None:
    """The measuring process was woken so late that it shows in a figure."""
    late_s = known(one.late_s for one in samples)
    hurt = hurt_by(measurement, median(late_s)) if late_s else None
    if hurt is None:
        return None
    late = show_duration(median(late_s))
    return client_bound(
        Text(
            f"The measuring process was woken up to {late} late, which shows in {hurt.en}.",
            f"测速进程被唤醒的延迟达到 {late}，影响了{hurt.zh}。",
        )
    )


def client_bound(seen: Text) -> Finding:
    """What was measured is partly the client."""
    return warning(
        "client-bound",
        seen,
        Text(
            "Part of what was measured is the client, not the service.",
            "测得的时间有一部分属于客户端，而不是服务。",
        ),
        Text(
            "Run `workhorse bench` on another machine of the network, or with fewer streams.",
            "在网络中的另一台机器上运行 workhorse bench，或减少并发。",
        ),
    )


def hurt_by(measurement: Measurement, late_s: float) -> Text | None:
    """The figure that so much lateness moves by more than is promised."""
    firsts_s = known(map(ttft_s, measurement.runs))
    spans_s = [
        run.arrivals_s[-1] - run.arrivals_s[0]
        for run in measurement.runs
        if decode_tokens_per_s(run) is not None
    ]
    if measurement.shared_tokens == measurement.prompt_tokens:
        firsts_s = []  # the whole prompt was kept: decode alone is measured
    if spans_s and late_s > ACCURACY_SHARE * median(spans_s):
        return Text("decode", "解码速度")
    if firsts_s and late_s > TTFT_SHARE * median(firsts_s):
        return Text("the time to first token", "首字延迟")
    return None


def quota(samples: Sequence[Sample]) -> Finding | None:
    """A control group's CPU quota held processes back."""
    lost = grown(samples, lambda one: one.quota_waited_s)
    took_s = samples[-1].at_s - samples[0].at_s
    if lost is None or took_s <= 0 or lost <= WITHHELD_SHARE * took_s:
        return None
    return warning(
        "quota",
        Text(
            f"The control group's CPU quota held its processes back for {show_duration(lost)} "
            f"of {show_duration(took_s)}.",
            f"在 {show_duration(took_s)} 中，控制组的 CPU 配额让进程停顿了 {show_duration(lost)}。",
        ),
        Text(
            "Threads that wait for each other stop together: the loss is larger than the quota.",
            "互相等待的线程会一起停下，损失比配额本身更大。",
        ),
        Text(
            "Raise the quota (`docker run --cpus`, `CPUQuota=`), or plan with fewer threads.",
            "提高配额（docker run --cpus、CPUQuota=），或在方案中减少线程数。",
        ),
    )


def hot_cores(samples: Sequence[Sample]) -> Finding | None:
    """Cores slowed down for heat."""
    times = grown(samples, lambda one: one.cpu_throttles)
    if not times:
        return None
    return warning(
        "hot-cpu",
        Text(
            f"Cores slowed down for heat {times:.0f} times while this was measured.",
            f"测量期间 CPU 核心因过热降频 {times:.0f} 次。",
        ),
        Text("The figures are those of a hot machine.", "数字对应的是过热的机器。"),
        Text("Look after fans and dust, then measure again.", "检查风扇和灰尘，再重测。"),
    )


def grown(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> float | None:
    """By how much a counter grew between the first and the last sample."""
    counts = known(map(of, samples))
    return counts[-1] - counts[0] if len(counts) >= 2 else None


def drifting_clock(samples: Sequence[Sample]) -> Finding | None:
    """A clock that fell while the measurement went on: the machine was warming up."""
    series: dict[str, list[float]] = {"CPU": known(one.cpu_mhz for one in samples)}
    for one in samples:
        for card in one.cards:
            # An idle moment between two requests is no drift.
            if card.sm_clock_mhz is not None and (card.busy_share or 0) > 0.5:
                series.setdefault(f"GPU {card.index}", []).append(card.sm_clock_mhz)
    for name, clocks in series.items():
        if len(clocks) < SAMPLES_OF_DRIFT:
            continue
        third = len(clocks) // 3
        first, last = median(clocks[:third]), median(clocks[-third:])
        if first > 0 and last < first * (1 - CLOCK_DRIFT_SHARE):
            return clock_fell(name, first, last)
    return None


def clock_fell(name: str, first: float, last: float) -> Finding:
    """A clock's fall, in words."""
    return warning(
        "clock-drift",
        Text(
            f"The clock of {name} fell from {first:.0f} to {last:.0f} MHz while this was measured.",
            f"测量期间 {name} 的频率从 {first:.0f} MHz 降到 {last:.0f} MHz。",
        ),
        Text(
            "The machine was still warming up: later figures are lower than earlier ones.",
            "机器仍在升温：后面的数字会低于前面的。",
        ),
        Text(
            "Measure again now that it is warm, with more `--repeats`.",
            "现在已经升温，请增加 --repeats 重测。",
        ),
    )


def narrow_link(measurement: Measurement, samples: Sequence[Sample]) -> Finding | None:
    """A card that was busy on fewer PCIe lanes than card and slot have."""
    machine = measurement.conditions.machine
    most = {gpu.index: gpu.pcie_width_max for gpu in machine.gpus} if machine else {}
    for one in samples:
        for card in one.cards:
            width, full = card.link_width, most.get(card.index)
            if width and full and width < full and (card.busy_share or 0) > 0.5:
                return warning(
                    "link-width",
                    Text(
                        f"GPU {card.index} ran on {width} of {full} PCIe lanes.",
                        f"GPU {card.index} 只用了 {full} 条 PCIe 通道中的 {width} 条。",
                    ),
                    Text(
                        "Loading and splitting over cards are slower by that share.",
                        "加载和多卡拆分会按此比例变慢。",
                    ),
                    Text("`workhorse doctor` says why.", "原因见 workhorse doctor。"),
                )
    return None
