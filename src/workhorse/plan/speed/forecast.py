"""The forecast of a plan: decode, prefill, streams, drafts and loading, each with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from workhorse.knowledge.speeds import speed_constants
from workhorse.plan.speed.cards import published_fit
from workhorse.plan.speed.decode import Question, Step, slow_latent_attention, step
from workhorse.plan.speed.device import Reader
from workhorse.plan.speed.learned import Experience, Setup, correction, learned
from workhorse.plan.speed.loading import loading
from workhorse.plan.speed.prefill import PROMPTS_TOKENS, prefill
from workhorse.plan.speed.reads import PROTOCOL_DEPTH_TOKENS, bytes_per_token
from workhorse.plan.speed.speculation import drafted
from workhorse.plan.speed.transfers import Shared
from workhorse.records import (
    DepthSpeed,
    Disk,
    Estimate,
    Forecast,
    Model,
    Placed,
    PromptSpeed,
    StreamSpeed,
)
from workhorse.text import Text
from workhorse.units import show_bandwidth

STREAMS = (1, 2, 4, 8, 16)
DEPTHS_TOKENS = (2048, 8192, 32768)
# What several streams at a time cost rests on fewer figures than one stream.
STREAMS_BAND = 1.3
# An architecture in no table is planned from its tensors: kernels and layer kinds are a guess.
UNKNOWN_ARCHITECTURE_BAND = 1.5


def forecast(
    model: Model,
    readers: Reader | Mapping[str, Reader],
    *,
    kv_types: tuple[str, str],
    setup: Setup,
    history: Sequence[Experience] = (),
    placed: Sequence[Placed] = (),
    depth_tokens: int = PROTOCOL_DEPTH_TOKENS,
    disk: Disk | None = None,
    served: bool = True,
    shared: Shared | None = None,
    card_sampling: bool = False,
) -> Forecast:
    """What a plan promises; no decode speed where a memory's bandwidth is not known.

    `readers` is the one device that holds everything, or every device of `placed` by its name
    there (`RAM`, `GPU 0` …). Not `served`: what a bare benchmark of the engine would show.
    `shared`: these cards compute each layer together. `card_sampling`: tokens are chosen there.
    """
    alone = "alone" if isinstance(readers, Reader) else None
    devices = {"alone": readers} if isinstance(readers, Reader) else readers
    question = Question(model, kv_types, depth_tokens, placed, alone, served=served, shared=shared)
    question = replace(question, card_sampling=card_sampling)
    n_bytes = bytes_per_token(model, *kv_types, depth_tokens)

    read = partial(prefill, model, readers, setup, history, placed=placed, shared=shared)
    prompt = read()
    load = loading(model, devices, disk)
    one = step(question, devices)
    if one is None:
        return Forecast(None, None, None, n_bytes, prompt, load_s=load)
    plain, ceiling = 1 / one.seconds, ceiling_of(question, devices)
    decode = learned(plain, model, setup, history) or by_constants(one, model, devices)
    decode = capped(decode, ceiling.value)
    factor = correction(model, setup, history)
    return Forecast(
        decode,
        plain,
        ceiling,
        n_bytes,
        prompt,
        streams=tuple(
            speed
            for n in STREAMS
            if (speed := streams_speed(question, devices, n, factor, decode)) is not None
        ),
        prompts=tuple(PromptSpeed(n, read(prompt_tokens=n)) for n in PROMPTS_TOKENS),
        depths=tuple(
            DepthSpeed(n, scaled(decode, deep / decode.value))
            for n in DEPTHS_TOKENS
            if (deep := deeper(question, devices, n, factor, ceiling.value)) is not None
        ),
        load_s=load,
        drafted_tokens_per_s=drafted(question, devices, decode),
        terms=one.terms,
    )


def by_constants(one: Step, model: Model, readers: Mapping[str, Reader]) -> Estimate:
    """Decode speed of one stream where nothing was measured here."""
    plain, (low, high) = 1 / one.seconds, band_of(model, one)
    source = source_of(model, readers)
    return Estimate(plain, plain * low, plain * high, "tok/s", "estimated", source)


def capped(estimate: Estimate, ceiling: float) -> Estimate:
    """The model of arithmetic and overhead may err; the memory's ceiling binds all the same."""
    high = min(estimate.high, ceiling)
    value = min(estimate.value, high)
    low = min(estimate.low, value)
    return Estimate(value, low, high, estimate.unit, estimate.basis, estimate.source)


def deeper(
    question: Question,
    readers: Mapping[str, Reader],
    depth_tokens: int,
    factor: float,
    ceiling: float,
) -> float | None:
    """Tokens a second of one stream at another depth."""
    found = step(replace(question, depth_tokens=depth_tokens), readers)
    return None if found is None else min(factor / found.seconds, ceiling)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """The same estimate, times `factor`."""
    return replace(
        estimate,
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=estimate.high * factor,
    )


def band_of(model: Model, one: Step) -> tuple[float, float]:
    """The interval of the constants, as shares of the speed."""
    if model.known:
        return one.low, one.high
    wider = UNKNOWN_ARCHITECTURE_BAND
    return max(0.1, 1 - (1 - one.low) * wider), 1 + (one.high - 1) * wider


def ceiling_of(question: Question, readers: Mapping[str, Reader]) -> Estimate:
    """Tokens a second if nothing but the memories' rated or measured bandwidth held it back."""
    work = question.work(1)
    each, sources = [], []
    shares = question.shared.shares if question.shared else dict.fromkeys(work, 1.0)
    for device, share in shares.items():
        asked, reader = work.get(device) or work["all"], readers.get(device)
        if reader is not None and reader.bandwidth_bytes_per_s:
            n_bytes = (asked.weight_bytes + asked.kv_bytes) * share
            each.append(n_bytes / reader.bandwidth_bytes_per_s)
            sources.append(reader)
    seconds = max(each) if question.shared else sum(each)
    bases = {reader.bandwidth_basis for reader in sources}
    words = [reader.bandwidth_source for reader in sources]
    return Estimate(
        1 / seconds,
        1 / seconds,
        1 / seconds,
        "tok/s",
        bases.pop() if len(bases) == 1 else "estimated",
        Text("; ".join(w.en for w in words), "；".join(w.zh for w in words)),
    )


def source_of(model: Model, readers: Mapping[str, Reader]) -> Text:
    """What a forecast by constants alone rests on."""
    used = [reader for reader in readers.values() if reader.bandwidth_bytes_per_s]
    known = speed_constants()
    shown = " + ".join(show_bandwidth(reader.bandwidth_bytes_per_s) for reader in used)
    parts, parts_zh = [f"speed model on {shown}"], [f"速度模型，带宽 {shown}"]
    if any(reader.device == "gpu" for reader in used):
        count = len(published_fit().rows)
        parts.append(f"fitted to {count} published and measured rows")
        parts_zh.append(f"按 {count} 行公开与实测数据拟合")
    if any(reader.device == "cpu" for reader in used):
        parts.append(f"constants {known.date}: {known.source}")
        parts_zh.append(f"常数（{known.date}）{known.source_zh}")
    if any(slow_latent_attention(model, reader) for reader in used):
        parts.append("flash attention with MLA lost 80 % on a V100 in one published run")
        parts_zh.append("公开数据中 V100 上 MLA 开启 flash attention 曾损失 80 %")
    return Text("; ".join(parts), "；".join(parts_zh))


def streams_speed(
    question: Question,
    readers: Mapping[str, Reader],
    streams: int,
    factor: float,
    single: Estimate,
) -> StreamSpeed | None:
    """What `streams` at a time get, each and in all."""
    if streams == 1:
        return StreamSpeed(1, single, single)
    found = step(question, readers, streams)
    if found is None:
        return None
    each = factor / found.seconds
    low, high = band_of(question.model, found)
    low, high = max(0.1, 1 - (1 - low) * STREAMS_BAND), 1 + (high - 1) * STREAMS_BAND
    source = single.source

    def estimate(value: float) -> Estimate:
        return Estimate(value, value * low, value * high, "tok/s", single.basis, source)

    return StreamSpeed(streams, estimate(each), estimate(each * streams))
