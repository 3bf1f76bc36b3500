"""How much memory a model takes on a device, item by item.

Weights and KV are exact. Compute buffers follow a formula fitted to what llama.cpp printed (see
`compute_bytes`); the rest is a bound. Sizes in bytes, contexts in tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from workhorse.knowledge.quants import quant
from workhorse.records import Attention, BudgetLine, Model, Tensor
from workhorse.text import Text
from workhorse.units import MIB

# llama.cpp pads the KV cache of each sequence to this many cells (llama-kv-cache.cpp, commit
# 0c1e570, 2026-10-01; the swept CPU logs of 2026-11 agree).
KV_PADDING_CELLS = 256

# What a process takes beside the model: interpreter, libraries, HTTP threads, tokenizer. RSS
# minus printed buffers was 34 MiB for llama-server and 58 MiB embedded (measured 2026-11).
RUNTIME_BYTES = 96 * MIB

# A CUDA context with its kernels loaded: 300 to 520 MiB on the cards published (2026-11).
CUDA_CONTEXT_BYTES = 520 * MIB


@dataclass(frozen=True, slots=True)
class Layout:
    """The settings that decide how much memory a model takes beside its weights."""

    context_tokens: int  # of one slot
    slots: int
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = True
    micro_batch_tokens: int = 512


def row_bytes(type_name: str, elements: int) -> int:
    """Bytes of `elements` values stored as `type_name`; whole blocks."""
    kind = quant(type_name)
    return elements // kind.block_elements * kind.block_bytes


def padded_cells(tokens: int) -> int:
    """Cells that a sequence of `tokens` takes in the cache."""
    return -(-tokens // KV_PADDING_CELLS) * KV_PADDING_CELLS


def layer_cells(attention: Attention, layout: Layout) -> int:
    """KV cells that one layer keeps for one slot; a sliding window keeps window + micro-batch."""
    if attention.window_tokens is None:
        return padded_cells(layout.context_tokens)
    window = padded_cells(attention.window_tokens + layout.micro_batch_tokens)
    return min(window, padded_cells(layout.context_tokens))


def kv_bytes(model: Model, layout: Layout) -> int:
    """KV cache of all layers and slots."""
    total = 0
    for attention in model.attention:
        if attention is None:
            continue
        cells = layer_cells(attention, layout) * layout.slots
        total += row_bytes(layout.kv_type_k, attention.kv_heads * attention.key_size) * cells
        total += row_bytes(layout.kv_type_v, attention.kv_heads * attention.value_size) * cells
    return total


def feed_forward_size(model: Model) -> int:
    """The widest feed-forward row that one token passes through; experts used count together."""
    widest = 0
    for tensor in model.tensors:
        if ".ffn_down_exps." in tensor.name:
            widest = max(widest, tensor.shape[0] * max(model.experts_used, 1))
        elif ".ffn_down" in tensor.name:
            widest = max(widest, tensor.shape[0])
    return widest or 4 * model.embedding_size


def compute_bytes(model: Model, layout: Layout) -> int:
    """Scratch memory of one graph evaluation.

    Four rows of the embedding and three of the feed-forward width a token of the micro-batch,
    in F32, plus a two-byte mask cell for each token and KV cell. That is what llama.cpp printed
    for 135M, 270M and 7B shapes at micro-batches of 128 to 2048 (CPU and CUDA logs, 2026-11):
    exact for the first, 4 % high to 4 % low for the others. Without flash attention the scores of
    all heads come on top.
    """
    tokens = layout.micro_batch_tokens
    rows = tokens * 4 * (4 * model.embedding_size + 3 * feed_forward_size(model))
    kinds = {a.window_tokens: layer_cells(a, layout) for a in model.attention if a is not None}
    mask = sum(tokens * 2 * cells for cells in kinds.values())
    scores = 0
    if not layout.flash_attention and kinds:
        scores = tokens * 4 * model.heads * max(kinds.values())
    return rows + mask + scores


def output_bytes(model: Model, slots: int) -> int:
    """The logits of one token for each slot, F32."""
    return slots * model.vocabulary * 4


def is_output_head(tensor: Tensor, model: Model) -> bool:
    """True for the matrix that turns the last state into logits (the embedding when tied)."""
    if tensor.name == "output.weight":
        return True
    tied = all(t.name != "output.weight" for t in model.tensors)
    return tied and tensor.name == "token_embd.weight"


def budget(model: Model, layout: Layout, *, device: str, gpu: bool) -> tuple[BudgetLine, ...]:
    """What the model takes when one device holds all layers, item by item.

    Beside a GPU, main memory holds the input embedding, which is read by row, and the logits
    (llama.cpp 0.5.0 on one H200: CUDA_Host buffers, measured 2026-11-30).
    """
    header = Text("from the model's header", "取自模型文件头")
    formula = Text(
        "fitted to llama.cpp's own figures, ±5 %", "按 llama.cpp 自报数值拟合，误差约 ±5 %"
    )
    bound = Text("an upper bound, measured 2026-11", "上限，2026-11 实测")
    weights, beside = model.weight_bytes, []
    if gpu:
        embedding = next((t for t in model.tensors if t.name == "token_embd.weight"), None)
        if embedding is not None:
            # A tied embedding is the output head too, and that is on the card.
            weights -= 0 if is_output_head(embedding, model) else embedding.n_bytes
            beside = [BudgetLine("RAM", "weights", embedding.n_bytes, "header", header)]
    runtime = CUDA_CONTEXT_BYTES if gpu else RUNTIME_BYTES
    logits = BudgetLine("RAM", "output", output_bytes(model, layout.slots), "header", header)
    return (
        BudgetLine(device, "weights", weights, "header", header),
        BudgetLine(device, "kv", kv_bytes(model, layout), "header", header),
        BudgetLine(device, "compute", compute_bytes(model, layout), "estimated", formula),
        BudgetLine(device, "runtime", runtime, "estimated", bound),
        *beside,
        logits,
    )


def device_bytes(lines: Iterable[BudgetLine], device: str) -> int:
    """What a budget takes of one device."""
    return sum(line.n_bytes for line in lines if line.device == device)
