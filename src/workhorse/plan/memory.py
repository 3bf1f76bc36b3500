"""How much memory a model takes on a device, item by item.

Weights, KV and recurrent state are exact (`kept.py`), compute buffers follow a fitted formula
(`compute_buffers.py`), the rest is a bound. Sizes in bytes, contexts in tokens.
"""

import re
from collections.abc import Iterable

from workhorse.plan.compute_buffers import (
    compute_bytes,
    compute_error,
    feed_forward_size,
)
from workhorse.plan.kept import (
    CHECKPOINTS_A_SLOT,
    Layout,
    checkpoint_bytes,
    kv_bytes,
    layer_kv_bytes,
    padded_cells,
    row_bytes,
    seen_cells,
    state_bytes,
)
from workhorse.records import BudgetLine, Model, Projector, Tensor, WeightPart
from workhorse.text import Text
from workhorse.units import MIB

__all__ = [
    "CHECKPOINTS_A_SLOT",
    "CUDA_CONTEXT_BYTES",
    "RUNTIME_BYTES",
    "Layout",
    "checkpoint_bytes",
    "compute_bytes",
    "compute_error",
    "device_bytes",
    "feed_forward_size",
    "is_output_head",
    "kv_bytes",
    "layer_kv_bytes",
    "loaded",
    "output_bytes",
    "padded_cells",
    "projector_bytes",
    "row_bytes",
    "second_head_bytes",
    "seen_cells",
    "state_bytes",
    "weight_part",
]

# What a process takes beside the model: interpreter, libraries, HTTP threads, tokenizer. RSS
# minus printed buffers was 34 MiB for llama-server and 58 MiB embedded (measured 2026-11).
RUNTIME_BYTES = 96 * MIB

# A CUDA context with its kernels loaded: 300 to 520 MiB on the cards published (2026-11).
CUDA_CONTEXT_BYTES = 520 * MIB

# What the CPU backend stores in another order for its matrix kernels, on x86 with AVX2, when the
# rows come in eights (ggml_repack_get_optimal_repack_type, ggml-cpu/repack.cpp of llama.cpp,
# commit 0c1e570, 2026-10-01). Rows cannot be looked up in it, so an embedding that is the output
# head too is then held twice.
REPACKED_TYPES = ("q4_0", "q4_k", "iq4_nl", "mxfp4")

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
# By the part of a layer's tensor name, first match wins.
_PARTS: tuple[tuple[WeightPart, re.Pattern[str]], ...] = (
    ("norms and others", re.compile(r".*norm")),
    ("experts", re.compile(r"ffn_.*_(ch)?exps")),
    ("shared experts", re.compile(r"ffn_.*shexp")),
    ("feed-forward", re.compile(r"ffn_|channel_mix")),
    ("recurrence", re.compile(r"ssm_|time_mix|shortconv|attn_gate")),
    ("attention", re.compile(r"attn_|indexer")),
)


def output_bytes(model: Model, slots: int) -> int:
    """The logits of one token for each slot, F32."""
    return slots * model.vocabulary * 4


def weight_part(tensor: Tensor) -> WeightPart:
    """What a layer's tensor is for."""
    found = _LAYER.match(tensor.name)
    name = found[2] if found else tensor.name
    return next((part for part, pattern in _PARTS if pattern.match(name)), "norms and others")


def loaded(tensor: Tensor, model: Model) -> bool:
    """False for a layer of multi-token prediction: it is passed over unless it is to draft.

    `TENSOR_SKIP` without `load_mtp` in llama.cpp's src/models (commit 0c1e570, 2026-10-01).
    """
    found = _LAYER.match(tensor.name)
    return found is None or int(found[1]) < model.layers - model.draft_layers


def second_head_bytes(model: Model) -> int:
    """The second copy of an embedding that is the output head too, when the CPU computes."""
    return sum(
        tensor.n_bytes
        for tensor in model.tensors
        if tensor.name == "token_embd.weight"
        and is_output_head(tensor, model)
        and tensor.type in REPACKED_TYPES
        and tensor.shape[-1] % 8 == 0
    )


def projector_bytes(projector: Projector) -> tuple[int, int]:
    """Weights of a projector, and a bound of its scratch memory for one image.

    One row a patch: four of the width, three of the feed-forward part, and the scores of all
    heads (clip.cpp of llama.cpp reserves the graph of one image of the trained size).
    """
    if not (projector.image_size and projector.patch_size and projector.embedding_size):
        return projector.weight_bytes, projector.weight_bytes // 2
    patches = (projector.image_size // projector.patch_size) ** 2
    width = projector.embedding_size
    rows = 4 * width + 3 * (projector.feed_forward_size or 4 * width)
    return projector.weight_bytes, patches * 4 * (rows + (projector.heads or 1) * patches)


def is_output_head(tensor: Tensor, model: Model) -> bool:
    """True for the matrix that turns the last state into logits (the embedding when tied)."""
    if tensor.name == "output.weight":
        return True
    tied = all(t.name != "output.weight" for t in model.tensors)
    return tied and tensor.name == "token_embd.weight"


def fitted(model: Model) -> Text:
    """Where the size of the compute buffers comes from, with its error."""
    error = compute_error(model)
    if model.known:
        return Text(
            f"fitted to llama.cpp's own figures, ±{error * 100:.0f} %",
            f"按 llama.cpp 自报数值拟合，误差约 ±{error * 100:.0f} %",
        )
    return Text(
        f"architecture {model.architecture} is not known: from its tensors, ±{error * 100:.0f} %",
        f"未知架构 {model.architecture}：按张量推算，误差约 ±{error * 100:.0f} %",
    )


def device_bytes(lines: Iterable[BudgetLine], device: str) -> int:
    """What a budget takes of one device."""
    return sum(line.n_bytes for line in lines if line.device == device)
