"""A plan and a machine as the dashboard tells them: labels and words beside every figure. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.plan.memory import device_bytes
from workhorse.plan.words import BASES, DEVICES, ITEMS, PARTS, SETTINGS
from workhorse.records import (
    BudgetLine,
    Estimate,
    Finding,
    Machine,
    Plan,
    Rejected,
    StreamSpeed,
)
from workhorse.text import Text, same
from workhorse.units import show_bandwidth, show_bytes

RAM = "RAM"


@dataclass(frozen=True, slots=True)
class Setting:
    """One decision with its reason."""

    label: Text
    value: str
    because: Text


@dataclass(frozen=True, slots=True)
class BudgetItem:
    """One item of a device's memory budget."""

    label: Text
    n_bytes: int
    basis: Text
    source: Text


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """What a plan takes of one device, and what the device holds."""

    name: Text
    planned_bytes: int
    holds_bytes: int | None
    items: tuple[BudgetItem, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate with its basis in words."""

    value: float
    low: float
    high: float
    basis: Text
    source: Text


@dataclass(frozen=True, slots=True)
class PlanTold:
    """What runs and why."""

    model_name: str
    engine: str
    slots: int
    context_tokens: int
    settings: tuple[Setting, ...]
    rejected: tuple[Rejected, ...]
    devices: tuple[DeviceBudget, ...]
    decode_tokens_per_s: Figure | None
    ceiling_tokens_per_s: Figure | None
    prefill_tokens_per_s: Figure | None
    load_s: Figure | None
    streams: tuple[StreamSpeed, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact of the machine."""

    label: Text
    value: Text


def tell_plan(plan: Plan, machine: Machine | None) -> PlanTold:
    """The plan in words; the machine says how much each device holds."""
    forecast = plan.forecast
    return PlanTold(
        plan.model_name,
        plan.engine.version,
        plan.slots,
        plan.context_tokens,
        tuple(
            Setting(SETTINGS.get(r.setting, same(r.setting)), r.value, r.because)
            for r in plan.reasons
        ),
        plan.rejected,
        tuple(
            _device_budget(device, plan.budget, machine)
            for device in dict.fromkeys(line.device for line in plan.budget)
        ),
        _figure(forecast.decode_tokens_per_s),
        _figure(forecast.ceiling_tokens_per_s),
        _figure(forecast.prefill_tokens_per_s),
        _figure(forecast.load_s),
        forecast.streams,
        plan.verdict.findings,
    )


def _figure(estimate: Estimate | None) -> Figure | None:
    if estimate is None:
        return None
    basis = BASES[estimate.basis]
    return Figure(estimate.value, estimate.low, estimate.high, basis, estimate.source)


def _device_budget(
    device: str, budget: Sequence[BudgetLine], machine: Machine | None
) -> DeviceBudget:
    lines = [line for line in budget if line.device == device]
    items = tuple(
        BudgetItem(_item_label(line), line.n_bytes, BASES[line.basis], line.source)
        for line in sorted(lines, key=lambda line: -line.n_bytes)
    )
    name = DEVICES.get(device, same(device))
    return DeviceBudget(name, device_bytes(lines, device), _holds(device, machine), items)


def _item_label(line: BudgetLine) -> Text:
    item = ITEMS[line.item]
    if line.part is None:
        return item
    part = PARTS[line.part]
    return Text(f"{item.en}: {part.en}", f"{item.zh}：{part.zh}")


def _holds(device: str, machine: Machine | None) -> int | None:
    if machine is None:
        return None
    if device == RAM:
        limits = (machine.memory.total_bytes, machine.limits.memory_bytes)
        return min((limit for limit in limits if limit is not None), default=None)
    index = device.removeprefix("GPU ")
    return next((g.memory_total_bytes for g in machine.gpus if str(g.index) == index), None)


def tell_machine(machine: Machine) -> tuple[Fact, ...]:
    """The machine in a few lines; what is not known is left out."""
    cpu, memory, system = machine.cpu, machine.memory, machine.system
    sockets = len({core.socket for core in cpu.cores})
    threads = sum(len(core.cpus) for core in cpu.cores)
    measured = max((b.bytes_per_s for b in memory.bandwidths), default=None)
    speed_en = "" if measured is None else f", {show_bandwidth(measured)} measured"
    speed_zh = "" if measured is None else f"，实测 {show_bandwidth(measured)}"
    facts = [
        Fact(Text("processor", "处理器"), same(_times(sockets, cpu.name or cpu.architecture))),
        Fact(
            Text("cores", "核心"),
            Text(
                f"{len(cpu.cores)} cores, {threads} threads, {_nodes(len(machine.nodes)).en}",
                f"{len(cpu.cores)} 核，{threads} 线程，{_nodes(len(machine.nodes)).zh}",
            ),
        ),
        Fact(
            DEVICES[RAM],
            Text(
                show_bytes(memory.total_bytes) + speed_en, show_bytes(memory.total_bytes) + speed_zh
            ),
        ),
    ]
    for gpu in machine.gpus:
        size = show_bytes(gpu.memory_total_bytes)
        facts.append(Fact(same(f"GPU {gpu.index}"), same(f"{gpu.name}, {size}")))
    for label, value in (
        (Text("driver", "驱动"), machine.driver and machine.driver.version),
        (Text("system", "系统"), system.distribution),
        (Text("kernel", "内核"), system.kernel),
    ):
        if value:
            facts.append(Fact(label, same(value)))
    return tuple(facts)


def _times(count: int, name: str) -> str:
    return f"{count} × {name}" if count > 1 else name


def _nodes(count: int) -> Text:
    word = "node" if count == 1 else "nodes"
    return Text(f"{count} NUMA {word}", f"{count} 个 NUMA 节点")
