"""How fast a prompt is read, by arithmetic."""

from collections.abc import Mapping, Sequence
from statistics import median

from workhorse.knowledge.speeds import speed_constants
from workhorse.plan.speed.cards import published_fit
from workhorse.plan.speed.decode import UNKNOWN_LINK_BYTES_PER_S, part_of_work, rates_of
from workhorse.plan.speed.device import UNKNOWN_CAPABILITY, Reader, matrix_flops_a_byte
from workhorse.plan.speed.learned import SAME_MODEL_BAND, Experience, Setup, same_model
from workhorse.plan.speed.reads import Work, attention_work, work_by_device
from workhorse.plan.speed.transfers import Shared
from workhorse.records import Estimate, Model, Placed
from workhorse.text import Text

# Of a card's matrix rate, what quantised and F16 prompts reach, by capability: rows of P100, P40,
# V100 and H200 in published_speeds.toml. Nothing was fitted between 7.5 and 8.9, so the band of
# those is wide.
MATRIX_SHARES = (
    ((9, 0), 0.15, 0.38),
    ((8, 9), 0.35, 0.45),
    ((8, 0), 0.22, 0.35),
    ((7, 5), 0.22, 0.3),
    ((7, 0), 0.42, 0.45),
    ((6, 1), 1.1, 0.5),
    ((0, 0), 0.57, 0.57),
)
# Before 7.5 experts are multiplied one after the other: seconds an expert and micro-batch
# (DeepSeek-V2-Lite, Qwen3.6-35B-A3B and gpt-oss-20b on a V100: 59 to 370 µs).
EXPERT_S, EXPERT_BEFORE = 90e-6, (7, 5)
# Attention multiplies at this share of the rate of the weights.
ATTENTION_SHARE = 0.5
BATCH_TOKENS = 512
PROMPTS_TOKENS = (512, 2048, 8192)
PROTOCOL_PROMPT_TOKENS = 768  # what the fixed protocol of the bench sends
FLOAT_TYPES = ("f16", "f32", "bf16")


def prefill(
    model: Model,
    readers: Reader | Mapping[str, Reader],
    setup: Setup,
    history: Sequence[Experience] = (),
    *,
    placed: Sequence[Placed] = (),
    prompt_tokens: int = PROTOCOL_PROMPT_TOKENS,
    shared: Shared | None = None,
) -> Estimate:
    """Prompt tokens a second: what was measured of this model here, else arithmetic alone.

    A measurement of the fixed protocol holds at its prompt; longer ones are slower by what the
    arithmetic says.
    """
    seconds, source = prefill_seconds(model, readers, placed, prompt_tokens, shared)
    value = prompt_tokens / seconds
    seen = [
        e.prefill_tokens_per_s
        for e in same_model(model, setup, history)
        if e.prefill_tokens_per_s is not None
    ]
    if seen:
        measured_at = PROTOCOL_PROMPT_TOKENS
        reckoned = measured_at / prefill_seconds(model, readers, placed, measured_at, shared)[0]
        value, band = median(seen) * value / reckoned, SAME_MODEL_BAND
        words = Text(f"{len(seen)} measured here", f"本机 {len(seen)} 次实测")
        return Estimate(value, value * (1 - band), value * (1 + band), "tok/s", "learned", words)
    return Estimate(value, value * 0.5, value * 2, "tok/s", "estimated", source)


def prefill_seconds(
    model: Model,
    readers: Reader | Mapping[str, Reader],
    placed: Sequence[Placed],
    prompt_tokens: int,
    shared: Shared | None = None,
) -> tuple[float, Text]:
    """Seconds until a prompt is read, and what they rest on."""
    if shared is not None and not isinstance(readers, Reader):
        return shared_prompt_seconds(model, readers, shared, prompt_tokens)
    alone = "alone" if isinstance(readers, Reader) else None
    devices = {"alone": readers} if isinstance(readers, Reader) else readers
    work = work_by_device(
        model, placed, depth_tokens=0, kv_types=("f16", "f16"), streams=1, alone=alone
    )
    cards = [reader for reader in devices.values() if reader.device == "gpu"]
    known = speed_constants()
    source = Text(f"arithmetic alone; {known.source}", f"仅按算力估算；{known.source_zh}")
    total = 0.0
    for device, asked in work.items():
        reader = devices.get(device)
        if reader is None:
            continue
        if reader.device == "gpu" or cards:
            # With a card at hand the engine copies a large batch's weights to it (llama.cpp).
            card = reader if reader.device == "gpu" else cards[0]
            copied = reader.device == "cpu"
            total += card_prompt_seconds(
                card,
                asked,
                attention_work(model, 1),
                prompt_tokens,
                layers=model.layers,
                experts=model.experts,
                every_bytes=every_weight_bytes(model),
                copied=copied,
            )
            source = Text(
                "share of the card's matrix rate that published prompts reach",
                "按公开数据中预填充可达的矩阵算力比例",
            )
        else:
            flops = known.prefill_flops_per_s * reader.cores
            total += 2 * asked.weights * prompt_tokens / flops
            # A token meets half of the prompt on average.
            part = asked.layers / model.layers if model.layers else 0.0
            pairs = attention_work(model, prompt_tokens // 2) * part * prompt_tokens
            total += 2 * pairs / (flops * known.prefill_attention_share)
    return max(total, 1e-9), source


def shared_prompt_seconds(
    model: Model, readers: Mapping[str, Reader], shared: Shared, prompt_tokens: int
) -> tuple[float, Text]:
    """Seconds of a prompt that all cards read together: the slowest decides, then the links."""
    whole = work_by_device(
        model, (), depth_tokens=0, kv_types=("f16", "f16"), streams=1, alone="all"
    )["all"]
    slowest = 0.0
    for device, share in shared.shares.items():
        kept = shared.attention_share(share)
        seconds = card_prompt_seconds(
            readers[device],
            part_of_work(whole, share, shared),
            attention_work(model, 1) * kept,
            prompt_tokens,
            layers=model.layers,
            experts=model.experts,
            every_bytes=every_weight_bytes(model) * share,
        )
        slowest = max(slowest, seconds)
    batches = -(-prompt_tokens // BATCH_TOKENS)
    waited = shared.seconds(model, prompt_tokens, batches)
    source = Text(
        f"each card's share of the arithmetic, and exchanges over {shared.link.words.en}",
        f"各卡分担的算力，加上卡间交换（{shared.link.words.zh}）",
    )
    return max(slowest + waited, 1e-9), source


def card_prompt_seconds(
    reader: Reader,
    work: Work,
    attention: float,
    prompt_tokens: int,
    *,
    layers: int,
    experts: int,
    every_bytes: float,
    copied: bool = False,
) -> float:
    """Seconds that a card takes for its part of a prompt.

    `attention`: multiplications of all layers with one key and value; `every_bytes`: weights of all
    layers, every expert with them; `copied`: they come over the link from main memory.
    """
    capability = reader.capability or UNKNOWN_CAPABILITY
    rates = rates_of(reader)
    peak = reader.matrix_flops_per_s or max(
        rates.bandwidth_bytes_per_s * matrix_flops_a_byte(capability), 1e12
    )
    quantised, floats = next(
        (quantised, floats) for start, quantised, floats in MATRIX_SHARES if capability >= start
    )
    seconds = 0.0
    for kind, (_, count) in work.reads.items():
        share = floats if kind in FLOAT_TYPES else quantised
        seconds += 2 * count * prompt_tokens / (peak * share)
    part = work.layers / layers if layers else 0.0
    pairs = attention * part * prompt_tokens * prompt_tokens / 2
    seconds += 2 * pairs / (peak * quantised * ATTENTION_SHARE)
    batches = -(-prompt_tokens // BATCH_TOKENS)
    if capability < EXPERT_BEFORE:
        seconds += batches * work.expert_layers * experts * EXPERT_S
    every = every_bytes * part
    if copied:
        seconds += batches * every / (reader.link_bytes_per_s or UNKNOWN_LINK_BYTES_PER_S)
    # Each batch reads the weights and starts the kernels at least once.
    if rates.bandwidth_bytes_per_s:
        seconds += batches * every / rates.bandwidth_bytes_per_s
    return seconds + batches * work.tensors * published_fit().values["launch"] * 1e-6


def every_weight_bytes(model: Model) -> float:
    """Weights of all layers, every expert with them."""
    return float(sum(t.n_bytes for t in model.tensors if t.name.startswith("blk.")))
