"""Machine: what is here, facts only."""

from dataclasses import dataclass
from typing import Literal

from workhorse.records.gpu import Gpu, GpuDriver, GpuLink, GpuTrouble
from workhorse.text import Text


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
    family: int | None = None  # as CPUID says; with model: which generation it is
    model: int | None = None
    memory_channels: int | None = None  # of one socket, by the table of CPUs
    memory_rate_max_mt_s: int | None = None  # fastest memory the CPU takes, transfers in 10^6/s


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
    node: int | None  # CPUs (and memory) of this node; None: wherever the kernel put them
    method: str
    duration_s: float
    memory_nodes: tuple[int, ...] | None = None  # where the memory lay; None: with the CPUs


@dataclass(frozen=True, slots=True)
class Dimm:
    """One memory slot of the board, with or without a module in it."""

    slot: str | None  # as the board labels it
    socket: int | None
    channel: int | None  # within its socket
    size_bytes: int | None  # 0: empty
    kind: str | None  # DDR4, DDR5 …
    rated_mt_s: int | None  # what the module could do, 10^6 transfers a second
    configured_mt_s: int | None  # what it runs at


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
    dimms: tuple[Dimm, ...] | None = None  # None: the board's table could not be read
    channels_in_use: tuple[int, ...] | None = None  # one figure a socket
    rated_bandwidth_bytes_per_s: float | None = None  # channels in use x rate x 8, all sockets
    ecc_corrected: int | None = None  # the memory controllers' counts since the start
    ecc_uncorrected: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What this process may use of the machine: affinity mask and control group."""

    cpus: tuple[int, ...]  # the affinity mask, cut by the cpuset
    quota_cpus: float | None  # CPU time per second the group may use; None: no quota
    memory_bytes: int | None  # the group's memory limit; None: none
    memory_used_bytes: int | None
    memory_nodes: tuple[int, ...] | None = None  # whose memory the cpuset allows; None: unknown


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system under one path."""

    path: str
    file_system: str | None
    total_bytes: int | None
    free_bytes: int | None
    kind: Literal["nvme", "ssd", "hdd", "network", "memory"] | None = None
    read_bytes_per_s: float | None = None  # sequential, past the page cache
    read_method: str | None = None


@dataclass(frozen=True, slots=True)
class System:
    """The operating system, as far as it decides what runs."""

    kernel: str | None
    distribution: str | None
    glibc: str | None  # such as `2.36`
    libgomp: bool | None  # is libgomp.so.1 there
    board: str | None = None  # maker and product of the board or the server
    hypervisor: str | None = None  # kvm, vmware …; "" on bare metal
    container: str | None = None  # docker, lxc …; "" outside of one
    iommu: Literal["off", "passthrough", "translating"] | None = None
    acs_redirect: bool | None = None  # a port above a GPU sends peer traffic through the root


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Settings of the kernel that decide speed; `host` shows and changes them."""

    governors: tuple[str, ...] = ()  # the different ones in use
    governors_available: tuple[str, ...] = ()
    numa_balancing: bool | None = None
    swappiness: int | None = None
    zone_reclaim: int | None = None
    overcommit: int | None = None
    huge_pages: int | None = None  # reserved ones, in all
    huge_pages_overcommit: int | None = None
    aslr: int | None = None


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One line of the kernel's log that matters: the driver's Xid, bus and memory errors."""

    kind: Literal["xid", "nvrm", "pcie", "memory", "out of memory"]
    number: int | None  # of an Xid
    pci_address: str | None
    text: str  # the line, without its time and personal data
    times: int = 1  # equal lines counted together


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """One CUDA toolkit."""

    path: str
    version: str | None


@dataclass(frozen=True, slots=True)
class EngineFound:
    """An inference engine on this machine and the GPU code its files hold."""

    name: Literal["llama.cpp", "vllm", "lmdeploy", "sglang", "ollama", "pytorch"]
    path: str
    version: str | None
    sass: tuple[str, ...] | None  # sm_70 …; () none, None unknown
    ptx: tuple[str, ...] | None  # compute_70 …


@dataclass(frozen=True, slots=True)
class Software:
    """What is installed that runs models."""

    toolkits: tuple[CudaToolkit, ...] = ()
    engines: tuple[EngineFound, ...] = ()


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
    settings: KernelSettings = KernelSettings()
    gpu_links: tuple[GpuLink, ...] = ()
    gpu_troubles: tuple[GpuTrouble, ...] = ()
    events: tuple[KernelEvent, ...] | None = None  # None: the kernel's log cannot be read
    software: Software = Software()
