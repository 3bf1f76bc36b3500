"""What makes an attribution doubtful, and what to do about its largest part. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.bench.doubts import SPREAD_SHARE, doubt
from workhorse.bench.doubts_machine import hot_cores, quota, throttled
from workhorse.records import Finding, Level, Sample, Term, Verdict
from workhorse.text import Text
from workhorse.units import show_duration, show_share


@dataclass(frozen=True, slots=True)
class Seen:
    """What else was so during the rounds; `None`: not known."""

    rounds: int
    failed: int = 0  # requests
    shared_rounds: int = 0  # in which other clients had requests at the service
    other_cpus: float | None = None  # CPUs' worth of work by other processes, at the most
    cpus: int | None = None
    drafted: bool = False  # the engine drafts tokens: several come of one step
    samples: tuple[Sample, ...] = ()


REMEDIES = {
    "attention": Text(
        "Keep conversations shorter, or try flash attention and a smaller KV type.",
        "缩短对话，或尝试 flash attention 与更小的 KV 类型。",
    ),
    "sampling": Text(
        "Ask for a shorter sampler chain: the engine's defaults run eight.",
        "请求中指定更短的采样链：引擎默认依次运行八个采样器。",
    ),
    "rest": Text(
        "Try threads, pages, builds and quants: `workhorse doctor` and `workhorse engine list` "
        "say what there is.",
        "尝试调整线程、内存页、引擎构建与量化：见 workhorse doctor 和 workhorse engine list。",
    ),
    "delivery": Text(
        "Let the client be near the service, without a proxy that collects its answer.",
        "让客户端靠近服务，不要经过会攒批转发的代理。",
    ),
    "gateway": Text(
        "Leave a core to the gateway: one thread less for the engine may be faster.",
        "给网关留一个核心：引擎少用一个线程可能反而更快。",
    ),
    "pauses": Text(
        "Stop other work on the machine (see `top`) and other clients, then explain again.",
        "停掉机器上的其他任务（用 top 查看）和其他客户端，再重新分析。",
    ),
}


def judge(terms: Sequence[Term], interval: tuple[float, float, float], seen: Seen) -> Verdict:
    """Doubts first, then the largest loss with its remedy. `interval`: measured, least, most."""
    found = (
        faster_than_ceiling(terms),
        unsteady(interval, seen),
        drafted(seen),
        shared(seen),
        busy(seen),
        failed(seen),
        *of_machine(seen),
        below_zero(terms),
        largest(terms, interval[0]),
    )
    return Verdict(tuple(finding for finding in found if finding is not None))


def of_machine(seen: Seen) -> tuple[Finding | None, ...]:
    """What held the machine back meanwhile."""
    if not seen.samples:
        return ()
    return throttled(seen.samples), quota(seen.samples), hot_cores(seen.samples)


def told(code: str, level: Level, seen: Text, why: Text, remedy: Text) -> Finding:
    """A finding of an attribution."""
    return doubt(f"explain-{code}", level, seen, why, remedy)


def term_of(terms: Sequence[Term], code: str) -> Term | None:
    """The term of this code."""
    return next((term for term in terms if term.code == code), None)


def faster_than_ceiling(terms: Sequence[Term]) -> Finding | None:
    """The rest is below zero beyond the noise: the ceiling or an experiment is wrong."""
    rest = term_of(terms, "rest")
    if rest is None or rest.high_s >= 0:
        return None
    return told(
        "ceiling",
        "warning",
        Text(
            f"The parts add up to more than was measured: {show_duration(-rest.seconds)} too much.",
            f"各项之和超过实测时间，多出 {show_duration(-rest.seconds)}。",
        ),
        Text(
            "The ceiling counts bytes that were not read, or the bandwidth was measured while "
            "something else used the memory.",
            "上限多算了未读取的字节，或测量带宽时内存正被其他任务占用。",
        ),
        Text(
            "Measure the bandwidth again with `workhorse probe` on the idle machine.",
            "在空闲时用 workhorse probe 重新测量带宽。",
        ),
    )


def unsteady(interval: tuple[float, float, float], seen: Seen) -> Finding | None:
    """The rounds differ so much that small terms drown."""
    measured, low, high = interval
    half = (high - low) / 2 / measured
    if half <= SPREAD_SHARE:
        return None
    return told(
        "spread",
        "warning",
        Text(
            f"Over {seen.rounds} rounds a token's time is only known within {show_share(half)}.",
            f"{seen.rounds} 轮测量后，每个 token 的时间只能确定到 ±{show_share(half)}。",
        ),
        Text("Parts smaller than that cannot be told from noise.", "更小的部分无法与噪声区分。"),
        Text(
            "Stop other work on the machine, and use more `--rounds`.",
            "停掉机器上的其他任务，并加大 --rounds。",
        ),
    )


def drafted(seen: Seen) -> Finding | None:
    """Several tokens come of one step: a ceiling of one step a token does not bind."""
    if not seen.drafted:
        return None
    return told(
        "drafts",
        "warning",
        Text("The engine drafts tokens.", "引擎启用了草稿 token。"),
        Text(
            "One reading of the weights gives several tokens, so the ceiling does not bind and the "
            "parts are of an average token.",
            "读取一次权重可得多个 token，因此上限不再成立，各项只是平均值。",
        ),
        Text("Explain it with drafts turned off.", "关闭草稿后再分析。"),
    )


def shared(seen: Seen) -> Finding | None:
    """Other clients were served meanwhile."""
    if not seen.shared_rounds:
        return None
    return told(
        "shared",
        "warning",
        Text(
            f"Other requests were at the service in {seen.shared_rounds} of {seen.rounds} rounds.",
            f"{seen.rounds} 轮中有 {seen.shared_rounds} 轮，服务同时在处理其他请求。",
        ),
        Text(
            "Their steps and prompts lengthen ours; that is part of the rest and of the pauses.",
            "它们会拖慢本次请求，这部分时间落在“其余”和“停顿”中。",
        ),
        Text("Explain it while nobody else asks.", "在无人使用时再分析。"),
    )


def busy(seen: Seen) -> Finding | None:
    """Other processes had the CPUs meanwhile."""
    if seen.other_cpus is None or not seen.cpus or seen.other_cpus <= SPREAD_SHARE * seen.cpus:
        return None
    return told(
        "busy-host",
        "warning",
        Text(
            f"Other processes kept up to {seen.other_cpus:.1f} of {seen.cpus} CPUs busy.",
            f"其他进程最多占用了 {seen.cpus} 个 CPU 中的 {seen.other_cpus:.1f} 个。",
        ),
        Text(
            "What they took of cores and memory is part of the rest and of the pauses.",
            "它们占用的核心与内存时间落在“其余”和“停顿”中。",
        ),
        Text("Stop them (see `top`), then explain again.", "停掉它们（用 top 查看）再重新分析。"),
    )


def failed(seen: Seen) -> Finding | None:
    """Requests that ended with an error."""
    if not seen.failed:
        return None
    return told(
        "errors",
        "warning",
        Text(f"{seen.failed} requests failed.", f"{seen.failed} 个请求失败。"),
        Text("Their rounds were left out.", "相应的轮次未计入。"),
        Text("Look into the service's log.", "请查看服务日志。"),
    )


def below_zero(terms: Sequence[Term]) -> Finding | None:
    """Terms that came out negative, named so that nobody takes them for a gain."""
    below = [
        term
        for term in terms
        if term.seconds < 0 and (term.code != "rest" or term.high_s >= 0)  # else: see the ceiling
    ]
    if not below:
        return None
    clear = any(term.clear for term in below)
    most = show_duration(max(0.0, *(term.high_s for term in below)))
    return told(
        "below-zero",
        "warning" if clear else "note",
        Text(
            "Below zero: " + "; ".join(term.what.en for term in below) + ".",
            "低于零：" + "；".join(term.what.zh for term in below) + "。",
        ),
        Text(
            "The variant that should be faster was slower, beyond what the rounds' noise explains."
            if clear
            else f"Its difference is smaller than the noise: no loss is seen there, and at most "
            f"{most} can be hidden.",
            "本应更快的一方反而更慢，且超出噪声范围。"
            if clear
            else f"差值小于噪声：这里看不出损失，最多可能隐藏 {most}。",
        ),
        Text("More `--rounds` narrow it down.", "加大 --rounds 可以缩小误差。"),
    )


def largest(terms: Sequence[Term], measured: float) -> Finding | None:
    """The largest part beyond the ceiling that is surely there."""
    lost = [term for term in terms if term.code in REMEDIES and term.low_s > 0]
    if not lost:
        return None
    worst = max(lost, key=lambda term: term.seconds)
    share = worst.seconds / measured
    return told(
        "largest",
        "note",
        Text(
            f"The largest loss that is sure: {worst.what.en}: {show_duration(worst.seconds)} of "
            f"{show_duration(measured)} a token.",
            f"可以确定的最大损失：{worst.what.zh}：每个 token {show_duration(measured)} 中占 "
            f"{show_duration(worst.seconds)}。",
        ),
        Text(
            f"Without it a stream would be {show_share(share / (1 - share))} faster."
            if share < 1
            else "It is the whole of it.",
            f"去掉它，单路速度可提高 {show_share(share / (1 - share))}。"
            if share < 1
            else "几乎全部时间都在这里。",
        ),
        REMEDIES[worst.code],
    )
