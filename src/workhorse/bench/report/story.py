"""The report: which sections stand in it, in which order. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from workhorse.bench.doubts import doubts
from workhorse.bench.report import tables, words
from workhorse.bench.report.case import (
    Case,
    clean,
    estimate_point,
    labelled,
    over,
    point,
    promises,
    summary,
)
from workhorse.bench.report.document import (
    Advice,
    Curves,
    Document,
    Part,
    Promise,
    Promises,
    Roof,
    Roofline,
    Section,
    Series,
    Table,
    Waterfall,
    Words,
    section,
)
from workhorse.errors import AppError
from workhorse.records import Finding, Measurement
from workhorse.text import Text, same

# Scenarios whose prompts and answers are the same whatever the number of streams.
AT_ONCE = ("ladder", "standard")


def report(
    cases: Sequence[Case],
    *,
    when: str,
    version: str,
    unread: Sequence[tuple[str, AppError]] = (),
    changes: Table | None = None,
) -> Document:
    """The whole document; `unread` are runs that could not be read, `changes` the tuner's table."""
    cases = labelled(cases)
    models = list(dict.fromkeys(clean(case.model_name) for case in cases))
    title = ", ".join(models[:3]) + (" …" if len(models) > 3 else "")
    found = (
        section(words.RUNS, (tables.runs(cases) if cases else None,)),
        section(words.FIGURES, (tables.key_figures(cases), *empty(cases))),
        section(words.CHANGES, (changes,)),
        promised(cases),
        concurrency(cases),
        roofline(cases),
        lengths(cases),
        attributions(cases),
        section(words.CONDITIONS, (tables.conditions(cases),)),
        section(words.DOUBTS, advice(cases)),
        section(words.ALL, (tables.figures(cases),)),
        section(words.UNREAD, (unreadable(unread),)),
    )
    return Document(
        Text(f"Speed report: {title}", f"速度报告：{title}"),
        Text(
            f"{len(cases)} run{'s' * (len(cases) != 1)} · written {when} by workhorse {version}",
            f"共 {len(cases)} 次测量 · workhorse {version} 于 {when} 生成",
        ),
        tuple(one for one in found if one is not None),
    )


def empty(cases: Sequence[Case]) -> list[Part]:
    """A word for each run without a figure."""
    return [
        Words(Text(f"{case.label}: {words.EMPTY.en}", f"{case.label}：{words.EMPTY.zh}"))
        for case in cases
        if case.attribution is None
        and all(summary(m).end_to_end_s is None for m in case.measurements)
    ]


def promised(cases: Sequence[Case]) -> Section | None:
    """Each promise beside what came of it."""
    rows = [
        Promise(with_label(case, cases, words.what(kept.what, kept.size)), case.place, told, came)
        for case in cases
        for kept in promises(case)
        if (told := estimate_point(1, kept.predicted)) and (came := point(1, kept.measured))
    ]
    plot = Promises(Text("measured ÷ predicted", "实测 ÷ 预测"), tuple(rows)) if rows else None
    return section(words.PROMISED, (plot, tables.promised(cases)))


def with_label(case: Case, cases: Sequence[Case], told: Text) -> Text:
    """The case's label before the words, where there are several cases."""
    if len(cases) == 1:
        return told
    return Text(f"{case.label}: {told.en}", f"{case.label}：{told.zh}")


def concurrency(cases: Sequence[Case]) -> Section | None:
    """All streams together, and each, over their number."""
    together, each = [], []
    for case in cases:
        total = over(case, AT_ONCE, lambda m: m.streams, lambda s: s.total_tokens_per_s)
        one = over(case, AT_ONCE, lambda m: m.streams, lambda s: s.decode_tokens_per_s)
        if len(total) > 1:
            together.append(Series(case.label, case.place, total))
        if len(one) > 1:
            each.append(Series(case.label, case.place, one))
    if not together:
        return None
    plot = Curves(
        Text("all streams together; dashed: each", "所有并发合计；虚线：每路"),
        Text("streams at a time", "并发路数"),
        same("tok/s"),
        tuple(together),
        dashed=tuple(each),
    )
    return section(words.CONCURRENCY, (plot,))


def decoded_together(measurement: Measurement) -> bool:
    """Whether no request waited for a slot: else a step served fewer streams than were there."""
    conditions = measurement.conditions
    told = conditions.plan or conditions.served_by
    return told is None or told.slots is None or measurement.streams <= told.slots


def roofline(cases: Sequence[Case]) -> Section | None:
    """The two limits of each case, and how far below them it is."""
    roofs = []
    for case in cases:
        points = over(
            replace(case, measurements=tuple(filter(decoded_together, case.measurements))),
            AT_ONCE,
            lambda m: m.streams,
            lambda s: s.decode_tokens_per_s,
            times=lambda m: m.streams,
        )
        prefill = [
            found.median
            for m in case.measurements
            if m.scenario in ("standard", "prompts", "ladder") and m.streams == 1
            if (found := summary(m).prefill_tokens_per_s) is not None
        ]
        ceiling = case.ceiling
        if points and (ceiling is not None or prefill):
            roofs.append(
                Roof(
                    case.label,
                    case.place,
                    None if ceiling is None else ceiling.value,
                    max(prefill, default=None),
                    points,
                )
            )
    if not roofs:
        return None
    plot = Roofline(Text("decode and its limits", "解码速度与上限"), tuple(roofs))
    return section(words.ROOFLINE, (Words(words.ROOFLINE_WORDS), plot))


def lengths(cases: Sequence[Case]) -> Section | None:
    """Prefill over the prompt, decode over the depth."""
    prompts, depths = [], []
    for case in cases:
        prompt = over(case, ("prompts",), lambda m: m.prompt_tokens,
                      lambda s: s.prefill_tokens_per_s)  # fmt: skip
        depth = over(case, ("depths",), lambda m: m.prompt_tokens,
                     lambda s: s.decode_tokens_per_s)  # fmt: skip
        if len(prompt) > 1:
            prompts.append(Series(case.label, case.place, prompt))
        if len(depth) > 1:
            depths.append(Series(case.label, case.place, depth))
    parts: list[Part] = []
    if prompts:
        x = Text("tokens of the prompt", "提示词 token 数")
        parts.append(Curves(Text("prefill", "预填充"), x, same("tok/s"), tuple(prompts), log=False))
    if depths:
        x = Text("tokens of context", "上下文 token 数")
        parts.append(
            Curves(
                Text("decode, one stream", "解码，单路"),
                x,
                same("tok/s"),
                tuple(depths),
                log=False,
            )
        )
    return section(words.LENGTHS, parts)


def attributions(cases: Sequence[Case]) -> Section | None:
    """Where a token's time went, one bar a case."""
    parts: list[Part] = []
    for case in cases:
        if case.attribution is not None and case.attribution.terms:
            parts.append(Waterfall(same(case.label), case.attribution))
            parts.append(tables.parts(case.attribution))
    return section(words.ATTRIBUTION, (Words(words.ATTRIBUTION_WORDS), *parts) if parts else ())


def advice(cases: Sequence[Case]) -> list[Part]:
    """What makes the figures doubtful, each finding once a case."""
    parts: list[Part] = []
    for case in cases:
        found: dict[str, Finding] = {}
        for measurement in case.measurements:
            for finding in doubts(measurement).findings:
                found.setdefault(finding.code, finding)
        if case.attribution is not None:
            for finding in case.attribution.verdict.findings:
                found.setdefault(finding.code, finding)
        if found:
            parts.append(Advice(case.label, tuple(found.values())))
    return parts


def unreadable(unread: Sequence[tuple[str, AppError]]) -> Table | None:
    """Runs that could not be read, and why."""
    if not unread:
        return None
    return Table(
        (words.CASE, Text("why", "原因"), Text("what to do", "怎么办")),
        tuple((clean(name), error.what, error.next_step) for name, error in unread),
        words=frozenset((0, 1, 2)),
    )
