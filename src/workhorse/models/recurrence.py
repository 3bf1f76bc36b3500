"""What the recurrent layers of a model keep for each slot, from the header's metadata."""

from workhorse.knowledge.architectures import architecture
from workhorse.models.metadata import Metadata
from workhorse.records import RecurrentState

F32_BYTES = 4  # llama.cpp keeps recurrent state in F32 (`create_memory`, src/llama-model.cpp)


def recurrent_layers(meta: Metadata, layers: int) -> tuple[bool, ...]:
    """Which layers are recurrent; the layers that draft further tokens never are."""
    facts = architecture(meta.architecture)
    draft = meta.count("{arch}.nextn_predict_layers") or 0
    main = layers - draft if draft < layers else layers
    kv_heads = meta.counts("{arch}.attention.head_count_kv", layers) or (1,) * layers
    forward = meta.counts("{arch}.feed_forward_length", layers) or (0,) * layers
    found: tuple[bool, ...] = (False,) * layers
    if facts.recurrent == "every":
        found = (True,) * layers
    elif facts.recurrent == "no-kv-heads":
        found = tuple(not heads for heads in kv_heads)
    elif facts.recurrent == "no-kv-heads-no-ffn":
        found = tuple(not heads and not size for heads, size in zip(kv_heads, forward, strict=True))
    elif facts.recurrent == "period":
        listed = meta.counts("{arch}.attention.recurrent_layers", layers)
        period = meta.count("{arch}.full_attention_interval") or facts.attention_period or 1
        found = tuple(bool((i + 1) % period) for i in range(layers))
        found = found if listed is None else tuple(bool(flag) for flag in listed)
    return tuple(yes and layer < main for layer, yes in enumerate(found))


def layer_states(
    meta: Metadata, layers: int, embedding_size: int, heads: tuple[int, ...]
) -> tuple[RecurrentState | None, ...]:
    """One entry a layer; () when the model has no recurrent layer.

    Sizes as `n_embd_r`, `n_embd_s` and `ple_conv_state` of llama.cpp's src/llama-hparams.cpp have
    them (commit 0c1e57098, 2026-10-01).
    """
    facts = architecture(meta.architecture)
    if facts.index == "compressed":
        return _compressor_states(meta, layers)
    which = recurrent_layers(meta, layers)
    if not any(which):
        return ()
    rolling, state = _elements(meta, embedding_size, heads)
    history = _ngram_history(meta, embedding_size)
    ngram_layers = meta.numbers("{arch}.ple.layers") if history else ()
    return tuple(
        RecurrentState(
            (rolling + (history if layer in ngram_layers else 0)) * F32_BYTES, state * F32_BYTES
        )
        if recurs
        else None
        for layer, recurs in enumerate(which)
    )


def _elements(meta: Metadata, embedding_size: int, heads: tuple[int, ...]) -> tuple[int, int]:
    """Elements of the rolling inputs and of the state of one layer."""
    kind = architecture(meta.architecture).state
    convolution = meta.count("{arch}.ssm.conv_kernel") or 0
    first_heads = heads[0] if heads else 0
    if kind == "wkv":
        shifts = meta.count("{arch}.token_shift_count")
        size = meta.count("{arch}.wkv.head_size") or 0
        return (2 if shifts is None else shifts) * embedding_size, embedding_size * size
    if kind == "shortconv":
        return embedding_size * max((meta.count("{arch}.shortconv.l_cache") or 1) - 1, 0), 0
    if kind == "kda":
        size = meta.count("{arch}.kda.head_dim") or 0
        kept = convolution - 1 if convolution else 3
        return 3 * kept * first_heads * size, size * size * first_heads
    if kind == "lightning":
        size = meta.count("{arch}.attention.key_length") or embedding_size // max(first_heads, 1)
        return 0, size * size * first_heads
    inner = meta.count("{arch}.ssm.inner_size") or 0
    state = meta.count("{arch}.ssm.state_size") or 0
    groups = meta.count("{arch}.ssm.group_count") or 0
    return max(convolution - 1, 0) * (inner + 2 * groups * state), state * inner


def _ngram_history(meta: Metadata, embedding_size: int) -> int:
    """Elements of past n-gram embeddings that a convolution over them needs (Qwen4-Exp)."""
    kernel = meta.count("{arch}.ple.conv_kernel") or 0
    streams = meta.count("{arch}.hyper_connection.count") or 0
    grams = meta.count("{arch}.ple.ngram_size") or 0
    return max(kernel - 1, 0) * grams * streams * embedding_size


def _compressor_states(meta: Metadata, layers: int) -> tuple[RecurrentState | None, ...]:
    """DeepSeek V4: values and scores of the tokens that the next compressed cell will hold."""
    key = meta.count("{arch}.attention.key_length") or 0
    index = meta.count("{arch}.attention.indexer.key_length") or 0
    ratios = meta.counts_or_more("{arch}.attention.compress_ratios", layers) or (0,) * layers
    kinds = {
        4: RecurrentState(0, 2 * 8 * 2 * (key + index) * F32_BYTES),
        128: RecurrentState(0, 2 * 128 * key * F32_BYTES),
    }
    return tuple(kinds.get(ratio) for ratio in ratios)
