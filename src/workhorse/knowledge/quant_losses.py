"""What quantising costs in quality, as far as it was published."""

from dataclasses import dataclass

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class QuantLoss:
    """How much the perplexity of one model rose in one quant; see quant_losses.toml."""

    type: str
    quant: str
    perplexity_gain: float
    model: str
    source: str
    date: str


def quant_loss(type_name: str) -> QuantLoss | None:
    """The published loss of a file whose weights are mostly `type_name`; None: not known."""
    found = rows("quant_losses", "loss", QuantLoss)
    return next((row for row in found if row.type == type_name), None)
