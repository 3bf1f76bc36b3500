"""Tables of a Machine: processors, memory, limits, kernel, software, disks."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from workhorse.cli.show import console, print_table
from workhorse.records import Bandwidth, Cpu, Machine
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_bandwidth, show_bytes, show_duration, show_share

# What decides which engine builds run; a CPU reports a hundred more.
DECIDING_FLAGS = {
    "avx": "AVX", "f16c": "F16C", "fma": "FMA", "avx2": "AVX2", "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512", "avx512_vnni": "AVX-512 VNNI", "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX", "asimd": "NEON", "asimddp": "dot product", "i8mm": "I8MM", "sve": "SVE",
}  # fmt: skip
FACT = (Text("fact", "项目"), Text("value", "取值"))
UNLIMITED = Text("none", "无限制")
NEEDS_ROOT = Text("not known (reading it needs root)", "未知（读取需要 root）")
NEEDS_DMIDECODE = Text("not known (needs root and dmidecode)", "未知（需要 root 和 dmidecode）")
Rows = list[tuple[Text, str | Text]]


def print_facts(title: Text, rows: Iterable[tuple[Text, str | Text]], language: Language) -> None:
    """One table of names and values; what is not known takes one line together."""
    told = [
        (name.in_language(language), v.in_language(language) if isinstance(v, Text) else v)
        for name, v in rows
    ]
    print_known(title, FACT, [(name, (value,)) for name, value in told], language)


def print_known(
    title: Text,
    head: Sequence[Text],
    rows: Iterable[tuple[str, Sequence[str]]],
    language: Language,
) -> None:
    """A table of names and values, the names of those unknown everywhere in a line below it."""
    rows = list(rows)
    known = [(name, *values) for name, values in rows if any(map(is_known, values))]
    unknown = [name for name, values in rows if not any(map(is_known, values))]
    if known:
        print_table(title, head, known, language)
    if unknown:
        place = "  " if known else title.in_language(language) + ", "
        label = Text("not known: ", "未知：").in_language(language)
        console().print(f"{place}{label}{'; '.join(unknown)}", style="dim", markup=False)


def is_known(value: str) -> bool:
    """Whether a value says anything: `— / — MHz` does not."""
    return re.sub(r"[—\s/×x(),%?+]|MHz|MT/s|of", "", value) != ""


def cpu_rows(machine: Machine) -> Rows:
    """What the processors are."""
    cpu = machine.cpu
    clock = UNKNOWN if cpu.max_mhz is None else f"{cpu.max_mhz / 1000:.2f} GHz"
    busy = UNKNOWN
    if machine.busy_cpus is not None:
        busy = f"{machine.busy_cpus:.1f} ({machine.learned_from['busy_cpus']})"
    flags = [name for flag, name in DECIDING_FLAGS.items() if flag in cpu.flags]
    fastest = show_count(cpu.memory_rate_max_mt_s)
    return [
        (Text("name", "型号"), cpu.name or UNKNOWN),
        (Text("architecture", "架构"), cpu.architecture),
        (Text("cores", "核心"), show_cores(cpu)),
        (Text("instruction sets", "指令集"), ", ".join(flags) or UNKNOWN),
        (
            Text("caches", "缓存"),
            f"L2 {show_bytes(cpu.l2_bytes)}, L3 {show_bytes(cpu.l3_bytes)}",
        ),
        (
            Text("memory channels × fastest memory", "内存通道 × 最快内存"),
            f"{show_count(cpu.memory_channels)} × {fastest} MT/s",
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


def memory_rows(machine: Machine) -> Rows:
    """Sizes, modules, and what they could do against what they do."""
    memory = machine.memory
    swap = f"{show_bytes(memory.swap_free_bytes)} / {show_bytes(memory.swap_total_bytes)}"
    best = max((b.bytes_per_s for b in _whole_machine(machine)), default=None)
    rated = memory.rated_bandwidth_bytes_per_s
    measured = show_bandwidth(best)
    if best and rated:
        measured += f" ({show_share(best / rated)})"
    errors = f"{show_count(memory.ecc_corrected)} / {show_count(memory.ecc_uncorrected)}"
    return [
        (Text("total", "总量"), show_bytes(memory.total_bytes)),
        (Text("available", "可用"), show_bytes(memory.available_bytes)),
        (Text("swap, free / total", "交换区，空闲 / 总量"), swap),
        (Text("modules", "内存条"), show_modules(machine)),
        (Text("channels in use of each socket", "每路启用的通道"), show_channels(machine)),
        (Text("rated bandwidth", "额定带宽"), show_bandwidth(rated)),
        (Text("best measured reading (share of rated)", "实测最高读取（占额定）"), measured),
        (Text("errors, corrected / not", "错误，已纠正 / 未纠正"), errors),
    ]


def _whole_machine(machine: Machine) -> list[Bandwidth]:
    """The measurements that took in every socket; of several nodes none alone does."""
    several = len(machine.nodes) > 1
    return [b for b in machine.memory.bandwidths if not several or b.node is None]


def show_modules(machine: Machine) -> str | Text:
    """The filled slots, equal modules counted together; a virtual machine has none to show."""
    dimms = machine.memory.dimms
    if dimms is None:
        return UNKNOWN if machine.system.hypervisor else NEEDS_DMIDECODE
    filled = sorted(
        (d.size_bytes or 0, d.kind or "", d.configured_mt_s or 0, d.rated_mt_s or 0)
        for d in dimms
        if d.size_bytes
    )
    parts: list[str] = []
    for (size, kind, configured, rated), equal in groupby(filled):
        slower = f"/{rated}" if rated and configured and rated != configured else ""
        at = f" {configured}{slower} MT/s" if configured else ""
        parts.append(f"{len(list(equal))} × {show_bytes(size)} {kind}{at}".replace("  ", " "))
    listed = ", ".join(parts) or "0"
    return Text(
        f"{listed}; {len(filled)} of {len(dimms)} slots filled",
        f"{listed}；{len(dimms)} 个插槽用了 {len(filled)} 个",
    )


def show_channels(machine: Machine) -> str | Text:
    """Such as `4, 2 of 4`: a half-populated board is seen at once."""
    in_use, there = machine.memory.channels_in_use, machine.cpu.memory_channels
    if in_use is None and there is None:
        return UNKNOWN
    used = UNKNOWN if in_use is None else ", ".join(map(str, in_use))
    return Text(f"{used} of {show_count(there)}", f"{used}（共 {show_count(there)}）")


def print_bandwidths(machine: Machine, language: Language) -> None:
    """The measured read bandwidths, each with how it was measured."""
    bandwidths = machine.memory.bandwidths
    if not bandwidths:
        return
    pages = {"small": Text("small", "普通页"), "huge": Text("huge", "大页")}
    everywhere = Text("all", "全部").in_language(language)
    print_table(
        Text("Measured read bandwidth of memory", "内存读带宽（实测）"),
        (
            Text("pages", "内存页"),
            Text("CPUs of node", "CPU 节点"),
            Text("memory of node", "内存节点"),
            Text("bandwidth", "带宽"),
            Text("threads", "线程"),
            Text("how", "测法"),
        ),
        (
            (
                pages[b.pages].in_language(language),
                everywhere if b.node is None else str(b.node),
                "=" if b.memory_nodes is None else show_cpus(b.memory_nodes),
                show_bandwidth(b.bytes_per_s),
                str(b.threads),
                f"{b.method}, {show_duration(b.duration_s)}",
            )
            for b in bandwidths
        ),
        language,
    )


def limit_rows(machine: Machine) -> Rows:
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


def show_count(count: int | None) -> str:
    """A count; `—` when unknown."""
    return UNKNOWN if count is None else str(count)


def show_switch(on: bool | None, language: Language) -> str:
    """`on`, `off`, or `—` when unknown."""
    words = {None: same(UNKNOWN), True: Text("on", "开"), False: Text("off", "关")}
    return words[on].in_language(language)


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
