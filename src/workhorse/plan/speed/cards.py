"""The two-term model of a card: where a token's time goes, fitted to published speeds.

    seconds = bytes / bandwidth x inverse share + weights x operations / integer rate
              + kernels x overhead + serving

Seventeen constants with physical meaning for all cards: a card enters with its rated bandwidth, its
rated integer operations and its generation, so that a card without a row of its own borrows from
its kind. Each constant has a guess and how far from it rows may pull it; few rows pull little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from workhorse.knowledge.published_speeds import (
    PublishedSpeed,
    card_named,
    published_speeds,
    shapes,
)
from workhorse.plan.speed.device import GRAPHS_FROM, integer_rate
from workhorse.plan.speed.least_squares import ridge
from workhorse.text import Text

# How strongly the guesses hold against one row's relative error (squared): a row that is off by
# 5 % weighs as much as a constant that is off by its own spread.
GUESS_WEIGHT = 0.05**2
# Rows that are off by more than this share weigh less: builds and conditions differ untold.
USUAL_ERROR = 0.08
ROUNDS = 6
# What was measured on a lent card, build and conditions known, counts as so many published rows.
TRUST_IN_MEASURED = 3.0


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the model: a guess, how far rows may pull it, and its words."""

    name: str
    guess: float
    spread: float
    unit: str
    words: Text


CONSTANTS = (
    Constant("memory", 1.12, 0.03, "× ideal", Text("memory read", "读取显存")),
    # From the A100 on data-centre cards have a second half of the L2 cache to cross.
    Constant("memory 8.0", 1.15, 0.08, "× ideal", Text("memory read", "读取显存")),
    Constant("memory 9.0", 1.2, 0.08, "× ideal", Text("memory read", "读取显存")),
    Constant("k", 1.5, 0.7, "op/weight", Text("unpack Q4_K to Q6_K", "解包 Q4_K 至 Q6_K")),
    Constant("plain", 1.0, 0.5, "op/weight", Text("unpack 4 and 8 bits", "解包 4 与 8 位")),
    Constant("low", 2.0, 1.0, "op/weight", Text("unpack 1 to 3 bits", "解包 1 至 3 位")),
    Constant("float", 0.6, 0.2, "op/weight", Text("F16 and F32 weights", "F16 与 F32 权重")),
    Constant("bf16", 2.5, 1.0, "op/weight", Text("BF16 without hardware", "无硬件支持的 BF16")),
    Constant("6.0", 4.0, 1.5, "op/weight", Text("unpack without dp4a", "无 dp4a 的解包")),
    Constant("launch", 10.0, 3.0, "µs", Text("kernels without graphs", "逐个启动内核")),
    Constant("graph 7.0", 7.0, 1.0, "µs", Text("kernels in a graph", "CUDA 图中的内核")),
    Constant("graph 8.0", 7.0, 2.0, "µs", Text("kernels in a graph", "CUDA 图中的内核")),
    Constant("graph 8.6", 4.0, 2.0, "µs", Text("kernels in a graph", "CUDA 图中的内核")),
    Constant("graph 9.0", 5.0, 2.0, "µs", Text("kernels in a graph", "CUDA 图中的内核")),
    Constant("recurrent", 30.0, 30.0, "µs", Text("recurrent layers", "循环层")),
    Constant("experts", 15.0, 15.0, "µs", Text("choosing experts", "选择专家")),
    Constant("serving", 0.5, 0.15, "ms", Text("sampling and HTTP", "采样与 HTTP")),
)

# Before Volta, integers and floats share their lanes, so that unpacking and multiplying wait for
# each other (fitted by hand to GTX 1080 and P40 rows, 2026-11; the constant of 6.0 has it inside).
SEPARATE_LANES_FROM, SHARED_LANES = (7, 0), 3.0

PLAIN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "nvfp4")
K = ("q4_k", "q5_k", "q6_k", "iq4_xs", "iq4_nl")


@dataclass(frozen=True, slots=True)
class Load:
    """What one token asks of a card: bytes and weights by kind of quant, and kernels."""

    reads: Mapping[str, tuple[float, float]]  # kind: bytes, weights
    tensors: float
    recurrent_layers: float = 0.0
    expert_layers: float = 0.0
    cached_bytes: float = 0.0  # KV and state
    streams: float = 0.0  # tokens that are sampled and sent; 0: a bare benchmark


@dataclass(frozen=True, slots=True)
class Rates:
    """What a card brings to it."""

    bandwidth_bytes_per_s: float
    integers_per_s: float
    capability: tuple[int, int]
    graphs: bool


def unpacking(kind: str, capability: tuple[int, int]) -> str | None:
    """The constant that unpacking one weight of this kind costs; None: nothing."""
    if kind in ("f16", "f32"):
        return "float"
    if kind == "bf16":
        return "bf16" if capability < (8, 0) else "float"
    if capability < (6, 1):
        return "6.0"
    if kind in PLAIN:
        return "plain"
    return "k" if kind in K else "low"


def memory(capability: tuple[int, int]) -> str:
    """The constant that reading one byte costs."""
    if capability >= (9, 0):
        return "memory 9.0"
    return "memory 8.0" if (8, 0) <= capability < (8, 6) else "memory"


def overhead(rates: Rates) -> str:
    """The constant that starting one kernel costs."""
    if not rates.graphs or rates.capability < GRAPHS_FROM:
        return "launch"
    for start, name in (((9, 0), "graph 9.0"), ((8, 6), "graph 8.6"), ((8, 0), "graph 8.0")):
        if rates.capability >= start:
            return name
    return "graph 7.0"


def features(load: Load, rates: Rates) -> dict[str, float]:
    """Seconds of a token by constant, for a constant of one."""
    found: dict[str, float] = {}
    total = load.cached_bytes
    for kind, (n_bytes, weights) in load.reads.items():
        total += n_bytes
        name = unpacking(kind, rates.capability)
        if name is not None:
            lanes = rates.integers_per_s
            if rates.capability < SEPARATE_LANES_FROM:
                lanes /= SHARED_LANES
            found[name] = found.get(name, 0.0) + weights / lanes
    found[memory(rates.capability)] = total / rates.bandwidth_bytes_per_s
    found[overhead(rates)] = load.tensors * 1e-6
    found["recurrent"] = load.recurrent_layers * 1e-6
    found["experts"] = load.expert_layers * 1e-6
    found["serving"] = load.streams * 1e-3
    return found


def row_features(row: PublishedSpeed) -> dict[str, float]:
    """The features of a published row; its cards work one after the other."""
    card, shape = card_named(row.card), shapes()[row.model]
    total = sum(row.reads.values())
    reads = {kind: (n, shape.weights * n / total) for kind, n in row.reads.items()}
    load = Load(
        reads,
        shape.tensors,
        shape.recurrent_layers,
        shape.expert_layers,
        0.0,
        1.0 if row.served else 0.0,
    )
    bandwidth = (card.bandwidth_gb_per_s or 0.0) * 1e9
    return features(load, Rates(bandwidth, integer_rate(card), card.capability, row.graphs))


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted constants, and what the fit misses of each row when it is left out."""

    values: dict[str, float]
    rows: tuple[PublishedSpeed, ...]
    left_out: tuple[float, ...]  # predicted over published seconds, less one, the row left out
    pulls: dict[str, float]  # how many rows' worth of evidence each constant has

    def seconds(self, found: Mapping[str, float]) -> float:
        """Seconds of a token with these features."""
        return sum(self.values[name] * value for name, value in found.items())

    def rows_with(self, name: str) -> int:
        """How many rows a constant has a part in."""
        return sum(row_features(row).get(name, 0.0) > 0 for row in self.rows)

    def band(self, capability: tuple[int, int]) -> float:
        """How far off a forecast for this generation may be, as a share: nine in ten rows of it
        are within when left out; of all rows, half as much again, where it has few."""
        group = [
            abs(miss)
            for row, miss in zip(self.rows, self.left_out, strict=True)
            if generation(card_named(row.card).capability) == generation(capability)
        ]
        every = quantile([abs(miss) for miss in self.left_out], COVERED)
        if len(group) < FEW_ROWS:
            return max(every * 1.5, *group) if group else every * 1.5
        return max(quantile(group, COVERED), every)


COVERED = 0.9
FEW_ROWS = 6


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


GENERATIONS = (
    ((10, 0), "10 and later"),
    ((9, 0), "9.0"),
    ((8, 6), "8.6 to 8.9"),
    ((8, 0), "8.0"),
    ((7, 5), "7.5"),
    ((7, 0), "7.0"),
    ((6, 1), "6.1"),
    ((6, 0), "6.0"),
)


def generation(capability: tuple[int, int]) -> str:
    """Cards that share their overhead and their unpacking."""
    for start, name in GENERATIONS:
        if capability >= start:
            return name
    return "older"


def fit(rows: Sequence[PublishedSpeed]) -> Fit:
    """The constants that meet these rows best: relative errors, guesses, outliers weigh less."""
    names = [constant.name for constant in CONSTANTS]
    table = [
        [found.get(name, 0.0) * row.tokens_per_s for name in names]
        for row in rows
        for found in (row_features(row),)
    ]
    guesses = [constant.guess for constant in CONSTANTS]
    stiffness = [GUESS_WEIGHT / constant.spread**2 for constant in CONSTANTS]
    trust = [TRUST_IN_MEASURED if row.confidence == "measured" else 1.0 for row in rows]
    weights = list(trust)
    for _ in range(ROUNDS):
        solved = ridge(table, weights, guesses, stiffness)
        misses = [
            sum(x * v for x, v in zip(line, solved.values, strict=True)) - 1 for line in table
        ]
        weights = [
            t * min(1.0, USUAL_ERROR / abs(miss)) if miss else t
            for t, miss in zip(trust, misses, strict=True)
        ]
    left_out = tuple(m / (1 - h) for m, h in zip(misses, solved.leverage, strict=True))
    return Fit(
        dict(zip(names, solved.values, strict=True)),
        tuple(rows),
        left_out,
        dict(zip(names, solved.evidence, strict=True)),
    )


@cache
def published_fit() -> Fit:
    """The fit to every row of the table that is meant for it."""
    return fit([row for row in published_speeds() if row.fitted and row.metric == "decode"])
