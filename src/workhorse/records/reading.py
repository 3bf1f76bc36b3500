"""Reading: what a running service says at one moment. Alarm: what is wrong with it."""

from dataclasses import dataclass

from workhorse.records.machine import KernelEvent
from workhorse.records.verdict import Finding


def engine_name(model_name: str, on: str) -> str:
    """What people are shown of an engine: `model`, or `model (GPU 0)` among several of it."""
    return f"{model_name} ({on})" if on else model_name


@dataclass(frozen=True, slots=True)
class CardReading:
    """One GPU at one moment; `None`: the driver does not say."""

    index: int
    uuid: str | None
    name: str
    used_bytes: int | None = None
    total_bytes: int | None = None
    busy_share: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] | None = None  # the driver's reasons in force
    link_generation: int | None = None
    link_width: int | None = None
    corrected_errors: int | None = None  # ECC, since the driver was loaded
    uncorrected_errors: int | None = None
    foreign_processes: tuple[str, ...] = ()  # `pid name bytes` of processes that are not ours
    pci_address: str | None = None
    sm_clock_max_mhz: int | None = None
    power_limit_default_w: float | None = None
    memory_temperature_c: float | None = None
    slowdown_temperature_c: float | None = None
    link_generation_max: int | None = None  # of card and slot together
    link_width_max: int | None = None
    own_bytes: int | None = None  # held by our engines; None: the driver does not name them
    foreign_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerSpeed:
    """How fast one answer was decoded, and beside what."""

    at_s: float  # when it ended, by a clock that only goes on
    decode_tokens_per_s: float
    depth_tokens: int | None = None
    streams: float | None = None  # at once, on average over the answer
    prefill_share: float | None = None  # of its time in a slot


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine behind the gateway at one moment."""

    model_name: str
    state: str
    restarts: int
    generating: int  # requests in its slots
    waiting: int  # requests in the gateway's queue for it
    slots: int | None
    decode_tokens_per_s: float | None  # of one stream, over the latest answers; None: none came
    total_tokens_per_s: float | None  # of all streams, over the latest seconds
    prefill_tokens_per_s: float | None
    ttft_s: float | None
    depth_tokens: int | None  # where the latest answers were decoded
    streams: int | None  # how many at once, while those were decoded
    resident_bytes: int | None = None  # of its process
    major_faults: int | None = None  # pages read from a disk since it started
    swapped_bytes: int | None = None
    cpu_share: float | None = None  # of the CPUs that it was given
    waited_share: float | None = None  # of the time its threads wanted a CPU: had to wait for one
    pages_on_nodes: tuple[int, ...] | None = None  # bytes of it on each NUMA node
    allowed_cpus: tuple[int, ...] | None = None
    prefill_share: float | None = None  # of those answers' time in a slot: reading the prompt
    queue_limit: int | None = None  # how many may wait
    pid: int | None = None
    quota_cpus: float | None = None  # CPU time that its control group gives; None: no limit
    weights_cached_share: float | None = None  # of the model's file, in the page cache
    loaded_gpu_layers: int | None = None  # as its own log says
    garbage_streams: int | None = None  # answers that were no text, since the service started
    sane_streams: int | None = None
    garbage_sample: str | None = None  # of the latest garbage
    answers: tuple[AnswerSpeed, ...] = ()  # the latest ones, oldest first
    giving_way: int | None = None  # of those in slots and queue, requests that let others go first
    giving_way_in_line: int | None = None  # of them, those in the queue
    on: str = ""  # where it runs, such as GPU 0: tells engines of one model apart

    @property
    def name(self) -> str:
        """The engine among all of them: its model, and where it runs when that is told."""
        return engine_name(self.model_name, self.on)


@dataclass(frozen=True, slots=True)
class Reading:
    """The whole service at one moment."""

    at_unix_s: float
    engines: tuple[EngineReading, ...]
    cards: tuple[CardReading, ...] = ()
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    other_cpus_busy: float | None = None  # CPUs kept busy by processes that are not ours
    cpus: int | None = None  # CPUs that those were counted on
    disk_free_bytes: int | None = None  # of the data folder
    disk_total_bytes: int | None = None
    cpu_throttles: int | None = None  # how often cores slowed down for heat, since the boot
    events: tuple[KernelEvent, ...] = ()  # new in the kernel's log since the reading before


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is wrong with a running service, for how long, and whether it is over."""

    finding: Finding
    since_unix_s: float
    over_unix_s: float | None = None  # None: still so
    subject: str = ""  # the model, the card or the key that it is about
    times: int = 1  # how often it came, when it comes and goes
