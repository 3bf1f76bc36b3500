"""The tables of `fleet plan`: the boxes, how they do, how many it takes, what the formulae say."""

from collections.abc import Callable, Sequence
from math import isinf

from workhorse.cli.show import console, print_table
from workhorse.fleet.capacity import Box, Figure, Goals, Outcome
from workhorse.fleet.capacity_answer import Answer
from workhorse.fleet.capacity_words import LIMITS, REMEDIES, goals_words, load_words, rate_words
from workhorse.fleet.queue_formulae import Line
from workhorse.fleet.sizing import BOXES_MOST, Most, Needed
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_duration, show_range, show_rate, show_share, three_digits

MEASURED = Text("measured", "实测")
FORECAST = Text("forecast", "预测")


def print_answer(found: Answer, language: Language) -> None:
    """Everything that `fleet plan` found."""
    out = console()
    for label, words in (
        (Text("asked", "负载"), load_words(found.load)),
        (Text("wished", "目标"), goals_words(found.goals)),
    ):
        out.print(f"[bold]{label.in_language(language)}[/] {words.in_language(language)}")
    print_boxes([one.box for one in found.alone], language)
    if found.outcome is not None:
        print_outcome(found.outcome, found.goals, language)
        print_verdict_of(found.outcome, found.most, language)
    print_needed(found, language)
    line = formulae_of(found)
    if line is not None:
        print_formulae(line, language)


def print_boxes(boxes: Sequence[Box], language: Language) -> None:
    """What one box of each kind can do."""
    print_table(
        Text("One box of each kind", "每类机器单台能力"),
        (
            Text("box", "机器"),
            Text("replicas", "副本"),
            Text("slots", "槽位"),
            Text("prefill", "预填充"),
            Text("one stream", "单路"),
            Text("each, all slots", "满载每路"),
            Text("in all", "总计"),
            Text("basis", "依据"),
        ),
        (box_row(box, language) for box in boxes),
        language,
    )


def box_row(box: Box, language: Language) -> tuple[str, ...]:
    """One kind of box."""
    total = sum(one.slots / one.step_s[-1] for one in box.replicas)
    return (
        box.kind,
        str(len(box.replicas)),
        str(box.slots),
        show_rate(max(one.prefill_tokens_per_s for one in box.replicas)),
        show_rate(max(1 / one.step_s[0] for one in box.replicas)),
        show_rate(min(1 / one.step_s[-1] for one in box.replicas)),
        show_rate(total),
        (MEASURED if box.measured else FORECAST).in_language(language),
    )


def print_outcome(found: Outcome, goals: Goals, language: Language) -> None:
    """How the boxes that are there do, each figure with its interval over the seeds."""
    named = ", ".join(f"{one.count} × {one.box.kind}" for one in found.boxes)
    rows: tuple[tuple[Text, Figure, Callable[[float], str], str], ...] = (
        (Text("first token, median", "首个词元，中位数"), found.first_token_p50_s, show_s, ""),
        (
            Text("first token, 95 %", "首个词元，95%"),
            found.first_token_p95_s,
            show_s,
            f"≤ {show_s(goals.first_token_s)}",
        ),
        (Text("wait for a slot, 95 %", "等待槽位，95%"), found.wait_p95_s, show_s, ""),
        (Text("had to wait", "需要等待的请求"), found.waited_share, show_percent, ""),
        (
            Text("a stream's speed, median", "单路速度，中位数"),
            found.stream_p50_tokens_per_s,
            show_rate,
            "",
        ),
        (
            Text("a stream's speed, 95 % have", "单路速度，95% 达到"),
            found.stream_p5_tokens_per_s,
            show_rate,
            f"≥ {show_rate(goals.stream_tokens_per_s)}",
        ),
        (
            Text("refused", "被拒绝"),
            found.refused_share,
            show_percent,
            f"≤ {show_percent(goals.refused_share)}",
        ),
        (Text("slots at work", "工作中的槽位"), found.slots_share, show_percent, ""),
        (Text("written in all", "总生成速度"), found.tokens_per_s, show_rate, ""),
    )
    print_table(
        Text(
            f"{named}: {found.slots} slots, {found.requests} requests simulated with "
            f"{found.seeds} seeds",
            f"{named}：{found.slots} 个槽位，{found.seeds} 个种子共模拟 {found.requests} 个请求",
        ),
        (
            Text("figure", "指标"),
            Text("mean (95 % interval)", "均值（95% 区间）"),
            Text("wished", "目标"),
        ),
        (
            (label.in_language(language), show_range(one.value, one.low, one.high, show), wish)
            for label, one, show, wish in rows
        ),
        language,
    )


def print_verdict_of(found: Outcome, most: Most | None, language: Language) -> None:
    """Whether they do, what limits them, and how much they take."""
    out = console()
    holds = (
        Text("It holds.", "满足目标。")
        if found.holds
        else Text("It does not hold.", "未满足目标。")
    )
    colour = "green" if found.holds else "red"
    limit = LIMITS[found.limit] if not found.holds else None
    words = [holds.in_language(language)]
    if limit is not None:
        words.append(limit.in_language(language))
        words.append(REMEDIES[found.limit].in_language(language))
    out.print(f"[{colour}]{words[0]}[/] {' '.join(words[1:])}")
    if most is None:
        return
    much = load_taken(most)
    then = LIMITS[most.limit]
    words_most = Text(
        f"They take up to about {much.en} ({most.share:.2f} times what is asked). Then: {then.en}",
        f"最多约 {much.zh}（为所需的 {most.share:.2f} 倍）。再多则：{then.zh}",
    )
    out.print(words_most.in_language(language))


def load_taken(most: Most) -> Text:
    """How many users or requests that is."""
    load, rate = most.load, most.load.requests_per_s
    if rate is None:
        return Text(f"{load.users} users", f"{load.users} 位用户")
    words = rate_words(rate)
    if load.users is None:
        return words
    users = round(load.users * most.share)
    return Text(f"{users} users, {words.en}", f"{users} 位用户，{words.zh}")


def print_needed(found: Answer, language: Language) -> None:
    """How many of each kind it takes."""
    alone = Text("of this alone", "仅用此类")
    more = Text("more of this", "再增加此类")
    rows = [needed_row(one, alone, language) for one in found.alone]
    rows += [needed_row(one, more, language) for one in found.beside]
    print_table(
        Text("How many it takes", "需要多少台"),
        (
            Text("box", "机器"),
            Text("", ""),
            Text("boxes", "台数"),
            Text("first token, 95 %", "首个词元，95%"),
            Text("a stream, 95 % have", "单路，95% 达到"),
            Text("slots at work", "槽位占用"),
            Text("keeps up from", "处理得完需"),
            Text("what it follows from", "决定因素"),
        ),
        rows,
        language,
    )


def needed_row(one: Needed, what: Text, language: Language) -> tuple[str, ...]:
    """How many of one kind."""
    limit = LIMITS[one.limit]
    outcome = one.outcome
    none = Text("none does", "均不可行")
    if one.count is None and one.at_least is not None and one.at_least > BOXES_MOST:
        none = Text(f"> {BOXES_MOST}", f"> {BOXES_MOST}")
    return (
        one.box.kind,
        what.in_language(language),
        none.in_language(language) if one.count is None else str(one.count),
        UNKNOWN if outcome is None else show_s(outcome.first_token_p95_s.value),
        UNKNOWN if outcome is None else show_rate(outcome.stream_p5_tokens_per_s.value),
        UNKNOWN if outcome is None else show_share(outcome.slots_share.value),
        UNKNOWN if one.at_least is None else str(one.at_least),
        limit.in_language(language).split("：")[0].split(":")[0],
    )


def formulae_of(found: Answer) -> Line | None:
    """The formulae's say: of the boxes that are there, else of the first kind that does."""
    if found.outcome is not None:
        return found.outcome.formulae
    return next((one.outcome.formulae for one in found.alone if one.outcome is not None), None)


def print_formulae(line: Line, language: Language) -> None:
    """What queueing theory says beside the simulation, by name."""
    rows = (
        ("M/M/c (Erlang C)", show_s(line.mean_wait_s), show_s(line.p95_wait_s)),
        (
            "M/G/c (Allen, Cunneen)",
            show_s(line.mean_wait_general_s),
            show_s(line.p95_wait_general_s),
        ),
    )
    print_table(
        Text(
            f"By formula, each slot at its full-load speed: {line.servers} slots, "
            f"{show_duration(line.service_s)} a request, {show_share(line.utilisation)} busy",
            f"公式（每个槽位按满载速度）：{line.servers} 个槽位，每请求 "
            f"{show_duration(line.service_s)}，利用率 {show_share(line.utilisation)}",
        ),
        (Text("model", "模型"), Text("mean wait", "平均等待"), Text("wait, 95 %", "等待，95%")),
        rows,
        language,
    )


def show_s(seconds: float) -> str:
    """A time; without end where the line never ends."""
    return "∞" if isinf(seconds) else "0 s" if seconds == 0 else show_duration(seconds)


def show_percent(share: float) -> str:
    """A share with a digit where it is small."""
    return f"{three_digits(share * 100)} %"
