"""Whether an engine's memory stays where it is fast: swap, page cache, NUMA nodes. Pure."""

from collections.abc import Iterator

from workhorse.guard.sign import READY, Sign, View, alarm_finding
from workhorse.knowledge.alarms import alarm_limit
from workhorse.records import EngineReading, Finding, Plan
from workhorse.text import Text
from workhorse.units import show_bytes, show_share


def look(view: View, engine: EngineReading, plan: Plan) -> Iterator[Sign]:
    """Signs of one ready engine."""
    if engine.state != READY:
        return
    name = engine.model_name
    if engine.swapped_bytes is not None:
        bad = swapped_bytes(engine) > 0
        yield Sign("live.swapped", name, bad, lambda: _swapped_finding(engine))
    rate = faults_per_s(view, engine, plan)
    uncached = uncached_share(engine, plan)
    if rate is not None or uncached is not None:
        bad = (rate or 0.0) >= alarm_limit("major_faults_per_s")
        bad = bad or (uncached or 0.0) >= alarm_limit("uncached_share")
        yield Sign(
            "live.weights-evicted", name, bad, lambda: _evicted_finding(engine, rate, uncached)
        )
    share = wrong_node_share(engine, plan)
    if share is not None:
        bad = share >= alarm_limit("wrong_node_share")
        yield Sign("live.wrong-node", name, bad, lambda: _node_finding(engine, plan, share))


def swapped_bytes(engine: EngineReading) -> int:
    """Bytes of it in the swap, 0 when they are no more than idle pages of any program."""
    swapped, resident = engine.swapped_bytes or 0, engine.resident_bytes or 0
    share = alarm_limit("swapped_share") * (swapped + resident)
    return swapped if swapped >= max(share, alarm_limit("swapped_bytes")) else 0


def faults_per_s(view: View, engine: EngineReading, plan: Plan) -> float | None:
    """Major faults a second since the reading before; None: not known, or meant to be so."""
    before, passed = view.earlier(engine), view.passed_s
    if plan.lazy_tables or before is None or passed is None or before.state != READY:
        return None  # tables that are read by row come from the disk by design
    if engine.major_faults is None or before.major_faults is None:
        return None
    return max(0, engine.major_faults - before.major_faults) / passed


def uncached_share(engine: EngineReading, plan: Plan) -> float | None:
    """Share of mapped weights that is not in memory; None where weights are no mapped file."""
    cached = engine.weights_cached_share
    if plan.load_mode == "none" or plan.gpu_layers or plan.lazy_tables or cached is None:
        return None  # what lies on a card may leave the page cache
    return 1 - cached


def wrong_node_share(engine: EngineReading, plan: Plan) -> float | None:
    """Share of its pages on nodes that the plan does not use."""
    pages, nodes = engine.pages_on_nodes, plan.memory_nodes
    if not pages or nodes is None or not sum(pages):
        return None
    return sum(n for node, n in enumerate(pages) if node not in nodes) / sum(pages)


def _swapped_finding(engine: EngineReading) -> Finding:
    shown = show_bytes(engine.swapped_bytes)
    return alarm_finding(
        "live.swapped",
        Text(
            f"{shown} of {engine.model_name} lie in the swap on disk.",
            f"{engine.model_name} 有 {shown} 被换到磁盘。",
        ),
        evidence=(f"VmSwap {engine.swapped_bytes}, VmRSS {engine.resident_bytes}",),
    )


def _evicted_finding(engine: EngineReading, rate: float | None, uncached: float | None) -> Finding:
    parts, parts_zh, evidence = [], [], []
    if rate is not None:
        parts.append(f"it waits for the disk {rate:.0f} times a second")
        parts_zh.append(f"每秒等待磁盘 {rate:.0f} 次")
        evidence.append(f"major faults {rate:.1f}/s, {engine.major_faults} in all")
    if uncached is not None:
        share = show_share(uncached)
        parts.append(f"{share} of the file is not in memory")
        parts_zh.append(f"文件有 {share} 不在内存中")
        evidence.append(f"mincore: {1 - uncached:.3f} of the file cached")
    return alarm_finding(
        "live.weights-evicted",
        Text(
            f"Weights of {engine.model_name} were taken out of memory: {', '.join(parts)}.",
            f"{engine.model_name} 的权重被移出内存：{'，'.join(parts_zh)}。",
        ),
        evidence=evidence,
    )


def _node_finding(engine: EngineReading, plan: Plan, share: float) -> Finding:
    shown, nodes = show_share(share), ", ".join(map(str, plan.memory_nodes or ()))
    sizes = ", ".join(f"N{i} {show_bytes(n)}" for i, n in enumerate(engine.pages_on_nodes or ()))
    return alarm_finding(
        "live.wrong-node",
        Text(
            f"{shown} of the memory of {engine.model_name} lies outside of NUMA node {nodes}.",
            f"{engine.model_name} 有 {shown} 的内存不在 NUMA 节点 {nodes} 上。",
        ),
        evidence=(f"numa_maps: {sizes}",),
    )
