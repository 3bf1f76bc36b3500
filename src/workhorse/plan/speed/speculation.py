"""What drafting tokens (MTP heads of the model itself) would make of the speed."""

from collections.abc import Mapping
from dataclasses import replace

from workhorse.plan.speed.decode import Question, rates_of, step
from workhorse.plan.speed.device import Reader
from workhorse.plan.speed.reads import layer_of
from workhorse.records import Estimate
from workhorse.text import Text

# Tokens drafted a step, and the share of drafts that the model takes: chat low, code and copying
# high (published MTP runs of Qwen3.8-27B on V100 and P40, 2026-08: 0.68 to 0.82 taken).
DRAFTS = 3
TAKEN, TAKEN_LOW, TAKEN_HIGH = 0.7, 0.5, 0.85


def drafted(question: Question, readers: Mapping[str, Reader], single: Estimate) -> Estimate | None:
    """Decode speed with the model's own draft layers; None for a model without."""
    model = question.model
    if not model.draft_layers:
        return None
    one = step(question, readers)
    checked = step(replace(question, one_sequence=True), readers, DRAFTS + 1)
    if one is None or checked is None:
        return None
    factor = single.value * one.seconds  # what was learned of one stream holds here too
    seconds = checked.seconds + DRAFTS * draft_seconds(question, readers)

    def speed(taken: float) -> float:
        return factor * tokens_a_step(DRAFTS, taken) / seconds

    source = Text(
        f"{DRAFTS} drafts a step, {TAKEN:.0%} of them taken ({TAKEN_LOW:.0%} to {TAKEN_HIGH:.0%})",
        f"每步草拟 {DRAFTS} 个词元，接受率 {TAKEN:.0%}（{TAKEN_LOW:.0%} 至 {TAKEN_HIGH:.0%}）",
    )
    low, high = single.low / single.value, single.high / single.value
    return Estimate(
        speed(TAKEN),
        speed(TAKEN_LOW) * low,
        speed(TAKEN_HIGH) * high,
        "tok/s",
        single.basis,
        source,
    )


def tokens_a_step(drafts: int, taken: float) -> float:
    """Tokens that one step yields when each draft is taken with this chance, up to the first
    that is not."""
    return sum(taken**n for n in range(drafts + 1))


def draft_seconds(question: Question, readers: Mapping[str, Reader]) -> float:
    """Seconds of one draft: the draft layers and the output head, at the memory's speed."""
    model = question.model
    first = model.layers - model.draft_layers
    n_bytes = tensors = 0
    for tensor in model.tensors:
        layer = layer_of(tensor)
        if layer is not None and layer >= first:
            share = 1.0
            if "_exps." in tensor.name and model.experts:
                share = min(1.0, model.experts_used / model.experts)
            n_bytes += int(tensor.n_bytes * share)
            tensors += 1
        elif tensor.name == "output.weight":
            n_bytes += tensor.n_bytes
    cards = [reader for reader in readers.values() if reader.device == "gpu"]
    reader = cards[0] if cards else next(iter(readers.values()))
    bandwidth = reader.bandwidth_bytes_per_s or 1.0
    each = 10e-6 if rates_of(reader).capability and cards else 0.0
    return n_bytes / bandwidth * 1.3 + tensors * each
