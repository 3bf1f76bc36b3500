"""What an architecture that is in no table keeps, as far as the shapes of its tensors tell."""

import re
from collections.abc import Sequence

from workhorse.models.metadata import Metadata
from workhorse.records import Attention, Tensor

_LAYER = re.compile(r"blk\.(\d+)\.(attn_(?:k|v|kv_a_mqa|qkv))\.weight")


def kept_by_tensors(
    meta: Metadata, layers: int, tensors: Sequence[Tensor]
) -> tuple[Attention | None, ...] | None:
    """K and V as wide as their projections, over the whole context; None when none is found.

    A layer without such tensors keeps no KV; a latent projection is kept as it is, without V. One
    head of the whole width stands for all: only the sum matters for memory.
    """
    widths: dict[tuple[int, str], int] = {}
    for tensor in tensors:
        if (found := _LAYER.fullmatch(tensor.name)) and len(tensor.shape) > 1:
            widths[int(found[1]), found[2]] = tensor.shape[1]
    kept: list[Attention | None] = []
    for layer in range(layers):
        key, value = widths.get((layer, "attn_k"), 0), widths.get((layer, "attn_v"), 0)
        latent, fused = widths.get((layer, "attn_kv_a_mqa"), 0), widths.get((layer, "attn_qkv"), 0)
        if key:
            kept.append(Attention(1, key, value or key))
        elif latent:
            kept.append(Attention(1, latent, 0))
        elif fused:
            # How much of it is queries is not told by its shape: at most two thirds are K and V.
            heads = meta.counts("{arch}.attention.head_count", layers) or ()
            kv_heads = meta.counts("{arch}.attention.head_count_kv", layers) or heads
            all_heads = heads[layer] + 2 * kv_heads[layer] if heads else 3
            size = fused // max(all_heads, 1) * (kv_heads[layer] if heads else 1)
            kept.append(Attention(1, size, size) if size else None)
        else:
            kept.append(None)
    return tuple(kept) if any(kept) else None
