"""Settings of the kernel and the C library that cost speed, or take memory away."""

from collections.abc import Collection, Iterator

from workhorse.doctor.opinion import Opinion, finding, is_rpm_based, on_cpu_alone
from workhorse.knowledge.health import threshold
from workhorse.plan.pages import HUGE_PAGES_NEED_GLIBC, glibc_at_least
from workhorse.records import Finding, Machine
from workhorse.text import Text
from workhorse.units import show_bytes, show_share

# Decode with weights in huge pages is 1.13 to 1.30 times as fast (measured on CPUs, 2026-11): of
# what could be, the least of that is lost without them.
_HUGE_PAGES_SHARE = 0.12
# The governors that follow the load slowly, or not at all. `powersave` is one of them unless the
# driver offers nothing but it and `performance`: then it is intel_pstate's own, which follows.
_SLOW_GOVERNORS = {"ondemand", "conservative", "powersave"}
_PSTATE_GOVERNORS = {"performance", "powersave"}


def judge_kernel(machine: Machine) -> Opinion:
    """Governor, NUMA balancing, huge pages, overcommit, locked memory, libgomp."""
    findings = (
        *balancing(machine),
        *reclaim(machine),
        *overcommit(machine),
        *governors(machine),
        *transparent_pages(machine),
        *reserved_pages(machine),
        *locked_memory(machine),
        *libgomp(machine),
    )
    settings, unchecked = machine.settings, []
    if machine.memory.thp is None:
        unchecked.append(
            Text("Transparent huge pages: the mode is not readable.", "读不到透明大页的模式。")
        )
    if not settings.governors:
        unchecked.append(
            Text(
                "The CPU governor: not shown here (usual in virtual machines).",
                "CPU 调速器：此处不可见（虚拟机中常见）。",
            )
        )
    found = {one.code for one in findings}
    return Opinion(findings, good_kernel(machine, found), tuple(unchecked))


def several_nodes(machine: Machine) -> bool:
    """True when memory lies on more than one node; one whose memory is not told has some."""
    return sum(node.memory_total_bytes != 0 for node in machine.nodes) > 1


def balancing(machine: Machine) -> Iterator[Finding]:
    """The kernel moves pages between nodes while models are read."""
    if not machine.settings.numa_balancing or not several_nodes(machine):
        return
    nodes = len(machine.nodes)
    yield finding(
        "kernel.numa-balancing",
        Text(
            f"NUMA balancing is on, with {nodes} nodes.",
            f"NUMA 自动均衡已开启，共 {nodes} 个节点。",
        ),
        evidence=("kernel.numa_balancing = 1",),
    )


def reclaim(machine: Machine) -> Iterator[Finding]:
    """A full node drops cached files before it takes the other's free memory."""
    mode = machine.settings.zone_reclaim
    if not mode or not several_nodes(machine):
        return
    yield finding(
        "kernel.zone-reclaim",
        Text(f"vm.zone_reclaim_mode is {mode}.", f"vm.zone_reclaim_mode 为 {mode}。"),
        evidence=(f"vm.zone_reclaim_mode = {mode}",),
    )


def overcommit(machine: Machine) -> Iterator[Finding]:
    """The kernel refuses memory that is merely reserved."""
    if machine.settings.overcommit != 2:
        return
    yield finding(
        "kernel.overcommit-strict",
        Text("vm.overcommit_memory is 2 (strict).", "vm.overcommit_memory 为 2（严格）。"),
        evidence=("vm.overcommit_memory = 2",),
    )


def governors(machine: Machine) -> Iterator[Finding]:
    """CPU clocks that do not follow the work, or follow it late."""
    settings = machine.settings
    slow = sorted(_SLOW_GOVERNORS & set(settings.governors))
    following = "schedutil" in settings.governors
    if not slow and not following:
        return
    offered = set(settings.governors_available)
    own_powersave = slow == ["powersave"] and offered == _PSTATE_GOVERNORS
    # What drives the clocks is not known without the list: its powersave may be either kind.
    unsure = slow == ["powersave"] and not offered
    shown = ", ".join(settings.governors)
    yield finding(
        "kernel.governor-saves"
        if own_powersave or (following and not slow)
        else "kernel.governor-slow",
        Text(f"The CPU governor is {shown}.", f"CPU 调速器为 {shown}。"),
        evidence=(f"scaling_governor: {shown}", f"available: {' '.join(sorted(offered)) or '?'}"),
        level="note" if unsure else None,
        sure="possible" if unsure else None,
    )


def transparent_pages(machine: Machine) -> Iterator[Finding]:
    """Weights that have to lie in small pages."""
    thp, glibc = machine.memory.thp, machine.system.glibc
    lost = on_cpu_alone(machine, _HUGE_PAGES_SHARE)
    if thp == "never":
        yield finding(
            "kernel.thp-never",
            Text("Transparent huge pages are off.", "透明大页已关闭。"),
            evidence=("transparent_hugepage/enabled: never",),
            share_lost=lost,
            # Weights on a card are in no page of the CPU's.
            level=None if lost is not None else "note",
        )
    elif thp == "madvise" and glibc and not glibc_at_least(glibc, HUGE_PAGES_NEED_GLIBC):
        yield finding(
            "kernel.thp-unasked",
            Text(
                f"Huge pages are given on request, and glibc {glibc} does not ask.",
                f"透明大页需主动申请，而 glibc {glibc} 不会申请。",
            ),
            evidence=("transparent_hugepage/enabled: madvise", f"glibc {glibc}"),
            share_lost=lost,
            level="warning" if lost is not None else None,
        )


def reserved_pages(machine: Machine) -> Iterator[Finding]:
    """Memory that is set aside as hugetlbfs pages and lies idle, or may be."""
    memory, settings = machine.memory, machine.settings
    size, total = memory.huge_page_bytes, memory.total_bytes
    if not size or not total:
        return
    idle = size * (memory.huge_pages_free or 0)
    if idle >= total * threshold("huge_pages_share"):
        yield finding(
            "kernel.huge-pages-idle",
            Text(
                f"{show_bytes(idle)} ({show_share(idle / total)} of the memory) are reserved as "
                "huge pages and lie idle.",
                f"{show_bytes(idle)}（占内存 {show_share(idle / total)}）被预留为大页且闲置。",
            ),
            evidence=(
                f"HugePages_Total {settings.huge_pages}, HugePages_Free {memory.huge_pages_free}, "
                f"Hugepagesize {size // 1024} kB",
            ),
        )
    extra = settings.huge_pages_overcommit
    if extra and extra * size > total:
        yield finding(
            "kernel.huge-pages-overcommit",
            Text(
                f"Up to {show_bytes(extra * size)} may become huge pages; the machine has "
                f"{show_bytes(total)}.",
                f"最多可有 {show_bytes(extra * size)} 变为大页，而内存仅 {show_bytes(total)}。",
            ),
            evidence=(f"vm.nr_overcommit_hugepages = {extra}",),
        )


def locked_memory(machine: Machine) -> Iterator[Finding]:
    """A limit on locked memory that fails engines which lock their weights."""
    limit = machine.memory.memlock_bytes
    if limit is None or limit >= threshold("memlock_small_bytes"):
        return
    if machine.memory.swap_total_bytes == 0 and len(machine.gpus) < 2:
        return  # nothing can be swapped out, and no NCCL between cards needs locked buffers
    yield finding(
        "kernel.memlock-small",
        Text(
            f"This user may lock {show_bytes(limit)} of memory.",
            f"当前用户最多可锁定 {show_bytes(limit)} 内存。",
        ),
        evidence=(f"Max locked memory {limit} bytes",),
    )


def libgomp(machine: Machine) -> Iterator[Finding]:
    """The OpenMP run time that CPU engines need is missing."""
    if machine.system.libgomp is not False:
        return
    yield finding(
        "system.no-libgomp",
        Text("libgomp.so.1 is not installed.", "未安装 libgomp.so.1。"),
        evidence=("dlopen libgomp.so.1: not found",),
        rpm=is_rpm_based(machine),
    )


def good_kernel(machine: Machine, found: Collection[str]) -> Text | None:
    """The settings in a line, for a reader whose settings are well; not those that were `found`."""
    thp = machine.memory.thp if "kernel.thp-never" not in found else None
    governors = () if "kernel.governor-slow" in found else machine.settings.governors or ()
    told = [
        *([f"THP {thp}"] if thp else []),
        *([f"governor {', '.join(governors)}"] if governors else []),
    ]
    told_zh = [
        *([f"透明大页 {thp}"] if thp else []),
        *([f"调速器 {', '.join(governors)}"] if governors else []),
    ]
    if not told:
        return None
    return Text(f"Kernel settings: {', '.join(told)}.", f"内核设置：{'，'.join(told_zh)}。")
