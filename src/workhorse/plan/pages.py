"""Weights in huge pages, and bounded spinning: two settings that default set-ups leave unused."""

from dataclasses import dataclass
from typing import Literal

from workhorse.records import EngineBuild, Machine, Reason, Rejected
from workhorse.text import Text

# glibc.malloc.hugetlb came with 2.35 (its NEWS file, February 2022).
HUGE_PAGES_NEED_GLIBC = (2, 35)


@dataclass(frozen=True, slots=True)
class PageChoice:
    """How weights are loaded: into huge pages when the host allows it."""

    load_mode: Literal["none", "mmap", "mlock"]
    huge_pages: bool
    reason: Reason
    rejected: tuple[Rejected, ...] = ()


def glibc_at_least(version: str | None, wanted: tuple[int, int]) -> bool:
    """True when glibc `version` (such as `2.36`) is known and not older than `wanted`."""
    if version is None:
        return False
    parts = version.split(".")
    try:
        return (int(parts[0]), int(parts[1])) >= wanted
    except (ValueError, IndexError):
        return False


def choose_pages(machine: Machine) -> PageChoice:
    """Huge pages when THP and glibc allow them, else the same load mode with small pages.

    Load mode `none` in both cases: memory-mapped weights stay in small pages, and are resident
    twice where the engine repacks them (measured 2026-11).
    """
    thp, glibc = machine.memory.thp, machine.system.glibc
    # With `always` the kernel gives huge pages unasked; with `madvise` glibc has to ask for them.
    if thp == "always" or (thp == "madvise" and glibc_at_least(glibc, HUGE_PAGES_NEED_GLIBC)):
        asked = (
            Text("", "")
            if thp == "always"
            else Text(f", glibc {glibc} asks", f"，glibc {glibc} 申请")
        )
        because = Text(
            f"THP is `{thp}`{asked.en}: weights go into 2 MiB pages, fewer TLB misses "
            "(decode +13 to +30 % measured on CPUs).",
            f"透明大页为 `{thp}`{asked.zh}：权重放入 2 MiB 大页，"
            "减少 TLB 缺失（CPU 实测解码快 13–30 %）。",
        )
        lost = Rejected(
            "mmap",
            Text(
                "Memory-mapped weights stay in 4 KiB pages and are held twice after repacking.",
                "内存映射的权重只能用 4 KiB 页，重排后还会占两份内存。",
            ),
        )
        return PageChoice("none", True, Reason("pages", "huge", because), (lost,))
    if thp == "never":
        because = Text(
            "THP is off. `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as root "
            "would give decode 13 to 30 % more.",
            "透明大页已关闭。以 root 执行 `echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled` 可让解码快 13–30 %。",
        )
    elif thp is None:
        because = Text("The THP mode is not readable: small pages.", "读不到透明大页模式：用小页。")
    else:
        shown = glibc or Text("unknown", "未知").en
        because = Text(
            f"THP is `madvise` and glibc is {shown}: asking for huge pages needs 2.35 or newer.",
            f"透明大页为 `madvise`，glibc 为 {shown}：申请大页需要 2.35 或更新。",
        )
    return PageChoice("none", False, Reason("pages", "small", because))


def choose_spin(
    build: EngineBuild, machine: Machine, *, all_on_gpu: bool
) -> tuple[Literal["bounded", "default"], Reason]:
    """Bounded spinning wherever CPU threads wait for each other.

    Also on a host that is quiet now: a service runs for months, and one backup job turns an
    unbounded spin from 115 into 1 to 5 tok/s (measured 2026-11), without OpenMP into 0.4.
    """
    if all_on_gpu:
        because = Text(
            "No CPU thread waits for another in the decode path.",
            "解码路径上没有互相等待的 CPU 线程。",
        )
        return "default", Reason("spin", "default", because)
    if build.openmp is False and not build.bounded_wait:
        because = Text(
            "This build's threads wait without giving the core back: one busy program beside it "
            "makes it many times slower. Build it anew with `workhorse engine build`.",
            "该构建的线程等待时不让出核心：旁边只要有一个繁忙程序就会慢很多倍。"
            "请用 `workhorse engine build` 重新构建。",
        )
        return "default", Reason("spin", "default", because)
    busy = machine.busy_cpus
    seen = (
        Text("", "")
        if busy is None or busy < 0.2
        else Text(
            f" Other processes use {busy:.1f} CPUs right now.",
            f"目前其他进程占用 {busy:.1f} 个 CPU。",
        )
    )
    because = Text(
        "Threads that wait give the core back after a short spin: several times faster when "
        f"another process wants the core, at most 10 % slower when none does.{seen.en}",
        "等待的线程短暂自旋后让出核心：有其他进程争用时快数倍，空闲时最多慢 10 %。" + seen.zh,
    )
    return "bounded", Reason("spin", "bounded", because)
