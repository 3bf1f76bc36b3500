"""Tables of what a Machine runs: kernel settings, system, software, disks."""

from workhorse.cli.probe_tables import NEEDS_ROOT, Rows, counted, show_count, show_switch
from workhorse.cli.show import print_table
from workhorse.records import Machine
from workhorse.text import Language, Text, same
from workhorse.units import UNKNOWN, show_bandwidth, show_bytes


def settings_rows(machine: Machine, language: Language) -> Rows:
    """The kernel's settings that decide speed."""
    settings, memory = machine.settings, machine.memory
    others = [g for g in settings.governors_available if g not in settings.governors]
    governor = ", ".join(settings.governors) or UNKNOWN
    if others:
        governor += f" ({', '.join(others)})"
    free = show_count(memory.huge_pages_free)
    huge = f"{free} / {show_count(settings.huge_pages)} × {show_bytes(memory.huge_page_bytes)}"
    return [
        (Text("governor (also there)", "调频策略（另有）"), governor),
        (Text("NUMA balancing", "NUMA 平衡"), show_switch(settings.numa_balancing, language)),
        (Text("transparent huge pages", "透明大页"), memory.thp or UNKNOWN),
        (Text("reserved huge pages, free / all", "预留大页，空闲 / 总数"), huge),
        (
            Text("huge pages on demand, at most", "按需大页上限"),
            show_count(settings.huge_pages_overcommit),
        ),
        (Text("lockable (ulimit -l)", "可锁定（ulimit -l）"), show_bytes(memory.memlock_bytes)),
        (Text("swappiness", "swappiness"), show_count(settings.swappiness)),
        (Text("zone reclaim", "zone_reclaim_mode"), show_count(settings.zone_reclaim)),
        (Text("overcommit", "overcommit_memory"), show_count(settings.overcommit)),
        (Text("address randomisation", "地址随机化"), show_count(settings.aslr)),
    ]


def system_rows(machine: Machine) -> Rows:
    """The operating system and what it runs on."""
    system = machine.system
    there = {None: same(UNKNOWN), True: Text("found", "有"), False: Text("missing", "缺失")}
    acs = {
        None: same(UNKNOWN),
        True: Text("through the root", "绕行根端口"),
        False: Text("direct", "直达"),
    }
    return [
        (Text("board", "主板"), system.board or UNKNOWN),
        (Text("distribution", "发行版"), system.distribution or UNKNOWN),
        (Text("kernel", "内核"), system.kernel or UNKNOWN),
        (Text("virtual machine", "虚拟机"), _around(system.hypervisor)),
        (Text("container", "容器"), _around(system.container)),
        (Text("glibc", "glibc"), system.glibc or UNKNOWN),
        (Text("libgomp.so.1", "libgomp.so.1"), there[system.libgomp]),
        (Text("IOMMU", "IOMMU"), system.iommu or UNKNOWN),
        (Text("traffic between GPUs (ACS)", "GPU 间流量（ACS）"), acs[system.acs_redirect]),
        (Text("kernel log", "内核日志"), show_log(machine)),
    ]


def _around(name: str | None) -> str | Text:
    return UNKNOWN if name is None else name or Text("no", "否")


def show_log(machine: Machine) -> Text:
    """Whether the kernel's log was readable, and how much in it matters."""
    if machine.events is None:
        return NEEDS_ROOT
    times = sum(event.times for event in machine.events)
    if not times:
        return Text("no errors", "无错误")
    return Text(f"{counted(times, 'error')}, see below", f"{times} 条错误，见下")


def print_events(machine: Machine, language: Language) -> None:
    """What the kernel's log says of sick hardware and killed processes."""
    if machine.events:
        print_table(
            Text("Errors in the kernel's log", "内核日志中的错误"),
            (Text("kind", "类别"), Text("times", "次数"), Text("line", "内容")),
            (
                (
                    event.kind + (f" {event.number}" if event.number is not None else ""),
                    str(event.times),
                    event.text,
                )
                for event in machine.events
            ),
            language,
        )


def print_software(machine: Machine, language: Language) -> None:
    """CUDA toolkits and engines, and the GPU code that these hold."""
    software = machine.software
    rows = [("CUDA", kit.version or UNKNOWN, UNKNOWN, kit.path) for kit in software.toolkits]
    for engine in software.engines:
        code = [*(engine.sass or ()), *(engine.ptx or ())]
        unknown = engine.sass is None and engine.ptx is None
        none = Text("none", "无").in_language(language)
        rows.append(
            (
                engine.name,
                engine.version or UNKNOWN,
                UNKNOWN if unknown else " ".join(code) or none,
                engine.path,
            )
        )
    if rows:
        print_table(
            Text("Software that runs models", "运行模型的软件"),
            (
                Text("what", "软件"),
                Text("version", "版本"),
                Text("GPU code", "GPU 代码"),
                Text("path", "路径"),
            ),
            rows,
            language,
        )


def print_disks(machine: Machine, language: Language) -> None:
    """The file systems that matter."""
    if not machine.disks:
        return
    kinds = {
        "network": Text("network", "网络"),
        "memory": Text("memory", "内存"),
    }
    print_table(
        Text("Disks", "磁盘"),
        (
            Text("path", "路径"),
            Text("kind", "类型"),
            Text("free / total", "空闲 / 总量"),
            Text("reading", "读取"),
            Text("how", "测法"),
        ),
        (
            (
                disk.path,
                " ".join(
                    (
                        disk.file_system or UNKNOWN,
                        kinds.get(disk.kind or "", same(disk.kind or "")).in_language(language),
                    )
                ).strip(),
                f"{show_bytes(disk.free_bytes)} / {show_bytes(disk.total_bytes)}",
                show_bandwidth(disk.read_bytes_per_s),
                disk.read_method or UNKNOWN,
            )
            for disk in machine.disks
        ),
        language,
    )
