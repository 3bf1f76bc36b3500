"""How far off the forecast of a split is from what owners of several cards published.

    python benchmarks/several_rows.py

Prints the table of docs/measured/2026-12-01-several-cards.md. Nothing of it is fitted here but the
cost of one exchange over PCIe (knowledge/links.toml).
"""

from statistics import median

from workhorse.knowledge.gpus import Card, cards
from workhorse.knowledge.links import exchanges
from workhorse.knowledge.published_speeds import shapes
from workhorse.knowledge.several_speeds import SeveralSpeed, several_speeds
from workhorse.plan.speed.cards import Load, Rates, features, published_fit
from workhorse.plan.speed.decode import CROSSING_S
from workhorse.plan.speed.device import GRAPHS_FROM, integer_rate
from workhorse.plan.speed.transfers import SUMS_A_LAYER


def main() -> None:
    """One row a published figure; then how far off they are."""
    print("| cards | split | model | engine | published | forecast | off by |\n|" + "---|" * 7)
    misses = []
    for row in several_speeds():
        speed = 1 / row_seconds(row)
        off = speed / row.tokens_per_s - 1
        if row.note is None:
            misses.append(abs(off))
        print(
            f"| {named(row)} | {row.split} | {row.model} {row.quant} | {row.engine} "
            f"| {row.tokens_per_s:g} | {speed:.3g} | {off:+.0%} |"
        )
    print(f"\n{len(misses)} rows: median {median(misses):.1%}, worst {max(misses):.0%}.")


def named(row: SeveralSpeed) -> str:
    """The cards, equal ones counted."""
    names = dict.fromkeys(row.cards)
    return " + ".join(
        f"{row.cards.count(name)} × {name}" if row.cards.count(name) > 1 else name for name in names
    )


def row_seconds(row: SeveralSpeed) -> float:
    """Seconds of one token as the forecast of this split reckons them: by layers one card after
    the other and a handover between two, by tensors the slowest card and the exchanges."""
    shape = shapes()[row.model]
    if row.split == "layer":
        each = [
            card_seconds(row, card, part, part, last=place == len(row.cards) - 1)
            for place, (card, part) in enumerate(zip(row.cards, row.parts, strict=True))
        ]
        return sum(each) + (len(row.cards) - 1) * CROSSING_S
    slowest = max(
        card_seconds(row, card, part, 1.0, last=True)
        for card, part in zip(row.cards, row.parts, strict=True)
    )
    waits = SUMS_A_LAYER * shape.layers * (len(row.cards) - 1)
    return slowest + waits * exchanges()[row.link].seconds


def card_seconds(
    row: SeveralSpeed, name: str, share: float, kernels: float, *, last: bool
) -> float:
    """One card's part: its share of the bytes, and of the kernels that it runs."""
    card, shape = card_of_row(name), shapes()[row.model]
    total = sum(row.reads.values())
    load = Load(
        {kind: (n * share, shape.weights * n / total * share) for kind, n in row.reads.items()},
        shape.tensors * kernels,
        shape.recurrent_layers * kernels,
        shape.expert_layers * kernels,
        0.0,
        1.0 if row.served and last else 0.0,
    )
    rates = Rates(
        (card.bandwidth_gb_per_s or 0.0) * 1e9,
        integer_rate(card),
        card.capability,
        card.capability >= GRAPHS_FROM,
    )
    return published_fit().seconds(features(load, rates))


def card_of_row(name: str) -> Card:
    """The card of a row, its memory at the end of the name where that tells two apart.

    `KeyError` when the table of cards does not have it.
    """
    known = {card.name: card for card in cards()}
    return (known | {f"{card.name} {card.memory_gib}GB": card for card in cards()})[name]


if __name__ == "__main__":
    main()
