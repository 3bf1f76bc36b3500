"""Where tokens are chosen from the logits: by the engine on the host, or on the card. Pure.

On the host each stream's turn comes after the other, while the card waits. One H200 with 16 cores,
llama.cpp 0c1e570, 2026-12-01 (docs/measured/2026-12-01-h200-sampling.md): a 7B with 152 thousand
tokens in its vocabulary gave 36 to 38 % more on the card with 16 streams, 6 to 10 % with four, 2 to
3 % with one; 135M with 49 thousand gave 7 to 12 % less. By the times of a token the two meet at
about 60 thousand.
"""

from workhorse.knowledge.llamacpp_flags import CARD_SAMPLING
from workhorse.plan.memory import output_bytes
from workhorse.plan.placement import Placement
from workhorse.records import BudgetLine, EngineBuild, Model, Reason
from workhorse.text import Text
from workhorse.units import MIB

LEAST_VOCABULARY = 100_000
# What NVML saw beyond the same plan with the host's sampling: 12, 14 and 17 MiB at 16 slots.
SCRATCH_BYTES = 16 * MIB
# Beside the logits, three more rows of four bytes an entry are brought to the host for each slot:
# `sampling` buffers in llama-context.cpp; the log's output buffer is four times as large.
MORE_ROWS = 3


def can_sample_on_card(build: EngineBuild, model: Model, placed: Placement) -> bool:
    """Whether the engine is able to: its own way for one card that holds all layers.

    Over several cards it was never run; with tensors split the engine refuses.
    """
    return (
        CARD_SAMPLING in build.knows
        and not model.pooling
        and len(placed.cards) == 1
        and placed.cut.gpu_layers > model.layers
    )


def samples_on_card(build: EngineBuild, model: Model, placed: Placement) -> bool:
    """Whether it pays as well."""
    return can_sample_on_card(build, model, placed) and model.vocabulary >= LEAST_VOCABULARY


def sampling_lines(model: Model, placed: Placement, on_card: bool) -> tuple[BudgetLine, ...]:
    """What choosing on the card takes beside what the plan has; nothing for the host."""
    if not on_card:
        return ()
    words = Text("tokens are chosen on the card", "在显卡上采样")
    seen = Text("seen on an H200 with 16 slots", "H200 上 16 个槽位实测")
    rows = MORE_ROWS * output_bytes(model, placed.layout.slots)
    return (
        BudgetLine("RAM", "output", rows, "header", words),
        BudgetLine(f"GPU {placed.cards[0].gpu.index}", "runtime", SCRATCH_BYTES, "estimated", seen),
    )


def sampling_reason(model: Model, on_card: bool) -> tuple[Reason, ...]:
    """Why tokens are chosen on the card; nothing where the host does it as ever."""
    if not on_card:
        return ()
    words = Text(
        f"The host would look through {model.vocabulary:,} scores for each token, one stream after "
        "the other: on an H200 a 7B gave 36 % more with 16 streams so, 2 % with one (2026-12). "
        "Answers in a JSON form are still chosen on the host.",
        f"若由主机采样，每个词元都要逐路扫描 {model.vocabulary:,} 个分数："
        "H200 上 7B 模型 16 路并发因此快 36%，单路快 2%（2026-12 实测）。"
        "限定 JSON 格式的回答仍由主机采样。",
    )
    return (Reason("sampling", "card", words),)
