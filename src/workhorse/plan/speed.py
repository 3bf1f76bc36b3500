"""What a plan promises in tokens a second, and the ceiling that the memory sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from workhorse.knowledge.quants import quant
from workhorse.knowledge.speeds import SpeedConstants, speed_constants
from workhorse.plan.memory import is_output_head, row_bytes
from workhorse.records import Bandwidth, Basis, EngineBuild, Estimate, Forecast, Model, Tensor
from workhorse.text import Text
from workhorse.units import show_bandwidth

# The depth at which the fixed protocol decodes, on average: 768 tokens in, 200 out.
PROTOCOL_DEPTH_TOKENS = 768 + 100

# Interval of a forecast that rests on a measurement of the same model here, and on others here.
SAME_MODEL_BAND = 0.15
OTHER_MODEL_BAND = 0.3


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings beside the model that decide speed: what was learned under one holds there."""

    engine: str
    pages: Literal["small", "huge"]
    threads: int


def setup_for(build: EngineBuild, device: str, *, huge_pages: bool, threads: int) -> Setup:
    """The setup of a plan; `device` is a card's name or RAM.

    The constants' date is part of it: a correction of old constants says nothing of new ones.
    """
    kind: Literal["cpu", "gpu"] = "cpu" if device == "RAM" else "gpu"
    engine = f"{build.engine} {build.version}, {device}, constants {speed_constants(kind).date}"
    return Setup(engine, "huge" if huge_pages else "small", threads)


@dataclass(frozen=True, slots=True)
class Experience:
    """A forecast made on this machine by constants alone, and what was measured afterwards."""

    model_name: str
    quantisation: str
    setup: Setup
    predicted_tokens_per_s: float
    measured_tokens_per_s: float
    prefill_tokens_per_s: float | None = None  # measured


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads the weights: a kind of device, its memory and how many cores compute."""

    device: Literal["cpu", "gpu"]
    bandwidth_bytes_per_s: float | None
    bandwidth_source: Text
    bandwidth_basis: Basis
    cores: int  # 1 for a card: its rate is of the whole
    capability: tuple[int, int] | None = None


def bytes_read(tensor: Tensor, model: Model) -> float:
    """Bytes of one tensor that one decoded token reads.

    An embedding table is read by row, experts by the share in use, everything else whole.
    """
    if tensor.name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return tensor.n_bytes if is_output_head(tensor, model) else 0.0
    if "_exps." in tensor.name and model.experts > 0:
        return tensor.n_bytes * min(1.0, model.experts_used / model.experts)
    return tensor.n_bytes


def weights_read(model: Model) -> float:
    """Weights (elements) that one decoded token multiplies."""
    total = 0.0
    for tensor in model.tensors:
        kind = quant(tensor.type)
        total += bytes_read(tensor, model) / kind.block_bytes * kind.block_elements
    return total


def kv_read_bytes(model: Model, depth_tokens: int, type_k: str, type_v: str) -> int:
    """KV bytes that one token decoded at `depth_tokens` reads."""
    total = 0
    for attention in model.attention:
        if attention is not None:
            depth = min(depth_tokens, attention.window_tokens or depth_tokens)
            total += depth * row_bytes(type_k, attention.kv_heads * attention.key_size)
            total += depth * row_bytes(type_v, attention.kv_heads * attention.value_size)
    return total


def bytes_per_token(model: Model, type_k: str, type_v: str) -> int:
    """Bytes that one decoded token of the fixed protocol reads: weights and KV."""
    weights = sum(bytes_read(tensor, model) for tensor in model.tensors)
    return round(weights) + kv_read_bytes(model, PROTOCOL_DEPTH_TOKENS, type_k, type_v)


def token_seconds(model: Model, n_bytes: int, reader: Reader, known: SpeedConstants) -> float:
    """Seconds for one token at the protocol's depth: the slower of memory and arithmetic,
    attention, and overheads by layer, vocabulary entry and token."""
    memory_s = 0.0
    if reader.bandwidth_bytes_per_s:
        memory_s = n_bytes / (reader.bandwidth_bytes_per_s * known.bandwidth_share)
    arithmetic_s = weights_read(model) / (known.weights_per_s * reader.cores)
    overhead_s = (
        model.layers * known.overhead_per_layer_s
        + model.vocabulary * known.overhead_per_vocabulary_entry_s
        + known.overhead_per_token_s
    )
    attention_s = attention_work(model, PROTOCOL_DEPTH_TOKENS) / (
        known.attention_per_s * reader.cores
    )
    return max(memory_s, arithmetic_s) + attention_s + overhead_s


def attention_work(model: Model, depth_tokens: int) -> int:
    """Multiplications of all heads with the keys and values of `depth_tokens`."""
    total = 0
    for attention in model.attention:
        if attention is not None:
            depth = min(depth_tokens, attention.window_tokens or depth_tokens)
            total += model.heads * depth * (attention.key_size + attention.value_size)
    return total


def forecast(
    model: Model,
    reader: Reader,
    *,
    kv_types: tuple[str, str],
    setup: Setup,
    history: Sequence[Experience] = (),
) -> Forecast:
    """Decode speed of one stream with its interval, and the ceiling; `None` where the memory's
    bandwidth is not known."""
    n_bytes = bytes_per_token(model, *kv_types)
    prompt = prefill(model, reader, setup, history)
    if not reader.bandwidth_bytes_per_s:
        return Forecast(None, None, None, n_bytes, prompt)
    known = speed_constants(reader.device, reader.capability)
    plain = 1 / token_seconds(model, n_bytes, reader, known)
    ceiling = reader.bandwidth_bytes_per_s / n_bytes
    ceiling_estimate = Estimate(
        ceiling, ceiling, ceiling, "tok/s", reader.bandwidth_basis, reader.bandwidth_source
    )
    decode = learned(plain, model, setup, history)
    if decode is None:
        source = Text(
            f"speed model on {show_bandwidth(reader.bandwidth_bytes_per_s)}; constants "
            f"{known.date}: {known.source}",
            f"速度模型，带宽 {show_bandwidth(reader.bandwidth_bytes_per_s)}；"
            f"常数（{known.date}）：{known.source}",
        )
        decode = Estimate(
            plain, plain * known.low, plain * known.high, "tok/s", "estimated", source
        )
    # The model of arithmetic and overhead may err; the memory's ceiling binds all the same.
    high = min(decode.high, ceiling)
    value = min(decode.value, high)
    capped = Estimate(value, min(decode.low, value), high, "tok/s", decode.basis, decode.source)
    return Forecast(capped, plain, ceiling_estimate, n_bytes, prompt)


def prefill(
    model: Model, reader: Reader, setup: Setup, history: Sequence[Experience] = ()
) -> Estimate:
    """Prompt tokens a second: what was measured of this model here, else arithmetic alone."""
    seen = [
        e.prefill_tokens_per_s
        for e in same_model(model, setup, history)
        if e.prefill_tokens_per_s is not None
    ]
    if seen:
        value, band = median(seen), SAME_MODEL_BAND
        source = Text(f"{len(seen)} measured here", f"本机 {len(seen)} 次实测")
        return Estimate(value, value * (1 - band), value * (1 + band), "tok/s", "learned", source)
    known = speed_constants(reader.device, reader.capability)
    value = known.prefill_flops_per_s * reader.cores / (2 * weights_read(model))
    source = Text(f"arithmetic alone; {known.source}", f"仅按算力估算；{known.source}")
    return Estimate(value, value * 0.5, value * 2, "tok/s", "estimated", source)


def same_model(model: Model, setup: Setup, history: Sequence[Experience]) -> list[Experience]:
    """What was measured of this very model under the same setup."""
    return [
        e
        for e in history
        if (e.model_name, e.quantisation, e.setup) == (model.name, model.quantisation, setup)
    ]


def learned(
    plain: float,
    model: Model,
    setup: Setup,
    history: Sequence[Experience],
) -> Estimate | None:
    """The forecast corrected by what earlier forecasts missed here; `None` without history."""
    here = [e for e in history if e.setup == setup]
    same = same_model(model, setup, history)
    used, band = (same, SAME_MODEL_BAND) if same else (here, OTHER_MODEL_BAND)
    if not used:
        return None
    correction = median(e.measured_tokens_per_s / e.predicted_tokens_per_s for e in used)
    if not same:
        # One other model may miss by what is its own: taken whole, the figure of a 24-layer model
        # made the forecast of a 100-layer one worse (H200, 2026-11: 0.98 of the truth to 0.77).
        correction **= len(used) / (len(used) + 1)
    value = plain * correction
    which = Text("this model", "本模型") if same else Text("other models", "其他模型")
    source = Text(
        f"speed model, corrected ×{correction:.2f} by {len(used)} measured here ({which.en})",
        f"速度模型，按本机 {len(used)} 次实测（{which.zh}）修正 ×{correction:.2f}",
    )
    return Estimate(value, value * (1 - band), value * (1 + band), "tok/s", "learned", source)


def best_bandwidth(
    bandwidths: Sequence[Bandwidth],
    pages: Literal["small", "huge"],
    nodes: tuple[int, ...] | None,
) -> Bandwidth | None:
    """The measured bandwidth of the pages and the nodes in use; `None` when not measured.

    Of several nodes it is that of memory interleaved over just these, else the best of one of
    them. What was read across the link between two nodes counts for neither.
    """
    of_pages = [b for b in bandwidths if b.pages == pages]
    if nodes is not None and len(nodes) > 1:
        spread = [b for b in of_pages if b.memory_nodes == nodes]
        if spread:
            return max(spread, key=lambda b: b.bytes_per_s)
    own = [b for b in of_pages if b.memory_nodes is None]
    fitting = [b for b in own if b.node is None or (nodes and b.node in nodes)]
    return max(fitting, key=lambda b: (b.node is not None, b.bytes_per_s), default=None)
