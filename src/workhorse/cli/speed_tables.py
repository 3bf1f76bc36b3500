"""How a forecast's speeds look: streams, depths, prompts, drafts and loading."""

from collections.abc import Iterator, Sequence

from workhorse.cli.show import console, print_table
from workhorse.plan.rehearsed import setup_of
from workhorse.plan.speed import Experience, explain_learning
from workhorse.plan.words import BASES
from workhorse.records import Estimate, Plan
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_duration, show_range, three_digits

Row = tuple[Text, Estimate]


def print_speeds(plan: Plan, language: Language) -> None:
    """What else is promised, one row a figure; nothing where nothing is known."""
    rows = [*speeds(plan)]
    if not rows:
        return
    print_table(
        Text("Speed, predicted", "速度预测"),
        (Text("what", "项目"), Text("value", "数值"), Text("basis", "依据")),
        (
            (
                what.in_language(language),
                shown(estimate),
                BASES[estimate.basis].in_language(language),
            )
            for what, estimate in rows
        ),
        language,
    )


def speeds(plan: Plan) -> Iterator[Row]:
    """The figures with their names: several streams up to the slots, depths up to the context."""
    forecast = plan.forecast
    for speed in forecast.streams:
        if 1 < speed.streams <= plan.slots:
            n = speed.streams
            yield Text(f"{n} streams, in all", f"{n} 路并发合计"), speed.total_tokens_per_s
    for deep in forecast.depths:
        if deep.depth_tokens <= plan.context_tokens:
            n = deep.depth_tokens
            yield Text(f"behind {n} tokens", f"上下文 {n} 词元时"), deep.tokens_per_s
    for prompt in forecast.prompts:
        if prompt.prompt_tokens <= plan.context_tokens:
            n = prompt.prompt_tokens
            yield Text(f"prompt of {n} tokens", f"{n} 词元提示"), prompt.tokens_per_s
    if forecast.drafted_tokens_per_s is not None:
        yield Text("with drafts (MTP)", "启用草稿（MTP）"), forecast.drafted_tokens_per_s
    if forecast.load_s is not None:
        yield Text("until ready", "就绪用时"), forecast.load_s


def shown(estimate: Estimate) -> str:
    """A figure with its interval and unit."""
    if estimate.unit == "s":
        return show_range(estimate.value, estimate.low, estimate.high, show_duration)
    interval = show_range(estimate.value, estimate.low, estimate.high, three_digits)
    return f"{interval} {estimate.unit}"


def print_learning(plan: Plan, history: Sequence[Experience], language: Language) -> None:
    """What was measured here under this plan's setup, beside what had been promised."""
    setup = setup_of(plan)
    here = [e for e in history if e.setup == setup]
    if not here:
        return
    print_table(
        Text("Measured here, which corrects the constants", "本机实测（用于修正常数）"),
        (
            Text("model", "模型"),
            Text("quant", "量化"),
            Text("constants alone", "仅按常数"),
            Text("promised", "预测区间"),
            Text("measured", "实测"),
        ),
        (
            (
                e.model_name,
                e.quantisation,
                three_digits(e.predicted_tokens_per_s),
                promised(e),
                three_digits(e.measured_tokens_per_s),
            )
            for e in here
        ),
        language,
    )
    told = explain_learning(here)
    if told is not None:
        console().print(told.in_language(language))


def promised(seen: Experience) -> str:
    """The interval that was promised; `—` in a store of an earlier version."""
    if seen.low_tokens_per_s is None or seen.high_tokens_per_s is None:
        return UNKNOWN
    return f"{three_digits(seen.low_tokens_per_s)}–{three_digits(seen.high_tokens_per_s)}"
