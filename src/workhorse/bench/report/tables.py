"""The tables of a report. Pure."""

from collections.abc import Callable, Iterable, Sequence

from workhorse.bench.report import words
from workhorse.bench.report.case import Case, clean, promises, summary
from workhorse.bench.report.document import Table
from workhorse.bench.stats import Spread
from workhorse.records import Attribution, CardSample, Measurement, Sample
from workhorse.text import Text, same
from workhorse.units import (
    UNKNOWN,
    show_bytes,
    show_duration,
    show_range,
    show_rate,
    show_share,
    three_digits,
)

Cell = Text | str


def runs(cases: Sequence[Case]) -> Table:
    """What is compared: where, when, with what."""
    return Table(
        (
            words.CASE,
            Text("kept as", "编号"),
            Text("when (UTC)", "时间（UTC）"),
            Text("model", "模型"),
            Text("address", "地址"),
            Text("workhorse", "workhorse"),
        ),
        tuple(
            (
                case.label,
                clean(case.name),
                clean(case.when, 25).replace("T", " ").removesuffix("+00:00"),
                clean(case.model_name),
                clean(case.url, 60),
                version_of(case),
            )
            for case in cases
        ),
        words=frozenset(range(6)),
    )


def version_of(case: Case) -> str:
    """The version of workhorse that measured."""
    conditions, found = case.conditions, case.attribution
    return clean(conditions.workhorse if conditions else found.workhorse if found else None, 20)


def figures(cases: Sequence[Case]) -> Table | None:
    """One row a measurement: what a user feels."""
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        ceiling = case.ceiling
        for place, measurement in enumerate(case.measurements):
            found = summary(measurement)
            decode = found.decode_tokens_per_s
            share = None
            if ceiling is not None and decode is not None and measurement.streams == 1:
                share = decode.median / ceiling.value
            rows.append(
                (
                    "" if place else case.label,
                    scenario_of(measurement),
                    str(measurement.streams),
                    shown(found.ttft_s, show_duration),
                    shown(decode, three_digits),
                    show_share(share),
                    middle(found.total_tokens_per_s),
                    middle(found.prefill_tokens_per_s),
                    UNKNOWN if found.tokens_per_j is None else three_digits(found.tokens_per_j),
                )
            )
    if not rows:
        return None
    return Table(
        (
            words.CASE,
            Text("scenario: tokens in + out", "场景：输入 + 输出"),
            Text("streams", "并发"),
            Text("first token", "首字延迟"),
            Text("decode tok/s", "每路解码 tok/s"),
            Text("of the ceiling", "占上限"),
            Text("total tok/s", "总 tok/s"),
            Text("prefill tok/s", "预填充 tok/s"),
            Text("tok/J", "tok/J"),
        ),
        tuple(rows),
        words=frozenset((1,)),
    )


def key_figures(cases: Sequence[Case]) -> Table | None:
    """One row a run: one stream, and the most that all streams reached together."""
    measured = [case for case in cases if case.single is not None]
    rows: list[tuple[Cell, ...]] = []
    first = None
    for case in measured:
        if case.single is None:
            continue
        found, ceiling = summary(case.single), case.ceiling
        decode = found.decode_tokens_per_s
        share = decode.median / ceiling.value if decode and ceiling else None
        rows.append(
            (
                case.label,
                shown(decode, three_digits),
                against(decode, first),
                show_share(share),
                shown(found.ttft_s, show_duration),
                middle(found.prefill_tokens_per_s),
                most_together(case),
                UNKNOWN if found.tokens_per_j is None else three_digits(found.tokens_per_j),
            )
        )
        first = first or decode
    if not rows:
        return None
    return Table(
        (
            Text("run, one stream", "测量（单路）"),
            Text("decode tok/s", "解码 tok/s"),
            Text("against the first", "与第一个相比"),
            Text("of the ceiling", "占上限"),
            Text("first token", "首字延迟"),
            Text("prefill tok/s", "预填充 tok/s"),
            Text("most in all, tok/s", "最高总速度 tok/s"),
            Text("tok/J", "tok/J"),
        ),
        tuple(rows),
    )


def against(decode: Spread | None, first: Spread | None) -> Cell:
    """How much faster than the first run; only a word where their ranges overlap."""
    if decode is None or first is None:
        return UNKNOWN
    if decode.low <= first.high and first.low <= decode.high:
        return Text("within the spread", "在波动范围内")
    return f"{decode.median / first.median - 1:+.0%}"


def most_together(case: Case) -> Cell:
    """The most tok/s of all streams together, and with how many."""
    found = [
        (total.median, one.streams)
        for one in case.measurements
        if (total := summary(one).total_tokens_per_s) is not None
    ]
    if not found:
        return UNKNOWN
    best, streams = max(found)
    word = "stream" if streams == 1 else "streams"
    return Text(f"{three_digits(best)} ({streams} {word})", f"{three_digits(best)}（{streams} 路）")


def scenario_of(measurement: Measurement) -> Text:
    """Name and sizes, each once, and how much all prompts of a measurement share."""
    sizes = f"{measurement.prompt_tokens}+{measurement.output_tokens}"
    name = clean(measurement.scenario, 20)
    told = sizes if name == sizes else f"{name}: {sizes}"
    shared = measurement.shared_tokens
    if not shared:
        return same(told)
    return Text(f"{told}, {shared} shared", f"{told}，共享 {shared}")


def shown(spread: Spread | None, show: Callable[[float], str]) -> str:
    """A median with least and most."""
    if spread is None:
        return UNKNOWN
    return show_range(spread.median, spread.low, spread.high, show)


def middle(spread: Spread | None) -> str:
    """A median alone."""
    return UNKNOWN if spread is None else three_digits(spread.median)


def promised(cases: Sequence[Case]) -> Table | None:
    """Each promise beside what came of it."""
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        for place, kept in enumerate(promises(case)):
            told, came = kept.predicted, kept.measured
            held = told.low <= came.median <= told.high
            rows.append(
                (
                    "" if place else case.label,
                    words.what(kept.what, kept.size),
                    show_range(told.value, told.low, told.high, three_digits),
                    show_range(came.median, came.low, came.high, three_digits),
                    f"{came.median / told.value - 1:+.0%}",
                    Text("inside", "在区间内") if held else Text("outside", "在区间外"),
                )
            )
    if not rows:
        return None
    return Table(
        (
            words.CASE,
            Text("what, tok/s", "项目（tok/s）"),
            Text("predicted", "预测"),
            Text("measured", "实测"),
            Text("off by", "偏差"),
            Text("the interval", "区间"),
        ),
        tuple(rows),
        words=frozenset((1, 5)),
    )


def parts(found: Attribution) -> Table:
    """The terms of a token's time."""
    rows: list[tuple[Cell, ...]] = []
    spent_s = 0.0
    for term in found.terms:
        spent_s += term.seconds
        rows.append(
            (
                term.what,
                f"{term.seconds * 1e3:.2f}",
                f"{term.low_s * 1e3:.2f} – {term.high_s * 1e3:.2f}",
                show_share(term.seconds / found.token_s) if found.token_s > 0 else UNKNOWN,
                three_digits(1 / spent_s) if spent_s > 0 else UNKNOWN,
                term.how,
            )
        )
        for bound in term.bounds:
            rows.append(
                (
                    Text(f"· of it, {bound.what.en}", f"· 其中：{bound.what.zh}"),
                    "",
                    f"{bound.low_s * 1e3:.2f} – {bound.high_s * 1e3:.2f}",
                    "",
                    "",
                    bound.how,
                )
            )
    return Table(
        (
            Text("part", "组成"),
            Text("ms", "毫秒"),
            Text("95 % interval", "95 % 区间"),
            Text("share", "占比"),
            Text("tok/s left", "剩余 tok/s"),
            Text("how it was found", "如何得出"),
        ),
        tuple(rows),
        words=frozenset((5,)),
    )


def conditions(cases: Sequence[Case]) -> Table | None:
    """What was so meanwhile: one column a case."""
    told = [case for case in cases if case.conditions is not None]
    rows: list[tuple[Cell, ...]] = [
        (label, *(cell(case) for case in told))
        for label, cell in CONDITIONS
        if any(cell(case) != UNKNOWN for case in told)
    ]
    if not rows:
        return None
    head = (Text("", ""), *(same(case.label) for case in told))
    return Table(head, tuple(rows), words=frozenset(range(len(head))))


def samples(case: Case) -> list[Sample]:
    """All samples of the case's measurements."""
    return [one for measurement in case.measurements for one in measurement.conditions.samples]


def cards(case: Case) -> list[CardSample]:
    """All samples of all cards."""
    return [card for one in samples(case) for card in one.cards]


def least_to_most(values: Iterable[float | None], unit: str, digits: int = 0) -> str:
    """The range of what is known; `—` for nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = f"{min(known):.{digits}f}", f"{max(known):.{digits}f}"
    return f"{low} {unit}".strip() if low == high else f"{low} – {high} {unit}".strip()


def cpu_of(case: Case) -> str:
    """The processor and how much of it may be used."""
    machine = case.conditions.machine if case.conditions else None
    if machine is None:
        return UNKNOWN
    return f"{clean(machine.cpu.name)}, {len(machine.limits.cpus)} CPUs"


def cards_of(case: Case) -> str:
    """The cards that are there."""
    machine = case.conditions.machine if case.conditions else None
    if machine is None or not machine.gpus:
        return UNKNOWN
    return ", ".join(clean(gpu.name) for gpu in machine.gpus[:16])


def memory_of(case: Case) -> str:
    """Main memory."""
    machine = case.conditions.machine if case.conditions else None
    return UNKNOWN if machine is None else show_bytes(machine.memory.total_bytes)


def engine_of(case: Case) -> str:
    """The engine as the plan or the service tells it."""
    if case.plan is not None:
        return clean(f"{case.plan.engine.engine} {case.plan.engine.version}", 60)
    served = case.conditions.served_by if case.conditions else None
    if served is None or not (served.engine or served.build):
        return UNKNOWN
    return clean(" ".join(word for word in (served.engine, served.build) if word), 60)


def settings_of(case: Case) -> str:
    """What the plan decided, or what the service says it runs with."""
    plan = case.plan
    if plan is not None:
        pages = "huge pages" if plan.huge_pages else "small pages"
        return (
            f"{clean(plan.device)}, {plan.slots} × {plan.context_tokens}, "
            f"KV {plan.kv_type_k}/{plan.kv_type_v}, {plan.threads} threads, {pages}"
        )
    served = case.conditions.served_by if case.conditions else None
    if served is None:
        return UNKNOWN
    told = [f"{clean(name, 20)} {clean(value, 20)}" for name, value in served.settings[:12]]
    if served.slots and served.context_tokens:
        told.insert(0, f"{served.slots} × {served.context_tokens}")
    return ", ".join(told) or UNKNOWN


def throttles_of(case: Case) -> str:
    """The driver's reasons for slowing down."""
    reasons = {clean(r, 30) for card in cards(case) for r in card.throttled_by or ()}
    return ", ".join(sorted(reasons)[:6]) or UNKNOWN


CONDITIONS: tuple[tuple[Text, Callable[[Case], str]], ...] = (
    (Text("processor", "处理器"), cpu_of),
    (Text("main memory", "内存"), memory_of),
    (Text("cards", "显卡"), cards_of),
    (Text("engine", "引擎"), engine_of),
    (Text("settings: slots × context", "设置：槽位 × 上下文"), settings_of),
    (
        Text("ceiling", "上限"),
        lambda case: show_rate(case.ceiling.value if case.ceiling else None),
    ),
    (
        Text("CPU clock", "CPU 频率"),
        lambda case: least_to_most((one.cpu_mhz for one in samples(case)), "MHz"),
    ),
    (
        Text("CPUs taken by others", "其他进程占用的 CPU"),
        lambda case: least_to_most((one.other_cpus for one in samples(case)), "", 1),
    ),
    (
        Text("card clock", "显卡频率"),
        lambda case: least_to_most((card.sm_clock_mhz for card in cards(case)), "MHz"),
    ),
    (
        Text("card temperature", "显卡温度"),
        lambda case: least_to_most((card.temperature_c for card in cards(case)), "°C"),
    ),
    (
        Text("card power", "显卡功率"),
        lambda case: least_to_most((card.power_w for card in cards(case)), "W"),
    ),
    (Text("slowed down by", "降速原因"), throttles_of),
)
