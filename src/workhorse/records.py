"""The six records that flow from the probe to the dashboard.

Machine: what is here. Model: what is wanted. Plan: what we decided. Launch: how to start it.
Measurement: what happened. Verdict: what it means. Each is one JSON document (see `codec`),
the same in `--json`, over HTTP, in the store and in the tests' goldens.

`None` means not known. Every numeric name carries its unit; a name without one is a count.
"""

from dataclasses import dataclass
from typing import Literal

from workhorse.text import Text

# Where a figure comes from, best first. Shown beside every figure.
Basis = Literal[
    "measured", "header", "engine", "twin", "learned", "datasheet", "published", "estimated"
]

# ---------------------------------------------------------------- Machine


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core: the logical CPUs (threads) that share it, and where it sits."""

    socket: int
    core: int
    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors of the machine, taken together."""

    architecture: str  # as `uname -m` says: x86_64, aarch64
    vendor: str | None
    name: str | None
    flags: tuple[str, ...]  # every ISA flag the kernel reports, sorted
    cores: tuple[Core, ...]
    l2_bytes: int | None  # one instance
    l3_bytes: int | None  # one instance
    max_mhz: float | None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One memory node with its CPUs; `distances[i]` is the kernel's distance to node i."""

    index: int
    cpus: tuple[int, ...]
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One measured memory read bandwidth and how it was measured."""

    bytes_per_s: float
    pages: Literal["small", "huge"]
    threads: int
    node: int | None  # CPUs and memory of this node; None: wherever the kernel put them
    method: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, the kernel's page settings and what was measured of its speed."""

    total_bytes: int | None
    available_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    thp: Literal["always", "madvise", "never"] | None  # transparent huge pages
    huge_page_bytes: int | None
    huge_pages_free: int | None  # reserved ones, hugetlbfs
    memlock_bytes: int | None  # `ulimit -l`; None: unlimited or unknown
    bandwidths: tuple[Bandwidth, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What this process may use of the machine: affinity mask and control group."""

    cpus: tuple[int, ...]  # the affinity mask, cut by the cpuset
    quota_cpus: float | None  # CPU time per second the group may use; None: no quota
    memory_bytes: int | None  # the group's memory limit; None: none
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it."""

    index: int
    name: str
    uuid: str | None
    pci_address: str | None
    compute_capability: tuple[int, int] | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    memory_bus_bits: int | None
    memory_clock_max_mhz: int | None
    rated_bandwidth_bytes_per_s: float | None
    pcie_generation_now: int | None
    pcie_generation_max: int | None
    pcie_width_now: int | None
    pcie_width_max: int | None
    numa_node: int | None
    ecc_enabled: bool | None
    temperature_c: int | None
    power_limit_w: float | None
    power_limit_default_w: float | None
    throttle_reasons: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The NVIDIA driver; `cuda` is the newest CUDA it can run, such as `13.0`."""

    version: str | None
    cuda: str | None


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system under one path."""

    path: str
    file_system: str | None
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class System:
    """The operating system, as far as it decides what runs."""

    kernel: str | None
    distribution: str | None
    glibc: str | None  # such as `2.36`
    libgomp: bool | None  # is libgomp.so.1 there


@dataclass(frozen=True, slots=True)
class Machine:
    """What is here: facts only. `learned_from` names the source of each group of facts."""

    cpu: Cpu
    nodes: tuple[NumaNode, ...]
    memory: Memory
    limits: Limits
    system: System
    driver: GpuDriver | None
    gpus: tuple[Gpu, ...]
    disks: tuple[Disk, ...]
    busy_cpus: float | None  # CPUs' worth of work that other processes were doing
    learned_from: dict[str, str]
    doubts: tuple[Text, ...] = ()  # what could not be read, and why


# ---------------------------------------------------------------- Model


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a model file; `shape` is in the file's order, fastest dimension first."""

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer keeps per token: K and V heads and their sizes in elements."""

    kv_heads: int
    key_size: int
    value_size: int
    window_tokens: int | None = None  # sliding window; None: the whole context


@dataclass(frozen=True, slots=True)
class Model:
    """What is wanted, from the file's header alone: no weights are read."""

    path: str
    name: str
    format: Literal["gguf"]
    architecture: str
    file_bytes: int
    tensors: tuple[Tensor, ...]
    attention: tuple[Attention | None, ...]  # one a layer; None: the layer keeps no KV
    layers: int
    embedding_size: int
    heads: int
    vocabulary: int
    context_trained_tokens: int | None
    experts: int
    experts_used: int
    quantisation: str  # the type most weight bytes have
    chat_template: str | None
    pooling: bool  # an embedding model
    licence: str | None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors)

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        total = 0
        for tensor in self.tensors:
            elements = 1
            for size in tensor.shape:
                elements *= size
            total += elements
        return total


# ---------------------------------------------------------------- Plan


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """One engine that can be started: what it is, and what it was built for."""

    engine: Literal["llama.cpp", "fake"]
    kind: Literal["embedded", "binary", "fake"]
    command: tuple[str, ...]  # argv without the settings
    version: str
    needs_flags: tuple[str, ...]  # CPU flags without which it dies of an illegal instruction
    gpu_architectures: tuple[str, ...] | None  # sm_70 …; () none; None unknown
    openmp: bool | None  # spins in OpenMP barriers
    library_dir: str | None  # where its shared libraries are, when the system lacks them
    knows: tuple[str, ...]  # settings it understands, by their llama-server flag
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval, where it comes from and in which words."""

    value: float
    low: float
    high: float
    unit: str
    basis: Basis
    source: Text


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One item of a device's memory budget."""

    device: str  # RAM, GPU 0 …
    item: Literal["weights", "kv", "compute", "output", "runtime", "prompt cache"]
    n_bytes: int
    basis: Basis
    source: Text


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
class Forecast:
    """What the plan promises, and the ceiling that the hardware sets."""

    decode_tokens_per_s: Estimate | None  # None: the bandwidth is not known
    uncorrected_tokens_per_s: float | None  # by constants alone: what the next forecast learns on
    ceiling_tokens_per_s: Estimate | None  # bytes per token over the memory's bandwidth
    bytes_per_token: int
    prefill_tokens_per_s: Estimate


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
    embeddings: bool
    load_mode: Literal["none", "mmap", "mlock"]
    huge_pages: bool
    spin: Literal["bounded", "default"]
    budget: tuple[BudgetLine, ...]
    forecast: Forecast
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]
    verdict: "Verdict"


# ---------------------------------------------------------------- Launch


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


# ---------------------------------------------------------------- Measurement


@dataclass(frozen=True, slots=True)
class Run:
    """One request's raw times, in seconds since it was sent.

    `arrivals_s` are the arrivals of the pieces of text; an engine may put several tokens into
    one piece, so `output_tokens` is what the engine counted.
    """

    stream: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    arrivals_s: tuple[float, ...]
    end_s: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was so while the figures were taken."""

    when: str  # ISO 8601, UTC
    machine: Machine | None
    plan: Plan | None
    url: str
    workhorse: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What happened: raw samples and conditions, never only means."""

    scenario: str
    prompt_tokens: int
    output_tokens: int
    streams: int
    runs: tuple[Run, ...]
    conditions: Conditions


# ---------------------------------------------------------------- Verdict

Level = Literal["good", "note", "warning", "blocker"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice: what was seen, why it matters, what to do, who says so."""

    code: str
    level: Level
    seen: Text
    why: Text
    remedy: Text
    source: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What it means. A blocker says no."""

    findings: tuple[Finding, ...] = ()

    @property
    def blocked(self) -> bool:
        """True when something cannot work."""
        return any(f.level == "blocker" for f in self.findings)
