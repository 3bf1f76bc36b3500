"""What drafting with a model's own layers (multi-token prediction) would take more. Pure."""

from workhorse.knowledge.architectures import architecture
from workhorse.plan.kept import Layout, layer_kv_bytes, state_bytes
from workhorse.plan.memory import loaded
from workhorse.records import Finding, Model
from workhorse.text import Text
from workhorse.units import show_bytes

# Tokens drafted a step: so many earlier states are kept, to go back to where a draft was wrong
# (`need_n_rs_seq`, common/common.h of llama.cpp, commit 0c1e570, 2026-10-01).
DRAFTS = 3


def draft_bytes(model: Model, layout: Layout, drafts: int = DRAFTS) -> int:
    """The draft layers' weights and KV, and the states to go back to; 0 without such layers."""
    if not model.draft_layers:
        return 0
    weights = sum(tensor.n_bytes for tensor in model.tensors if not loaded(tensor, model))
    kept = sum(layer_kv_bytes(attention, layout) for attention in model.draft_attention)
    back = drafts * state_bytes(model, layout) if architecture(model.architecture).rolls_back else 0
    return weights + kept + back


def check_drafts(model: Model, layout: Layout) -> tuple[Finding, ...]:
    """A note that the file has layers which the plan does not use, and what they would take."""
    more = draft_bytes(model, layout)
    if not more:
        return ()
    size, n = show_bytes(more), model.draft_layers
    return (
        Finding(
            code="model.drafts_unused",
            level="note",
            seen=Text(
                f"{model.name} has {n} layers that draft tokens (MTP).",
                f"{model.name} 含 {n} 个草拟词元的层（MTP）。",
            ),
            why=Text(
                f"The plan does not use them; they would take {size} more, and the engine leaves "
                "them out of memory. The speed with drafts is in the table of speeds.",
                f"本方案不使用它们；启用需再占 {size}，目前引擎不加载。启用后的速度见速度表。",
            ),
            remedy=Text(
                "To try them, start llama-server yourself with --spec-type draft-mtp.",
                "如需试用，请自行以 --spec-type draft-mtp 启动 llama-server。",
            ),
            source="llama.cpp 0c1e570: common/common.h, src/models",
        ),
    )
