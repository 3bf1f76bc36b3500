"""Where the time of one decoding step goes, term by term, over all devices of a placement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workhorse.knowledge.speeds import SpeedConstants, speed_constants
from workhorse.plan.speed.cards import (
    CONSTANTS,
    SEPARATE_LANES_FROM,
    SHARED_LANES,
    Constant,
    Fit,
    Load,
    Rates,
    features,
    overhead,
    published_fit,
)
from workhorse.plan.speed.device import (
    GRAPHS_FROM,
    UNKNOWN_CAPABILITY,
    Reader,
    integers_a_byte,
)
from workhorse.plan.speed.reads import Work, crossings, work_by_device
from workhorse.plan.speed.transfers import Shared
from workhorse.records import Model, Placed, SpeedTerm
from workhorse.text import Text

# What each further stream of a step costs a card beside its KV: operations a weight, and a share
# of the kernels' overhead (one H200, 2026-11: a 7B Q4_K_M at 1 to 8 clients, a 100-layer Q4_0 at
# 1 and 4; an owner's V100 at 1 and 2 agrees).
STREAM_OPERATIONS = 1.25
STREAM_OVERHEAD = 0.15
# Of a token's sampling and HTTP, what is left where the card chooses it (one H200, 2026-12: a 7B
# with 152,000 tokens in its vocabulary, 0.20 ms of 0.5 saved with one stream, 0.27 each with 16).
LEFT_OF_SERVING = 0.5

# Multiplications of attention for each integer operation that a card could do: Volta and before
# by one row at depth 8192 (gpt-oss-20b, b6129), later ones by a 32B on one H200 (2026-11).
ATTENTION_SHARE, ATTENTION_SHARE_FROM_8_0 = 0.045, 0.3

# Flash attention over a latent KV left a fifth of decode on a V100 (DeepSeek-Coder-V2-Lite, b11096,
# one published run); whether it does on others of that age is not known, so the band is wide.
SLOW_LATENT_BELOW, LATENT_LOW = (7, 5), 0.18

# One handover of activations between devices: a copy to wait for, twice (estimated; experts in
# main memory behind an RTX 4090 and an RTX 3090 leave room for 20 to 50 µs, published 2026-09).
CROSSING_S = 35e-6
UNKNOWN_LINK_BYTES_PER_S = 8e9


@dataclass(frozen=True, slots=True)
class Step:
    """One step of decoding: its terms, and how far off it may be as shares of the speed."""

    terms: tuple[SpeedTerm, ...]
    low: float
    high: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(term.seconds for term in self.terms)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the speed model beside the machine."""

    model: Model
    kv_types: tuple[str, str]
    depth_tokens: int
    placed: Sequence[Placed] = ()
    alone: str | None = None  # the one device that holds everything
    one_sequence: bool = False  # the streams are drafts of one sequence: one KV, one answer
    served: bool = True  # False: a bare benchmark, without sampling and HTTP
    shared: Shared | None = None  # cards that compute every layer together
    card_sampling: bool = False  # tokens are chosen on the card

    def work(self, streams: int) -> dict[str, Work]:
        """What a step of so many streams asks of each device."""
        return work_by_device(
            self.model,
            self.placed,
            depth_tokens=self.depth_tokens,
            kv_types=self.kv_types,
            streams=streams,
            alone="all" if self.shared else self.alone,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step takes: tokens, the sequences they belong to, and the answers that are sent."""

    tokens: int
    sequences: int
    answers: float  # where tokens are chosen on the card, the part of each that is left


def step(question: Question, readers: Mapping[str, Reader], streams: int = 1) -> Step | None:
    """The step in which each of `streams` sequences gets a token; None where a bandwidth is not
    known."""
    single = question.work(1)
    work = single if streams == 1 else question.work(streams)
    sequences = 1 if question.one_sequence else streams
    left = LEFT_OF_SERVING if question.card_sampling else 1.0
    batch = Batch(streams, sequences, sequences * left if question.served else 0.0)
    if question.shared is not None:
        return shared_step(question, question.shared, readers, (work["all"], single["all"]), batch)
    terms: list[SpeedTerm] = []
    bands: list[tuple[float, float, float]] = []
    for device, asked in work.items():
        reader = readers.get(device)
        if reader is None or not reader.bandwidth_bytes_per_s:
            if not asked.weight_bytes and not asked.kv_bytes:
                continue  # a table on a disk that no token reads whole
            return None
        if reader.device == "gpu":
            found = card_terms(device, reader, asked, single[device], batch)
            band = published_fit().band(reader.capability or UNKNOWN_CAPABILITY)
            low, high = 1 - band, 1 + band
            if slow_latent_attention(question.model, reader):
                low = LATENT_LOW
        else:
            known = speed_constants()
            found = cpu_terms(device, reader, asked, single[device], question.model, known, batch)
            low, high = known.low, known.high
        terms += found
        bands.append((sum(term.seconds for term in found), low, high))
    terms += crossing_terms(question, readers, streams)
    total = sum(term.seconds for term in terms)
    if not total:
        return None
    rest = max(0.0, total - sum(seconds for seconds, _, _ in bands)) / total
    low = sum(seconds / total * low for seconds, low, _ in bands) + rest * 0.5
    high = sum(seconds / total * high for seconds, _, high in bands) + rest * 2.0
    return Step(tuple(terms), low, high)


def shared_step(
    question: Question,
    shared: Shared,
    readers: Mapping[str, Reader],
    works: tuple[Work, Work],
    batch: Batch,
) -> Step | None:
    """A step in which all cards compute each layer together: the slowest decides, then they wait
    for what they exchange. `works`: of this step, and of one with a single token."""
    parts: list[tuple[float, list[SpeedTerm], Reader]] = []
    for device, share in shared.shares.items():
        reader = readers.get(device)
        if reader is None or not reader.bandwidth_bytes_per_s:
            return None
        work, single = (part_of_work(whole, share, shared) for whole in works)
        found = card_terms(device, reader, work, single, batch)
        parts.append((sum(term.seconds for term in found), found, reader))
    seconds, terms, reader = max(parts, key=lambda part: part[0])
    band = published_fit().band(reader.capability or UNKNOWN_CAPABILITY)
    waited = shared.seconds(question.model, batch.tokens)
    count = shared.exchanges(question.model)
    term = SpeedTerm(
        "links",
        Text(f"{count} exchanges between cards", f"卡间交换 {count} 次"),
        waited,
        shared.link.words,
    )
    total = seconds + waited
    low = (seconds * (1 - band) + waited * 0.5) / total
    high = (seconds * (1 + band) + waited * 2.0) / total
    return Step((*terms, term), low, high)


def part_of_work(whole: Work, share: float, shared: Shared) -> Work:
    """What one of the cards gets: its share of the matrices, of tensors of the KV too; every
    kernel runs on each. By rows the attention of all layers is done by one card after another."""
    kept = shared.attention_share(share)
    return replace(
        whole,
        reads={kind: (n * share, count * share) for kind, (n, count) in whole.reads.items()},
        kv_bytes=whole.kv_bytes * kept,
        state_bytes=whole.state_bytes * (share if shared.mode == "tensor" else 1.0),
        attention=whole.attention * kept,
    )


def slow_latent_attention(model: Model, reader: Reader) -> bool:
    """True where flash attention over a latent KV (MLA) was seen to lose most of the speed."""
    latent = any(a is not None and not a.value_size for a in model.attention)
    capability = reader.capability or UNKNOWN_CAPABILITY
    return latent and reader.device == "gpu" and capability < SLOW_LATENT_BELOW


def rates_of(reader: Reader) -> Rates:
    """What a card brings, its generation's usual figures where it is not in the table."""
    capability = reader.capability or UNKNOWN_CAPABILITY
    bandwidth = reader.bandwidth_bytes_per_s or 0.0
    integers = reader.integers_per_s or bandwidth * integers_a_byte(capability)
    return Rates(bandwidth, integers, capability, capability >= GRAPHS_FROM)


def card_terms(
    device: str, reader: Reader, work: Work, single: Work, batch: Batch
) -> list[SpeedTerm]:
    """The terms of one card."""
    rates, fitted = rates_of(reader), published_fit()
    others = batch.sequences - 1  # the first one's state is in the fit of recurrent layers
    cached = work.kv_bytes * batch.sequences + work.state_bytes * others
    load = Load(
        work.reads,
        work.tensors,
        work.recurrent_layers,
        work.expert_layers,
        cached,
        batch.answers if work.output else 0.0,
    )
    found = features(load, rates)
    terms = [
        SpeedTerm(device, constant.words, found[constant.name] * fitted.values[constant.name],
                  constant_source(constant, fitted))
        for constant in CONSTANTS
        if found.get(constant.name, 0.0) * fitted.values[constant.name]
    ]  # fmt: skip
    later = rates.capability >= (8, 0)
    share = ATTENTION_SHARE_FROM_8_0 if later else ATTENTION_SHARE
    if work.attention:
        seconds = work.attention * batch.tokens / (rates.integers_per_s * share)
        rows = Text("one row at depth 8192", "深度 8192 的一行数据")
        terms.append(SpeedTerm(device, Text("attention", "注意力计算"), seconds, rows))
    if batch.tokens > 1:
        lanes = rates.integers_per_s
        if rates.capability < SEPARATE_LANES_FROM:
            lanes /= SHARED_LANES
        kernels = found[overhead(rates)] * fitted.values[overhead(rates)]
        seconds = (batch.tokens - 1) * (
            STREAM_OPERATIONS * single.weights / lanes + STREAM_OVERHEAD * kernels
        )
        source = Text("measured on one H200, 1 to 8 streams", "H200 上 1 至 8 路并发实测")
        terms.append(SpeedTerm(device, Text("further streams", "其余并发请求"), seconds, source))
    return terms


_UNITS_ZH = {"× ideal": "× 理想值", "op/weight": "次运算/权重"}


def constant_source(constant: Constant, fitted: Fit) -> Text:
    """What a fitted constant is and how much of it published rows decided."""
    value = fitted.values[constant.name]
    pull = fitted.pulls[constant.name]
    count = fitted.rows_with(constant.name)
    rows = "row" if count == 1 else "rows"
    unit_zh = _UNITS_ZH.get(constant.unit, constant.unit)
    return Text(
        f"{value:.3g} {constant.unit}, {count} published {rows} ({pull:.0%} theirs, "
        f"guess {constant.guess:.3g})",
        f"{value:.3g} {unit_zh}，{count} 行公开数据（占 {pull:.0%}，先验 {constant.guess:.3g}）",
    )


def cpu_terms(
    device: str,
    reader: Reader,
    work: Work,
    single: Work,
    model: Model,
    known: SpeedConstants,
    batch: Batch,
) -> list[SpeedTerm]:
    """The terms of the CPU: the slower of memory and arithmetic, attention, and overheads."""
    words = Text(f"{known.date}: {known.source}", f"{known.date}：{known.source_zh}")
    bandwidth = (reader.bandwidth_bytes_per_s or 0.0) * known.bandwidth_share
    n_bytes = work.weight_bytes + work.kv_bytes * batch.sequences
    n_bytes += work.state_bytes * (batch.sequences - 1)
    memory_s = n_bytes / bandwidth
    arithmetic_s = single.weights * batch.tokens / (known.weights_per_s * reader.cores)
    slower = (
        (Text("memory read", "读取内存"), memory_s)
        if memory_s >= arithmetic_s
        else (Text("arithmetic", "算力"), arithmetic_s)
    )
    attention_s = work.attention * batch.tokens / (known.attention_per_s * reader.cores)
    terms = [
        SpeedTerm(device, *slower, words),
        SpeedTerm(device, Text("attention", "注意力计算"), attention_s, words),
        SpeedTerm(
            device,
            Text("layers", "各层开销"),
            work.layers * known.overhead_per_layer_s,
            words,
        ),
    ]
    if work.output:
        each = model.vocabulary * known.overhead_per_vocabulary_entry_s + known.overhead_per_token_s
        terms.append(
            SpeedTerm(device, Text("sampling and HTTP", "采样与 HTTP"), each * batch.answers, words)
        )
    return [term for term in terms if term.seconds]


def crossing_terms(
    question: Question, readers: Mapping[str, Reader], streams: int
) -> list[SpeedTerm]:
    """What handing activations from device to device costs."""
    moves = crossings(question.model, question.placed, question.alone)
    if not moves:
        return []
    links = [r.link_bytes_per_s or UNKNOWN_LINK_BYTES_PER_S for r in readers.values()
             if r.device == "gpu"]  # fmt: skip
    moved = question.model.embedding_size * 4 * streams
    link = min(links, default=UNKNOWN_LINK_BYTES_PER_S)
    return [
        SpeedTerm(
            "PCIe",
            Text(f"{moves} handovers of activations", f"激活值传递 {moves} 次"),
            moves * (CROSSING_S + moved / link),
            Text("estimated", "估算"),
        )
    ]
