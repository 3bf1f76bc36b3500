"""What one step of decoding reads and computes, by device: bytes, weights, KV, kernels."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from workhorse.knowledge.quants import quant
from workhorse.knowledge.speeds import kernels_beside_tensors
from workhorse.plan.memory import is_output_head, row_bytes
from workhorse.records import Attention, Model, Placed, Tensor

# The depth at which the fixed protocol decodes, on average: 768 tokens in, 200 out.
PROTOCOL_DEPTH_TOKENS = 768 + 100

_LAYER = re.compile(r"blk\.(\d+)\.")
_BY_ROW = ("token_embd.weight", "per_layer_token_embd.weight")


def experts_read(model: Model, streams: int = 1) -> float:
    """Share of a layer's experts that one step of `streams` tokens reads.

    Each token takes its own `experts_used`; two tokens often share some: E (1 - (1 - k/E)^n).
    """
    share = min(1.0, model.experts_used / model.experts)
    return 1.0 - (1.0 - share) ** streams


def share_read(tensor: Tensor, model: Model, streams: int = 1) -> float:
    """Share of a tensor that one step reads: an embedding table is read by row, experts by the
    share in use, everything else whole; layers that only draft tokens not at all."""
    if tensor.name in _BY_ROW and not is_output_head(tensor, model):
        return 0.0
    layer = layer_of(tensor)
    if model.draft_layers and layer is not None and layer >= model.layers - model.draft_layers:
        return 0.0
    if "_exps." in tensor.name and model.experts > 0:
        return experts_read(model, streams)
    return 1.0


def layer_of(tensor: Tensor) -> int | None:
    """The layer that a tensor belongs to; None outside of the layers."""
    return _layer_named(tensor.name)


@lru_cache(maxsize=16384)  # a forecast asks the same of each tensor a dozen times
def _layer_named(name: str) -> int | None:
    match = _LAYER.match(name)
    return None if match is None else int(match[1])


def bytes_read(tensor: Tensor, model: Model, streams: int = 1) -> float:
    """Bytes of one tensor that one step reads."""
    return tensor.n_bytes * share_read(tensor, model, streams)


def elements(tensor: Tensor) -> float:
    """Weights of a tensor, by its type and its bytes."""
    kind = quant(tensor.type)
    return tensor.n_bytes / kind.block_bytes * kind.block_elements


def weights_read(model: Model) -> float:
    """Weights (elements) that one decoded token multiplies."""
    return sum(elements(t) * share_read(t, model) for t in model.tensors)


def attention_kv_bytes(attention: Attention, depth_tokens: int, type_k: str, type_v: str) -> int:
    """KV bytes of one layer that one token at `depth_tokens` reads."""
    depth = min(depth_tokens, attention.window_tokens or depth_tokens)
    return depth * (
        row_bytes(type_k, attention.kv_heads * attention.key_size)
        + row_bytes(type_v, attention.kv_heads * attention.value_size)
    ) + sum(
        depth_tokens
        // side.tokens_a_cell
        * (row_bytes(type_k, side.key_size) + row_bytes(type_v, side.value_size))
        for side in attention.side
    )


def kv_read_bytes(model: Model, depth_tokens: int, type_k: str, type_v: str) -> int:
    """KV bytes that one token decoded at `depth_tokens` reads."""
    return sum(
        attention_kv_bytes(attention, depth_tokens, type_k, type_v)
        for attention in model.attention
        if attention is not None
    )


def bytes_per_token(
    model: Model, type_k: str, type_v: str, depth_tokens: int = PROTOCOL_DEPTH_TOKENS
) -> int:
    """Bytes that one decoded token reads at this depth: weights and KV."""
    weights = sum(bytes_read(tensor, model) for tensor in model.tensors)
    return round(weights) + kv_read_bytes(model, depth_tokens, type_k, type_v)


def attention_layer_work(model: Model, attention: Attention, depth_tokens: int) -> int:
    """Multiplications of one layer's heads with the keys and values of `depth_tokens`."""
    depth = min(depth_tokens, attention.window_tokens or depth_tokens)
    # A latent of MLA (value size 0) is key and value in one.
    return model.heads * depth * (attention.key_size + (attention.value_size or attention.key_size))


def attention_work(model: Model, depth_tokens: int) -> int:
    """Multiplications of all heads with the keys and values of `depth_tokens`."""
    return sum(
        attention_layer_work(model, attention, depth_tokens)
        for attention in model.attention
        if attention is not None
    )


@dataclass(slots=True)
class Work:
    """What one step asks of one device; sums over its tensors and layers."""

    reads: dict[str, tuple[float, float]] = field(default_factory=dict)  # type: bytes, weights
    kv_bytes: float = 0.0  # of one stream
    state_bytes: float = 0.0  # recurrent state of one stream, read and written
    attention: float = 0.0  # multiplications of one stream
    tensors: float = 0.0  # inside the layers, or what takes as long as one
    layers: float = 0.0  # a layer of which half of the tensors are here counts half
    recurrent_layers: float = 0.0
    expert_layers: float = 0.0
    output: bool = False  # makes the logits

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights of all types."""
        return sum(n_bytes for n_bytes, _ in self.reads.values())

    @property
    def weights(self) -> float:
        """Weights (elements) of all types."""
        return sum(count for _, count in self.reads.values())


def device_of(placed: Sequence[Placed]) -> Callable[[Tensor, Model], str]:
    """Tells the device of each tensor from a placement; `RAM` where no group names it."""

    def find(tensor: Tensor, model: Model) -> str:
        layer = layer_of(tensor)
        if layer is None:
            group = "output" if tensor.name not in _BY_ROW else "embedding"
            if is_output_head(tensor, model):
                group = "output"
            return next((p.device for p in placed if p.group == group), "RAM")
        experts = [p for p in placed if p.group == "experts" and _spans(p, layer)]
        if "_exps." in tensor.name and experts:
            return experts[0].device
        return layer_device(placed, layer)

    return find


def layer_device(placed: Sequence[Placed], layer: int) -> str:
    """The device that holds a layer's attention and KV."""
    return next((p.device for p in placed if p.group == "layers" and _spans(p, layer)), "RAM")


def _spans(placed: Placed, layer: int) -> bool:
    return (
        placed.first_layer is not None
        and placed.last_layer is not None
        and placed.first_layer <= layer <= placed.last_layer
    )


def work_by_device(
    model: Model,
    placed: Sequence[Placed],
    *,
    depth_tokens: int,
    kv_types: tuple[str, str],
    streams: int = 1,
    alone: str | None = None,
) -> dict[str, Work]:
    """The work of one step on each device; `alone` names the one that holds everything."""
    found: dict[str, Work] = {}
    find = device_of(placed)
    in_layer: dict[int, int] = {}
    here: dict[tuple[str, int], int] = {}
    for tensor in model.tensors:
        share = share_read(tensor, model, streams)
        if not share:
            continue
        device = alone or find(tensor, model)
        work = found.setdefault(device, Work())
        n_bytes, count = work.reads.get(tensor.type, (0.0, 0.0))
        work.reads[tensor.type] = (
            n_bytes + tensor.n_bytes * share,
            count + elements(tensor) * share,
        )
        layer = layer_of(tensor)
        if layer is None:
            work.output = work.output or is_output_head(tensor, model)
            continue
        work.tensors += 1
        in_layer[layer] = in_layer.get(layer, 0) + 1
        here[device, layer] = here.get((device, layer), 0) + 1
    for (device, layer), count_here in here.items():
        found[device].layers += count_here / in_layer[layer]
    _add_layers(found, model, placed, depth_tokens, kv_types, alone)
    return found


def _add_layers(
    found: dict[str, Work],
    model: Model,
    placed: Sequence[Placed],
    depth_tokens: int,
    kv_types: tuple[str, str],
    alone: str | None,
) -> None:
    """Adds what each layer keeps: KV, recurrent state, and what choosing experts takes."""
    with_experts = {layer_of(t) for t in model.tensors if "_exps." in t.name}
    beside = kernels_beside_tensors(model.architecture)
    for layer in range(model.layers - model.draft_layers):
        work = found.setdefault(alone or layer_device(placed, layer), Work())
        attention = model.attention[layer] if layer < len(model.attention) else None
        if attention is None:
            work.recurrent_layers += 1
        else:
            work.kv_bytes += attention_kv_bytes(attention, depth_tokens, *kv_types)
            work.attention += attention_layer_work(model, attention, depth_tokens)
        state = model.recurrent[layer] if layer < len(model.recurrent) else None
        if state is not None:
            work.state_bytes += 2 * (state.rolling_bytes + state.state_bytes)
        work.expert_layers += layer in with_experts
        work.tensors += beside


def crossings(model: Model, placed: Sequence[Placed], alone: str | None = None) -> int:
    """How often a token's activations move between devices on its way through the layers."""
    if alone is not None:
        return 0
    find = device_of(placed)
    with_experts = {
        layer: find(tensor, model)
        for tensor in model.tensors
        if "_exps." in tensor.name and (layer := layer_of(tensor)) is not None
    }
    moves, now = 0, None
    for layer in range(model.layers - model.draft_layers):
        device = layer_device(placed, layer)
        moves += now is not None and device != now
        now = device
        if with_experts.get(layer, device) != device:
            moves += 2  # there and back within the layer
    output = next((p.device for p in placed if p.group == "output"), "RAM")
    return moves + (now is not None and output != now)
