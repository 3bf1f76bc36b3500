"""What the layers of a model keep between tokens: KV, recurrent state, checkpoints of both.

Exact: checked byte for byte against llama.cpp's dry run for 128 architectures and 29 published
shapes (docs/measured/2026-11-30-memory-arithmetic.md). Sizes in bytes, contexts in tokens.
"""

from dataclasses import dataclass

from workhorse.knowledge.quants import quant
from workhorse.records import Attention, Model

# llama.cpp pads the KV cache of each sequence to this many cells (llama-context.cpp and
# llama-kv-cache-iswa.cpp, commit 0c1e570, 2026-10-01; its dry run agrees).
KV_PADDING_CELLS = 256

# Copies that llama-server keeps of what cannot be rolled back, for each slot: windows that slide
# and recurrent state (`n_ctx_checkpoints`, common/common.h, commit 0c1e570, 2026-10-01).
CHECKPOINTS_A_SLOT = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """The settings that decide how much memory a model takes beside its weights."""

    context_tokens: int  # of one slot
    slots: int
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = True
    micro_batch_tokens: int = 512
    shared_kv: bool = False  # one pool of cells for all slots (`--kv-unified`)


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


def all_cells(attention: Attention, layout: Layout) -> int:
    """KV cells that one layer keeps for all slots: each slot's own, or one pool for all."""
    if not layout.shared_kv:
        return layer_cells(attention, layout) * layout.slots
    pool = padded_cells(layout.context_tokens * layout.slots)
    if attention.window_tokens is None:
        return pool
    window = attention.window_tokens * layout.slots + layout.micro_batch_tokens
    return min(padded_cells(window), pool)


def seen_cells(attention: Attention, layout: Layout) -> int:
    """Cells that a graph's mask covers: those of one slot, of a pool all of them."""
    return (all_cells if layout.shared_kv else layer_cells)(attention, layout)


def layer_kv_bytes(attention: Attention, layout: Layout, value_elements: int = 0) -> int:
    """KV of one layer for all slots, with the side caches of sparse attention.

    Its values take no less than `value_elements` a cell; see `padded_values`.
    """
    own = attention.kv_heads * attention.value_size
    values = max(own, value_elements) if own else 0
    keys = attention.kv_heads * attention.key_size
    total = all_cells(attention, layout) * _cell_bytes(layout, keys, values)
    for side in attention.side:
        cells = padded_cells(-(-padded_cells(layout.context_tokens) // side.tokens_a_cell))
        total += layout.slots * cells * _cell_bytes(layout, side.key_size, side.value_size)
    return total


def padded_values(model: Model, layout: Layout) -> int:
    """Elements that the values of a cell take at least: those of the widest layer without flash
    attention, when they are stored transposed (TAG_V_CACHE_VARIABLE, llama-kv-cache.cpp)."""
    if layout.flash_attention:
        return 0
    return max((a.kv_heads * a.value_size for a in model.attention if a is not None), default=0)


def _cell_bytes(layout: Layout, key_elements: int, value_elements: int) -> int:
    keys = row_bytes(layout.kv_type_k, key_elements)
    return keys + row_bytes(layout.kv_type_v, value_elements)


def kv_bytes(model: Model, layout: Layout) -> int:
    """KV cache of all layers and slots."""
    values = padded_values(model, layout)
    return sum(layer_kv_bytes(a, layout, values) for a in model.attention if a is not None)


def state_bytes(model: Model, layout: Layout) -> int:
    """Recurrent state of all layers and slots; it does not grow with the context."""
    kept = (state for state in model.recurrent if state is not None)
    return layout.slots * sum(state.rolling_bytes + state.state_bytes for state in kept)


def checkpoint_bytes(model: Model, layout: Layout) -> int:
    """One copy of what one slot cannot roll back; 0 for a model that can roll back everything.

    llama-server keeps up to `CHECKPOINTS_A_SLOT` of them a slot in main memory (its option is
    `--ctx-checkpoints`), so that a conversation goes on without reading its prompt anew.
    """
    sliding = (a for a in model.attention if a is not None and a.window_tokens is not None)
    windows = sum(layer_kv_bytes(a, layout) for a in sliding)
    return (windows + state_bytes(model, layout)) // max(layout.slots, 1)
