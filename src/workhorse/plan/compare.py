"""Several models or quants on one machine, the most useful first. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from workhorse.knowledge.quant_losses import quant_loss
from workhorse.plan.quality import Quality, quality_measured
from workhorse.records import Estimate, Model, Plan
from workhorse.text import Text

# Where the weights that a token reads lie, best first.
Fit = Literal["cards", "partly", "memory", "no"]
_ORDER: tuple[Fit, ...] = ("cards", "partly", "memory", "no")


@dataclass(frozen=True, slots=True)
class Compared:
    """One model or quant on the machine: whether it fits, how fast, how long, how good."""

    model_path: str
    name: str
    quantisation: str
    bits_a_weight: float
    weight_bytes: int
    fit: Fit
    devices: str
    context_tokens: int
    slots: int
    kv_type: str
    decode_tokens_per_s: Estimate | None
    prefill_tokens_per_s: Estimate
    quality: Text | None  # None: neither measured here nor published
    measured: Quality | None = None  # of this very file


def compared(model: Model, plan: Plan, measured: Quality | None = None) -> Compared:
    """What a plan says of its model, for a comparison; `measured`: what its file lost."""
    held = {group.device for group in plan.placement if group.group in ("layers", "experts")}
    fit: Fit = "cards"
    if plan.verdict.blocked:
        fit = "no"
    elif not plan.gpu_indexes:
        fit = "memory"
    elif "RAM" in held:
        fit = "partly"
    return Compared(
        model_path=model.path,
        name=plan.model_name,
        quantisation=model.quantisation,
        bits_a_weight=model.weight_bytes * 8 / max(model.parameters, 1),
        weight_bytes=model.weight_bytes,
        fit=fit,
        devices=plan.device,
        context_tokens=plan.context_tokens,
        slots=plan.slots,
        kv_type=plan.kv_type_k,
        decode_tokens_per_s=plan.forecast.decode_tokens_per_s,
        prefill_tokens_per_s=plan.forecast.prefill_tokens_per_s,
        quality=quality_measured(measured) if measured else quality_note(model.quantisation),
        measured=measured,
    )


def ranked(rows: Iterable[Compared]) -> tuple[Compared, ...]:
    """What fits the cards first, then by speed; what does not fit comes last."""

    def key(row: Compared) -> tuple[int, float, str]:
        speed = row.decode_tokens_per_s
        return (_ORDER.index(row.fit), -(speed.value if speed else 0.0), row.name)

    return tuple(sorted(rows, key=key))


def quality_note(quantisation: str) -> Text | None:
    """What is published of a quant's loss; None for types that nobody has published."""
    loss = quant_loss(quantisation)
    if loss is None:
        return None
    return Text(
        f"perplexity +{loss.perplexity_gain:.4f} ({loss.quant} of {loss.model})",
        f"困惑度 +{loss.perplexity_gain:.4f}（{loss.model} 的 {loss.quant}）",
    )
