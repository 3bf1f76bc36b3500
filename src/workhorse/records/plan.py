"""Plan: what we decided, and why. Launch: how to start it."""

from dataclasses import dataclass
from typing import Literal

from workhorse.records.model import Dtype, Projector
from workhorse.records.verdict import Verdict
from workhorse.text import Text

# Where a figure comes from, best first. Shown beside every figure.
Basis = Literal[
    "measured", "header", "engine", "twin", "learned", "datasheet", "published", "estimated"
]


EngineName = Literal["llama.cpp", "vllm", "lmdeploy", "fake"]


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """One engine that can be started: what it is, and what it was built for."""

    engine: EngineName
    kind: Literal["embedded", "binary", "environment", "fake"]
    command: tuple[str, ...]  # argv without the settings
    version: str
    needs_flags: tuple[str, ...]  # CPU flags without which it dies of an illegal instruction
    gpu_architectures: tuple[str, ...] | None  # sm_70 …; () none; None unknown
    openmp: bool | None  # spins in OpenMP barriers
    library_dir: str | None  # where its shared libraries are, when the system lacks them
    knows: tuple[str, ...]  # settings it understands, by their flag
    source: str
    forms: tuple[str, ...] = ()  # how it takes the flags that changed; see llamacpp_flags.toml
    flash_attention: bool = True  # False: not seen to be right on a card; plans leave it off
    model_classes: tuple[str, ...] | None = None  # `architectures` of config.json; None: not told
    bounded_wait: bool = False  # without OpenMP: its threads sleep when they wait


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval, where it comes from and in which words."""

    value: float
    low: float
    high: float
    unit: str
    basis: Basis
    source: Text


# What the weights of a budget line are for.
WeightPart = Literal[
    "attention",
    "recurrence",
    "feed-forward",
    "experts",
    "shared experts",
    "norms and others",
    "embedding",
    "output head",
    "tables",
]


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One item of a device's memory budget."""

    device: str  # RAM, GPU 0 …
    item: Literal[
        "weights",
        "tables",
        "kv",
        "state",
        "compute",
        "output",
        "runtime",
        "prompt cache",
        "checkpoints",
        "projector",
    ]
    n_bytes: int
    basis: Basis
    source: Text
    part: WeightPart | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One decision: the setting, its value and why."""

    setting: str
    value: str
    because: Text


@dataclass(frozen=True, slots=True)
class Rejected:
    """An option that was looked at and not taken, and why."""

    option: str
    because: Text


@dataclass(frozen=True, slots=True)
class SpeedTerm:
    """One part of the time that one token takes, and what its constant rests on."""

    device: str  # RAM, GPU 0 …, PCIe; `alone` where one device holds everything
    what: Text
    seconds: float
    source: Text


@dataclass(frozen=True, slots=True)
class StreamSpeed:
    """Decode speed with several streams at a time: of each, and of all together."""

    streams: int
    each_tokens_per_s: Estimate
    total_tokens_per_s: Estimate


@dataclass(frozen=True, slots=True)
class PromptSpeed:
    """Prefill speed of a prompt of this length."""

    prompt_tokens: int
    tokens_per_s: Estimate


@dataclass(frozen=True, slots=True)
class DepthSpeed:
    """Decode speed of one stream behind this many tokens of context."""

    depth_tokens: int
    tokens_per_s: Estimate


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the plan promises, and the ceiling that the hardware sets."""

    decode_tokens_per_s: Estimate | None  # None: the bandwidth is not known
    uncorrected_tokens_per_s: float | None  # by constants alone: what the next forecast learns on
    ceiling_tokens_per_s: Estimate | None  # bytes per token over the memory's bandwidth
    bytes_per_token: int
    prefill_tokens_per_s: Estimate
    streams: tuple[StreamSpeed, ...] = ()
    prompts: tuple[PromptSpeed, ...] = ()
    depths: tuple[DepthSpeed, ...] = ()
    load_s: Estimate | None = None  # from the start to the first answer; None: the disk is unknown
    drafted_tokens_per_s: Estimate | None = None  # with the model's own draft layers (MTP)
    terms: tuple[SpeedTerm, ...] = ()  # of one token of one stream, by constants alone


@dataclass(frozen=True, slots=True)
class Placed:
    """A group of tensors and the device that holds it.

    `layers`: all of these layers that no other group names; `experts`: only their experts;
    `tables`: embeddings read by row; `disk` means read on demand, never held.
    """

    group: Literal["layers", "experts", "output", "embedding", "tables"]
    device: str  # RAM, GPU 0 …, disk
    n_bytes: int
    first_layer: int | None = None
    last_layer: int | None = None
    memory_nodes: tuple[int, ...] | None = None  # of main memory; None: not bound


KvDtype = Literal["auto", "fp8", "int8"]


@dataclass(frozen=True, slots=True)
class Pool:
    """What engines with one pool of KV for all requests (vLLM, LMDeploy) are told beside a plan."""

    dtype: Dtype  # of the arithmetic, and of plain weights
    kv_dtype: KvDtype  # auto: as the arithmetic
    kv_bytes: int  # of the whole pool
    memory_share: float | None  # of the card's memory that it may take; None: main memory
    attention: str | None  # the backend by the engine's own name; None: the engine's choice
    prefix_cache: bool = True
    chunked_prefill: bool = True  # False: a prompt is read in one piece


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tokens guessed ahead and then checked by the model in one step."""

    kind: str  # as the engine calls it: draft-mtp, ngram-simple …
    tokens: int | None = None  # a step; None: the engine's own number


@dataclass(frozen=True, slots=True)
class Plan:
    """What we decided: everything needed to start the engine, with the reasons."""

    model_path: str
    model_name: str
    engine: EngineBuild
    context_tokens: int  # of one slot
    slots: int
    kv_type_k: str
    kv_type_v: str
    flash_attention: bool
    batch_tokens: int
    micro_batch_tokens: int
    threads: int
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...] | None  # None: the host has one node
    gpu_layers: int
    layers: int  # what `offloaded n/m` counts: the model's layers and the output
    gpu_index: int | None  # None: main memory
    device: str  # the card's name, or RAM
    prompt_cache_bytes: int  # main memory for prompts of past conversations
    embeddings: bool  # the model writes no text: it answers with vectors, or with scores
    load_mode: Literal["none", "mmap", "mlock"]
    huge_pages: bool
    spin: Literal["bounded", "default"]
    budget: tuple[BudgetLine, ...]
    forecast: Forecast
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]
    verdict: Verdict
    placement: tuple[Placed, ...] = ()
    gpu_indexes: tuple[int, ...] = ()  # the cards in use, in the order of the layers
    layer_split: tuple[int, ...] = ()  # layers on each of them, the output counted as one
    expert_layers_in_ram: int = 0  # the first so many layers keep their experts in main memory
    context_checkpoints: int | None = None  # a slot; None: the model needs none
    shared_kv: bool = False  # one KV pool, of which each slot may use its context
    lazy_tables: bool = False  # tables are read by row from the disk
    states_dir: str | None = None  # where slots are saved to; None: no templates are declared
    reranks: bool = False  # with scores; `embeddings` is then true as well
    pool: Pool | None = None  # None: an engine with a cache a slot
    split_mode: Literal["layer", "row", "tensor"] = "layer"  # how several cards share the weights
    drafts: Drafts | None = None  # None: each token is decoded by itself
    projector: Projector | None = None  # None: the engine takes text alone
    gpu_uuids: tuple[str, ...] = ()  # of the cards in use; (): the driver does not tell all
    rpc: tuple[str, ...] = ()  # host:port of machines that hold layers; their devices come first
    card_sampling: bool = False  # tokens are chosen on the card, not by the engine on the host


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an engine: a pure function of a Plan, its build and a port."""

    argv: tuple[str, ...]
    env: dict[str, str]  # added to the environment
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...] | None
    host: str
    port: int
    health_path: str
    stop_grace_s: float
    # The variable in which it takes the key of its port, made at each start; None: it takes none.
    key_variable: str | None = None
