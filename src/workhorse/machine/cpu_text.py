"""The kernel's own CPU, NUMA and memory files, made from what lscpu, numactl and free print. Pure.

Somebody sends the output of commands and no /sys. Written as the files that the kernel would
have, it goes through the same readers as every other machine.
"""

import re
from unicodedata import east_asian_width

from workhorse.machine.kernel_text import CPUS_MAX, cpu_list, fields, number, size_bytes

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_NODES_MAX = 1024
_WRAP_INDENT = 12  # of what lscpu continues; its labels are longer
_THREADS_MAX = 8  # of a core: POWER has 8, x86 two
# lscpu's labels in a Chinese locale (outputs published from Ubuntu 16.04 to 24.04 and openEuler
# 22.03; read 2026-11).
_CHINESE = {
    "架构": "Architecture", "在线 CPU 列表": "On-line CPU(s) list", "CPU": "CPU(s)",
    "每个核的线程数": "Thread(s) per core", "每个座的核数": "Core(s) per socket",
    "座": "Socket(s)", "厂商 ID": "Vendor ID", "型号名称": "Model name", "CPU 系列": "CPU family",
    "型号": "Model", "CPU 最大 MHz": "CPU max MHz", "标记": "Flags", "L2 缓存": "L2 cache",
    "L3 缓存": "L3 cache", "超管理器厂商": "Hypervisor vendor",
}  # fmt: skip
# free's, of procps 3.3 and later.
_CHINESE_FREE = {
    "总计": "total", "已用": "used", "空闲": "free", "可用": "available", "内存": "Mem",
    "交换": "Swap",
}  # fmt: skip


def lscpu_facts(text: str | None) -> dict[str, str]:
    """Label and value of each line of `lscpu`, the labels in English."""
    facts: dict[str, str] = {}
    for label, value in fields(_unwrapped((text or "").replace("：", ": "))).items():
        node = re.fullmatch(r"NUMA (?:node|节点) ?(\d{1,4}) CPU(?:\(s\))?", label)
        facts.setdefault(
            f"NUMA node{node[1]} CPU(s)" if node else _CHINESE.get(label, label), value
        )
    return facts


def _unwrapped(text: str) -> str:
    """Long values in one line each: to a terminal lscpu cuts them at its width, words and all."""
    groups: list[list[str]] = []
    for line in text.splitlines():
        if groups and line.startswith(" " * _WRAP_INDENT) and ":" not in line:
            groups[-1].append(line.rstrip())
        else:
            groups.append([line.rstrip()])
    lines: list[str] = []
    for first, *rest in groups:
        indent = min((len(line) - len(line.lstrip()) for line in rest), default=0)
        widths = [sum(1 + (east_asian_width(c) in "WF") for c in part) for part in (first, *rest)]
        whole = first
        for width, line in zip(widths, rest, strict=False):
            # A line that ends before the others lost the blank that it ended with.
            whole += (" " if width < max(widths[:-1]) else "") + line[indent:]
        lines.append(whole)
    return "\n".join(lines)


def kernel_files(
    lscpu: str | None = None,
    table: str | None = None,
    numactl: str | None = None,
    free: str | None = None,
    cpuinfo: str | None = None,
) -> dict[str, str]:
    """The files by path, as far as the texts tell: `lscpu`, `lscpu -e` or `-p`, `numactl -H`,
    `free`, and one CPU of /proc/cpuinfo.

    Which CPUs share a core is lscpu's table where there is one, else inferred from the counts.
    """
    facts = lscpu_facts(lscpu)
    rows = _table_rows(table)
    nodes = _numactl_nodes(numactl) or _lscpu_nodes(facts) or _table_nodes(rows)
    listed = tuple(sorted({cpu for cpus in nodes.values() for cpu in cpus}))
    cpus = cpu_list(facts.get("On-line CPU(s) list")) or tuple(sorted(rows)) or listed
    if not cpus:
        cpus = tuple(range(number(facts.get("CPU(s)"), high=CPUS_MAX) or 0))
    files = _memory_files(free, numactl)
    if not cpus:
        return files
    facts = {**_counts(cpuinfo, len(cpus)), **facts}
    files[f"{_CPU}/online"] = _joined(cpus)
    files |= _node_files(nodes, numactl)
    files |= _core_files(_table_cores(rows) or _inferred_cores(facts, cpus, nodes))
    files |= _cache_files(facts, cpus[0])
    files |= _cpuinfo(facts, cpus[0])
    return files


def _counts(cpuinfo: str | None, cpus: int) -> dict[str, str]:
    """Threads of a core and sockets, from what one CPU says of its socket."""
    facts = fields(cpuinfo)
    siblings, cores = number(facts.get("siblings")), number(facts.get("cpu cores"))
    if not siblings or not cores or siblings % cores or cpus % siblings:
        return {}
    return {"Thread(s) per core": str(siblings // cores), "Socket(s)": str(cpus // siblings)}


def inferred(lscpu: str | None, table: str | None) -> bool:
    """Whether the sharing of cores is inferred from counts: lscpu's, with threads, and no table."""
    threads = number(lscpu_facts(lscpu).get("Thread(s) per core"), high=_THREADS_MAX)
    return bool(threads and threads > 1) and not _table_rows(table)


def _numactl_nodes(text: str | None) -> dict[int, tuple[int, ...]]:
    nodes: dict[int, tuple[int, ...]] = {}
    for label, value in fields(text).items():
        named = re.fullmatch(r"node (\d{1,4}) cpus", label)
        if named and int(named[1]) < _NODES_MAX:
            nodes[int(named[1])] = cpu_list(",".join(value.split())) or ()
    return nodes


def _lscpu_nodes(facts: dict[str, str]) -> dict[int, tuple[int, ...]]:
    nodes: dict[int, tuple[int, ...]] = {}
    for label, value in facts.items():
        named = re.fullmatch(r"NUMA node(\d{1,4}) CPU\(s\)", label)
        if named and int(named[1]) < _NODES_MAX:
            nodes[int(named[1])] = cpu_list(value) or ()
    return nodes


def _table_rows(text: str | None) -> dict[int, tuple[int, int, int]]:
    """Socket, core and node of each CPU, from `lscpu -e` (columns) or `lscpu -p` (commas)."""
    rows: dict[int, tuple[int, int, int]] = {}
    columns: list[str] = []
    for line in (text or "").splitlines()[: 2 * CPUS_MAX]:
        words = re.split(r"[,\s]+", line.strip(" #").lower())
        if {"cpu", "core", "socket"} <= set(words):
            columns = words
            continue
        row = dict(zip(columns, words, strict=False))
        cpu = number(row.get("cpu"), high=CPUS_MAX - 1)
        socket, core = number(row.get("socket"), high=4096), number(row.get("core"), high=2**31)
        if cpu is not None and socket is not None and core is not None:
            rows[cpu] = (socket, core, number(row.get("node"), high=_NODES_MAX - 1) or 0)
    return rows


def _table_nodes(rows: dict[int, tuple[int, int, int]]) -> dict[int, tuple[int, ...]]:
    nodes: dict[int, tuple[int, ...]] = {}
    for cpu, (_, _, node) in sorted(rows.items()):
        nodes[node] = (*nodes.get(node, ()), cpu)
    return nodes


def _table_cores(
    rows: dict[int, tuple[int, int, int]],
) -> list[tuple[int, int, tuple[int, ...]]]:
    cores: dict[tuple[int, int], tuple[int, ...]] = {}
    for cpu, (socket, core, _) in sorted(rows.items()):
        cores[socket, core] = (*cores.get((socket, core), ()), cpu)
    return [(socket, core, cpus) for (socket, core), cpus in cores.items()]


def _inferred_cores(
    facts: dict[str, str], cpus: tuple[int, ...], nodes: dict[int, tuple[int, ...]]
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Socket, core number and CPUs of each core; none where lscpu gives no counts.

    Linux numbers the first thread of every core of the machine, then the second ones: two ranges
    a node, or every second number. A node with one unbroken range beside other nodes, and most
    virtual machines, have a core's threads side by side instead.
    """
    threads = number(facts.get("Thread(s) per core"), high=_THREADS_MAX)
    sockets = number(facts.get("Socket(s)"), high=4096)
    if not threads or not sockets:
        return []
    groups = [tuple(own) for _, own in sorted(nodes.items()) if own] or [cpus]
    cores: list[tuple[int, int, tuple[int, ...]]] = []
    for position, own in enumerate(groups):
        count, rest = divmod(len(own), threads)
        if rest:
            return []  # a CPU is offline: the counts do not say which
        unbroken = own[-1] - own[0] + 1 == len(own)
        if unbroken and (len(groups) > 1 or "Hypervisor vendor" in facts):
            members = [own[i * threads : (i + 1) * threads] for i in range(count)]
        else:
            members = [own[i::count] for i in range(count)]
        for core, shared in enumerate(members):
            if len(groups) >= sockets:
                socket = position * sockets // len(groups)
            else:  # several sockets in one node: interleaved by the firmware
                socket = min(core * sockets // count, sockets - 1)
            cores.append((socket, core + position * count, shared))
    return cores


def _core_files(cores: list[tuple[int, int, tuple[int, ...]]]) -> dict[str, str]:
    files: dict[str, str] = {}
    for socket, core, cpus in cores:
        for cpu in cpus:
            topology = f"{_CPU}/cpu{cpu}/topology"
            files[f"{topology}/physical_package_id"] = f"{socket}\n"
            files[f"{topology}/core_id"] = f"{core}\n"
            files[f"{topology}/core_cpus_list"] = _joined(cpus)
    return files


def _node_files(nodes: dict[int, tuple[int, ...]], numactl: str | None) -> dict[str, str]:
    if not nodes:
        return {}
    files = {f"{_NODE}/online": _joined(tuple(sorted(nodes)))}
    facts = fields(numactl)
    for node, cpus in nodes.items():
        files[f"{_NODE}/node{node}/cpulist"] = _joined(cpus)
        lines = [
            f"Node {node} {name}: {mib * 1024} kB\n"
            for name, label in (("MemTotal", "size"), ("MemFree", "free"))
            if (mib := _mib(facts, node, label)) is not None
        ]
        if lines:
            files[f"{_NODE}/node{node}/meminfo"] = "".join(lines)
        # The row of the distances' table: `  0:  10  21`.
        row = facts.get(str(node))
        if row:
            files[f"{_NODE}/node{node}/distance"] = f"{row}\n"
    return files


def _mib(facts: dict[str, str], node: int, label: str) -> int | None:
    """numactl counts in 2**20 bytes and writes MB."""
    return number(facts.get(f"node {node} {label}", "").removesuffix("MB"), high=2**33)


def _memory_files(free: str | None, numactl: str | None) -> dict[str, str]:
    """/proc/meminfo: from `free`, else the sums of numactl's nodes."""
    free = (free or "").replace("：", ":")
    for chinese, english in _CHINESE_FREE.items():
        free = free.replace(chinese, english)
    facts = fields(free)
    header = free.splitlines()
    names = next((line.split() for line in header if {"total", "used"} <= set(line.split())), [])
    memory = dict(zip(names, facts.get("Mem", "").split(), strict=False))
    swap = dict(zip(names, facts.get("Swap", "").split(), strict=False))
    unit_bytes = _unit_bytes(memory.get("total"))
    sizes = {
        "MemTotal": _free_bytes(memory.get("total"), unit_bytes),
        "MemFree": _free_bytes(memory.get("free"), unit_bytes),
        "MemAvailable": _free_bytes(memory.get("available"), unit_bytes),
        "SwapTotal": _free_bytes(swap.get("total"), unit_bytes),
        "SwapFree": _free_bytes(swap.get("free"), unit_bytes),
    }
    if sizes["MemTotal"] is None:
        nodes = fields(numactl)
        for name, label in (("MemTotal", "size"), ("MemFree", "free")):
            known = [
                mib
                for node in list(_numactl_nodes(numactl))
                if (mib := _mib(nodes, node, label)) is not None
            ]
            sizes[name] = sum(known) * 1024**2 if known else None
    lines = [f"{name}: {size // 1024} kB\n" for name, size in sizes.items() if size is not None]
    return {"proc/meminfo": "".join(lines)} if lines else {}


def _unit_bytes(total: str | None) -> int:
    """Bytes of one of `free`'s figures, which carry no unit (-b, -k, -m, -g): by their size."""
    value = number(total)
    if value is None or value >= 10**10:
        return 1
    return 1024 if value >= 3 * 10**6 else 1024**2 if value >= 3000 else 1024**3


def _free_bytes(text: str | None, unit_bytes: int) -> int | None:
    value = number(text)
    if value is not None:
        return value * unit_bytes
    match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([BKMGT])i?", text or "", re.ASCII)
    return round(float(match[1]) * 1024 ** "BKMGT".index(match[2])) if match else None


def _cache_files(facts: dict[str, str], cpu: int) -> dict[str, str]:
    files: dict[str, str] = {}
    for level in (2, 3):
        # In its sections, from 2.37 on, a terminal is shown `L2:`.
        size = _instance_bytes(facts.get(f"L{level} cache") or facts.get(f"L{level}"))
        if size:
            root = f"{_CPU}/cpu{cpu}/cache/index{level}"
            files[f"{root}/level"] = f"{level}\n"
            files[f"{root}/type"] = "Unified\n"
            files[f"{root}/size"] = f"{size // 1024}K\n"
    return files


def _instance_bytes(text: str | None) -> int | None:
    """One cache's size: lscpu 2.37 and later give the sum, `32 MiB (16 instances)`."""
    match = re.fullmatch(
        r"([\d.]{1,12}) ?([KMG])(?:i?B)?(?: \((\d{1,5}) instances?\))?", text or "", re.ASCII
    )
    if match is None:
        return None
    whole, _, part = match[1].partition(".")
    size = size_bytes(f"{whole}{match[2]}")
    if size is None:
        return None
    unit = 1024 ** (1 + "KMG".index(match[2]))
    size += round(float(f"0.{part}") * unit) if part.isdigit() else 0
    return size // max(1, int(match[3] or 1))


def _cpuinfo(facts: dict[str, str], cpu: int) -> dict[str, str]:
    """/proc/cpuinfo with one block: the facts that all CPUs share."""
    names = {
        "vendor_id": "Vendor ID", "cpu family": "CPU family", "model": "Model",
        "model name": "Model name", "flags": "Flags",
    }  # fmt: skip
    lines = [f"{name}\t: {facts[label]}\n" for name, label in names.items() if label in facts]
    files = {"proc/cpuinfo": f"processor\t: {cpu}\n{''.join(lines)}\n"} if lines else {}
    mhz = re.fullmatch(r"(\d{1,5})(?:[.,]\d+)?", facts.get("CPU max MHz", ""))
    if mhz:
        files[f"{_CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = f"{int(mhz[1]) * 1000}\n"
    return files


def _joined(cpus: tuple[int, ...]) -> str:
    return ",".join(map(str, cpus)) + "\n"
