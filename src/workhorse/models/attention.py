"""What each layer of a model keeps in the KV cache, from the header's metadata."""

from workhorse.knowledge.architectures import Architecture, architecture
from workhorse.models.metadata import Metadata
from workhorse.models.refusals import damaged
from workhorse.records import Attention


def layer_attention(
    meta: Metadata, layers: int, embedding_size: int, heads: tuple[int, ...]
) -> tuple[Attention | None, ...]:
    """One entry a layer; None where a layer keeps no KV.

    `heads` has the attention heads of each layer. The file's own keys come first, then
    `knowledge/architectures.toml`; a model that neither describes is taken to keep K and V of the
    whole context in every layer, so a doubt costs memory and never a failed start. Multi-head
    latent attention keeps only K (value size 0), as llama.cpp does. Not counted: recurrent state,
    and the index caches of sparse attention (DeepSeek 3.2 and 4, GLM with DSA).
    """
    facts = architecture(meta.architecture)
    if not facts.keeps_kv:
        return (None,) * layers
    kv_heads = meta.counts("{arch}.attention.head_count_kv", layers) or heads
    keeps = _layers_with_kv(meta, facts, layers)
    windows = _windows(meta, facts, layers)
    whole, narrow = _head_sizes(meta, embedding_size, max(heads, default=0))
    kept: list[Attention | None] = []
    for layer in range(layers):
        if not keeps[layer] or not kv_heads[layer]:
            kept.append(None)
            continue
        window = windows[layer]
        key_size, value_size = whole if window is None else narrow
        if not key_size:
            raise damaged(
                meta.name,
                f"layer {layer} keeps KV, but the size of a head is not given",
                f"第 {layer} 层保留 KV，但未给出注意力头的大小",
            )
        kept.append(Attention(kv_heads[layer], key_size, value_size, window))
    return tuple(kept)


def _head_sizes(
    meta: Metadata, embedding_size: int, heads: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Key and value elements of one head: in layers with the whole context, and with a window."""
    default = embedding_size // heads if heads else 0
    key = meta.count("{arch}.attention.key_length") or default
    value = meta.count("{arch}.attention.value_length") or default
    key_narrow = meta.count("{arch}.attention.key_length_swa") or key
    value_narrow = meta.count("{arch}.attention.value_length_swa") or value
    if meta.count("{arch}.attention.key_length_mla"):
        return (key, 0), (key_narrow, 0)
    return (key, value), (key_narrow, value_narrow)


def _layers_with_kv(meta: Metadata, facts: Architecture, layers: int) -> list[bool]:
    # The layers of multi-token prediction come last; the engine's main context has no KV for them.
    main = layers - min(meta.count("{arch}.nextn_predict_layers") or 0, layers)
    keeps = [layer < main or not main for layer in range(layers)]
    recurrent = meta.counts("{arch}.attention.recurrent_layers", layers)
    if recurrent is None and facts.attention_period:
        period = meta.count("{arch}.full_attention_interval") or facts.attention_period
        recurrent = tuple(int((layer + 1) % period != 0) for layer in range(layers))
    if recurrent is not None:
        keeps = [keep and not skip for keep, skip in zip(keeps, recurrent, strict=True)]
    shared = meta.count("{arch}.attention.shared_kv_layers")
    own = facts.kv_layers if shared is None else layers - min(shared, layers)
    return keeps if own is None else [keep and i < own for i, keep in enumerate(keeps)]


def _windows(meta: Metadata, facts: Architecture, layers: int) -> list[int | None]:
    """The sliding window of each layer in tokens; None: the whole context."""
    whole: list[int | None] = [None] * layers
    window = meta.count("{arch}.attention.sliding_window")
    if window is None:
        window = facts.window_default_tokens
    if not window or facts.window_ignored or facts.window_if_layers not in (None, layers):
        return whole
    window = facts.window_fixed_tokens or window
    pattern = "{arch}.attention.sliding_window_pattern"
    flags = meta.flags(pattern)
    if flags is not None:
        narrow = [layer < len(flags) and flags[layer] for layer in range(layers)]
        return [window if yes else None for yes in narrow]
    period = facts.window_period
    if meta.entries(pattern) is None:
        period = meta.count(pattern) if meta.count(pattern) is not None else period
    if period is None:
        return whole
    if not period:
        return [window] * layers
    wide = 0 if facts.dense_first else period - 1
    return [None if layer % period == wide else window for layer in range(layers)]
