"""How well the speed model of a card meets each published row that was left out of its fit.

    python benchmarks/published_rows.py

Prints the tables of docs/measured/2026-11-30-published-rows.md: decode (each row is forecast by
constants fitted to all others), the rows that are not fitted, prefill, and the constants.
"""

from statistics import median

from workhorse.knowledge.published_speeds import (
    PublishedSpeed,
    card_named,
    published_speeds,
    shapes,
)
from workhorse.plan.speed.cards import (
    CONSTANTS,
    GENERATIONS,
    fit,
    generation,
    published_fit,
    row_features,
)
from workhorse.plan.speed.device import Reader, integer_rate, matrix_rate
from workhorse.plan.speed.prefill import card_prompt_seconds
from workhorse.plan.speed.reads import Work
from workhorse.text import Text

FITTED = [row for row in published_speeds() if row.fitted and row.metric == "decode"]


def named(row: PublishedSpeed) -> str:
    """Card, model and engine, as three cells."""
    cards = f"{row.cards} × " if row.cards > 1 else ""
    return f"{cards}{row.card} | {row.model} {row.quant} | {row.engine}"


def decode_rows() -> None:
    """Each fitted row, forecast by what the others teach."""
    print("| card | model | engine | published | left out | off by | band |\n|" + "---|" * 7)
    misses, inside = [], 0
    for row in FITTED:
        others = fit([other for other in FITTED if other is not row])
        speed = 1 / others.seconds(row_features(row))
        off, band = speed / row.tokens_per_s - 1, others.band(card_named(row.card).capability)
        held = abs(row.tokens_per_s / speed - 1) <= band
        misses.append(abs(off))
        inside += held
        print(
            f"| {named(row)} | {row.tokens_per_s:g} | {speed:.3g} | {off:+.0%} "
            f"| ± {band:.0%}{'' if held else ' **missed**'} |"
        )
    print(
        f"\n{len(misses)} rows: median {median(misses):.1%}, worst {max(misses):.0%}, "
        f"{inside} inside their band.\n"
    )


def other_rows() -> None:
    """The rows that are not fitted, and why."""
    print(
        "| card | model | engine | published | forecast | off by | why not fitted |\n|" + "---|" * 7
    )
    for row in published_speeds():
        if not row.fitted and row.metric == "decode":
            speed = 1 / published_fit().seconds(row_features(row))
            print(
                f"| {named(row)} | {row.tokens_per_s:g} | {speed:.3g} "
                f"| {speed / row.tokens_per_s - 1:+.0%} | {row.note} |"
            )
    print()


def prefill_rows() -> None:
    """Prompts, by arithmetic."""
    print("| card | model | prompt | published | forecast | off by |\n|" + "---|" * 6)
    for row in published_speeds():
        if row.metric != "prefill":
            continue
        card, speed = card_named(row.card), prefill_speed(row)
        print(
            f"| {card.name} | {row.model} {row.quant} | {row.prompt_tokens} "
            f"| {row.tokens_per_s:g} | {speed:.3g} | {speed / row.tokens_per_s - 1:+.0%} |"
        )
    print()


def prefill_speed(row: PublishedSpeed) -> float:
    """Prompt tokens a second by arithmetic, without attention (the shapes do not tell heads)."""
    card, shape = card_named(row.card), shapes()[row.model]
    bandwidth = (card.bandwidth_gb_per_s or 0) * 1e9
    reader = Reader(
        "gpu", bandwidth, Text("", ""), "datasheet", 1, card.capability, integer_rate(card),
        matrix_rate(card),
    )  # fmt: skip
    total = sum(row.reads.values())
    work = Work(
        {kind: (n, shape.weights * n / total) for kind, n in row.reads.items()},
        tensors=shape.tensors,
        layers=shape.layers,
        expert_layers=shape.expert_layers,
    )
    seconds = card_prompt_seconds(
        reader,
        work,
        0.0,
        row.prompt_tokens,
        layers=shape.layers,
        experts=shape.experts,
        every_bytes=total,
    )
    return row.prompt_tokens / seconds


def constants() -> None:
    """What was fitted, and the bands that follow."""
    print("| constant | value | guess | decided by rows |\n|" + "---|" * 4)
    for constant in CONSTANTS:
        fitted = published_fit()
        print(
            f"| {constant.name}: {constant.words.en} | {fitted.values[constant.name]:.3g} "
            f"{constant.unit} | {constant.guess:g} ± {constant.spread:g} "
            f"| {fitted.pulls[constant.name]:.0%} of {fitted.rows_with(constant.name)} rows |"
        )
    bands = {generation(start): published_fit().band(start) for start, _ in GENERATIONS}
    print("\nBands: " + ", ".join(f"{name} ± {band:.0%}" for name, band in bands.items()) + ".")


if __name__ == "__main__":
    decode_rows()
    other_rows()
    prefill_rows()
    constants()
