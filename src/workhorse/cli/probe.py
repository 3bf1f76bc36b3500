"""`workhorse probe`: show what this machine is and what was measured of it."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from workhorse.cli.progress import LateBar
from workhorse.cli.show import console, print_table
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD
from workhorse.records import Bandwidth, Cpu, Gpu, Machine
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_bandwidth, show_bytes, show_duration

# What decides which engine builds run; a CPU reports a hundred more.
DECIDING_FLAGS = {
    "avx": "AVX", "f16c": "F16C", "fma": "FMA", "avx2": "AVX2", "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512", "avx512_vnni": "AVX-512 VNNI", "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX", "asimd": "NEON", "asimddp": "dot product", "i8mm": "I8MM", "sve": "SVE",
}  # fmt: skip
MEASURING = Text("measuring memory bandwidth", "测量内存带宽")
FACT = (Text("fact", "项目"), Text("value", "取值"))
UNLIMITED = Text("none", "无限制")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `probe`."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help=Text(
            "a captured tree (proc/ and sys/ of another machine) or a packed capture; nothing is"
            " measured then",
            "另一台机器的采集目录（含 proc/ 和 sys/）或打包的采集文件；此时不做测量",
        ).in_language(language),
    )
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help=Text(
            "leave out the measured memory bandwidth (under two seconds)",
            "不测量内存带宽（测量用时不到两秒）",
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print the Machine."""
    from workhorse.machine.probe import probe

    with LateBar(MEASURING, args.lang) as bar:
        machine = probe(
            args.root,
            disk_path=places().data,
            measure_s=0.0 if args.no_measure else 1.0,
            on_progress=lambda share: bar.step(round(share * 100), 100),
        )
    if args.json:
        print(to_json(machine))
    else:
        print_machine(machine, args.lang)
    return EXIT_GOOD


def print_machine(machine: Machine, language: Language) -> None:
    """The machine as tables, and what could not be read."""
    print_facts(Text("Processors", "处理器"), cpu_rows(machine), language)
    print_nodes(machine, language)
    print_facts(Text("Memory", "内存"), memory_rows(machine), language)
    print_bandwidths(machine.memory.bandwidths, language)
    print_facts(Text("Limits of this process", "本进程的限制"), limit_rows(machine), language)
    print_gpus(machine, language)
    print_facts(Text("System", "系统"), system_rows(machine), language)
    print_disks(machine, language)
    sys.stdout.flush()
    out = console()
    for doubt in machine.doubts:
        out.print(f"? {doubt.in_language(language)}", style="yellow", markup=False)


def print_facts(title: Text, rows: Iterable[tuple[Text, str | Text]], language: Language) -> None:
    """One table of names and values."""
    print_table(
        title,
        FACT,
        (
            (name.in_language(language), v.in_language(language) if isinstance(v, Text) else v)
            for name, v in rows
        ),
        language,
    )


def cpu_rows(machine: Machine) -> list[tuple[Text, str | Text]]:
    """What the processors are."""
    cpu = machine.cpu
    clock = UNKNOWN if cpu.max_mhz is None else f"{cpu.max_mhz / 1000:.2f} GHz"
    busy = UNKNOWN
    if machine.busy_cpus is not None:
        busy = f"{machine.busy_cpus:.1f} ({machine.learned_from['busy_cpus']})"
    flags = [name for flag, name in DECIDING_FLAGS.items() if flag in cpu.flags]
    return [
        (Text("name", "型号"), cpu.name or UNKNOWN),
        (Text("architecture", "架构"), cpu.architecture),
        (Text("cores", "核心"), show_cores(cpu)),
        (Text("instruction sets", "指令集"), ", ".join(flags) or UNKNOWN),
        (
            Text("caches", "缓存"),
            f"L2 {show_bytes(cpu.l2_bytes)}, L3 {show_bytes(cpu.l3_bytes)}",
        ),
        (Text("highest clock", "最高主频"), clock),
        (Text("CPUs kept busy by others", "被其他进程占用的 CPU"), busy),
    ]


def show_cores(cpu: Cpu) -> str | Text:
    """Sockets, physical cores and threads in words."""
    if not cpu.cores:
        return UNKNOWN
    sockets = len({core.socket for core in cpu.cores})
    cores, threads = len(cpu.cores), sum(len(core.cpus) for core in cpu.cores)
    return Text(
        f"{counted(sockets, 'socket')}, {counted(cores, 'physical core')},"
        f" {counted(threads, 'thread')}",
        f"{sockets} 路，{cores} 个物理核心，{threads} 个线程",
    )


def counted(count: int, noun: str) -> str:
    """`1 socket`, `2 sockets`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def print_nodes(machine: Machine, language: Language) -> None:
    """The NUMA nodes."""
    print_table(
        Text("NUMA nodes", "NUMA 节点"),
        (
            Text("node", "节点"),
            Text("CPUs", "CPU"),
            Text("memory", "内存"),
            Text("free", "空闲"),
            Text("distances", "距离"),
        ),
        (
            (
                str(node.index),
                show_cpus(node.cpus),
                show_bytes(node.memory_total_bytes),
                show_bytes(node.memory_free_bytes),
                " ".join(map(str, node.distances)) or UNKNOWN,
            )
            for node in machine.nodes
        ),
        language,
    )


def memory_rows(machine: Machine) -> list[tuple[Text, str | Text]]:
    """Sizes and page settings."""
    memory = machine.memory
    swap = f"{show_bytes(memory.swap_free_bytes)} / {show_bytes(memory.swap_total_bytes)}"
    reserved = UNKNOWN if memory.huge_pages_free is None else str(memory.huge_pages_free)
    return [
        (Text("total", "总量"), show_bytes(memory.total_bytes)),
        (Text("available", "可用"), show_bytes(memory.available_bytes)),
        (Text("swap, free / total", "交换区，空闲 / 总量"), swap),
        (Text("transparent huge pages", "透明大页"), memory.thp or UNKNOWN),
        (
            Text("reserved huge pages, free", "预留大页，空闲"),
            f"{reserved} × {show_bytes(memory.huge_page_bytes)}",
        ),
        (Text("lockable (ulimit -l)", "可锁定（ulimit -l）"), show_bytes(memory.memlock_bytes)),
    ]


def print_bandwidths(bandwidths: Sequence[Bandwidth], language: Language) -> None:
    """The measured read bandwidths, each with how it was measured."""
    if not bandwidths:
        return
    pages = {"small": Text("small", "普通页"), "huge": Text("huge", "大页")}
    print_table(
        Text("Read bandwidth of memory, measured here", "内存读带宽（本机实测）"),
        (
            Text("pages", "内存页"),
            Text("node", "节点"),
            Text("bandwidth", "带宽"),
            Text("threads", "线程"),
            Text("how", "测法"),
        ),
        (
            (
                pages[b.pages].in_language(language),
                Text("all", "全部").in_language(language) if b.node is None else str(b.node),
                show_bandwidth(b.bytes_per_s),
                str(b.threads),
                f"{b.method}, {show_duration(b.duration_s)}",
            )
            for b in bandwidths
        ),
        language,
    )


def limit_rows(machine: Machine) -> list[tuple[Text, str | Text]]:
    """What the process may use."""
    limits = machine.limits
    quota = UNLIMITED if limits.quota_cpus is None else same(f"{limits.quota_cpus:g}")
    memory: str | Text = UNLIMITED
    if limits.memory_bytes is not None:
        used = show_bytes(limits.memory_used_bytes)
        memory = f"{used} / {show_bytes(limits.memory_bytes)}"
    return [
        (Text("CPUs", "CPU"), show_cpus(limits.cpus)),
        (Text("CPU quota of the control group", "控制组 CPU 配额"), quota),
        (Text("memory of the control group, used / limit", "控制组内存，已用 / 上限"), memory),
    ]


def print_gpus(machine: Machine, language: Language) -> None:
    """The GPUs, one column each: they have more facts than a line holds."""
    driver = machine.driver
    if driver is None and not machine.gpus:
        print_facts(Text("GPUs", "GPU"), [(Text("NVIDIA GPUs", "NVIDIA GPU"), NO_GPUS)], language)
        return
    named = "" if driver is None else f"{driver.version or UNKNOWN}, CUDA {driver.cuda or UNKNOWN}"
    columns = [gpu_cells(gpu, language) for gpu in machine.gpus]
    print_table(
        Text(f"GPUs (driver {named})", f"GPU（驱动 {named}）"),
        (Text("fact", "项目"), *(same(f"GPU {gpu.index}") for gpu in machine.gpus)),
        (
            (label.in_language(language), *(column[row] for column in columns))
            for row, label in enumerate(GPU_LABELS)
        ),
        language,
    )


NO_GPUS = Text("none found", "未发现")
GPU_LABELS = (
    Text("name", "型号"),
    Text("compute capability", "计算能力"),
    Text("memory, free / total", "显存，空闲 / 总量"),
    Text("rated bandwidth (clock × bus)", "额定带宽（频率 × 位宽）"),
    Text("PCIe now", "PCIe 当前"),
    Text("PCIe at most", "PCIe 最高"),
    Text("PCI address", "PCI 地址"),
    Text("NUMA node", "NUMA 节点"),
    Text("ECC", "ECC"),
    Text("temperature", "温度"),
    Text("power limit, now / default", "功耗上限，当前 / 默认"),
    Text("throttled by", "降频原因"),
)


def gpu_cells(gpu: Gpu, language: Language) -> tuple[str, ...]:
    """The facts of one GPU, in the order of `GPU_LABELS`."""
    free, total = show_bytes(gpu.memory_free_bytes), show_bytes(gpu.memory_total_bytes)
    ecc = {None: same(UNKNOWN), True: Text("on", "开"), False: Text("off", "关")}
    reasons = gpu.throttle_reasons
    nothing = Text("nothing", "无").in_language(language)
    return (
        gpu.name,
        "{}.{}".format(*gpu.compute_capability) if gpu.compute_capability else UNKNOWN,
        f"{free} / {total}",
        show_bandwidth(gpu.rated_bandwidth_bytes_per_s),
        show_link(gpu.pcie_generation_now, gpu.pcie_width_now),
        show_link(gpu.pcie_generation_max, gpu.pcie_width_max),
        gpu.pci_address or UNKNOWN,
        show_count(gpu.numa_node),
        ecc[gpu.ecc_enabled].in_language(language),
        UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c} °C",
        f"{show_watts(gpu.power_limit_w)} / {show_watts(gpu.power_limit_default_w)}",
        UNKNOWN if reasons is None else ", ".join(reasons) or nothing,
    )


def show_link(generation: int | None, width: int | None) -> str:
    """A PCIe link such as `3.0 x16`."""
    return f"{UNKNOWN if generation is None else f'{generation}.0'} x{show_count(width)}"


def show_count(count: int | None) -> str:
    """A count; `—` when unknown."""
    return UNKNOWN if count is None else str(count)


def show_watts(watts: float | None) -> str:
    """A power such as `250 W`; `—` when unknown."""
    return UNKNOWN if watts is None else f"{watts:.0f} W"


def system_rows(machine: Machine) -> list[tuple[Text, str | Text]]:
    """The operating system."""
    system = machine.system
    there = {None: same(UNKNOWN), True: Text("found", "有"), False: Text("missing", "缺失")}
    return [
        (Text("distribution", "发行版"), system.distribution or UNKNOWN),
        (Text("kernel", "内核"), system.kernel or UNKNOWN),
        (Text("glibc", "glibc"), system.glibc or UNKNOWN),
        (Text("libgomp.so.1", "libgomp.so.1"), there[system.libgomp]),
    ]


def print_disks(machine: Machine, language: Language) -> None:
    """The file systems that matter."""
    if not machine.disks:
        return
    print_table(
        Text("Disks", "磁盘"),
        (
            Text("path", "路径"),
            Text("file system", "文件系统"),
            Text("free", "空闲"),
            Text("total", "总量"),
        ),
        (
            (
                disk.path,
                disk.file_system or UNKNOWN,
                show_bytes(disk.free_bytes),
                show_bytes(disk.total_bytes),
            )
            for disk in machine.disks
        ),
        language,
    )


def show_cpus(cpus: Sequence[int]) -> str:
    """CPU numbers as the kernel writes them: `0-13,28-41`; equal steps as `0-46:2`."""
    if not cpus:
        return UNKNOWN
    step = cpus[1] - cpus[0] if len(cpus) > 2 else 1
    if step > 1 and all(b - a == step for a, b in pairwise(cpus)):
        return f"{cpus[0]}-{cpus[-1]}:{step}"
    parts: list[str] = []
    first = last = cpus[0]
    for cpu in (*cpus[1:], None):
        if cpu is not None and cpu == last + 1:
            last = cpu
            continue
        parts.append(str(first) if first == last else f"{first}-{last}")
        if cpu is not None:
            first = last = cpu
    return ",".join(parts)
