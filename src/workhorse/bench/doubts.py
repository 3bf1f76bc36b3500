"""What makes a measurement's figures doubtful, each with what to do about it. Pure."""

from statistics import median

from workhorse.bench.doubts_machine import machine_doubts
from workhorse.bench.stats import (
    Spread,
    decode_by_round,
    decode_tokens_per_s,
    is_mixed,
    known,
    prefill_tokens_per_s,
    rounds,
    spread,
    total_tokens_per_s,
)
from workhorse.records import Finding, Level, Measurement, Run, Verdict
from workhorse.text import Text
from workhorse.units import show_share, three_digits

# The settings that a plan chooses between differ by 5 % and more (one memory node against two:
# 5-10 %; huge pages: 13-30 %; measured 2026-11). Samples further apart than that hide them.
SPREAD_SHARE = 0.05

# With one or two samples the median is not robust against a single disturbed one.
ROUNDS_MIN = 3

# What the bench promises about its own accuracy.
ACCURACY_SHARE = 0.02

# Prefill is linear in the prompt or worse: a length off by this much shifts TTFT as much.
LENGTH_SHARE = 0.05

# Scenarios whose figure is the prompt: their answers are too short to say anything of decode.
OF_PROMPTS = ("prompts", "prefix")

SOURCE = "workhorse bench"


def doubts(measurement: Measurement) -> Verdict:
    """The doubts about a measurement, gravest first; none means: these figures can be trusted."""
    good = [run for run in measurement.runs if run.error is None]
    found = (
        failed_runs(measurement.runs),
        None if measurement.cache_asked else cached_prompts(good),
        no_hits(measurement, good),
        short_answers(measurement, good),
        prompt_length(measurement, good),
        too_few_rounds(measurement),
        busy_host(measurement),
        unsteady(measurement),
        *(() if measurement.scenario in OF_PROMPTS else (all_at_once(good), coarse_pieces(good))),
        uncounted(good),
        *machine_doubts(measurement),
    )
    return Verdict(tuple(finding for finding in found if finding is not None))


def doubt(code: str, level: Level, seen: Text, why: Text, remedy: Text) -> Finding:
    """A finding of the bench."""
    return Finding(f"bench-{code}", level, seen, why, remedy, SOURCE)


def failed_runs(runs: tuple[Run, ...]) -> Finding | None:
    """Requests that ended with an error."""
    errors = [run.error for run in runs if run.error is not None]
    if not errors:
        return None
    return doubt(
        "errors",
        "warning",
        Text(
            f"{len(errors)} of {len(runs)} requests failed; the first: {errors[0]}",
            f"{len(runs)} 个请求中有 {len(errors)} 个失败，第一个的原因：{errors[0]}",
        ),
        Text(
            "The figures are of the others only, which may have had the machine to themselves.",
            "数字只来自其余请求，它们运行时机器的负担可能更轻。",
        ),
        Text(
            "Look into the service's log, then measure again with fewer streams.",
            "查看服务日志，再用更少的并发路数重测。",
        ),
    )


def cached_prompts(good: list[Run]) -> Finding | None:
    """Prompts that the service had partly in its cache."""
    cached = [run for run in good if run.cached_tokens]
    if not cached:
        return None
    most = max(run.cached_tokens or 0 for run in cached)
    return doubt(
        "cached-prompt",
        "warning",
        Text(
            f"{len(cached)} of {len(good)} prompts were partly in a cache, up to {most} tokens.",
            f"{len(good)} 个提示词中有 {len(cached)} 个部分命中缓存，最多 {most} 个 token。",
        ),
        Text(
            "Time to first token is too short by the work that was skipped.",
            "跳过的计算会让首字延迟显得偏短。",
        ),
        Text(
            "Turn the service's prefix cache off while measuring, or restart it.",
            "测量时关闭服务的前缀缓存，或重启服务后再测。",
        ),
    )


def no_hits(measurement: Measurement, good: list[Run]) -> Finding | None:
    """Prompts that the service should have had in its cache and computed anew."""
    if not measurement.shared_tokens or any(run.cached_tokens is None for run in good):
        return None
    missed = [run for run in good if (run.cached_tokens or 0) < measurement.shared_tokens // 2]
    if not missed:
        return None
    return doubt(
        "cache-missed",
        "warning",
        Text(
            f"{len(missed)} of {len(good)} prompts were computed anew, although all begin with the "
            f"same {measurement.shared_tokens} tokens.",
            f"所有提示词都以相同的 {measurement.shared_tokens} 个 token 开头，"
            f"但 {len(good)} 个中有 {len(missed)} 个被重新计算。",
        ),
        Text(
            "The cache is off, too small, or of another slot than the one that was asked.",
            "缓存已关闭、太小，或属于另一个槽位。",
        ),
        Text(
            "Turn the prefix cache on (vLLM: --enable-prefix-caching, LMDeploy: "
            "--enable-prefix-caching), or measure with fewer streams than slots.",
            "启用前缀缓存（vLLM、LMDeploy 为 --enable-prefix-caching），或让并发少于槽位数。",
        ),
    )


def short_answers(measurement: Measurement, good: list[Run]) -> Finding | None:
    """Answers with fewer tokens than asked for."""
    asked = [
        (run.output_tokens, run.asked_output_tokens or measurement.output_tokens) for run in good
    ]
    short = [one for one in asked if one[0] < one[1]]
    if not short:
        return None
    got, wanted = min(short, key=lambda one: one[0] / one[1])
    return doubt(
        "short-answer",
        "warning",
        Text(
            f"{len(short)} of {len(good)} answers were shorter than asked for; the shortest had "
            f"{got} of {wanted} tokens.",
            f"{len(good)} 个回答中有 {len(short)} 个短于要求，最短的只有 {wanted} 个 token 中的 "
            f"{got} 个。",
        ),
        Text(
            "A short answer samples decode for a shorter time and at a shorter context.",
            "回答太短，解码测得的时间就短，上下文也更浅。",
        ),
        Text(
            "Check that the service honours `ignore_eos` and that its context holds "
            "prompt and answer.",
            "确认服务支持 ignore_eos，并且上下文放得下提示词和回答。",
        ),
    )


def prompt_length(measurement: Measurement, good: list[Run]) -> Finding | None:
    """Prompts whose real length is not the one that was asked for."""
    lengths = [
        (run.prompt_tokens, run.asked_prompt_tokens or measurement.prompt_tokens)
        for run in good
        if run.prompt_tokens is not None
    ]
    off = [(n, asked) for n, asked in lengths if abs(n - asked) > LENGTH_SHARE * asked]
    if not off:
        return None
    got, wanted = max(off, key=lambda one: abs(one[0] - one[1]) / one[1])
    return doubt(
        "prompt-length",
        "note",
        Text(
            f"By the service's count {len(off)} of {len(lengths)} prompts had another length than "
            f"asked for: {got} tokens and not {wanted}.",
            f"按服务自己的计数，{len(lengths)} 个提示词中有 {len(off)} 个长度与要求不符："
            f"是 {got} 个 token 而不是 {wanted} 个。",
        ),
        Text(
            "Time to first token grows with the prompt: compare it only with a run of this length.",
            "首字延迟随提示词变长，只能与同样长度的测量相比。",
        ),
        Text(
            "Measure the engine's own port: with its tokenizer the length is exact.",
            "直接测量引擎端口：有了它的分词器，长度就是准确的。",
        ),
    )


def too_few_rounds(measurement: Measurement) -> Finding | None:
    """Fewer repeats than a median needs."""
    if is_mixed(measurement):
        return None  # one round of many requests
    done = sum(
        len(one) == measurement.streams and all(run.error is None for run in one)
        for one in rounds(measurement.runs)
    )
    if done >= ROUNDS_MIN or not measurement.runs:
        return None
    return doubt(
        "few-runs",
        "note",
        Text(f"Only {done} complete repeats.", f"只完成了 {done} 次重复。"),
        Text(
            f"With fewer than {ROUNDS_MIN} one disturbed run decides the median.",
            f"少于 {ROUNDS_MIN} 次时，一次受干扰的运行就会左右中位数。",
        ),
        Text("Measure again with `--repeats 5`.", "加上 --repeats 5 重测。"),
    )


def busy_host(measurement: Measurement) -> Finding | None:
    """Other work that the machine was doing when the measurement began."""
    machine = measurement.conditions.machine
    if machine is None or machine.busy_cpus is None:
        return None
    if any(one.other_cpus is not None for one in measurement.conditions.samples):
        return None  # what was so meanwhile says more: see `doubts_machine`
    if machine.busy_cpus <= SPREAD_SHARE * len(machine.limits.cpus):
        return None
    return doubt(
        "busy-host",
        "note",
        Text(
            f"Other processes kept {machine.busy_cpus:.1f} of {len(machine.limits.cpus)} CPUs "
            "busy when the measurement began.",
            f"测量开始时，其他进程占用了 {len(machine.limits.cpus)} 个 CPU 中的 "
            f"{machine.busy_cpus:.1f} 个。",
        ),
        Text(
            "On a CPU every layer waits for the slowest core: one busy core can cost half.",
            "在 CPU 上，每一层都要等最慢的核心：一个核心被占用就可能损失一半速度。",
        ),
        Text("Stop the other work (see `top`), then measure.", "停掉其他任务（用 top 查看）再测。"),
    )


def unsteady(measurement: Measurement) -> Finding | None:
    """Repeats that differ, because the first was not warm or because something disturbs."""
    if is_mixed(measurement):
        return None  # its requests are meant to differ
    series = decode_by_round(measurement)
    if measurement.scenario in OF_PROMPTS:
        prefills = (known(map(prefill_tokens_per_s, one)) for one in rounds(measurement.runs))
        series = tuple(median(values) for values in prefills if values)
    elif measurement.streams > 1:
        series = tuple(known(map(total_tokens_per_s, rounds(measurement.runs)))) or series
    whole = spread(series)
    if whole is None or whole.share <= SPREAD_SHARE:
        return None
    rest = spread(series[1:])
    if rest is not None and rest.samples >= 2 and rest.share <= SPREAD_SHARE:
        return first_differs(series[0], rest)
    return wide_spread(whole)


def first_differs(first: float, rest: Spread) -> Finding:
    """The first repeat is off while the others agree."""
    return doubt(
        "warm-up",
        "note",
        Text(
            f"The first repeat ran at {three_digits(first)} tok/s, the others at "
            f"{three_digits(rest.median)}.",
            f"第一次重复为 {three_digits(first)} tok/s，其余为 {three_digits(rest.median)}。",
        ),
        Text(
            "Clocks, caches or a lazily loaded model were not warm yet.",
            "频率、缓存或按需加载的模型当时还没有进入稳定状态。",
        ),
        Text("Measure again now that it is warm.", "现在已经预热，再测一次。"),
    )


def wide_spread(whole: Spread) -> Finding:
    """The repeats do not agree."""
    return doubt(
        "spread",
        "warning",
        Text(
            f"The repeats range from {three_digits(whole.low)} to {three_digits(whole.high)} "
            f"tok/s, {show_share(whole.share)} of the median.",
            f"各次重复在 {three_digits(whole.low)} 到 {three_digits(whole.high)} tok/s 之间，"
            f"相差中位数的 {show_share(whole.share)}。",
        ),
        Text(
            f"Settings worth choosing differ by {show_share(SPREAD_SHARE)} and more; "
            "this spread hides them.",
            f"值得挑选的设置之间相差 {show_share(SPREAD_SHARE)} 以上，这样的波动会把差别盖住。",
        ),
        Text(
            "Stop other work on the machine (see `top`), check clocks and temperature, and use "
            "`--repeats 10`.",
            "停掉机器上的其他任务（用 top 查看），检查频率和温度，并加上 --repeats 10。",
        ),
    )


def all_at_once(good: list[Run]) -> Finding | None:
    """Answers that did not come as a stream."""
    whole = [run for run in good if run.output_tokens > 1 and decode_tokens_per_s(run) is None]
    if not whole:
        return None
    return doubt(
        "all-at-once",
        "warning",
        Text(
            f"{len(whole)} of {len(good)} answers arrived all at once.",
            f"{len(good)} 个回答中有 {len(whole)} 个是一次性到达的。",
        ),
        Text(
            "Without time between the pieces there is no decode speed.",
            "各段之间没有时间差，就算不出解码速度。",
        ),
        Text(
            "Measure the engine's own port, without a proxy that collects its answer, "
            "or ask for longer answers.",
            "直接测量引擎端口，不要经过攒批转发的代理；或要求更长的回答。",
        ),
    )


def coarse_pieces(good: list[Run]) -> Finding | None:
    """Text that came in so few pieces that decode reads too fast."""
    shares = [
        (run.output_tokens / len(run.arrivals_s) - 1) / (run.output_tokens - 1)
        for run in good
        if len(run.arrivals_s) >= 2 and run.output_tokens >= len(run.arrivals_s)
    ]
    if not shares or median(shares) <= ACCURACY_SHARE:
        return None
    return doubt(
        "coarse-pieces",
        "warning",
        Text(
            "The text arrived in pieces of many tokens.",
            "文本是一大段一大段到达的，每段包含许多 token。",
        ),
        Text(
            f"The first piece holds tokens whose time nobody saw: decode reads up to "
            f"{show_share(median(shares))} too fast.",
            f"第一段里的 token 何时生成无从得知，解码速度最多偏高 {show_share(median(shares))}。",
        ),
        Text(
            "Measure the engine's own port, without a proxy that collects its answer.",
            "直接测量引擎端口，不要经过会攒批转发的代理。",
        ),
    )


def uncounted(good: list[Run]) -> Finding | None:
    """A service that reports no usage."""
    if not any(run.prompt_tokens is None for run in good):
        return None
    return doubt(
        "no-usage",
        "note",
        Text("The service reported no token counts.", "服务没有返回 token 数。"),
        Text(
            "Pieces of text were counted as tokens, and the prompt's length is not known.",
            "这里把每段文本当作一个 token，提示词的长度也无从知道。",
        ),
        Text(
            "Measure the engine's own port, or a service that honours "
            "`stream_options.include_usage`.",
            "直接测量引擎端口，或换用支持 stream_options.include_usage 的服务。",
        ),
    )
