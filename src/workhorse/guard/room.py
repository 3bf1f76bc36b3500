"""Whether there is room: the queue, main memory, the disk of the data folder. Pure."""

from collections.abc import Iterator

from workhorse.guard.sign import Sign, View, alarm_finding
from workhorse.knowledge.alarms import alarm_limit
from workhorse.records import EngineReading
from workhorse.text import Text
from workhorse.units import show_bytes, show_share


def look_queue(engine: EngineReading) -> Iterator[Sign]:
    """The gateway's queue for one engine."""
    limit = engine.queue_limit
    if not limit:
        return
    waiting, slots = engine.waiting, engine.slots
    yield Sign(
        "live.queue-full",
        engine.model_name,
        waiting >= limit,
        lambda: alarm_finding(
            "live.queue-full",
            Text(
                f"The queue of {engine.model_name} stays full: {waiting} wait for {slots} slots.",
                f"{engine.model_name} 的队列持续已满：{waiting} 个请求等待 {slots} 个槽位。",
            ),
            evidence=(f"waiting {waiting} of {limit}, generating {engine.generating}",),
        ),
    )


def look(view: View) -> Iterator[Sign]:
    """Main memory and disk."""
    now = view.now
    total, available = now.memory_total_bytes, now.memory_available_bytes
    if total and available is not None:
        share, left = available / total, show_bytes(available)
        yield Sign(
            "live.memory-low",
            "RAM",
            share < alarm_limit("memory_available_share"),
            lambda: alarm_finding(
                "live.memory-low",
                Text(
                    f"Only {left} of {show_bytes(total)} of memory are left ({show_share(share)}).",
                    f"{show_bytes(total)} 内存仅剩 {left}（{show_share(share)}）。",
                ),
                evidence=(f"available {available} of {total}, swap in use {now.swap_used_bytes}",),
            ),
        )
    free = now.disk_free_bytes
    if free is not None:
        yield Sign(
            "live.disk-full",
            "disk",
            free < view.limits.disk_free_bytes,
            lambda: alarm_finding(
                "live.disk-full",
                Text(
                    f"The disk of the data folder has {show_bytes(free)} free.",
                    f"数据目录所在磁盘仅剩 {show_bytes(free)}。",
                ),
                evidence=(f"free {free} of {now.disk_total_bytes}",),
            ),
        )
