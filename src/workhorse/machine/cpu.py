"""CPUs: which are online, which share a physical core, what they can execute."""

import re

from workhorse.knowledge.cpus import cpu_line, memory_rate_mt_s
from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import cpu_list, fields, number, size_bytes, words
from workhorse.records import Core, Cpu, NumaNode
from workhorse.text import Text

CPU_ROOT = "sys/devices/system/cpu"
_FLAGS_MAX = 2048
_SOCKETS_MAX = 4096
# Family and model have at most 12 and 8 bits (CPUID leaf 1, Intel SDM volume 2; read 2026-11).
_CPUID_MAX = 0xFFF


def online_cpus(files: HostFiles) -> tuple[int, ...]:
    """The logical CPUs that are online; none when no file tells.

    From sysfs, else from /proc/cpuinfo, else from /proc/stat: the last two are there in
    containers that hide /sys.
    """
    cpus = cpu_list(files.text(f"{CPU_ROOT}/online"))
    if cpus:
        return cpus
    cpus = tuple(sorted(_cpuinfo_blocks(files)))
    if cpus:
        return cpus
    found = re.findall(r"^cpu(\d{1,4}) ", files.text("proc/stat") or "", re.MULTILINE | re.ASCII)
    return cpu_list(",".join(found)) or ()


def read_cpu(
    files: HostFiles,
    cpus: tuple[int, ...],
    nodes: tuple[NumaNode, ...],
    architecture: str | None,
) -> tuple[Cpu, tuple[Text, ...]]:
    """The processors, with one `Core` for each physical core, and what could not be read."""
    blocks = _cpuinfo_blocks(files)
    # ARM's cpuinfo may put the fields common to all CPUs after the last one.
    common = fields(files.text("proc/cpuinfo"))
    first = next(iter(blocks.values()), {})
    fact = {**common, **first}
    flags = _flags(fact)
    vendor = words(fact.get("vendor_id") or fact.get("CPU implementer"))
    cores, split_known = _cores(files, cpus, nodes, blocks)
    l2_bytes, l3_bytes = _caches(files, cpus)
    if l3_bytes is None and vendor == "GenuineIntel":
        # Intel's `cache size` is the last level's, AMD's is the second level's.
        l3_bytes = size_bytes(fact.get("cache size"))
    max_khz = number(
        files.text(f"{CPU_ROOT}/cpu{cpus[0]}/cpufreq/cpuinfo_max_freq") if cpus else None
    )
    name = words(fact.get("model name"))
    family = number(fact.get("cpu family"), high=_CPUID_MAX)
    model = number(fact.get("model"), high=_CPUID_MAX)
    # A virtual machine has a CPU's name and not its board: it does not see the channels.
    line = None if "hypervisor" in flags else cpu_line(vendor, family, model, name)
    cpu = Cpu(
        architecture=architecture or _guess_architecture(fact, flags),
        vendor=vendor,
        name=name,
        flags=flags,
        cores=cores,
        l2_bytes=l2_bytes,
        l3_bytes=l3_bytes,
        max_mhz=None if not max_khz else max_khz / 1000,
        family=family,
        model=model,
        memory_channels=line.channels if line else None,
        memory_rate_max_mt_s=memory_rate_mt_s(line, name) if line and name else None,
    )
    return cpu, _doubts(cpus, split_known=split_known, flags=flags)


def _doubts(
    cpus: tuple[int, ...], *, split_known: bool, flags: tuple[str, ...]
) -> tuple[Text, ...]:
    doubts: list[Text] = []
    if not cpus:
        doubts.append(
            Text(
                "No file says which CPUs are online: the processors are unknown.",
                "没有文件说明哪些 CPU 在线：处理器未知。",
            )
        )
    elif not split_known:
        doubts.append(
            Text(
                "Nothing says which CPUs share a physical core: each CPU is taken for a core of"
                " its own.",
                "无法得知哪些逻辑 CPU 共用一个物理核心：暂且把每个逻辑 CPU 当作一个核心。",
            )
        )
    if not flags:
        doubts.append(
            Text(
                "/proc/cpuinfo names no instruction sets: which engine builds run here is unknown.",
                "/proc/cpuinfo 中没有指令集信息：无法判断哪些引擎版本能在此运行。",
            )
        )
    return tuple(doubts)


def _cpuinfo_blocks(files: HostFiles) -> dict[int, dict[str, str]]:
    """The fields of each `processor` in /proc/cpuinfo."""
    blocks: dict[int, dict[str, str]] = {}
    for block in (files.text("proc/cpuinfo") or "").split("\n\n"):
        values = fields(block)
        # The number's bound is the one of cpu_list, which also refuses lists.
        cpu = cpu_list(values.get("processor"))
        if cpu is not None and len(cpu) == 1:
            blocks.setdefault(cpu[0], values)
    return blocks


def _flags(fact: dict[str, str]) -> tuple[str, ...]:
    names = (fact.get("flags") or fact.get("Features") or "").split()[:_FLAGS_MAX]
    return tuple(sorted({n for n in names if re.fullmatch(r"[a-zA-Z0-9_.]{1,40}", n)}))


def _guess_architecture(fact: dict[str, str], flags: tuple[str, ...]) -> str:
    """What `uname -m` would most likely say, for a captured tree that does not state it."""
    if "CPU implementer" in fact:
        return "aarch64"
    return "x86_64" if "lm" in flags else "unknown"


def _cores(
    files: HostFiles,
    cpus: tuple[int, ...],
    nodes: tuple[NumaNode, ...],
    blocks: dict[int, dict[str, str]],
) -> tuple[tuple[Core, ...], bool]:
    """The physical cores, and whether anything told them from threads.

    Each CPU lands in exactly one core, whatever the files claim.
    """
    node_of = {cpu: node.index for node in nodes for cpu in node.cpus}
    online = set(cpus)
    taken: set[int] = set()
    cores: list[Core] = []
    known = True
    by_ids: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        ids = _ids_of(blocks.get(cpu, {}))
        if ids is not None:
            by_ids.setdefault(ids, []).append(cpu)
    for cpu in cpus:
        if cpu in taken:
            continue
        topology = f"{CPU_ROOT}/cpu{cpu}/topology"
        # The old name, thread_siblings_list, means the same and is there before Linux 5.1.
        siblings = cpu_list(files.text(f"{topology}/core_cpus_list")) or cpu_list(
            files.text(f"{topology}/thread_siblings_list")
        )
        ids = _ids_of(blocks.get(cpu, {}))
        if siblings is None and ids is not None:
            siblings = tuple(by_ids[ids])
        known = known and siblings is not None
        members = ({cpu} | (set(siblings or ()) & online)) - taken
        taken |= members
        socket = number(files.text(f"{topology}/physical_package_id"), high=_SOCKETS_MAX)
        core = number(files.text(f"{topology}/core_id"), high=2**31)
        cores.append(
            Core(
                socket=socket if socket is not None else ids[0] if ids else 0,
                core=core if core is not None else ids[1] if ids else len(cores),
                node=node_of.get(cpu, 0),
                cpus=tuple(sorted(members)),
            )
        )
    return tuple(cores), known


def _ids_of(block: dict[str, str]) -> tuple[int, int] | None:
    """Socket and core id of one CPU from /proc/cpuinfo."""
    socket = number(block.get("physical id"), high=_SOCKETS_MAX)
    core = number(block.get("core id"), high=2**31)
    return None if socket is None or core is None else (socket, core)


def _caches(files: HostFiles, cpus: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Sizes of one second-level and one third-level cache of the first CPU."""
    sizes: dict[int, int | None] = {}
    if cpus:
        root = f"{CPU_ROOT}/cpu{cpus[0]}/cache"
        for name in files.names(root)[:32]:
            level = number(files.text(f"{root}/{name}/level"), high=9)
            kind = (files.text(f"{root}/{name}/type") or "").strip()
            if level is not None and kind in ("Unified", "Data"):
                sizes[level] = size_bytes(files.text(f"{root}/{name}/size")) or None
    return sizes.get(2), sizes.get(3)
