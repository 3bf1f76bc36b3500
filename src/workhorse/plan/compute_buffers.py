"""The scratch memory of one graph evaluation, fitted to what llama.cpp's dry run says.

Each part of a layer has a peak; the widest decides. Rows are F32, a mask cell has two bytes (four
without flash attention). The coefficients were read off the dry run of 29 published shapes at
micro-batches of 64 to 1024 (llama.cpp 0c1e570 on a CPU, 2026-11-30): dense models with F16 KV
within 1 %, others within `compute_error`; docs/measured/2026-11-30-memory-arithmetic.md has every
row.
"""

import re
from collections.abc import Iterator

from workhorse.knowledge.architectures import architecture
from workhorse.plan.kept import Layout, padded_cells, seen_cells
from workhorse.records import Model

COMPUTE_ERROR = 0.15
# Sparse attention: few shapes were asked about, and their scores dwarf the rest.
COMPUTE_ERROR_SPARSE = 0.25
# An architecture that is in no table may build graphs of another form.
COMPUTE_ERROR_UNKNOWN = 0.5

F32_BYTES = 4
_LATENT = re.compile(r"blk\.\d+\.(attn_q|attn_q_b|attn_k_b|attn_v_b)\.weight")


def feed_forward_size(model: Model) -> int:
    """The widest feed-forward row that one token passes through; experts used count together."""
    return max(_dense_size(model), _experts_size(model)) or 4 * model.embedding_size


def compute_error(model: Model) -> float:
    """How far `compute_bytes` may be off for this model, as a share of it."""
    if not model.known:
        return COMPUTE_ERROR_UNKNOWN
    sparse = any(a is not None and a.side for a in model.attention)
    return COMPUTE_ERROR_SPARSE if sparse else COMPUTE_ERROR


def compute_bytes(model: Model, layout: Layout, outputs: int | None = None) -> int:
    """Scratch memory of one graph evaluation; `outputs` tokens get logits, by default one a slot.

    `llama-fit-params` reckons with as many outputs as the micro-batch has tokens, the server with
    one a slot.
    """
    tokens = layout.micro_batch_tokens
    rows = max(_rows(model, layout)) + _streams_size(model)
    cell = 2 if layout.flash_attention else 4
    masks = {a.window_tokens: seen_cells(a, layout) for a in model.attention if a is not None}
    streams = _hyper_streams(model) * model.embedding_size
    peak = max(
        tokens * (rows + 3 * streams) * F32_BYTES,
        tokens * (rows + streams) * F32_BYTES + _index_bytes(model, layout),
        _recurrent_bytes(model, layout),
    )
    logits = (layout.slots if outputs is None else outputs) * model.vocabulary * F32_BYTES
    heads = logits + tokens * 2 * model.embedding_size * F32_BYTES
    return max(peak, heads) + sum(tokens * cell * cells for cells in masks.values())


def _rows(model: Model, layout: Layout) -> Iterator[int]:
    """Elements a token at the peak of each part of a layer."""
    width = model.embedding_size
    plain = not model.experts and not any(model.recurrent)
    yield 4 * width + 3 * (_dense_size(model) or (4 * width if plain else 0))
    experts, all_outputs = _experts_size(model), width * model.experts_used
    if experts:
        # The outputs of the experts fit where gate and up were, or come on top.
        yield 3 * experts + (4 * width if all_outputs <= 2 * experts else 5 * width + all_outputs)
    queries = model.heads * max((a.key_size for a in model.attention if a is not None), default=0)
    scores = 0
    if not layout.flash_attention:
        cells = (seen_cells(a, layout) for a in model.attention if a is not None)
        scores = model.heads * max(cells, default=0)
    latent = _latent_size(model)
    if latent:
        yield 4 * width + latent + queries + scores
    elif queries:
        yield 2 * width + 3 * queries + queries // 2 + scores


def _dense_size(model: Model) -> int:
    return _widest(model, "ffn_down", 0)


def _experts_size(model: Model) -> int:
    return _widest(model, "ffn_down_exps", 0) * max(model.experts_used, 1)


def _latent_size(model: Model) -> int:
    """Elements a token of latent attention: plain queries, those by way of the latent, values."""
    sizes: dict[str, int] = {}
    for tensor in model.tensors:
        if found := _LATENT.fullmatch(tensor.name):
            rows = tensor.shape[1] if len(tensor.shape) > 1 else 0
            sizes[found[1]] = rows * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
    if "attn_k_b" not in sizes or "attn_v_b" not in sizes:
        return 0
    plain = sizes.get("attn_q_b") or sizes.get("attn_q", 0)
    return plain + sizes["attn_k_b"] + sizes["attn_v_b"]


def _streams_size(model: Model) -> int:
    """Elements a token of what flows beside the layers: rows of tables, further streams (AltUp)."""
    shapes = {t.name: t.shape for t in model.tensors}
    table = shapes.get("per_layer_token_embd.weight")
    if table is None:
        return 0
    projections = shapes.get("altup_proj.weight", ())
    streams = projections[2] if len(projections) > 2 else 0
    return table[0] + (2 + streams) * model.embedding_size


def _hyper_streams(model: Model) -> int:
    """How many residual streams hyper-connections mix; 0 without them."""
    mixed = _widest(model, "hc_attn_down", 0) or _widest(model, "hc_attn_fn", 0)
    return mixed // model.embedding_size


def _index_bytes(model: Model, layout: Layout) -> int:
    """What sparse attention chooses by: scores of every token and cell, and pooled keys."""
    facts = architecture(model.architecture)
    indexed = [a for a in model.attention if a is not None and a.side]
    if not facts.index_score_bytes or not indexed:
        return 0
    key_size = max(a.side[0].key_size for a in indexed)
    heads = _widest(model, "indexer.q_proj", 1) // max(key_size, 1)
    each = facts.index_score_bytes + heads * facts.index_head_score_bytes
    cells = padded_cells(layout.context_tokens)
    pooled = key_size * F32_BYTES if facts.index_head_score_bytes else 0
    return cells * (layout.micro_batch_tokens * each + pooled)


def _recurrent_bytes(model: Model, layout: Layout) -> int:
    """The peak of a recurrent layer: states of all slots, once or twice, and rows a token."""
    kept = [state for state in model.recurrent if state is not None]
    if not kept:
        return 0
    width = model.embedding_size
    rolling = max(state.rolling_bytes for state in kept)
    states = 2 * (rolling + max(state.state_bytes for state in kept))
    inner, mixed = _widest(model, "ssm_out", 0), _widest(model, "ssm_conv1d", 1)
    if _widest(model, "time_mix_key", 0):  # RWKV
        rows = 19 * width
    elif _widest(model, "ssm_beta", 0) or _widest(model, "ssm_ba", 0):  # gated delta net
        rows = 3 * max(mixed - inner, 0) // 2 + 6 * inner + width
    else:  # Mamba
        rows = _widest(model, "ssm_in", 1) + 2 * mixed + 5 * inner // 2
        states -= max(state.state_bytes for state in kept)
    return layout.slots * states + layout.micro_batch_tokens * rows * F32_BYTES


def _widest(model: Model, part: str, dimension: int) -> int:
    """The largest size of a dimension among the layers' tensors of that name; 0 without any."""
    found = (t.shape for t in model.tensors if t.name.endswith(f".{part}.weight"))
    return max((shape[dimension] for shape in found if len(shape) > dimension), default=0)
