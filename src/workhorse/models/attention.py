"""What each layer of a model keeps in the KV cache, from the header's metadata."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.knowledge.architectures import Architecture, architecture, known_architecture
from workhorse.models.metadata import Metadata
from workhorse.models.recurrence import recurrent_layers
from workhorse.models.refusals import damaged
from workhorse.models.unknown import kept_by_tensors
from workhorse.records import Attention, SideCache, Tensor

# DeepSeek V4 compresses by these (DSV4_CSA_RATIO and DSV4_HCA_RATIO of llama.cpp's
# src/llama-kv-cache-dsv4.cpp, commit 0c1e57098, 2026-10-01); only the first has an index.
COMPRESSED_WITH_INDEX, COMPRESSED = 4, 128


@dataclass(frozen=True, slots=True)
class Shape:
    """What every decision about a layer starts from."""

    layers: int
    embedding_size: int
    heads: tuple[int, ...]  # one a layer

    def draft_layers(self, meta: Metadata) -> int:
        """Layers of multi-token prediction; they come last, and the main context has none."""
        draft = meta.count("{arch}.nextn_predict_layers") or 0
        return draft if draft < self.layers else 0


def layer_attention(
    meta: Metadata, shape: Shape, tensors: Sequence[Tensor]
) -> tuple[tuple[Attention | None, ...], tuple[Attention, ...]]:
    """What each layer keeps, one entry a layer (None: no KV); and what the draft layers keep.

    The file's own keys come first, then `knowledge/architectures.toml`; of an architecture that is
    in neither, the shapes of its tensors decide, so a doubt costs memory and never a failed start.
    Multi-head latent attention keeps only K (value size 0), as llama.cpp does, when the file has
    `key_length_mla`; older files keep K and V of every head.
    """
    facts = architecture(meta.architecture)
    if not facts.keeps_kv:
        return (None,) * shape.layers, ()
    if not known_architecture(meta.architecture):
        guessed = kept_by_tensors(meta, shape.layers, tensors)
        if guessed is not None:
            return guessed, ()
    kv_heads = meta.counts("{arch}.attention.head_count_kv", shape.layers) or shape.heads
    # A model that runs its layers several times keeps KV of every round (Nanbeige).
    rounds = max(meta.count("{arch}.num_loops") or 1, 1)
    windows = _windows(meta, facts, shape.layers)
    whole, narrow = _head_sizes(meta, shape)
    sides = _side_caches(meta, facts, shape, whole, narrow)
    kept: list[Attention | None] = []
    for layer, keeps in enumerate(_layers_with_kv(meta, facts, shape)):
        if not keeps or not kv_heads[layer]:
            kept.append(None)
            continue
        key_size, value_size = whole if windows[layer] is None else narrow
        if not key_size:
            raise damaged(
                meta.name,
                f"layer {layer} keeps KV, but the size of a head is not given",
                f"第 {layer} 层保留 KV，但未给出注意力头的大小",
            )
        heads = kv_heads[layer] * rounds
        kept.append(Attention(heads, key_size, value_size, windows[layer], sides[layer]))
    main = shape.layers - shape.draft_layers(meta)
    return (*kept[:main], *(None for _ in kept[main:])), tuple(a for a in kept[main:] if a)


def _head_sizes(meta: Metadata, shape: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
    """Key and value elements of one head: in layers with the whole context, and with a window."""
    # The first layer's heads: in hybrid files the recurrent layers may count other ones.
    heads = next((count for count in shape.heads if count), 0)
    default = shape.embedding_size // heads if heads else 0
    key = meta.count("{arch}.attention.key_length") or default
    value = meta.count("{arch}.attention.value_length") or default
    key_narrow = meta.count("{arch}.attention.key_length_swa") or key
    value_narrow = meta.count("{arch}.attention.value_length_swa") or value
    facts = architecture(meta.architecture)
    if meta.count("{arch}.attention.key_length_mla") or facts.index == "compressed":
        return (key, 0), (key_narrow, 0)
    return (key, value), (key_narrow, value_narrow)


def _layers_with_kv(meta: Metadata, facts: Architecture, shape: Shape) -> list[bool]:
    keeps = [True] * shape.layers
    if facts.recurrent and not facts.attention_too:
        recurrent = recurrent_layers(meta, shape.layers)
        keeps = [not skip for skip in recurrent]
        if facts.recurrent == "no-kv-heads-no-ffn":
            forward = meta.counts("{arch}.feed_forward_length", shape.layers) or (0,) * shape.layers
            keeps = [keep and not size for keep, size in zip(keeps, forward, strict=True)]
    shared = meta.count("{arch}.attention.shared_kv_layers")
    own = facts.kv_layers if shared is None else shape.layers - min(shared, shape.layers)
    return keeps if own is None else [keep and i < own for i, keep in enumerate(keeps)]


def _side_caches(
    meta: Metadata,
    facts: Architecture,
    shape: Shape,
    whole: tuple[int, int],
    narrow: tuple[int, int],
) -> list[tuple[SideCache, ...]]:
    """The second caches of each layer: index keys of sparse attention, compressed KV."""
    layers = shape.layers
    main = layers - shape.draft_layers(meta)
    none: list[tuple[SideCache, ...]] = [()] * layers
    if facts.router_layer:
        return [*none[:-1], (SideCache(*whole),)]
    size = meta.count("{arch}.attention.indexer.key_length")
    if not size or facts.index is None:
        return none
    if facts.index == "compressed":
        return _compressed(meta, layers, narrow[0], size)
    pooled = 3 if meta.count("{arch}.attention.indexer.kpool") else 1  # key, gate, pooled key
    one = (SideCache(size * pooled, whole[1] if facts.index_values else 0),)
    if facts.index == "past-dense":
        dense = meta.count("{arch}.leading_dense_block_count") or 0
        return [one if layer >= dense else () for layer in range(layers)]
    listed: tuple[int, ...] = (1,) * layers
    if facts.index == "listed":
        named = meta.counts_or_more("{arch}.attention.indexer.types", main)
        listed = named or (int(facts.index_unlisted),) * main
    return [one if layer < main and listed[layer] else () for layer in range(layers)]


def _compressed(
    meta: Metadata, layers: int, key_size: int, index_size: int
) -> list[tuple[SideCache, ...]]:
    kinds = {
        COMPRESSED_WITH_INDEX: (
            SideCache(key_size, 0, COMPRESSED_WITH_INDEX),
            SideCache(index_size, 0, COMPRESSED_WITH_INDEX),
        ),
        COMPRESSED: (SideCache(key_size, 0, COMPRESSED),),
    }
    ratios = meta.counts_or_more("{arch}.attention.compress_ratios", layers) or (0,) * layers
    return [kinds.get(ratio, ()) for ratio in ratios]


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
