"""What is known of the GPUs, their driver and their links."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EccCounts:
    """Memory errors: since the driver was loaded, and over the card's life."""

    corrected: int | None
    uncorrected: int | None
    corrected_lifetime: int | None
    uncorrected_lifetime: int | None


@dataclass(frozen=True, slots=True)
class RetiredPages:
    """Pages taken out of use (up to Volta and Turing); at most 64 fit."""

    single_bit: int | None
    double_bit: int | None
    pending: bool | None  # one is retired at the next restart


@dataclass(frozen=True, slots=True)
class RowRemaps:
    """Memory rows replaced by spare ones (Ampere and later)."""

    correctable: int | None
    uncorrectable: int | None
    pending: bool | None
    failed: bool | None  # no spare row was left


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class CopyBandwidth:
    """A measured copy: within the card (bytes read; as many are written), to it or from it."""

    kind: Literal["device", "to device", "from device"]
    bytes_per_s: float
    method: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU as its driver and the PCI bus describe it."""

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
    pcie_generation_max: int | None  # of card and slot together, as the driver says
    pcie_width_now: int | None
    pcie_width_max: int | None
    numa_node: int | None
    ecc_enabled: bool | None
    temperature_c: int | None
    power_limit_w: float | None
    power_limit_default_w: float | None
    throttle_reasons: tuple[str, ...] | None
    pci_id: str | None = None  # vendor:device, such as 10de:1db4
    pci_subsystem: str | None = None  # tells variants of one device apart
    pcie_generation_card: int | None = None  # what the card itself could do at most
    pcie_width_card: int | None = None
    pcie_generation_port: int | None = None  # what the port above the card could do at most
    pcie_width_port: int | None = None
    pcie_generation_loaded: int | None = None  # read again while the card copied
    pcie_width_loaded: int | None = None
    pcie_replays: int | None = None  # packets sent again: a bad contact
    sm_clock_now_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_now_mhz: int | None = None
    memory_temperature_c: int | None = None
    slowdown_temperature_c: int | None = None
    fan_percent: int | None = None  # None: passive, or unknown
    power_draw_w: float | None = None
    power_limit_max_w: float | None = None
    performance_state: int | None = None  # 0 fastest … 15 idle
    busy_percent: int | None = None
    ecc: EccCounts | None = None
    retired_pages: RetiredPages | None = None
    row_remaps: RowRemaps | None = None
    persistence: bool | None = None
    compute_mode: Literal["default", "exclusive process", "prohibited"] | None = None
    mig: bool | None = None
    bar1_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    copies: tuple[CopyBandwidth, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """A copy from one GPU to another that was tried, and whether it arrived."""

    direct: bool  # one reads the other's memory; False: through main memory
    right: bool | None  # what arrived is what was sent; None: it did not end, or was refused
    bytes_per_s: float | None = None  # the slower direction
    latency_s: float | None = None  # of a copy of 4 KiB, one of many in a row
    failure: str | None = None  # the driver's word, or `hangs`


@dataclass(frozen=True, slots=True)
class GpuLink:
    """How two GPUs reach each other."""

    first: int  # indexes of the GPUs, the smaller one first
    second: int
    path: Literal["NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS"]  # nvidia-smi's words
    nvlinks: int | None  # how many; None unless path is NVLINK
    peer_access: bool | None  # the driver allows reading each other's memory
    peer_trouble: str | None = None  # the driver's word why not, such as CNS or GNS
    copies: tuple[PeerCopy, ...] = ()  # what was measured; (): nothing


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The NVIDIA driver; `cuda` is the newest CUDA it can run, such as `13.0`."""

    version: str | None
    cuda: str | None
    open_module: bool | None = None  # the open kernel module (from Turing on)


@dataclass(frozen=True, slots=True)
class GpuTrouble:
    """Why the GPUs, or one of them, cannot be used; `said` is the driver's own words."""

    code: Literal[
        "no_driver",  # a card on the bus, no kernel module bound to it
        "driver_not_told",  # a card on the bus, and nothing tells whether a driver holds it
        "other_driver",  # nouveau, vfio-pci
        "no_library",  # the kernel module is there, libnvidia-ml.so.1 is not
        "library_mismatch",  # kernel module and library of different versions
        "not_loaded",  # the library is there, the module does not run
        "no_device_nodes",  # the module runs, /dev/nvidia* are missing
        "no_permission",  # /dev/nvidia* are there and may not be opened
        "container",  # the cards were not handed to this container
        "lost",  # fell off the bus
        "not_shown",  # on the bus, but the driver leaves it out
        "none_found",  # the driver runs and finds no card
        "errors",  # the driver lists it, but some of its answers are errors
        "inforom",  # its own store of settings and error counts is damaged
        "unlicensed",  # a vGPU without a licence
        "no_power",  # it says that its power cables are missing
        "silent",  # the driver gives no answer
        "unknown",
    ]
    said: str | None
    pci_address: str | None = None
    pci_id: str | None = None
